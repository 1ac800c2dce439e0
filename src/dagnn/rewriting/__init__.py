"""Term graphs, rewritten one neighbourhood at a time: what a step may see, what it may return, and the machine."""

# ruff: noqa: E402 - what is missing is named before the first import fails
from typing import TYPE_CHECKING

from dagnn import _loaded_on_first_use
from dagnn.errors import check_installed

check_installed("dagnn.rewriting", "dagnn[rewriting]", "numba", "scipy")

from dagnn.rewriting.machine import Rewriter, RewritingMachine, Rewritten, RuleRewriter, Step, Steps
from dagnn.rewriting.system import (
    LEAVE,
    Label,
    Neighbourhood,
    NeighbourhoodTokens,
    Replacement,
    ReplacementTokens,
    Signature,
    encode_replacement,
    neighbourhood_nodes,
    read_neighbourhood,
)

if TYPE_CHECKING:
    from dagnn.rewriting.features import NeighbourhoodFeatures as NeighbourhoodFeatures
    from dagnn.rewriting.learning import RewritingTask as RewritingTask
    from dagnn.rewriting.learning import Score as Score
    from dagnn.rewriting.learning import decode_term as decode_term
    from dagnn.rewriting.learning import encode_term as encode_term
    from dagnn.rewriting.network import GraphRewriter as GraphRewriter

# Rules and machines do not wait for torch.
__getattr__ = _loaded_on_first_use(
    __name__,
    {
        "dagnn.rewriting.network": "GraphRewriter",
        "dagnn.rewriting.features": "NeighbourhoodFeatures",
        "dagnn.rewriting.learning": "RewritingTask Score decode_term encode_term",
    },
)[0]

__all__ = [
    "LEAVE",
    "GraphRewriter",
    "Label",
    "Neighbourhood",
    "NeighbourhoodFeatures",
    "NeighbourhoodTokens",
    "Replacement",
    "ReplacementTokens",
    "Rewriter",
    "RewritingMachine",
    "RewritingTask",
    "Rewritten",
    "RuleRewriter",
    "Score",
    "Signature",
    "Step",
    "Steps",
    "decode_term",
    "encode_replacement",
    "encode_term",
    "neighbourhood_nodes",
    "read_neighbourhood",
]
