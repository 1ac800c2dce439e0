"""Term graphs, rewritten one neighbourhood at a time: what a step may see, what it may return, and the machine."""

import importlib
from typing import TYPE_CHECKING, Any

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
    from dagnn.rewriting.network import GraphRewriter as GraphRewriter

# Loaded on first use (PEP 562): rules and machines do not wait for torch.
_MODULE_OF = {"GraphRewriter": "dagnn.rewriting.network", "NeighbourhoodFeatures": "dagnn.rewriting.features"}

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
    "Rewritten",
    "RuleRewriter",
    "Signature",
    "Step",
    "Steps",
    "encode_replacement",
    "neighbourhood_nodes",
    "read_neighbourhood",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dagnn.rewriting' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value
