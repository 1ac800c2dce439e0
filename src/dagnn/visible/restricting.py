"""`restrict`: the part of a Dag that data can feed and that leads to what is predicted, with a report of what went."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagnn.errors import DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.graph.names import canonical
from dagnn.visible.reading import Dropped, Reading, ReadReport, listed


def restrict(
    dag: Dag | Reading,
    measured: Any,
    *,
    roots: Sequence[Hashable] | None = None,
    merge_chains: bool = False,
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
    index_of = {name: node for node, name in enumerate(whole.names)}
    there = set(columns)
    inputs = [node for node in whole.inputs.tolist() if whole.names[node] in there]
    if not inputs:
        ours = [whole.names[node] for node in whole.inputs.tolist()]
        raise GraphError(
            f"no input of the Dag is measured: its inputs are {listed(ours)}, the columns are {listed(columns)}: "
            "are the names of one kind, such as symbols and ids of genes?"
        )
    outputs = whole.outputs.numpy() if roots is None else whole._nodes.indices_of(list(roots), "roots")
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
