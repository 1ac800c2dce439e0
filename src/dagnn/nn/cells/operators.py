"""What every cell with weights for each operator checks: `check_operator` at the cell, `check_operators` of bounds."""

import torch
from torch import Tensor

from dagnn.errors import ConfigError, GraphError


def check_operator(operator: Tensor | None, operators: int | None) -> None:
    """Raise ConfigError unless there is an ``operator`` where there are ``operators``, GraphError if out of range."""
    if (operator is None) != (operators is None):
        raise ConfigError(f"operator must be given if and only if operators is, got operators={operators}.")
    # torch.compile and torch.export do not know what a tensor holds; `DagSweep` has asked its graph.
    if operator is not None and len(operator) and not torch.compiler.is_compiling():
        check_operators(int(operator.min()), int(operator.max()), operators)


def check_operators(lowest: int, highest: int, operators: int | None) -> None:
    """Raise GraphError unless operators are in ``0 .. operators - 1``."""
    assert operators is not None
    if lowest < 0 or highest >= operators:
        given = lowest if lowest < 0 else highest
        raise GraphError(
            f"a node has operator {given}, but operators={operators} allows operators 0 .. {operators - 1}: "
            "raise operators, or map unknown ones to one that is kept for them."
        )
