"""What benchmarks/syntax_trees.py compares with: the same cells, as one writes them without dagnn.

All take the parameters of our cells, so results and gradients can be compared.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dagnn.graph import Dag, DagBatch
from dagnn.nn import AttentionCell, ChildSumTreeLSTMCell

Function = Callable[..., Tensor]


class SortedLevels:
    """The plan of a hand-written level loop: nodes sorted by level, and the edges into each level."""

    def __init__(self, batch: DagBatch) -> None:
        self.order = batch.levels.argsort(stable=True)
        place = torch.empty_like(self.order)
        place[self.order] = torch.arange(len(place))
        self.place = place
        ends = torch.bincount(batch.levels).cumsum(0).tolist()
        by_level = batch.levels[batch.edges[:, 1]].argsort(stable=True)
        source, target = place[batch.edges[by_level]].unbind(1)
        bounds = torch.searchsorted(target, torch.tensor([0, *ends])).tolist() if len(target) else [0] * (len(ends) + 1)
        first = 0
        self.levels = list[tuple[int, int, Tensor, Tensor]]()
        for i, end in enumerate(ends):
            edges = slice(bounds[i], bounds[i + 1])
            self.levels.append((first, end, source[edges], target[edges] - first))
            first = end


def level_loop(plan: SortedLevels, hidden: int) -> Function:
    """The child-sum TreeLSTM, level by level, with states that grow by ``torch.cat``."""

    def run(x: Tensor, of_x: Tensor, of_h: Tensor, of_forget: Tensor, bias: Tensor) -> Tensor:
        projected = x[plan.order] @ of_x + bias
        h = c = x.new_zeros(0, hidden)
        for first, end, source, target in plan.levels:
            i, o, u, f = projected[first:end].chunk(4, dim=1)
            new = x.new_zeros(end - first, hidden)
            if len(source):
                child_h, child_c = h[source], c[source]
                aggregate = new.index_add(0, target, child_h) @ of_h
                i, o, u = (own + part for own, part in zip((i, o, u), aggregate.chunk(3, dim=1), strict=True))
                new = new.index_add(0, target, (f[target] + child_h @ of_forget).sigmoid() * child_c)
            new = new + i.sigmoid() * u.tanh()
            h, c = torch.cat([h, o.sigmoid() * new.tanh()]), torch.cat([c, new])
        return h[plan.place]

    return run


def pyg_per_level(plan: SortedLevels, hidden: int) -> Function:
    """PyTorch Geometric's MessagePassing, once per level."""
    from torch_geometric.nn import MessagePassing

    class Children(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr="add", node_dim=0)

        def forward(self, edge_index: Tensor, size: tuple[int, int], **states: Any) -> Tensor:
            return self.propagate(edge_index, size=size, **states)

        def message(self, h_j: Tensor, c_j: Tensor, f_i: Tensor, weight: Tensor) -> Tensor:
            return torch.cat([h_j, (f_i + h_j @ weight).sigmoid() * c_j], dim=1)

    children = Children()
    levels = [(first, end, torch.stack([source, target])) for first, end, source, target in plan.levels]

    def run(x: Tensor, of_x: Tensor, of_h: Tensor, of_forget: Tensor, bias: Tensor) -> Tensor:
        projected = x[plan.order] @ of_x + bias
        h = c = x.new_zeros(0, hidden)
        for first, end, edge_index in levels:
            i, o, u, f = projected[first:end].chunk(4, dim=1)
            new = x.new_zeros(end - first, hidden)
            if first:
                sums = children(edge_index, (first, end - first), h=(h, new), c=(c, new), f=(h, f), weight=of_forget)
                aggregate, new = sums.chunk(2, dim=1)
                i, o, u = (own + part for own, part in zip((i, o, u), (aggregate @ of_h).chunk(3, dim=1), strict=True))
            new = new + i.sigmoid() * u.tanh()
            h, c = torch.cat([h, o.sigmoid() * new.tanh()]), torch.cat([c, new])
        return h[plan.place]

    return run


def tree_lstm_inputs(dags: list[Dag]) -> dict[str, Any]:
    """The plan of pytorch-tree-lstm: its evaluation orders of every tree, and its batch of them."""
    from treelstm import batch_tree_input, calculate_evaluation_orders

    trees = []
    for dag in dags:
        pairs = dag.edges.flip(1)  # (parent, child), the children of one parent together
        nodes, edges = calculate_evaluation_orders(pairs.numpy(), dag.num_nodes)
        orders = {"node_order": torch.from_numpy(nodes), "edge_order": torch.from_numpy(edges)}
        trees.append({"features": torch.zeros(dag.num_nodes, 1), "adjacency_list": pairs, **orders})
    batch: dict[str, Any] = batch_tree_input(trees)
    return batch


