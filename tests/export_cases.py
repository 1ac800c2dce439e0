"""Helpers for tests of networks as C: a compiler, and networks of random activations."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from dagnn.graph import Dag
from dagnn.kernels.nodes import ACTIVATIONS, AGGREGATIONS, NEAT_ACTIVATIONS
from dagnn.nn import DagNN

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
