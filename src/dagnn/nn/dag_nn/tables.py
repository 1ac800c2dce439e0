"""Tables and networks, by name: a frame, mapping or array as inputs; weights, biases and gradients by node and edge.

After the class come the helpers that make ``x`` from a table or a mapping, and at the end the one that sets values by
name.
"""

import contextlib
import math
import reprlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dagnn.errors import DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.nn.dag_nn.parameters import ParameterLayout
from dagnn.nn.learnable import LearnableModule, check_own, value_of

_SHOWN = 5
_NUMERIC = "biuf"


class NamedInputs(LearnableModule):
    """What every network of a Dag offers by name: its inputs and outputs.

    >>> from dagnn.nn import DagNN
    >>> net = DagNN(Dag([("a", "c"), ("b", "c")]))
    >>> isinstance(net, NamedInputs), net.input_names, net.output_names
    (True, ('a', 'b'), ('c',))
    """

    dag: Dag
    edge_weight: nn.Parameter

    @property
    def input_names(self) -> tuple[Hashable, ...]:
        """The node of every column of x; its index where nodes have no names."""
        return tuple(map(self.dag.name_of, self.dag.inputs.tolist()))

    @property
    def output_names(self) -> tuple[Hashable, ...]:
        """The node of every column of y; its index where nodes have no names."""
        return tuple(map(self.dag.name_of, self.dag.outputs.tolist()))

    def input_from(self, table: Any) -> Tensor:
        """``x [..., inputs]`` from columns by name, of the dtype and on the device of the parameters.

        ``net(table)`` does this in every call; convert a table once if it is used often.

        Args:
            table: a data frame (of pandas, polars, pyarrow ...), one row of pandas, or a mapping from name to column (a
                tensor, an array, a list or a number; all of one shape). Their order does not matter and columns that
                are no inputs are ignored. A NumPy array ``[..., inputs]`` has no names: its columns are taken in the
                order of `input_names`. Missing values become NaN.

        Raises:
            GraphError: an input without a column (all are listed), a name with two columns, columns of different shapes
                or row labels.
            DtypeError: a column that holds no real numbers; something without columns.
        """
        return as_input(table, self.input_names, self.edge_weight)


