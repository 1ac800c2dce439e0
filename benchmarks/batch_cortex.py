"""Models of recursive-model compilers on parse trees, written as a user writes them, against PyTorch level by level.

TreeGRU, TreeLSTM and MV-RNN are among the models that Cortex was evaluated with, for inference on one tree and on ten
(Fegade, Chen, Gibbons, Mowry, "Cortex: A Compiler for Recursive Deep Learning Models", MLSys 2021). Cortex itself is
not compared: it has no build that can be installed. The trees are drawn, of 5 to 40 words, whose features are a table.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.batch_peers import Problem
from benchmarks.harness import Case, Contestant
from dagnn.graph import Dag, DagBatch
from dagnn.nn import DagSweep, FormulaCell, LearnableModule

SYMBOLS, WIDTH, MATRIX_WIDTH = 10, 256, 64


class TreeGRU(FormulaCell):
    """The child-sum GRU."""

    def formula(self, x: Any, operands: Any, weights: Any) -> Any:
        s = operands.sum(operands.h)
        m = weights.product(s)
        z, r = torch.sigmoid(x.z + m.z), torch.sigmoid(x.r + m.r)
        return z * s + (1 - z) * torch.tanh(x.n + r * m.n)


class TreeLSTM(FormulaCell):
    """The child-sum LSTM."""

    states = ("h", "c")

    def formula(self, x: Any, operands: Any, weights: Any) -> Any:
        m = weights.product(operands.sum(operands.h))
        f = torch.sigmoid(x.f + weights.each(operands.h))
        c = torch.sigmoid(x.i + m.i) * torch.tanh(x.u + m.u) + operands.sum(f * operands.c)
        return torch.sigmoid(x.o + m.o) * torch.tanh(c), c


class MatrixVector(LearnableModule):
    """The cell of an MV-RNN: nodes have a vector and a matrix. Formulas have no matrices: it runs level by level."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.state_sizes = width, (width, width * width)
        self.of_vectors = nn.Parameter(torch.randn(2 * width, width) / width)
        self.of_matrices = nn.Parameter(torch.randn(width, 2 * width) / width)

    def forward(
        self, features: Tensor, states: tuple[Tensor, ...], target: Tensor, position: Tensor
    ) -> tuple[Tensor, ...]:
        """Vector and matrix of every node of a level; the arguments are those of `dagnn.kernels.Cell`."""
        n, d = len(features), self.width
        if not len(target):
            return features[:, :d], features[:, d:]
        of_child = [one.new_empty(2, n, one.shape[1]) for one in states]
        vectors, matrices = (of.index_put((position, target), one) for of, one in zip(of_child, states, strict=True))
        return self.composed(vectors, matrices.view(2, n, d, d))

    def composed(self, vectors: Tensor, matrices: Tensor) -> tuple[Tensor, Tensor]:
        """From those of both children, ``[2, n, d]`` and ``[2, n, d, d]``."""
        crossed = (matrices.flip(0) @ vectors.unsqueeze(3)).squeeze(3)
        vector = torch.tanh(torch.cat([crossed[0], crossed[1]], 1) @ self.of_vectors)
        return vector, (self.of_matrices @ torch.cat([matrices[0], matrices[1]], 1)).flatten(1)


def parse_trees(count: int) -> list[Dag]:
    """Binary trees: two neighbouring phrases are joined, drawn, until one is left."""
    generator = torch.Generator().manual_seed(0)
    trees = []
    for _ in range(count):
        words = int(torch.randint(5, 41, (), generator=generator))
        phrases, edges = list(range(words)), []
        for node in range(words, 2 * words - 1):
            at = int(torch.randint(len(phrases) - 1, (), generator=generator))
            edges += [(phrases[at], node), (phrases[at + 1], node)]
            phrases[at : at + 2] = [node]
        symbol = torch.zeros(2 * words - 1, dtype=torch.int64)  # 0: no word
        symbol[:words] = torch.randint(1, SYMBOLS, (words,), generator=generator)
        position = torch.arange(len(edges)) % 2
        trees.append(
            Dag(
                torch.tensor(edges),
                len(symbol),
                node_attributes={"operator": symbol},
                edge_attributes={"position": position},
            )
        )
    return trees


