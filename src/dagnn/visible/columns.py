"""`align`: the columns of a table as the inputs of a network, by name; it fills and leaves out only what you say."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.graph.names import canonical
from dagnn.nn import NamedInputs
from dagnn.nn.dag_nn.tables import as_input
from dagnn.visible.reading import Reading, checked_choice, listed
from dagnn.visible.restricting import column_names, restrict


@dataclass(frozen=True)
class Aligned:
    """Inputs by name, and what it took.

    Attributes:
        x: ``[rows, inputs]``, for a network of these inputs.
        names: the input of every column of x.
        filled: inputs that the table lacks; they hold what ``missing`` says.
        ignored: columns of the table that are no inputs.
        dag: the Dag that these inputs belong to, where a Dag was given; smaller than that with ``missing="drop"``.

    >>> aligned = align({"b": [1.0], "a": [2.0], "age": [30.0]}, ["a", "b", "c"], missing="zero", extra="ignore")
    >>> print(aligned)
    x [1, 3]; filled: 'c'; ignored: 'age'
    """

    x: Tensor
    names: tuple[Hashable, ...]
    filled: tuple[Hashable, ...] = ()
    ignored: tuple[Hashable, ...] = ()
    dag: Dag | None = None

    def __str__(self) -> str:
        """One line: the shape, and the first of what was filled and ignored."""
        parts = [("filled", self.filled), ("ignored", self.ignored)]
        return "; ".join([f"x {list(self.x.shape)}", *(f"{what}: {listed(names)}" for what, names in parts if names)])


def align(
    table: Any,
    to: NamedInputs | Dag | Reading | Sequence[Hashable],
    *,
    columns: Sequence[Hashable] | None = None,
    layer: str | None = None,
    missing: str = "refuse",
    training: Any = None,
    extra: str = "refuse",
) -> Aligned:
    """``x [rows, inputs]`` with a column for every input, taken by name; the order of the table never matters.

    This is stricter than ``net(table)``, which ignores columns that are no inputs and passes NaN on.

    Args:
        table: a data frame (of pandas, polars, pyarrow ...); an AnnData; a mapping from name to column; or, with
            ``columns``, a tensor, an array or a sparse matrix of SciPy ``[rows, columns]``.
        to: a network, whose dtype and device x gets; a Dag or what a reader gave; or names of inputs. Then x has
            PyTorch's default dtype.
        columns: the names of the columns of a tensor or array.
        layer: of an AnnData; by default its ``X``.
        missing: what an input without a column gets. ``"refuse"``: an error that lists them. ``"zero"``. ``"mean"``:
            the mean of its column in ``training``. ``"drop"``: the Dag loses it, and what nothing else feeds, as with
            `restrict`; ``to`` is a Dag then, and `Aligned.dag` the smaller one.
        training: the table whose means fill: not the data that you test on. Of any form of ``table``, with the same
            ``columns`` and ``layer`` where it needs them, or what `align` made of it.
        extra: ``"refuse"`` or ``"ignore"``: columns that are no inputs.

    Raises:
        GraphError: inputs without a column, columns that are no inputs, or an input with two columns.
        DtypeError: values that are no numbers (also numbers of dtype object), NaN or infinite: the message names the
            column, the row and how many there are; a table without names.
        ConfigError: an unknown choice, or one that lacks what it needs.

    >>> net_inputs = ["a", "b"]
    >>> align(torch.tensor([[1.0, 2.0]]), net_inputs, columns=["b", "a"]).x
    tensor([[2., 1.]])
    >>> dag = Dag([("a", "p"), ("b", "q"), ("p", "root"), ("q", "root")])
    >>> aligned = align({"b": [3.0]}, dag, missing="drop")
    >>> aligned.dag.names, aligned.x
    (('b', 'q', 'root'), tensor([[3.]]))
    """
    checked_choice("missing", missing, ("refuse", "zero", "mean", "drop"))
    checked_choice("extra", extra, ("refuse", "ignore"))
    if (training is None) == (missing == "mean"):
        raise ConfigError(f"training= is the table whose means fill: it goes with missing='mean', got {missing!r}.")
    dag = to.dag if isinstance(to, Reading) else to if isinstance(to, Dag) else None
    if missing == "drop" and dag is None:
        raise ConfigError("missing='drop' takes inputs from a Dag: give the Dag, then make the network on the result.")
    named = _Named(table, columns, layer)
    if missing == "drop":
        dag = restrict(to, named.names).dag  # type: ignore[arg-type]
    names = _inputs_of(to if dag is None else dag)
    there, wanted = set(named.names), set(names)
    lacking = tuple(name for name in names if name not in there)
    others = tuple(name for name in named.names if name not in wanted)
    if lacking and missing == "refuse":
        raise GraphError(
            f"the table lacks {len(lacking)} of {len(names)} inputs: {listed(lacking, shown=8)}"
            f"{_alike(lacking, others)}: choose missing='zero', 'mean' or 'drop', or add them."
        )
    if others and extra == "refuse":
        raise GraphError(
            f"the table has {len(others)} columns that are no inputs: {listed(others, shown=8)}: "
            "extra='ignore' leaves them out."
        )
    like = to.edge_weight.detach() if isinstance(to, NamedInputs) else torch.empty(0)
    present = [name for name in names if name in there]
    found = named.taken(present, like)
    if lacking:
        means = _training(training, columns, layer).means(lacking, like) if missing == "mean" else None
        whole = found.new_zeros(*found.shape[:-1], len(names))
        place = {name: i for i, name in enumerate(names)}
        whole[..., [place[name] for name in present]] = found
        if means is not None:
            whole[..., [place[name] for name in lacking]] = means
        found = whole
    return Aligned(found, names, lacking, others, dag)


def _inputs_of(to: Any) -> tuple[Hashable, ...]:
    if isinstance(to, NamedInputs):
        return to.input_names
    if isinstance(to, Dag):
        return tuple(map(to.name_of, to.inputs.tolist()))
    return tuple(column_names(to))


def _alike(lacking: Sequence[Hashable], others: Sequence[Hashable]) -> str:
    """A hint where a name is there in another type or case."""
    by_text = {str(name).lower(): name for name in others}
    alike = next((name for name in lacking if str(name).lower() in by_text), None)
    return f" (there is {by_text[str(alike).lower()]!r} for {alike!r})" if alike is not None else ""


def _training(table: Any, columns: Sequence[Hashable] | None, layer: str | None) -> "_Named":
    if isinstance(table, Aligned):
        return _Named(table.x, table.names, None)
    is_matrix = isinstance(table, Tensor | np.ndarray) or hasattr(table, "tocsr")
    return _Named(table, columns if is_matrix else None, layer if hasattr(table, "layers") else None)


class _Named:
    """A table whose columns have names.

    Attributes:
        names: of all its columns, in its order.
    """

    def __init__(self, table: Any, columns: Sequence[Hashable] | None, layer: str | None) -> None:
        is_annotated = hasattr(table, "var_names") and hasattr(table, "layers")
        if layer is not None and not is_annotated:
            raise ConfigError(f"layer= is for an AnnData, got a {type(table).__name__}.")
        if is_annotated:
            if columns is not None:
                raise ConfigError("columns= is for a tensor or an array: an AnnData has its names in .var_names.")
            if layer is not None and layer not in table.layers:
                raise ConfigError(
                    f"the AnnData has no layer {layer!r}; there is {listed(list(table.layers), shown=8)}."
                )
            if table.isbacked:
                raise ConfigError("the AnnData is on disk: read what you need, with adata[rows].to_memory().")
            table, columns = table.X if layer is None else table.layers[layer], list(table.var_names)
            if table is None:
                raise ConfigError("the AnnData has no X: give layer=.")
        self._values, self._is_matrix = table, columns is not None
        if columns is None:
            if isinstance(table, Tensor | np.ndarray) or hasattr(table, "tocsr"):
                raise DtypeError(f"a {type(table).__name__} has no names: give those of its columns, columns=[...].")
            self.names = column_names(table)
        else:
            self.names = list(map(canonical, columns))
            shape = getattr(table, "shape", None)
            if shape is None or len(shape) < 1 or shape[-1] != len(self.names):
                got = f"a {type(table).__name__}" if shape is None else f"the shape {list(shape)}"
                raise DtypeError(
                    f"columns= has {len(self.names)} names for the last dimension of the table, got {got}."
                )
        self._counts = Counter(self.names)

    def taken(self, names: Sequence[Hashable], like: Tensor) -> Tensor:
        """``[rows, len(names)]`` of the dtype and on the device of ``like``; checked."""
        twice = [name for name in names if self._counts[name] > 1]
        if twice:
            raise GraphError(f"the table has {self._counts[twice[0]]} columns {twice[0]!r}: keep one of them.")
        if self._is_matrix:
            place = {name: i for i, name in enumerate(self.names)}
            x = self._of_matrix([place[name] for name in names], like)
        else:
            values = {name: self._column(name) for name in names}
            # Without a column of its own a table still has rows: those of any other column.
            if not names and self.names:
                return as_input({0: self._column(self.names[0])}, [0], like)[..., :0]
            x = as_input(values, names, like)
        bad = ~torch.isfinite(x.detach())
        if bad.any():
            # Not nonzero() of all: a table that is NaN everywhere has as many entries as it has values.
            column = int(bad.flatten(0, -2).any(0).nonzero()[0]) if x.dim() > 1 else int(bad.nonzero()[0])
            row = int(bad[..., column].flatten().nonzero()[0])
            value = x[..., column].flatten()[row].item()
            raise DtypeError(
                f"column {names[column]!r} holds {value} in row {row} ({int(bad.sum())} such values in all): "
                "fill them before, for instance with sklearn.impute, or leave the rows out."
            )
        return x

    def means(self, names: Sequence[Hashable], like: Tensor) -> Tensor:
        """``[len(names)]``: the mean of these columns."""
        lacking = [name for name in names if name not in self._counts]
        if lacking:
            raise GraphError(f"training lacks {len(lacking)} columns as well: {listed(lacking, shown=8)}.")
        x = self.taken(names, like)
        if not len(x):
            raise DtypeError("training has no rows, so its columns have no mean.")
        return x.double().mean(tuple(range(x.dim() - 1))).to(like)

    def _of_matrix(self, places: list[int], like: Tensor) -> Tensor:
        values = self._values
        if isinstance(values, Tensor):
            if values.is_complex() or values.layout is not torch.strided:
                raise DtypeError(f"the table must hold real numbers, densely, got a {values.layout} of {values.dtype}.")
            return values[..., places].to(like)
        values = values.tocsc()[:, places].toarray() if hasattr(values, "tocsr") else np.asarray(values)[..., places]
        return as_input(values, self.names, like)

    def _column(self, name: Hashable) -> Any:
        table: Mapping[Hashable, Any] = self._values
        column = table[name]
        if str(getattr(column, "dtype", "")).lower() == "object":
            raise DtypeError(
                f"column {name!r} has the dtype object, so it may hold texts: convert it, with .astype(float)."
            )
        return column
