"""Columns of a table and a network: `align` makes them its inputs, `restrict` keeps the part of a Dag that they feed.

`align` fills and leaves out only what you say. `restrict` keeps what the data feed and what leads to what is predicted,
with a report of what went.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.graph.names import canonical
from dagnn.nn import NamedInputs
from dagnn.nn.dag_nn.tables import as_input
from dagnn.visible.reading import Dropped, Reading, ReadReport, checked_choice, checked_list, listed


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
        GraphError: inputs without a column, columns that are no inputs, an input with two columns, or twice in ``to``.
        DtypeError: values that are no numbers (also numbers of dtype object), masked, NaN or infinite: the message
            names the column, the row and how many there are; a table without names.
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
            f"{alike(lacking, others)}: choose missing='zero', 'mean' or 'drop', or add them."
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
    names = tuple(column_names(to))
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise GraphError(f"to lists {twice[0]!r} more than once: list every input once.")
    return names


def alike(lacking: Sequence[Hashable], others: Sequence[Hashable]) -> str:
    """A hint where a name is there in another type or case."""
    by_text = {str(name).lower(): name for name in others}
    found = next((name for name in lacking if str(name).lower() in by_text), None)
    return f" (there is {by_text[str(found).lower()]!r} for {found!r})" if found is not None else ""


def _training(table: Any, columns: Sequence[Hashable] | None, layer: str | None) -> "_Named":
    if isinstance(table, Aligned):
        return _Named(table.x, table.names, None)
    is_matrix = isinstance(table, Tensor | np.ndarray) or hasattr(table, "tocsr")
    return _Named(table, columns if is_matrix else None, layer if hasattr(table, "layers") else None)


class _Named:
    """A table whose columns have names: ``names``, of all its columns, in its order."""

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
            self.names = list(map(canonical, checked_list("columns", columns)))
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
        if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(chosen := values[..., places]):
            place = tuple(np.argwhere(np.ma.getmaskarray(chosen))[0].tolist())
            raise DtypeError(
                f"column {self.names[places[place[-1]]]!r} is masked in row {place[0]} ({int(chosen.mask.sum())} such "
                "values in all): fill them before, with table.filled(...), or leave the rows out."
            )
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


def restrict(
    dag: Dag | Reading, measured: Any, *, roots: Sequence[Hashable] | None = None, merge_chains: bool = False
) -> Reading:
    """The nodes that lie on a path from a measured input to a root; the report says what went, and why.

    Without this, unmeasured genes, and pathways without a measured gene, are constants that a network learns.

    Args:
        dag: its nodes have names; or what a reader gave, whose labels and weights are kept.
        measured: names of what was measured; or a data frame, an AnnData or a mapping, whose columns have them. Only
            inputs of the Dag are fed. Other columns are listed in the report: those that are no node, and those that
            are inner nodes, into which edges lead.
        roots: the outputs that you want, inner nodes too; by default all outputs of the Dag.
        merge_chains: a node that only one other feeds, and that is no root, is merged into that one, unless it is an
            input: the two would say the same. What it fed is then fed by the one that is left.

    Returns:
        A `Reading`; its report counts what ``dag`` had as read.

    Raises:
        GraphError: no input is measured (the message shows names of both sides); nothing measured feeds one of
            ``roots``; an unknown root; nodes without names; edge attributes, where chains are merged.
        ConfigError: ``roots`` is no list.

    >>> dag = Dag([("A", "low"), ("B", "low"), ("low", "mid"), ("mid", "top"), ("C", "top"), ("D", "other")])
    >>> reading = restrict(dag, ["B", "C", "age"], roots=["top"], merge_chains=True)
    >>> [(reading.dag.name_of(u), reading.dag.name_of(v)) for u, v in reading.dag.edges.tolist()]
    [('B', 'low'), ('low', 'top'), ('C', 'top')]
    >>> print(reading.report)
    restrict: 8 nodes, 6 edges read, 0 nodes, 1 edge added; the Dag has 4 nodes, 3 edges
      2 nodes dropped, not measured: 'A', 'D'
      1 node dropped, nothing measured feeds them: 'other'
      1 node dropped, merged into the only node that feeds them: 'mid'
      2 edges dropped, from or to a node that was dropped: 'A' -> 'low', 'D' -> 'other'
      2 edges dropped, from or to a node that was merged: 'low' -> 'mid', 'mid' -> 'top'
      1 measured column is no node: 'age'
    """
    reading = dag if isinstance(dag, Reading) else None
    whole = reading.dag if reading else dag
    if not isinstance(whole, Dag):
        raise DtypeError(f"dag must be a Dag or a Reading, got a {type(dag).__name__}.")
    if whole.names is None:
        raise GraphError("the nodes of the Dag have no names: give them, with Dag(..., names=[...]).")
    columns = column_names(measured)
    roots = None if roots is None else checked_list("roots", roots)
    index_of = {name: node for node, name in enumerate(whole.names)}
    there = set(columns)
    inputs = [node for node in whole.inputs.tolist() if whole.names[node] in there]
    if not inputs:
        ours = [whole.names[node] for node in whole.inputs.tolist()]
        raise GraphError(
            f"no input of the Dag is measured: its inputs are {listed(ours)}, the columns are {listed(columns)}: "
            "are the names of one kind, such as symbols and ids of genes?"
        )
    outputs = whole.outputs.numpy() if roots is None else whole._nodes.indices_of(roots, "roots")
    bare = Dag(
        whole.edges,
        names=whole.names,
        inputs=np.array(inputs, dtype=np.int64),
        outputs=outputs,
        node_attributes=whole.node_attributes,
        edge_attributes=whole.edge_attributes,
    )
    gone = _gone(whole, bare, roots)
    kept = bare.without_dangling()
    if not len(kept.outputs):
        raise GraphError(f"nothing measured feeds an output: the outputs are {listed(_names(bare, outputs))}.")
    result, merged = _merged(kept) if merge_chains else (kept, [])
    notes = _notes(columns, index_of, {whole.names[node] for node in inputs})
    report = _report(whole, result, gone, merged, notes)
    left = {*(result.names or ())}
    labels = {name: text for name, text in (reading.labels if reading else {}).items() if name in left}
    edges = {(result.name_of(u), result.name_of(v)) for u, v in result.edges.tolist()} if reading else set()
    weights = {edge: weight for edge, weight in (reading.weights if reading else {}).items() if edge in edges}
    return Reading(result, report, labels, weights)


def column_names(table: Any) -> list[Hashable]:
    """The names of columns that a frame, an AnnData, a mapping or a list of names has, in their one form."""
    for attribute in ("var_names", "column_names", "columns"):  # AnnData; pyarrow; pandas and polars
        names = getattr(table, attribute, None)
        if names is not None and not callable(names) and isinstance(names, Iterable):
            return list(map(canonical, names))
    if isinstance(table, str | bytes) or not isinstance(table, Mapping | Iterable):
        raise DtypeError(f"expected names of columns, or a table that has them, got {table!r}.")
    return list(map(canonical, table))


def _gone(whole: Dag, bare: Dag, roots: Sequence[Hashable] | None) -> list[Dropped]:
    """The nodes that go, one entry for each reason."""
    unfed, unread = bare.dangling()
    lost = [name for name in map(canonical, roots or ()) if name in set(unfed)]
    if lost:
        raise GraphError(f"nothing measured feeds the root {lost[0]!r}: leave it out, or measure what feeds it.")
    sources = {whole.name_of(node) for node in whole.inputs.tolist()}
    groups = (
        ("not measured", [name for name in unfed if name in sources]),
        ("nothing measured feeds them", [name for name in unfed if name not in sources]),
        ("no root is reached from them", [name for name in unread if name not in set(unfed)]),
    )
    return [Dropped("nodes", why, tuple(names)) for why, names in groups if names]


def _merged(dag: Dag) -> tuple[Dag, list[Hashable]]:
    """The Dag with every chain as its first node, and the nodes that are gone."""
    if dag.edge_attributes:
        lost = sorted(dag.edge_attributes)
        raise GraphError(f"merge_chains=True would lose the edge attributes {lost}: make the Dag without them.")
    stays = np.zeros(dag.num_nodes, dtype=bool)
    stays[dag.inputs.numpy()] = stays[dag.outputs.numpy()] = True
    is_input = np.zeros(dag.num_nodes, dtype=bool)
    is_input[dag.inputs.numpy()] = True
    became = np.arange(dag.num_nodes)
    offsets, sources = dag.csr_by_target.offsets.tolist(), dag.edges[:, 0].numpy()
    for node in dag.order.tolist():
        # Children first: two of them may have become one by now.
        children = set(became[sources[offsets[node] : offsets[node + 1]]].tolist())
        if not stays[node] and len(children) == 1 and not is_input[child := children.pop()]:
            became[node] = child
    ends = became[dag.edges.numpy()]
    ends = np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0)
    left = became == np.arange(dag.num_nodes)
    # Edges into a merged node came from the node that it became: both ends are that node now.
    number = np.cumsum(left) - 1
    merged = _names(dag, np.flatnonzero(~left))
    smaller = Dag(
        number[ends],
        names=_names(dag, np.flatnonzero(left)),
        inputs=number[dag.inputs.numpy()],
        outputs=number[dag.outputs.numpy()],
        node_attributes={
            key: values[left] if hasattr(values, "dtype") else [values[node] for node in np.flatnonzero(left)]
            for key, values in dag.node_attributes.items()
        },
    )
    return smaller, merged


def _report(whole: Dag, result: Dag, gone: list[Dropped], merged: list[Hashable], notes: tuple[str, ...]) -> ReadReport:
    before = [(whole.name_of(u), whole.name_of(v)) for u, v in whole.edges.tolist()]
    after = {(result.name_of(u), result.name_of(v)) for u, v in result.edges.tolist()}
    away = {name for group in gone for name in group.names}
    lost = [edge for edge in before if edge not in after]
    of_dropped = tuple(edge for edge in lost if not away.isdisjoint(edge))
    of_merged = tuple(edge for edge in lost if away.isdisjoint(edge))
    dropped = [
        *gone,
        Dropped("nodes", "merged into the only node that feeds them", tuple(merged)),
        Dropped("edges", "from or to a node that was dropped", of_dropped),
        Dropped("edges", "from or to a node that was merged", of_merged),
    ]
    return ReadReport(
        "restrict",
        whole.num_nodes,
        whole.num_edges,
        result.num_nodes,
        result.num_edges,
        edges_added=len(after - set(before)),
        dropped=tuple(group for group in dropped if group.names),
        notes=notes,
    )


def _notes(columns: list[Hashable], index_of: Mapping[Hashable, int], fed: set[Hashable]) -> tuple[str, ...]:
    """Lines about the columns that feed nothing."""
    unknown = [name for name in columns if name not in index_of]
    inner = [name for name in columns if name in index_of and name not in fed]
    lines = (("no node", "no nodes", unknown), ("an inner node, and not read", "inner nodes, and not read", inner))
    return tuple(
        f"{len(names):,} measured {'columns are ' + many if len(names) > 1 else 'column is ' + one}: {listed(names)}"
        for one, many, names in lines
        if names
    )


def _names(dag: Dag, nodes: NDArray[np.int64]) -> list[Hashable]:
    return [dag.name_of(node) for node in nodes.tolist()]
