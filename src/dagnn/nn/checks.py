"""Checks of what users give to modules: each raises an error that says what was expected."""

import torch
from torch import Tensor

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.graph import Dag


def check_size(argument: str, value: int, least: int = 1) -> int:
    """``value``, if it is an int of at least ``least``.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{argument} must be a whole number of at least {least}, got {value!r}.")
    return value


def check_dag(dag: object) -> None:
    """Raise DtypeError unless ``dag`` is a `Dag`; a `DagBatch` is refused, as it would be read as one large graph."""
    if not isinstance(dag, Dag):
        raise DtypeError(
            f"dag must be a Dag, got {type(dag).__name__}: build one with Dag(edges) or Dag.from_networkx(graph), "
            "or take batch[i]."
        )


def check_tensor(argument: str, x: object) -> None:
    """Raise DtypeError unless ``x`` is a tensor."""
    if not isinstance(x, Tensor):
        raise DtypeError(f"{argument} must be a tensor, got a {type(x).__name__}: convert it with torch.as_tensor.")


def check_dtype(argument: str, x: Tensor, like: torch.dtype) -> None:
    """Raise DtypeError unless ``x`` is dense and of the dtype ``like``; under autocast any floating dtype passes."""
    if x.layout is not torch.strided:
        raise DtypeError(
            f"{argument} must be dense, got a tensor with the layout {x.layout}: convert it with {argument}.to_dense()."
        )
    if x.dtype != like and not (x.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
        raise DtypeError(
            f"{argument} must be {like}, the dtype of the parameters, got {x.dtype}: "
            f"convert it with {argument}.to({like}), or the module with .to(...)."
        )


def check_rows(argument: str, x: Tensor, rows: int, width: int, like: torch.dtype) -> None:
    """Raise unless ``x`` is ``[rows, width]`` and of the dtype ``like``.

    Raises:
        DtypeError: no tensor, or as `check_dtype`.
        GraphError: another shape.
    """
    check_tensor(argument, x)
    check_dtype(argument, x, like)
    if x.shape != (rows, width):
        raise GraphError(
            f"{argument} must have the shape [num_nodes, features] = [{rows}, {width}], got {list(x.shape)}."
        )


def check_operator(operator: Tensor | None, operators: int | None) -> None:
    """Check what a cell with this many ``operators`` gets as ``operator``.

    Raises:
        ConfigError: a cell with operators gets none, or a cell without operators gets some.
        GraphError: an operator is out of range.
    """
    if (operator is None) != (operators is None):
        given = "no operator" if operator is None else f"operator {list(operator.shape)}"
        raise ConfigError(f"operator must be given if and only if operators is, got operators={operators} and {given}.")
    # Under torch.compile and torch.export the values are unknown, and `DagSweep` checks the operators of its graph.
    if operator is not None and len(operator) and not torch.compiler.is_compiling():
        check_operators(int(operator.min()), int(operator.max()), operators)


def check_operators(lowest: int, highest: int, operators: int | None) -> None:
    """Raise GraphError unless operators are in ``0 .. operators - 1``."""
    assert operators is not None
    if lowest < 0 or highest >= operators:
        given = lowest if lowest < 0 else highest
        raise GraphError(
            f"a node has operator {given}, but operators={operators} allows operators 0 .. {operators - 1}: "
            "raise operators, or map unknown operators to a reserved one."
        )