class NamedParameters(NamedInputs):
    """What a `DagNN` offers by name: its inputs, weights, biases and gradients. `DagNN` is its only class.

    Where nodes have no names, their indices serve as names.

    >>> from dagnn.nn import DagNN
    >>> net = DagNN(Dag([("a", "c"), ("b", "c")]))
    >>> isinstance(net, NamedParameters), net.edge_names(), net.bias_names()
    (True, [('a', 'c'), ('b', 'c')], ['c'])
    >>> net.set_weights({("a", "c"): 0.5})
    >>> net.accumulate_edge_grad("a", "c", 2.0)
    >>> net.weight_of("a", "c"), net.edge_grads()
    (0.5, {('a', 'c'): 2.0, ('b', 'c'): 0.0})
    """

    bias: nn.Parameter
    _layout: ParameterLayout

    def edge_names(self) -> list[tuple[Hashable, Hashable]]:
        """The edge (u, v) that each entry of ``edge_weight`` belongs to."""
        return self._layout.edge_names()

    def bias_names(self) -> list[Hashable]:
        """The node that each entry of ``bias`` belongs to."""
        return self._layout.bias_names()

    def edge_weights(self) -> dict[tuple[Hashable, Hashable], float]:
        """(u, v) -> weight, for every edge."""
        return dict(zip(self.edge_names(), value_of(self, "edge_weight").tolist(), strict=True))

    def biases(self) -> dict[Hashable, float]:
        """Node -> bias, for every node that has one."""
        return dict(zip(self.bias_names(), value_of(self, "bias").tolist(), strict=True))

    def set_weights(self, weights: Mapping[tuple[Hashable, Hashable], float | Tensor]) -> None:
        """Set the weights of these edges, in place; the others stay.

        Args:
            weights: (u, v) -> number, or a tensor with one element.

        Raises:
            GraphError: an unknown node, no such edge, or one twice. Nothing has changed then, as with every error.
            DtypeError: a value that is no real number, or one too large for the dtype; ``weights`` is no mapping.
            ConfigError: the weights are computed from others, as by ``torch.nn.utils.parametrize``.
        """
        check_own(self, ("edge_weight",), "set_weights")
        _assign(self.edge_weight, weights, self._layout.index_of_edge, "weights")

    def set_biases(self, biases: Mapping[Hashable, float | Tensor]) -> None:
        """Set the biases of these nodes, in place; the others stay. Arguments and errors as of `set_weights`."""
        check_own(self, ("bias",), "set_biases")
        _assign(self.bias, biases, self._layout.bias_index_of, "biases")

    def weight_of(self, u: Hashable, v: Hashable) -> float:
        """The weight of the edge u -> v.

        Raises:
            GraphError: an unknown node, or no such edge.
        """
        return float(value_of(self, "edge_weight").detach()[self._layout.index_of(u, v)])

    def grad_of(self, u: Hashable, v: Hashable) -> float:
        """The gradient accumulated for the edge u -> v; 0.0 when there is none yet.

        Raises:
            GraphError: an unknown node, or no such edge.
            ConfigError: the weights are computed from others, which hold the gradients.
        """
        check_own(self, ("edge_weight",), "a gradient by name")
        index = self._layout.index_of(u, v)
        return 0.0 if self.edge_weight.grad is None else float(self.edge_weight.grad[index])

    def get_edge_grad(self, u: Hashable, v: Hashable) -> float:
        """The same as `grad_of`, named as the counterpart of `accumulate_edge_grad`."""
        return self.grad_of(u, v)

    def edge_grads(self) -> dict[tuple[Hashable, Hashable], float]:
        """(u, v) -> accumulated gradient, for every edge; 0.0 where nothing is accumulated. Errors as of `grad_of`."""
        check_own(self, ("edge_weight",), "a gradient by name")
        grad = self.edge_weight.grad
        values = [0.0] * self.dag.num_edges if grad is None else grad.tolist()
        return dict(zip(self.edge_names(), values, strict=True))

    @torch.no_grad()
    def accumulate_edge_grad(self, u: Hashable, v: Hashable, g: float | Tensor) -> None:
        """Add ``g`` to the accumulated gradient of the edge u -> v. In eval mode: nothing.

        Args:
            g: a number, or a tensor with one element.

        Raises:
            GraphError: an unknown node, or no such edge.
            DtypeError: ``g`` is no real number, or too large for the dtype.
            ConfigError: the weights are computed from others, which hold the gradients.
        """
        check_own(self, ("edge_weight",), "a gradient by name")
        index = self._layout.index_of(u, v)
        number = _number((u, v), g, "g", self.edge_weight.dtype)
        if not (self.training and self.edge_weight.requires_grad):
            return
        if self.edge_weight.grad is None:
            self.edge_weight.grad = torch.zeros_like(self.edge_weight)
        self.edge_weight.grad[index] += number


def may_be_kept(x: Tensor) -> bool:
    """False for a tensor that must not outlive its context: an export, ``torch.func``, inference mode."""
    if torch.compiler.is_compiling():  # torch.func and inference mode do not occur there, and cannot be traced
        return not torch.compiler.is_exporting()
    return not (x.is_inference() or torch._C._functorch.is_functorch_wrapped_tensor(x))


def rows_of(x: Tensor) -> Tensor:
    """``x [..., inputs]`` as ``[B, inputs]``."""
    # Not reshape(B, ...): torch.export and torch.jit.trace would take B for a constant.
    return x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)


def as_input(given: Any, names: Sequence[Hashable], like: Tensor) -> Tensor:
    """``[..., len(names)]`` of the dtype and on the device of ``like``; columns in the order of ``names``.

    Args:
        given: columns by name, as `NamedParameters.input_from` describes them; or an array ``[..., len(names)]``. A
            tensor is returned as it is.
    """
    if isinstance(given, Tensor):
        return given
    if isinstance(given, np.ndarray):
        return _from_array(given, like)
    columns = _columns(given)
    if columns is None:
        raise DtypeError(
            f"x must be a tensor or an array [..., inputs], or columns by name (a data frame, a mapping), "
            f"got {_described(given)}: convert it with torch.as_tensor, or name its columns."
        )
    chosen = [columns[name] for name in _found(columns, names)]
    _check_labels(names, chosen)
    if not chosen:
        shape = _tensor(None, next(iter(columns.values())), like).shape if columns else torch.Size()
        return like.new_empty(*shape, 0)
    if not any(isinstance(column, Tensor) for column in chosen):
        numbers = [_numbers(name, column) for name, column in zip(names, chosen, strict=True)]
        _check_shapes(names, numbers)
        return _on(np.stack(numbers, axis=-1), like)
    tensors = [_tensor(name, column, like) for name, column in zip(names, chosen, strict=True)]
    _check_shapes(names, tensors)
    return torch.stack(tensors, dim=-1)


