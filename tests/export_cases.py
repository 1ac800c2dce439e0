"""Helpers for tests of exports: a compiler, networks of random activations, sweeps of all kinds of cells, networks."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from dagnn.graph import Dag, DagBatch
from dagnn.kernels.nodes import ACTIVATIONS, AGGREGATIONS, NEAT_ACTIVATIONS
from dagnn.nn import (
    AttentionCell,
    ChildSumTreeLSTMCell,
    DagNN,
    DagSweep,
    FormulaCell,
    GraphTransformNet,
    GRUCell,
    TreeLSTMCell,
)

COMPILER = shutil.which(os.environ.get("CC") or "gcc") or shutil.which("clang") or shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler is here")
STRICT = ["-std=c99", "-O2", "-Wall", "-Wextra", "-pedantic", "-Werror"]
NAMES = sorted(ACTIVATIONS)


def compiled(folder: Path, sources: list[str]) -> ctypes.CDLL:
    library = folder / "networks.so"
    command = [COMPILER, *STRICT, "-shared", "-fPIC", *sources, "-lm", "-o", str(library)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


def run_c(
    library: ctypes.CDLL, name: str, x: np.ndarray, num_outputs: int, dtype: np.dtype | type | None = None
) -> np.ndarray:
    """``dtype``: of the results; by default that of x."""
    x = np.ascontiguousarray(x)
    y = np.empty((len(x), num_outputs), dtype or x.dtype)
    getattr(library, f"{name}_batch")(*map(ctypes.c_void_p, (x.ctypes.data, y.ctypes.data)), ctypes.c_size_t(len(x)))
    return y


def random_network(dag: Dag, seed: int, dtype: torch.dtype) -> DagNN:
    """Activations by name, sums."""
    generator = np.random.default_rng(seed)
    activation = [NAMES[k] for k in generator.integers(len(NAMES), size=dag.num_nodes)]
    return DagNN(dag, activation=activation, dtype=dtype)


def any_network(dag: Dag, seed: int, dtype: torch.dtype) -> DagNN:
    """Any activation, formulas too, any aggregation, and responses; not those that leave no digits near 0 or 1."""
    generator = np.random.default_rng(seed)
    names = [*NAMES, *(name for name in NEAT_ACTIVATIONS if name not in ("neat.log", "neat.inv", "neat.exp"))]
    formulas = [lambda z: z * torch.sigmoid(z), lambda z: torch.where(z > 0, z.sin(), z.abs()).cos()]
    choices = [*names, *formulas]
    return DagNN(
        dag,
        activation=[choices[k] for k in generator.integers(len(choices), size=dag.num_nodes)],
        aggregation=[list(AGGREGATIONS)[k] for k in generator.integers(len(AGGREGATIONS), size=dag.num_nodes)],
        response=generator.choice([1.0, 0.5, -1.3], size=dag.num_nodes).tolist(),
        dtype=dtype,
    )


# ---- sweeps over one graph ----

D, H, OPERATORS, SLOTS = 3, 5, 2, 9


class Peephole(FormulaCell):
    """Ordered, with sums by slot and vectors."""

    states = ("h", "c")

    def formula(self, x, operands, weights):
        kept = operands.by_slot(operands.c)
        m = weights.product(operands.by_slot(operands.h))
        i = torch.sigmoid(x.i + m.i + weights.peep_i * operands.sum(kept))
        f = torch.sigmoid(x.f + m.by_slot.f + weights.peep_f * kept)
        c = i * torch.tanh(x.u + m.u) + operands.sum(f * kept)
        return torch.sigmoid(x.o + m.o + weights.peep_o * c) * torch.tanh(c), c


class Softmax(FormulaCell):
    """A softmax column by column, of a product for each operand."""

    states = ("h", "c")

    def formula(self, x, operands, weights):
        share = operands.softmax(weights.each(operands.h))
        m = weights.product(operands.sum(share * operands.h), operands.max(operands.c))
        c = torch.sigmoid(x.i + m.i) * torch.tanh(x.u + m.u) + torch.sigmoid(x.f + m.f) * operands.mean(operands.c)
        return torch.sigmoid(x.o + m.o) * torch.tanh(c) + operands.max(operands.h), c


class MeanAndMax(FormulaCell):
    """Ordered: means and maxima in slots."""

    states = ("h", "c", "e")

    def formula(self, x, operands, weights):
        m = weights.product(operands.mean(operands.h * operands.c), operands.max(operands.e))
        kept = operands.sum(m.by_slot.f * operands.max(operands.c) + m.by_slot.f * operands.by_slot(operands.e))
        c = torch.where(x.a < m.a, kept, x.a * m.b)
        return torch.tanh(c + m.a), c * 0.5, torch.tanh(c) - operands.sum(operands.h.square())


class Library(FormulaCell):
    """Functions that come from the C library."""

    def formula(self, x, operands, weights):
        m = weights.product(operands.sum(torch.sin(operands.h)))
        return torch.cos(x.a + m.a) + torch.log(m.a * m.a + 0.5)


class NoProduct(FormulaCell):
    """Runs level by level in Python."""

    def formula(self, x, operands, weights):
        return torch.tanh(x.n + operands.sum(operands.h * weights.v))


class TwoSlotColumns(FormulaCell):
    """Runs level by level in Python."""

    def formula(self, x, operands, weights):
        m = weights.product(operands.by_slot(operands.h))
        return torch.tanh(x.n + m.n + operands.sum(m.by_slot.a * torch.sigmoid(m.by_slot.b)))


class AttentionLate(FormulaCell):
    """Attention after the product, and a feature before it: level by level in Python."""

    def formula(self, x, operands, weights):
        m = weights.product(operands.sum(operands.h * x.g))
        return torch.tanh(x.n + m.n + operands.sum(operands.attention() * operands.h))


class NoOperands(FormulaCell):
    """Looks at the node alone."""

    def formula(self, x, operands, weights):
        return torch.tanh(x.n) * weights.scale


SAME_BITS = {
    "tree_lstm": lambda **how: TreeLSTMCell(D, H, SLOTS, **how),
    "child_sum": lambda **how: ChildSumTreeLSTMCell(D, H, **how),
    "gru": lambda **how: GRUCell(D, H, **how),
    "mean": lambda **how: GRUCell(D, H, "mean", **how),
    "max": lambda **how: GRUCell(D, H, "max", **how),
    "peephole": lambda **how: Peephole(D, H, SLOTS, **how),
    "softmax": lambda **how: Softmax(D, H, **how),
    "mean and max": lambda **how: MeanAndMax(D, H, SLOTS, **how),
}
OTHERS = {
    "attention": lambda **how: AttentionCell(D, H, **how),
    "library": lambda **how: Library(D, H, **how),
    "no product": lambda **how: NoProduct(D, H),
    "two slot columns": lambda **how: TwoSlotColumns(D, H, SLOTS, **how),
    "attention late": lambda **how: AttentionLate(D, H, **how),
    "no operands": lambda **how: NoOperands(D, H),
}
CELLS = SAME_BITS | OTHERS
# A hole: node 3 uses positions 0 and 2. Node 4 uses node 2 twice, node 0 three edges; node 6 stands alone.
SWEPT = DagBatch.from_dags(
    [
        Dag(
            [(0, 2), (1, 2), (2, 3), (0, 3), (2, 4), (3, 4), (2, 4), (0, 5), (2, 5), (4, 5)],
            num_nodes=7,
            edge_attributes={"position": torch.tensor([0, 1, 0, 2, 0, 1, 2, 0, 1, 2])},
            node_attributes={"operator": torch.tensor([0, 0, 1, 0, 1, 1, 0])},
        ),
        Dag(
            [(0, 1)],
            edge_attributes={"position": torch.tensor([0])},
            node_attributes={"operator": torch.tensor([1, 0])},
        ),
    ]
)


def sweep_of(name: str, direction: str, dtype: torch.dtype, seed: int = 0, operators: int | None = None) -> DagSweep:
    torch.manual_seed(seed)
    return DagSweep(CELLS[name](operators=operators), direction).to(dtype)


# ---- whole networks over one graph ----

SYMBOLS, LABELS, POSITIONS, DIM = 5, 3, 4, 8
GRAPHS = DagBatch.from_dags(
    [Dag([(0, 2), (1, 2), (2, 3), (0, 3)]), Dag([], 1), Dag([], 0), Dag([(0, 1), (1, 2), (0, 2)])]
)
SETTINGS = [
    {},
    {"cell": "tree_lstm", "max_children": 9, "edge_types": 2, "aggregate": "mean", "attention_heads": 2},
    {"cell": "gru", "direction": "down", "aggregate": "max", "sweeps": 2, "attention_heads": 4, "edge_types": 3},
    {"cell": "attention", "direction": "up", "message_layers": 0, "decoder_layers": 1, "decoder_heads": 1},
    {"sweeps": 0, "message_layers": 1},
]


def network(number: int, dtype: torch.dtype, seed: int = 0) -> GraphTransformNet:
    torch.manual_seed(seed)
    return GraphTransformNet(SYMBOLS, LABELS, POSITIONS, DIM, **SETTINGS[number]).to(dtype)
