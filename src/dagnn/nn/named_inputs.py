"""Inputs by name: from a table, a mapping or an array to the tensor that a network takes."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import DtypeError, GraphError

_SHOWN = 5
_NUMERIC = "biuf"


def as_input(given: Any, names: Sequence[Hashable], like: Tensor) -> Tensor:
    """``[..., len(names)]`` of the dtype and on the device of ``like``; columns in the order of ``names``.

    Args:
        given: columns by name, as ``DagNN.input_from`` describes them; or an array ``[..., len(names)]``. A tensor is
            given back.
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
        # Of a row of pandas by place: among labels of mixed types it takes ints for places, whatever they label.
        self._place_of = dict(zip(listed, range(len(listed)), strict=True)) if _is_row(table) else None

    def __getitem__(self, name: Hashable) -> Any:
        if name not in self._counts:
            raise KeyError(name)
        try:
            return self._table[name] if self._place_of is None else self._table.iloc[self._place_of[name]]
        except Exception as error:  # whatever a foreign table raises
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
    """Is it one row of pandas, with a label for every value?"""
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
            "x is a structured array, whose fields have names: pass {name: x[name] for name in x.dtype.names}."
        )
    if isinstance(given, np.ma.MaskedArray):
        raise DtypeError("x is a masked array, and a network knows no masks: fill it with x.filled(value).")
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
    except Exception as error:  # whatever a foreign column raises
        raise DtypeError(f"column {name!r} of x cannot be read as numbers: {error}") from error
    if values.dtype.kind == "O" and not any(isinstance(value, str | bytes) for value in values.flat):
        try:  # nullable columns: their own way knows their missing value
            values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        except (AttributeError, TypeError, ValueError):
            values = _as_floats(values)
    if values.dtype.kind not in _NUMERIC:
        kind = "texts or other objects" if values.dtype.kind in "OUSV" else str(values.dtype)
        raise DtypeError(
            f"column {name!r} of x holds {kind}, not real numbers: convert it, for instance with .astype(float)."
        )
    return values


def _as_floats(values: NDArray[Any]) -> NDArray[Any]:
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        return values


def _on(values: NDArray[Any], like: Tensor) -> Tensor:
    """A copy in memory of its own, of the dtype and on the device of ``like``."""
    dtype = np.float32 if like.dtype == torch.float32 else np.float64
    try:
        with np.errstate(over="raise"):
            return torch.from_numpy(np.array(values, dtype=dtype, order="C")).to(like)
    except FloatingPointError:
        raise DtypeError(
            f"x holds numbers that are too large for {like.dtype}: scale them, or use net.double()."
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
    """Raise if columns of pandas or xarray label their rows differently: by place they would be mixed up."""
    axes = [(name, column) for name, column in zip(names, columns, strict=True) if _has_axes(column)]
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
    labels = [(name, column.index) for name, column in zip(names, columns, strict=True) if _has_labels(column)]
    for name, index in labels[1:]:
        if index is not labels[0][1] and not labels[0][1].equals(index):
            raise GraphError(
                f"the columns {labels[0][0]!r} and {name!r} of x have different row labels (.index): "
                "align them first, for instance with pandas.DataFrame(x)."
            )


def _has_axes(column: Any) -> bool:
    """Is it an array of xarray, whose axes have names and labels?"""
    return hasattr(column, "dims") and hasattr(column, "indexes")


def _has_labels(column: Any) -> bool:
    return hasattr(column, "index") and hasattr(column.index, "equals")


def _described(given: Any) -> str:
    if isinstance(given, Tensor):
        return f"a {given.layout} tensor of {given.dtype}"
    return f"a {type(given).__name__}"


def _listed(names: Sequence[Hashable]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
