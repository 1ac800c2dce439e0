"""Other ways to run an ordered TreeLSTM over a batch of DAGs, each as good as we could make it.

All compute the same: ``run(projected, weight)`` with the projected features of every symbol ``[symbols, 4 * d]``
(columns i, o, u, f) and ``weight [3 * d, 6 * d]`` (columns i, o, u, f_0, f_1, f_2), or one such matrix for every
operator, gives ``h`` of every node. Where it helps, nodes are sorted by level, so that a level is a slice.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from dagnn.graph import DagBatch

CHILDREN = 3
Run = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Problem:
    """A batch of DAGs, nodes sorted by (level, operator).

    Attributes:
        symbol: int64 ``[N]``, of the nodes in this order; also their operator.
        child: int64 ``[N, 3]``, places of operands; N where there is none.
        levels: first and last place of each level.
        groups: (first place, last place, operands of the widest node, operator) of each run of equal operators.
        place: int64 ``[N]``, the place of each node of the batch.
        first_place: of the nodes of each graph, for recursion: graph -> nodes in topological order.
    """

    symbol: Tensor
    child: Tensor
    levels: list[tuple[int, int]]
    groups: list[tuple[int, int, int, int]]
    place: Tensor
    num_symbols: int

    @classmethod
    def of(cls, batch: DagBatch, num_symbols: int) -> "Problem":
        """The arrays of a batch with the node attribute "operator" and the edge attribute "position"."""
        operator, n = batch.node_attributes["operator"], batch.num_nodes
        order = (batch.levels * num_symbols + operator).argsort(stable=True)
        place = torch.empty_like(order).scatter_(0, order, torch.arange(n))
        child = torch.full((n, CHILDREN), n)
        source, target = batch.edges.unbind(1)
        child[place[target], batch.edge_attributes["position"]] = place[source]
        level, symbol = batch.levels[order], operator[order]
        levels = _runs(level)
        arity = (child < n).sum(1)
        groups = [(a, b, int(arity[a:b].max()), int(symbol[a])) for a, b in _runs(level * num_symbols + symbol)]
        return cls(symbol, child, levels, groups, place, num_symbols)

    def __len__(self) -> int:
        return len(self.symbol)


def _runs(sorted_keys: Tensor) -> list[tuple[int, int]]:
    counts = torch.unique_consecutive(sorted_keys, return_counts=True)[1]
    return list(pairwise([0, *counts.cumsum(0).tolist()]))


def cell(own: Tensor, messages: Tensor | None, child_c: Tensor) -> tuple[Tensor, Tensor]:
    """One level: own gates ``[n, 4 d]``, what the operands say ``[n, 6 d]``, their c ``[n, 3, d]``."""
    d = own.shape[1] // 4
    if messages is None:
        c = own[:, :d].sigmoid() * own[:, 2 * d : 3 * d].tanh()
        return own[:, d : 2 * d].sigmoid() * c.tanh(), c
    gates = (own[:, : 2 * d] + messages[:, : 2 * d]).sigmoid()
    u = (own[:, 2 * d : 3 * d] + messages[:, 2 * d : 3 * d]).tanh()
    forget = (own[:, 3 * d :].unsqueeze(1) + messages[:, 3 * d :].view(len(own), CHILDREN, d)).sigmoid()
    c = gates[:, :d] * u + (forget * child_c).sum(1)
    return gates[:, d:] * c.tanh(), c


def eager(problem: Problem) -> Run:
    """Level by level under autograd, states in one tensor that is written in place: the fastest eager form found."""
    n = len(problem)

    def run(projected: Tensor, weight: Tensor) -> Tensor:
        d = projected.shape[1] // 4
        own = projected.index_select(0, problem.symbol)
        h, c = (projected.new_zeros(n + 1, d) for _ in range(2))
        for level, (a, b) in enumerate(problem.levels):
            if level:
                child = problem.child[a:b].reshape(-1)
                messages = h.index_select(0, child).view(b - a, CHILDREN * d) @ weight
                new_h, new_c = cell(own[a:b], messages, c.index_select(0, child).view(b - a, CHILDREN, d))
            else:
                new_h, new_c = cell(own[a:b], None, c)
            h[a:b], c[a:b] = new_h, new_c
        return h.index_select(0, problem.place)

    return run


def function(problem: Problem) -> Run:
    """One autograd Function on torch operations, backward written by hand; one product for the weight's gradient."""
    n = len(problem)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, projected: Tensor, weight: Tensor) -> Tensor:
            d = projected.shape[1] // 4
            h, c = (projected.new_zeros(n + 1, d) for _ in range(2))
            messages = projected.new_zeros(n, CHILDREN * d)
            gates, squashed = projected.new_empty(n, 6 * d), projected.new_empty(n, d)
            for level, (a, b) in enumerate(problem.levels):
                own = projected.index_select(0, problem.symbol[a:b])
                z, child = gates[a:b], problem.child[a:b].reshape(-1)
                if level:
                    torch.index_select(h, 0, child, out=messages[a:b].view(-1, d))
                    torch.mm(messages[a:b], weight, out=z)
                    z[:, : 3 * d] += own[:, : 3 * d]
                    z[:, 3 * d :].view(b - a, CHILDREN, d).add_(own[:, 3 * d :].unsqueeze(1))
                    z[:, 3 * d :].sigmoid_()
                else:
                    z[:, : 3 * d] = own[:, : 3 * d]
                    z[:, 3 * d :] = 0
                z[:, : 2 * d].sigmoid_()
                z[:, 2 * d : 3 * d].tanh_()
                torch.mul(z[:, :d], z[:, 2 * d : 3 * d], out=c[a:b])
                if level:
                    kept = c.index_select(0, child).view(b - a, CHILDREN, d)
                    c[a:b] += (z[:, 3 * d :].view(b - a, CHILDREN, d) * kept).sum(1)
                torch.tanh(c[a:b], out=squashed[a:b])
                torch.mul(z[:, d : 2 * d], squashed[a:b], out=h[a:b])
            ctx.save_for_backward(projected, weight)
            ctx.saved = c, messages, gates, squashed
            return h.index_select(0, problem.place)

        @staticmethod
        def backward(ctx: Any, grad_h: Tensor) -> tuple[Tensor, Tensor]:
            projected, weight = ctx.saved_tensors
            c, messages, gates, squashed = ctx.saved
            d = projected.shape[1] // 4
            of_h, of_c = (projected.new_zeros(n + 1, d) for _ in range(2))
            of_h.index_copy_(0, problem.place, grad_h)
            of_z = torch.zeros_like(gates)
            for level, (a, b) in reversed(list(enumerate(problem.levels))):
                i, o, u, f = torch.split(gates[a:b], [d, d, d, CHILDREN * d], 1)
                gh, q, z = of_h[a:b], squashed[a:b], of_z[a:b]
                gc = of_c[a:b].addcmul_(gh * o, 1 - q * q)
                torch.mul(gc * u, i * (1 - i), out=z[:, :d])
                torch.mul(gh * q, o * (1 - o), out=z[:, d : 2 * d])
                torch.mul(gc * i, 1 - u * u, out=z[:, 2 * d : 3 * d])
                if level:
                    child = problem.child[a:b].reshape(-1)
                    kept = c.index_select(0, child).view(b - a, CHILDREN, d)
                    f = f.reshape(b - a, CHILDREN, d)
                    passed = gc.unsqueeze(1) * f
                    torch.mul(passed * kept, 1 - f, out=z[:, 3 * d :].view(b - a, CHILDREN, d))
                    of_c.index_add_(0, child, passed.view(-1, d))
                    of_h.index_add_(0, child, (z @ weight.t()).view(-1, d))
            leaves = problem.levels[0][1]
            of_weight = messages[leaves:].t() @ of_z[leaves:]
            of_own = torch.cat([of_z[:, : 3 * d], of_z[:, 3 * d :].view(n, CHILDREN, d).sum(1)], 1)
            return torch.zeros_like(projected).index_add_(0, problem.symbol, of_own), of_weight

    return Function.apply


