"""Other ways to run a DAG with a weight per edge, each as good as we could make it; all compute the same tanh network.

Every peer is called with the same list of parameters, ``[x, edge_weight, bias]`` by the slots of a `DagNN`, and gives
``[B, outputs]``. Levels are runs of nodes, and edges are sorted by target, as `DagNN` has them.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from dagnn.nn import DagNN

Network = Callable[[Tensor, Tensor, Tensor], Tensor]


class Levels:
    """A network's edges by level.

    Attributes:
        first_node: of every level, and the number of nodes.
        source: per level from 1 on, int64.
        target: the same, counted from the first node of the level.
        edges: first and last edge of each of these levels.
        inputs, outputs: nodes.
    """

    def __init__(self, net: DagNN) -> None:
        layout = net._layout
        source, target = layout.edges.t().contiguous()
        sizes = torch.bincount(layout.levels)
        self.first_node = [0, *sizes.cumsum(0).tolist()]
        bounds = torch.searchsorted(target, torch.tensor(self.first_node)).tolist()
        self.edges = list(pairwise(bounds[1:]))
        self.source = [source[a:b].clone() for a, b in self.edges]
        self.target = [target[a:b] - first for (a, b), first in zip(self.edges, self.first_node[1:], strict=False)]
        self.num_nodes, self.num_edges = self.first_node[-1], len(source)
        self.inputs, self.outputs = layout.inputs, layout.outputs
        assert len(self.inputs) == sizes[0] and torch.equal(self.inputs, torch.arange(len(self.inputs)))

    def runs(self) -> list[tuple[int, int, int, int, Tensor, Tensor]]:
        """(first edge, last edge, first node, last node, source, target) of every level from 1 on."""
        nodes = zip(self.first_node[1:], self.first_node[2:], strict=False)
        return [
            (*edges, *ends, source, target)
            for edges, ends, source, target in zip(self.edges, nodes, self.source, self.target, strict=True)
        ]


def level_autograd(net: DagNN) -> Network:
    """Per-level index_select and index_add under autograd, values in one tensor that is written in place."""
    levels = Levels(net)
    runs, inputs = levels.runs(), len(levels.inputs)

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        values = x.new_empty(levels.num_nodes, len(x))
        values[:inputs] = x.t()
        for a, b, low, high, source, target in runs:
            messages = values.index_select(0, source) * weight[a:b].unsqueeze(1)
            z = bias[low - inputs : high - inputs].unsqueeze(1).expand(-1, len(x))
            values[low:high] = torch.tanh(z.index_add(0, target, messages))
        return values.index_select(0, levels.outputs).t()

    return run


def level_autograd_growing(net: DagNN) -> Network:
    """The same with a list of levels and one concatenation at each: what a deep graph can bear under autograd."""
    levels = Levels(net)
    runs, inputs = levels.runs(), len(levels.inputs)

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        values = x.t()
        for a, b, low, high, source, target in runs:
            messages = values.index_select(0, source) * weight[a:b].unsqueeze(1)
            z = bias[low - inputs : high - inputs].unsqueeze(1).expand(-1, len(x))
            values = torch.cat([values, torch.tanh(z.index_add(0, target, messages))])
        return values.index_select(0, levels.outputs).t()

    return run


def level_function(net: DagNN) -> Network:
    """One autograd Function for the whole network, its backward written by hand, level by level."""
    levels = Levels(net)
    runs, inputs = levels.runs(), len(levels.inputs)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            values = x.new_empty(levels.num_nodes, len(x))
            values[:inputs] = x.t()
            for a, b, low, high, source, target in runs:
                messages = values.index_select(0, source).mul_(weight[a:b].unsqueeze(1))
                z = values[low:high]
                z.copy_(bias[low - inputs : high - inputs].unsqueeze(1))
                z.index_add_(0, target, messages).tanh_()
            ctx.save_for_backward(values, weight)
            return values.index_select(0, levels.outputs).t()

        @staticmethod
        def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor, ...]:
            values, weight = ctx.saved_tensors
            grad = torch.zeros_like(values)
            grad[levels.outputs] = grad_y.t()
            grad_weight = torch.empty_like(weight)
            for a, b, low, high, source, target in reversed(runs):
                delta = grad[low:high].mul_(1 - values[low:high].square())
                per_edge = delta.index_select(0, target)
                grad_weight[a:b] = torch.linalg.vecdot(per_edge, values.index_select(0, source))
                grad.index_add_(0, source, per_edge.mul_(weight[a:b].unsqueeze(1)))
            return grad[:inputs].t(), grad_weight, grad[inputs:].sum(1)

    return Function.apply


def sparse_autograd(net: DagNN) -> Network:
    """A sparse matrix per level, multiplied under autograd."""
    levels = Levels(net)
    runs, inputs = levels.runs(), len(levels.inputs)
    rows = [torch.searchsorted(target, torch.arange(high - low + 1)) for _, _, low, high, _, target in runs]

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        values = x.t()
        for row, (a, b, low, high, source, _) in zip(rows, runs, strict=True):
            matrix = torch.sparse_csr_tensor(row, source, weight[a:b], (high - low, low), check_invariants=False)
            z = torch.sparse.mm(matrix, values) + bias[low - inputs : high - inputs].unsqueeze(1)
            values = torch.cat([values, torch.tanh(z)])
        return values.index_select(0, levels.outputs).t()

    return run


def sparse_function(net: DagNN) -> Network:
    """The strongest one on PyTorch: a sparse matrix per level, `sampled_addmm` for the gradient of the weights."""
    levels = Levels(net)
    runs, inputs = levels.runs(), len(levels.inputs)
    rows, columns, back_rows, back_columns, back_order = [], [], [], [], []
    for _, _, low, high, source, target in runs:
        rows.append(torch.searchsorted(target, torch.arange(high - low + 1)))
        columns.append(source)
        order = torch.argsort(source * (high - low) + target)
        back_order.append(order)
        back_rows.append(torch.searchsorted(source[order], torch.arange(low + 1)))
        back_columns.append(target[order])

    def matrix(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
        return torch.sparse_csr_tensor(rows, columns, values, shape, check_invariants=False)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            values = x.new_empty(levels.num_nodes, len(x))
            values[:inputs] = x.t()
            for i, (a, b, low, high, _, _) in enumerate(runs):
                forward = matrix(rows[i], columns[i], weight[a:b], (high - low, low))
                z = torch.addmm(bias[low - inputs : high - inputs].unsqueeze(1), forward, values[:low])
                torch.tanh(z, out=values[low:high])
            ctx.save_for_backward(values, weight)
            return values.index_select(0, levels.outputs).t()

        @staticmethod
        def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor, ...]:
            values, weight = ctx.saved_tensors
            grad = torch.zeros_like(values)
            grad[levels.outputs] = grad_y.t()
            grad_weight = torch.empty_like(weight)
            for i, (a, b, low, high, _, _) in reversed(list(enumerate(runs))):
                delta = grad[low:high].mul_(1 - values[low:high].square())
                pattern = matrix(rows[i], columns[i], weight.new_zeros(b - a), (high - low, low))
                found = torch.sparse.sampled_addmm(pattern, delta, values[:low].t(), beta=0.0)
                grad_weight[a:b] = found.values()
                grad[:low] += (
                    matrix(back_rows[i], back_columns[i], weight[a:b][back_order[i]], (low, high - low)) @ delta
                )
            return grad[:inputs].t(), grad_weight, grad[inputs:].sum(1)

    return Function.apply


def pyg(net: DagNN) -> Network:
    """PyTorch Geometric's MessagePassing, once per level."""
    from torch_geometric.nn import MessagePassing

    class Level(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr="add", node_dim=0)

        def forward(self, x: Any, edge_index: Tensor, weight: Tensor, size: tuple[int, int]) -> Tensor:
            return self.propagate(edge_index, x=x, weight=weight, size=size)

        def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
            return x_j * weight.unsqueeze(-1)

    levels, level = Levels(net), Level()
    inputs = len(levels.inputs)
    runs = [(*run[:4], torch.stack(run[4:])) for run in levels.runs()]

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        values = x.t()
        for a, b, low, high, edge_index in runs:
            z = level((values, None), edge_index, weight[a:b], (low, high - low))
            z = z + bias[low - inputs : high - inputs].unsqueeze(1)
            values = torch.cat([values, torch.tanh(z)])
        return values.index_select(0, levels.outputs).t()

    return run


