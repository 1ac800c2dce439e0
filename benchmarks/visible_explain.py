"""Conductance of every node of the human Reactome hierarchy takes 1.5 s of CPU time for 1,000 samples.

14,628 nodes, 49,737 edges, 32 steps, float32, one thread. The peer does less: gradients of the inputs alone, by public
calls. The hierarchy is read from the package `binn` (`pip install --no-deps binn`).
"""

import runpy
import sys
import time
import warnings
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import Case, main
from dagnn.nn import DagNN
from dagnn.visible import explain

LIMITS = {32: 0.06, 1000: 1.5}
EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "dagnn_reactome.py"


def by_public_calls(net: DagNN, x: Tensor, steps: int) -> Tensor:
    """Integrated gradients of the inputs, ``[B, inputs]``: one compiled forward and backward pass a step."""
    points, weights = np.polynomial.legendre.leggauss(steps)
    total, root = torch.zeros_like(x), net.output_names.index("root")
    for point, share in zip((points + 1) / 2, weights / 2, strict=True):
        here = (float(point) * x).requires_grad_()
        (gradient,) = torch.autograd.grad(net(here)[:, root].sum(), here)
        total += float(share) * gradient
    return total * x


def cases(quick: bool) -> Iterable[Case]:
    """A small and a large batch."""
    if find_spec("binn") is None:
        print("Reactome is not here: pip install --no-deps binn", file=sys.stderr)
        return
    dag, _ = runpy.run_path(str(EXAMPLE))["reactome"]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = DagNN(dag, output_activation="tanh").requires_grad_(False)
    for batch, limit in LIMITS.items():
        x = torch.randn(batch, len(dag.inputs))

        def check(x: Tensor = x) -> None:
            found = explain(net, x[:32], output="root")
            theirs = by_public_calls(net, x[:32], 32)
            assert torch.allclose(found.nodes[:, dag.inputs], theirs, atol=1e-5)
            exact = explain(net.double(), x[:4].double(), output="root")
            worst = float((exact.cut_sums() - exact.change.unsqueeze(1)).abs().max())
            net.float()
            assert worst < 1e-10, worst

        ours = partial(explain, net, x, output="root")
        peers = {} if quick and batch > 32 else {"gradients of inputs alone": partial(by_public_calls, net, x, 32)}
        yield Case(f"Reactome, B={batch}", ours, peers, limits={f"{limit} s": limit}, check=check, threads=1)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases, clock=time.process_time))