def pyg(problem: Problem) -> Run:
    """A MessagePassing for each level and position."""
    from torch_geometric.nn import MessagePassing

    class Sum(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr="add", node_dim=0)

        def forward(self, edges: Tensor, x: Tensor, size: tuple[int, int]) -> Tensor:
            return self.propagate(edges, x=(x, None), size=size)

    class WeighedSum(Sum):
        def forward(self, edges: Tensor, x: Tensor, factor: Tensor, size: tuple[int, int]) -> Tensor:
            return self.propagate(edges, x=(x, None), factor=factor, size=size)

        def message(self, x_j: Tensor, factor: Tensor) -> Tensor:
            return x_j * factor

    n, summed, weighed = len(problem), Sum(), WeighedSum()
    edges = []
    for a, b in problem.levels:
        of_level = []
        for k in range(CHILDREN):
            has = problem.child[a:b, k] < n
            of_level.append(torch.stack([problem.child[a:b, k][has], torch.arange(b - a)[has]]))
        edges.append(of_level)

    def run(projected: Tensor, weight: Tensor) -> Tensor:
        d = projected.shape[1] // 4
        own = projected.index_select(0, problem.symbol)
        h, c = (projected.new_zeros(n, d) for _ in range(2))
        for level, (a, b) in enumerate(problem.levels):
            z = torch.cat([own[a:b], own[a:b, 3 * d :], own[a:b, 3 * d :]], 1)
            for k in range(CHILDREN if level else 0):
                z = z + summed(edges[level][k], h, (n, b - a)) @ weight[k * d : (k + 1) * d]
            new_c = z[:, :d].sigmoid() * z[:, 2 * d : 3 * d].tanh()
            for k in range(CHILDREN if level else 0):
                forget = z[:, (3 + k) * d : (4 + k) * d].sigmoid().index_select(0, edges[level][k][1])
                new_c = new_c + weighed(edges[level][k], c, forget, (n, b - a))
            at = torch.arange(a, b)
            h = h.index_copy(0, at, z[:, d : 2 * d].sigmoid() * new_c.tanh())
            c = c.index_copy(0, at, new_c)
        return h.index_select(0, problem.place)

    return run