def sparseprop(net: DagNN) -> Network:
    """The vectorised sparse products of SparseProp (ICML 2023), once per level, without the copies of its modules."""
    from sparseprop import backend

    levels = Levels(net)
    runs, inputs = levels.runs(), len(levels.inputs)
    indices = [
        (torch.searchsorted(target, torch.arange(high - low + 1)).int(), source.int())
        for _, _, low, high, source, target in runs
    ]

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            values = x.new_zeros(levels.num_nodes, len(x))
            values[:inputs] = x.t()
            for (rows, columns), (a, b, low, high, _, _) in zip(indices, runs, strict=True):
                z = values[low:high]
                backend.sparse_linear_vectorized_forward(values[:low], rows, columns, weight[a:b], z)
                z.add_(bias[low - inputs : high - inputs].unsqueeze(1)).tanh_()
            ctx.save_for_backward(values, weight)
            return values.index_select(0, levels.outputs).t()

        @staticmethod
        def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor, ...]:
            values, weight = ctx.saved_tensors
            grad = torch.zeros_like(values)
            grad[levels.outputs] = grad_y.t()
            grad_weight = torch.zeros_like(weight)
            for (rows, columns), (a, b, low, high, _, _) in reversed(list(zip(indices, runs, strict=True))):
                delta = grad[low:high].mul_(1 - values[low:high].square())
                backend.sparse_linear_vectorized_backward(
                    values[:low], rows, columns, weight[a:b], delta, grad[:low], grad_weight[a:b]
                )
            return grad[:inputs].t(), grad_weight, grad[inputs:].sum(1)

    return Function.apply