def _gru_by_level(problem: Problem, cell: TreeGRU, table: Tensor) -> Tensor:
    n, d = len(problem), cell.hidden
    own = torch.addmm(cell.bias, table, cell.feature_weight).index_select(0, problem.symbol)
    h = table.new_zeros(n + 1, d)
    leaves = problem.levels[0][1]
    h[:leaves] = (1 - own[:leaves, :d].sigmoid()) * own[:leaves, 2 * d :].tanh()
    for a, b in problem.levels[1:]:
        s = h.index_select(0, problem.child[a:b, :2].flatten()).view(b - a, 2, d).sum(1)
        z, m = own[a:b], s @ cell.state_weight
        update, reset = (z[:, : 2 * d] + m[:, : 2 * d]).sigmoid().chunk(2, 1)
        new = (z[:, 2 * d :] + reset * m[:, 2 * d :]).tanh()
        h[a:b] = new + update * (s - new)
    return h.index_select(0, problem.place)


def _lstm_by_level(problem: Problem, cell: TreeLSTM, table: Tensor) -> Tensor:
    n, d = len(problem), cell.hidden
    own = torch.addmm(cell.bias, table, cell.feature_weight).index_select(0, problem.symbol)
    h, c = (table.new_zeros(n + 1, d) for _ in range(2))
    order = [cell.plan.features.index(name) for name in "fiuo"]
    columns = [cell.plan.columns.index(name) for name in "iuo"]
    for level, (a, b) in enumerate(problem.levels):
        f, i, u, o = (own[a:b, k * d : (k + 1) * d] for k in order)
        kept = 0
        if level:
            child = problem.child[a:b, :2].flatten()
            of_child = h.index_select(0, child)
            m = of_child.view(b - a, 2, d).sum(1) @ cell.state_weight
            i, u, o = (z + m[:, k * d : (k + 1) * d] for z, k in zip((i, u, o), columns, strict=True))
            forget = (f.unsqueeze(1) + (of_child @ cell.operand_weight).view(b - a, 2, d)).sigmoid()
            kept = (forget * c.index_select(0, child).view(b - a, 2, d)).sum(1)
        c[a:b] = i.sigmoid() * u.tanh() + kept
        h[a:b] = o.sigmoid() * c[a:b].tanh()
    return h.index_select(0, problem.place)


def _matrix_vector_by_level(problem: Problem, cell: MatrixVector, table: Tensor) -> Tensor:
    d = cell.width
    of_symbol = table.index_select(0, problem.symbol)
    vectors, matrices = of_symbol[:, :d].contiguous(), of_symbol[:, d:].contiguous()
    for a, b in problem.levels[1:]:
        child = problem.child[a:b, :2].t().flatten()
        given = vectors.index_select(0, child).view(2, b - a, d), matrices.index_select(0, child).view(2, b - a, d, d)
        vectors[a:b], matrices[a:b] = cell.composed(*given)
    return vectors.index_select(0, problem.place)


def cases(quick: bool) -> Iterable[Case]:
    """Inference with each model on one tree and on ten."""
    for count in (10,) if quick else (1, 10):
        batch = DagBatch.from_dags(parse_trees(count))
        problem, symbol = Problem.of(batch, SYMBOLS), batch.node_attributes["operator"]
        trees = f"{count} parse tree" + "s" * (count > 1)
        for name, make, by_level, width in (
            ("TreeGRU", partial(TreeGRU, WIDTH, WIDTH), _gru_by_level, WIDTH),
            ("TreeLSTM", partial(TreeLSTM, WIDTH, WIDTH), _lstm_by_level, WIDTH),
            ("MV-RNN", partial(MatrixVector, MATRIX_WIDTH), _matrix_vector_by_level, MATRIX_WIDTH),
        ):
            torch.manual_seed(0)
            cell = make()
            is_matrix = isinstance(cell, MatrixVector)
            sweep, table = DagSweep(cell), torch.randn(SYMBOLS, width * (1 + width) if is_matrix else width)

            ours: Contestant = torch.no_grad()(partial(sweep, table, batch, symbol))
            peer: Contestant = torch.no_grad()(partial(by_level, problem, cell, table))

            def check(ours: Contestant = ours, peer: Contestant = peer) -> None:
                torch.testing.assert_close(ours(), peer(), rtol=1e-4, atol=1e-5)

            how = "level by level" if is_matrix else "compiled"
            yield Case(
                f"inference, {name}, {how}, {trees}, d={width}", ours, {"by level": peer}, check=check, threads=1
            )