def recursion(problem: Problem) -> Run:
    """Node by node in Python, with products of the exact size."""
    n = len(problem)
    symbol, child = problem.symbol.tolist(), [[c for c in row if c < n] for row in problem.child.tolist()]

    def run(projected: Tensor, weight: Tensor) -> Tensor:
        d = projected.shape[1] // 4
        rows = projected.unbind(0)
        h: list[Tensor] = []
        c: list[Tensor] = []
        for v in range(n):
            own, k = rows[symbol[v]], len(child[v])
            i, o, u, f = own.split(d)
            if k:
                messages = torch.cat([h[w] for w in child[v]]) @ weight[: k * d, : (3 + k) * d]
                i, o, u = i + messages[:d], o + messages[d : 2 * d], u + messages[2 * d : 3 * d]
                forget = (f + messages[3 * d :].view(k, d)).sigmoid()
                new = i.sigmoid() * u.tanh() + (forget * torch.stack([c[w] for w in child[v]])).sum(0)
            else:
                new = i.sigmoid() * u.tanh()
            c.append(new)
            h.append(o.sigmoid() * new.tanh())
        return torch.stack(h).index_select(0, problem.place)

    return run


def by_operator(problem: Problem, how: str) -> Run:
    """Level by level under autograd, each operator with a weight of its own: products by "loop", "bmm" or "grouped"."""
    n = len(problem)
    of_level = [[g for g in problem.groups if a <= g[0] < b] for a, b in problem.levels]
    ends = [torch.tensor([b - groups[0][0] for _, b, _, _ in groups], dtype=torch.int32) for groups in of_level]
    operators = [torch.tensor([operator for *_, operator in groups]) for groups in of_level]

    def products(x: Tensor, weight: Tensor, level: int) -> Tensor:
        first = of_level[level][0][0]
        parts = [(x[a - first : b - first], operator) for a, b, _, operator in of_level[level]]
        if how == "loop":
            return torch.cat([part @ weight[operator] for part, operator in parts])
        if how == "grouped":
            return torch._grouped_mm(x, weight[operators[level]], offs=ends[level])
        padded = torch.nn.utils.rnn.pad_sequence([part for part, _ in parts], batch_first=True)
        product = torch.bmm(padded, weight[operators[level]])
        return torch.cat([product[k, : len(part)] for k, (part, _) in enumerate(parts)])

    def run(projected: Tensor, weight: Tensor) -> Tensor:
        d = projected.shape[1] // 4
        own = projected.index_select(0, problem.symbol)
        h, c = (projected.new_zeros(n + 1, d) for _ in range(2))
        for level, (a, b) in enumerate(problem.levels):
            if level:
                child = problem.child[a:b].reshape(-1)
                messages = products(h.index_select(0, child).view(b - a, CHILDREN * d), weight, level)
                new_h, new_c = cell(own[a:b], messages, c.index_select(0, child).view(b - a, CHILDREN, d))
            else:
                new_h, new_c = cell(own[a:b], None, c)
            h[a:b], c[a:b] = new_h, new_c
        return h.index_select(0, problem.place)

    return run


def products_only(problem: Problem, d: int) -> Callable[[], None]:
    """The matrix products that no way around: for each number of operands one forward and two backward, all levels."""
    arity = (problem.child < len(problem)).sum(1)
    sizes = [(int((arity == k).sum()), k * d, (3 + k) * d) for k in range(1, CHILDREN + 1)]
    jobs = [(torch.randn(n, rows), torch.randn(rows, columns), torch.empty(n, columns)) for n, rows, columns in sizes]
    backs = [(torch.empty_like(left), torch.empty_like(right)) for left, right, _ in jobs]

    def run() -> None:
        for (left, right, out), (of_left, of_right) in zip(jobs, backs, strict=True):
            torch.mm(left, right, out=out)
            torch.mm(out, right.t(), out=of_left)
            torch.mm(left.t(), out, out=of_right)

    return run