def masked_dense(net: DagNN) -> tuple[Network, list[Tensor]]:
    """A masked linear layer per level over all earlier nodes; its weights are matrices, returned beside it."""
    levels = Levels(net)
    runs, inputs = levels.runs(), len(levels.inputs)
    masks, matrices = [], []
    for a, b, low, high, source, target in runs:
        mask = torch.zeros(high - low, low)
        mask[target, source] = 1
        matrix = torch.zeros(high - low, low)
        matrix[target, source] = net.edge_weight.detach()[a:b]
        masks.append(mask)
        matrices.append(matrix.requires_grad_())

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        *weights, bias = parameters
        values = x
        for (_, _, low, high, _, _), weight, mask in zip(runs, weights, masks, strict=True):
            z = nn.functional.linear(values, weight * mask, bias[low - inputs : high - inputs])
            values = torch.cat([values, torch.tanh(z)], 1)
        return values.index_select(1, levels.outputs)

    return run, matrices


def sequential(net: DagNN, sizes: tuple[int, ...]) -> nn.Sequential:
    """The MLP that the network is, as PyTorch writes it."""
    modules: list[nn.Module] = []
    slot = first = 0
    for below, above in pairwise(sizes):
        linear = nn.Linear(below, above)
        with torch.no_grad():
            linear.weight.copy_(net.edge_weight[slot : slot + below * above].view(above, below))
            linear.bias.copy_(net.bias[first : first + above])
        modules += [linear, nn.Tanh()]
        slot, first = slot + below * above, first + above
    return nn.Sequential(*modules)


PEERS: Mapping[str, Callable[[DagNN], Network]] = {
    "autograd per level": level_autograd,
    "custom Function per level": level_function,
    "torch.sparse per level": sparse_autograd,
    "torch.sparse Function": sparse_function,
    "PyG per level": pyg,
    "SparseProp per level": sparseprop,
}