class _Columns(Mapping[Hashable, Any]):
    """The columns of a table by name, each read when it is needed."""

    def __init__(self, table: Any, names: Iterable[Hashable]) -> None:
        listed = list(names)
        self._table, self._counts = table, Counter(listed)
        # A row of pandas is read by position: where its labels have mixed types, row[2] means position 2, not label 2.
        self._position_of = dict(zip(listed, range(len(listed)), strict=True)) if _is_row(table) else None

    def __getitem__(self, name: Hashable) -> Any:
        if name not in self._counts:
            raise KeyError(name)
        try:
            return self._table[name] if self._position_of is None else self._table.iloc[self._position_of[name]]
        except Exception as error:  # another library's table can raise anything
            raise DtypeError(
                f"x is a {type(self._table).__name__}, which gives no column {name!r}: collect or convert it first "
                f"({error})."
            ) from error

    def __iter__(self) -> Any:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def is_repeated(self, name: Hashable) -> bool:
        return self._counts[name] > 1


def _is_row(table: Any) -> bool:
    """Whether it is one row of pandas, with a label for every value."""
    return hasattr(table, "iloc") and getattr(table, "ndim", None) == 1


def _columns(given: Any) -> Mapping[Hashable, Any] | None:
    """The columns of a mapping, or of a table of pandas, polars, pyarrow or the like; None if it has no names."""
    if isinstance(given, Mapping):
        return given
    for attribute in ("column_names", "columns", "index"):  # pyarrow; pandas and polars; one row of pandas
        names = getattr(given, attribute, None)
        if names is not None and not callable(names) and isinstance(names, Iterable) and hasattr(given, "__getitem__"):
            return _Columns(given, names)
    return None


def _found(columns: Mapping[Hashable, Any], names: Sequence[Hashable]) -> Sequence[Hashable]:
    """``names``, when there is one column for each."""
    missing = [name for name in names if name not in columns]
    if missing:
        texts = {str(name) for name in columns}
        alike = [name for name in missing if str(name) in texts]
        hint = ""
        if alike:
            other = next(name for name in columns if str(name) == str(alike[0]))
            hint = f" (there is {other!r}, a {type(other).__name__}, for {alike[0]!r}, a {type(alike[0]).__name__})"
        raise GraphError(
            f"x lacks {len(missing)} of {len(names)} inputs: {_listed(missing)}{hint}. "
            f"It has {_listed(list(columns))}: add these columns, filled as you decide, or drop the nodes from the Dag."
        )
    if isinstance(columns, _Columns):
        repeated = [name for name in names if columns.is_repeated(name)]
        if repeated:
            raise GraphError(f"x has more than one column for {_listed(repeated)}: keep one of each.")
    return names


def _from_array(given: NDArray[Any], like: Tensor) -> Tensor:
    if given.dtype.names:
        raise DtypeError(
            f"x is a structured array, with the fields {_listed(given.dtype.names)}: "
            "pass {name: x[name] for name in x.dtype.names}."
        )
    if isinstance(given, np.ma.MaskedArray):
        raise DtypeError(
            f"x is a masked array, and a network knows no masks, got {np.ma.getmaskarray(given).sum()} masked values: "
            "fill it with x.filled(value)."
        )
    if given.dtype.kind not in _NUMERIC:
        raise DtypeError(f"x must hold real numbers, got an array of {given.dtype}: convert it with .astype(float).")
    return _on(given, like)


def _tensor(name: Hashable, column: Any, like: Tensor) -> Tensor:
    """One column as a tensor; a tensor stays in its autograd graph."""
    if not isinstance(column, Tensor):
        return _on(_numbers(name, column), like)
    if column.layout is not torch.strided or column.is_complex():
        raise DtypeError(f"column {name!r} of x must hold real numbers, densely, got {_described(column)}.")
    return column.to(like)


def _numbers(name: Hashable, column: Any) -> NDArray[Any]:
    """One column as an array of numbers; missing values become NaN."""
    if isinstance(column, np.ma.MaskedArray) and np.ma.is_masked(column):
        raise DtypeError(f"column {name!r} of x is masked, and a network knows no masks: fill it with .filled(value).")
    try:
        values = np.asarray(column)
    except Exception as error:  # another library's column can raise anything
        raise DtypeError(f"column {name!r} of x cannot be read as numbers: {error}") from error
    if values.dtype.kind == "O" and not any(isinstance(value, str | bytes) for value in values.flat):
        try:  # nullable columns know their own missing value
            values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        except (AttributeError, TypeError, ValueError):
            with contextlib.suppress(TypeError, ValueError):
                values = values.astype(np.float64)
    if values.dtype.kind not in _NUMERIC:
        kind = "texts or other objects" if values.dtype.kind in "OUSV" else str(values.dtype)
        raise DtypeError(
            f"column {name!r} of x holds {kind}, not real numbers: convert it, for instance with .astype(float)."
        )
    return values


