"""Edit distance of ordered trees, by a library: another distance than that of graphs, of which it bounds nothing."""

from dataclasses import replace

from dagnn.errors import DtypeError, GraphError
from dagnn.ged.costs import UNIT_COSTS, EditCosts
from dagnn.ged.labelled import check_comparable, label_key, read_graph
from dagnn.ged.tables import build_tables
from dagnn.graph import Dag


def tree_edit_distance(a: Dag, b: Dag, costs: EditCosts | None = None, *, node_label: str = "label") -> float:
    """The least cost of node edits that turn the ordered tree ``a`` into ``b``.

    A deleted node hands its operands on to the node above it, in its place; an inserted node takes some neighbouring
    operands of a node as its own. Edges cost nothing and the order of operands counts, so this is not the graph edit
    distance: either may be the larger.

    Args:
        a, b: trees as expressions are: edges go from operand to operator, every node but the root has one edge out,
            and the edge attribute "position" orders the operands of a node (it may be missing where no node has
            two). A Dag without nodes is the empty tree.
        costs: unit costs by default; the costs of edges are not used.
        node_label: the node attribute that holds the labels, as in `graph_edit_distance`.

    Raises:
        DtypeError: something that is no Dag.
        GraphError: a Dag that is no tree or whose operands have no order; labels on one side only; more than 2,000
            nodes.
        ConfigError: costs as in `EditCosts`.

    Cost: O(n^2 depth^2) time at worst, in Python: 4 ms for two random trees of 10 nodes,
        0.5 s for two of 100.
    Source: Zhang and Shasha, "Simple fast algorithms for the editing distance between trees and related problems",
        SIAM J. Comput. 18(6), 1989, as in the library zss.

    >>> from dagnn.graph import Dag
    >>> tree_edit_distance(Dag.from_polish("(+ (* 2 x) 5)"), Dag.from_polish("(+ 2 x 5)"))
    1.0
    """
    trees = {"a": a, "b": b}
    read = []
    for name, dag in trees.items():
        if not isinstance(dag, Dag):
            raise DtypeError(f"{name} must be a Dag, got {type(dag).__name__}.")
        graph = read_graph(dag, name, directed=None, node_label=node_label, edge_label=node_label)
        read.append(replace(graph, edge_labels=None))
    check_comparable(read, list(trees), node_label, node_label)
    tables = build_tables(read, UNIT_COSTS if costs is None else costs)
    left, right = (
        _Tree(dag, name, [tables.node_ids[label_key(x)] for x in graph.node_labels or (None,) * graph.num_nodes])
        for (name, dag), graph in zip(trees.items(), read, strict=True)
    )
    update, remove, insert = (table.tolist() for table in tables.nodes)
    if left.root is None or right.root is None:
        units = sum(remove[label] for label in left.labels) + sum(insert[label] for label in right.labels)
        return float(units * tables.unit)

    # zss and not apted, which is faster on trees of 50 nodes and more: with costs that depend on the label, apted
    # 1.0.3 was wrong on 25 of 2,500 random pairs of up to 9 nodes (35 where no substitution cost more than a deletion
    # and an insertion), zss 1.2.0 on none, both against a plain recursion. Nor does zss recurse on deep trees.
    from zss import distance  # type: ignore[import-untyped]

    units = distance(
        (left, left.root),
        (right, right.root),
        get_children=_operands,
        insert_cost=lambda node: insert[_label(node)],
        remove_cost=lambda node: remove[_label(node)],
        update_cost=lambda node, other: update[_label(node)][_label(other)],
    )
    return float(int(units) * tables.unit)


class _Tree:
    """A Dag as a tree: its root, None if empty, and for every node the number of its label and its operands."""

    def __init__(self, dag: Dag, name: str, labels: list[int]) -> None:
        self.labels = labels
        self.operands: list[list[int]] = [[] for _ in labels]
        self.root: int | None = None
        if not labels:
            return
        fan_out = dag.out_degree.tolist()
        shared = next((node for node, count in enumerate(fan_out) if count > 1), None)
        if shared is not None:
            raise GraphError(
                f"{name} is no tree: node {dag.name_of(shared)} has {fan_out[shared]} edges out. Expand shared "
                "sub-expressions, or compare with graph_edit_distance."
            )
        roots = [node for node, count in enumerate(fan_out) if count == 0]
        if len(roots) != 1:
            names = ", ".join(str(dag.name_of(node)) for node in roots[:3])
            raise GraphError(f"{name} is no tree: it has {len(roots)} nodes without an edge out ({names}, ...), not 1.")
        self.root = roots[0]
        crowded = (dag.in_degree > 1).nonzero().flatten()
        if "position" not in dag.edge_attributes and len(crowded):
            raise GraphError(
                f"the operands of node {dag.name_of(int(crowded[0]))} of {name} have no order: number the edges into a "
                "node 0, 1, ... in the edge attribute 'position'."
            )
        for source, target in dag.edges.tolist():  # a Dag keeps its edges by target and position
            self.operands[target].append(source)


def _operands(node: tuple[_Tree, int]) -> list[tuple[_Tree, int]]:
    tree, number = node
    return [(tree, operand) for operand in tree.operands[number]]


def _label(node: tuple[_Tree, int]) -> int:
    tree, number = node
    return tree.labels[number]
