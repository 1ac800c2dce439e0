"""`ParameterLayout`: which entry of a parameter vector belongs to which edge or node of a DAG.

The layout follows the *names* of the nodes, never the order in which they were declared: a state
dict loads into the same DAG written down in another order, in another process and hash seed. Every
name has one form and a place in one order, see `dagnn.graph.name_forms`.
"""

from collections.abc import Hashable

import torch
from torch import Tensor

from dagnn.errors import GraphError
from dagnn.graph import Dag
from dagnn.graph.csr import stable_order
from dagnn.graph.name_forms import sort_key


class ParameterLayout:
    """Places of nodes and slots of edges.

    A node's *place* is its rank by (level, name). An edge's *slot* is its rank by (place of its
    target, place of its source), so the weights into one node, and into one level, are neighbours.
    A bias's slot is its rank by place.

    Args:
        dag: no edge twice, and no edge into an input.
        bias: a bias for every node that is not an input; or for some nodes, bool ``[num_nodes]``.
            Sources that are not inputs always have one: they have nothing else.
        by_name: nodes sorted by name, if known from a Dag with the same names.

    Raises:
        GraphError: an edge is declared twice, or leads into an input.

    Attributes:
        node_at: int64 ``[num_nodes]``, the node (index in ``dag``) at each place.
        by_name: int64 ``[num_nodes]``, the nodes sorted by name (by index where they have none).
        place_of: int64 ``[num_nodes]``, the place of each node.
        edges: int64 ``[num_edges, 2]``, by slot: places of source and target.
        edge_at: int64 ``[num_edges]``, row of ``dag.edges`` of each slot.
        has_bias: bool ``[num_nodes]``, by place.
        num_biases: entries of the bias vector.
        levels, in_degree: int64 ``[num_nodes]``, by place.
        inputs, outputs: int64, places in the DAG's order of inputs and outputs.
    """

    def __init__(self, dag: Dag, bias: bool | Tensor, by_name: Tensor | None = None) -> None:
        self.dag = dag
        self.by_name = _by_name(dag) if by_name is None else by_name
        self.node_at = self.by_name[_order(dag.levels[self.by_name], dag.num_nodes)]
        self.place_of = torch.empty_like(self.node_at).scatter_(0, self.node_at, torch.arange(dag.num_nodes))
        edges = self.place_of[dag.edges]
        self._key = edges[:, 1] * dag.num_nodes + edges[:, 0]
        self.edge_at = _order(self._key, dag.num_nodes**2)
        self._key = self._key[self.edge_at]
        self.edges = edges[self.edge_at]
        self.levels = dag.levels[self.node_at]
        self.in_degree = dag.in_degree[self.node_at]
        self.inputs, self.outputs = self.place_of[dag.inputs], self.place_of[dag.outputs]
        self._check()

        chosen = bias[self.node_at] if isinstance(bias, Tensor) else torch.full((dag.num_nodes,), bias)
        self.has_bias = chosen | (self.in_degree == 0)
        self.has_bias[self.inputs] = False
        self.num_biases = int(self.has_bias.sum())

    def slot_of(self, u: Hashable, v: Hashable) -> int:
        """Entry of ``edge_weight`` for the edge between the nodes called ``u`` and ``v``.

        Raises:
            GraphError: an unknown node, or no such edge.
        """
        source, target = (int(self.place_of[self.dag.index_of(name)]) for name in (u, v))
        key = target * self.dag.num_nodes + source
        slot = int(torch.searchsorted(self._key, key))
        if slot == len(self._key) or int(self._key[slot]) != key:
            reverse = source * self.dag.num_nodes + target
            hint = f"; there is {v!r} -> {u!r}" if bool((self._key == reverse).any()) else ""
            raise GraphError(f"there is no edge {u!r} -> {v!r}{hint}: give the source first, then the target.")
        return slot

    def slot_of_edge(self, edge: Hashable) -> int:
        """The same for a pair of names."""
        if not isinstance(edge, tuple | list) or len(edge) != 2:
            raise GraphError(f"an edge is a pair of names (source, target), got {edge!r}.")
        return self.slot_of(*edge)

    def bias_slot_of(self, node: Hashable) -> int:
        """Entry of ``bias`` for the node with this name.

        Raises:
            GraphError: an unknown node, or one without a bias.
        """
        place = int(self.place_of[self.dag.index_of(node)])
        if not self.has_bias[place]:
            why = "is an input" if place in self.inputs.tolist() else "was made without one"
            raise GraphError(f"the node {node!r} has no bias: it {why}.")
        return int(self.has_bias[:place].sum())

    def slots_of(self, edges: Tensor) -> Tensor:
        """Slots int64 ``[n]`` of edges that exist, int64 ``[n, 2]`` rows (source, target) as nodes of the Dag."""
        ends = self.place_of[edges]
        return torch.searchsorted(self._key, ends[:, 1] * self.dag.num_nodes + ends[:, 0])

    def edge_names(self) -> list[tuple[Hashable, Hashable]]:
        """(source name, target name) of every edge, by slot."""
        names = [self.dag.name_of(node) for node in self.node_at.tolist()]
        return [(names[u], names[v]) for u, v in self.edges.tolist()]

    def bias_names(self) -> list[Hashable]:
        """The name of the node of every bias, by slot."""
        return [self.dag.name_of(node) for node in self.node_at[self.has_bias].tolist()]

    def _check(self) -> None:
        repeated = (self._key[1:] == self._key[:-1]).nonzero()
        if len(repeated):
            u, v = self._names_of_edge(int(repeated[0]))
            raise GraphError(
                f"the edge {u!r} -> {v!r} is declared twice, but a DagNN has one weight per edge: drop one."
            )
        is_input = torch.zeros(self.dag.num_nodes, dtype=torch.bool)
        is_input[self.inputs] = True
        entering = is_input[self.edges[:, 1]].nonzero()
        if len(entering):
            u, v = self._names_of_edge(int(entering[0]))
            raise GraphError(
                f"the input {v!r} has the incoming edge {u!r} -> {v!r}, but the value of an input is given, "
                "not computed: drop the edge, or feed the input through a node of its own."
            )
        if len(self.outputs) == 0:
            raise GraphError("the Dag has no outputs, so a network on it computes nothing: name outputs=[...].")

    def _names_of_edge(self, slot: int) -> tuple[Hashable, Hashable]:
        u, v = self.node_at[self.edges[slot]].tolist()
        return self.dag.name_of(u), self.dag.name_of(v)


def _order(keys: Tensor, bound: int) -> Tensor:
    """Indices that sort ``keys``, each in ``0 .. bound - 1``; several times faster than PyTorch's sort."""
    return torch.from_numpy(stable_order(keys.numpy(), bound))


def _by_name(dag: Dag) -> Tensor:
    """Nodes sorted by name, or by index where nodes have no names."""
    if dag.names is None:
        return torch.arange(dag.num_nodes)
    keys = [sort_key(name) for name in dag.names]
    return torch.tensor(sorted(range(dag.num_nodes), key=keys.__getitem__), dtype=torch.int64)


def stable_text(name: Hashable) -> str:
    """The name and its type in a text that is the same in every process."""
    return repr(sort_key(name))