def pytorch_tree_lstm(cell: ChildSumTreeLSTMCell, inputs: dict[str, Any]) -> tuple[Function, list[Tensor]]:
    """The package, with the weights of our cell; and its parameters in our order."""
    from treelstm import TreeLSTM

    model = TreeLSTM(cell.in_features, cell.hidden)
    d = cell.hidden
    with torch.no_grad():
        model.W_iou.weight.copy_(cell.feature_weight[:, : 3 * d].T)
        model.W_f.weight.copy_(cell.feature_weight[:, 3 * d :].T)
        model.U_iou.weight.copy_(cell.state_weight.T)
        model.U_f.weight.copy_(cell.forget_weight.T)
        model.W_iou.bias.copy_(cell.bias[: 3 * d].view(3, d).flatten())
        model.W_f.bias.copy_(cell.bias[3 * d :])
    orders = [inputs[name] for name in ("node_order", "adjacency_list", "edge_order")]
    return lambda x, *_: model(x, *orders)[0], list(model.parameters())


def dagnn_loop(batch: DagBatch, directions: tuple[str, ...], hidden: int) -> Function:
    """DAGNN as its authors run it: at every level the edges of every node are looked for among all edges.

    Source: github.com/vthost/DAGNN, ogbg-code/model/dagnn.py: levels are known before, one recurrent layer, attention
    over the states of the predecessors, taken for all nodes and read at those of the level.
    """
    ends = batch.edge_index
    level_of = {"up": batch.levels, "down": batch.heights}

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        outputs = []
        for number, direction in enumerate(directions):
            score, weight_ih, weight_hh, bias_ih, bias_hh = parameters[5 * number : 5 * number + 5]
            source, target = ends if direction == "up" else ends.flip(0)
            levels = level_of[direction]
            h = torch.zeros(batch.num_nodes, hidden)
            for level in range(int(levels.max()) + 1):
                nodes = (levels == level).nonzero().squeeze(1)
                message = torch.zeros(len(nodes), hidden)
                if level:
                    edges = torch.cat([(target == node).nonzero().squeeze(1) for node in nodes])
                    message = _attention(h[source[edges]], target[edges], score, batch.num_nodes)[nodes]
                new = torch.gru_cell(x[nodes], message, weight_ih, weight_hh, bias_ih, bias_hh)
                h = h.index_add(0, nodes, new)
            outputs.append(h)
        return torch.cat(outputs, dim=1)

    return run


def _attention(h: Tensor, target: Tensor, score: Tensor, num_nodes: int) -> Tensor:
    logit = h @ score
    highest = torch.full((num_nodes,), -torch.inf).scatter_reduce(0, target, logit.detach(), "amax")
    weight = (logit - highest[target]).exp()
    total = torch.zeros(num_nodes).index_add(0, target, weight)
    return torch.zeros(num_nodes, h.shape[1]).index_add(0, target, (weight / total[target]).unsqueeze(1) * h)


def parameters_of(cell: nn.Module) -> list[Tensor]:
    """The parameters of our attention cell in the order of `dagnn_loop`."""
    assert isinstance(cell, AttentionCell)
    gru = cell.gru
    return [cell.score_weight, gru.weight_ih, gru.weight_hh, gru.bias_ih, gru.bias_hh]


def multiplier(bits: int) -> Dag:
    """The and-inverter graph of a ripple-carry multiplier, as aigverse makes it; an edge of type 1 inverts."""
    from aigverse.generators import ripple_carry_multiplier

    circuit = ripple_carry_multiplier(bits)
    edges, inverts = list[tuple[int, int]](), list[bool]()
    for gate in circuit.gates():
        for signal in circuit.fanins(gate):
            edges.append((signal.index, gate))
            inverts.append(signal.complement)
    pairs = np.array(edges, dtype=np.int64)
    position = np.zeros(len(pairs), dtype=np.int64)
    position[1:] = pairs[1:, 1] == pairs[:-1, 1]  # fan-ins of a gate are listed one after the other
    kind = torch.tensor(inverts, dtype=torch.int64)
    return Dag(pairs, circuit.size, edge_attributes={"position": position, "type": kind})