def _on(values: NDArray[Any], like: Tensor) -> Tensor:
    """A copy with the dtype and on the device of ``like``; it shares no memory with ``values``."""
    dtype = np.float32 if like.dtype == torch.float32 else np.float64
    try:
        with np.errstate(over="raise"):
            return torch.from_numpy(np.array(values, dtype=dtype, order="C")).to(like)
    except FloatingPointError:
        largest = np.nanmax(np.abs(np.asarray(values, dtype=np.float64)))
        raise DtypeError(
            f"x holds {largest:.4g}, too large for {like.dtype}: scale the column, or use net.double()."
        ) from None


def _check_shapes(names: Sequence[Hashable], columns: Sequence[Any]) -> None:
    first = tuple(columns[0].shape)
    for name, column in zip(names, columns, strict=True):
        if tuple(column.shape) != first:
            raise GraphError(
                f"the columns of x must have one shape, but {names[0]!r} has {list(first)} and "
                f"{name!r} has {list(column.shape)}."
            )


def _check_labels(names: Sequence[Hashable], columns: Sequence[Any]) -> None:
    """Raise if columns of pandas or xarray label their rows differently: stacking by position would mix the rows up."""
    named = list(zip(names, columns, strict=True))
    # Arrays of xarray, whose axes have names and labels.
    axes = [(name, column) for name, column in named if hasattr(column, "dims") and hasattr(column, "indexes")]
    for name, column in axes[1:]:
        first_name, first = axes[0]
        if column.dims != first.dims:
            raise GraphError(
                f"the columns {first_name!r} and {name!r} of x have the dimensions {first.dims} and {column.dims}: "
                "give all the same order, with .transpose(...)."
            )
        for axis in (axis for axis in first.dims if axis in first.indexes and axis in column.indexes):
            if not first.indexes[axis].equals(column.indexes[axis]):
                raise GraphError(
                    f"the columns {first_name!r} and {name!r} of x have different labels along {axis!r}: align them "
                    "first, for instance with xarray.align."
                )
    labels = [(name, column.index) for name, column in named if hasattr(getattr(column, "index", None), "equals")]
    for name, index in labels[1:]:
        if index is not labels[0][1] and not labels[0][1].equals(index):
            raise GraphError(
                f"the columns {labels[0][0]!r} and {name!r} of x have different row labels (.index): "
                "align them first, for instance with pandas.DataFrame(x)."
            )


def _described(given: Any) -> str:
    if isinstance(given, Tensor):
        return f"a {given.layout} tensor of {given.dtype}"
    return f"a {type(given).__name__}"


def _listed(names: Sequence[Hashable]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _assign(parameter: Tensor, values: Mapping[Any, Any], index_of: Callable[[Any], int], argument: str) -> None:
    """Write every value to the entry of its name, in place; nothing is written if one is wrong."""
    if not isinstance(values, Mapping) and not hasattr(values, "items"):
        raise DtypeError(
            f"{argument} must be a mapping from name to number, got a {type(values).__name__}: {reprlib.repr(values)}."
        )
    number_at = dict[int, float]()
    for name, value in values.items():
        index = index_of(name)
        if index in number_at:  # once by name and once by index, or a table that has a label twice
            raise GraphError(f"{argument} has {name!r} twice, the second time perhaps by its number: give it once.")
        number_at[index] = _number(name, value, argument, parameter.dtype)
    with torch.no_grad():
        indices = torch.tensor(list(number_at), dtype=torch.int64, device=parameter.device)
        numbers = torch.tensor(list(number_at.values()), dtype=parameter.dtype, device=parameter.device)
        parameter.index_copy_(0, indices, numbers)


def _number(name: Hashable, value: Any, argument: str, dtype: torch.dtype) -> float:
    if isinstance(value, Tensor | np.ndarray) and math.prod(value.shape) == 1:
        value = value.item()
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise DtypeError(f"{argument}[{name!r}] must be a real number, got {value!r}.")
    largest = torch.finfo(dtype).max
    if largest < abs(value) < math.inf:
        raise DtypeError(
            f"{argument}[{name!r}] is too large for {dtype}, whose largest number is {largest:.4g}, "
            f"got {reprlib.repr(value)}."
        )
    return float(value)
