"""50 replicates trained at once should take 0.6 of the time of 50 single runs on one thread, and 0.35 on two.

A single run is what one writes: a `DagNN`, its backward pass, AdamW, in a loop over batches of 50, on one thread. The
graph is Reactome's (14,628 nodes, 49,737 edges; `pip install --no-deps binn`), 300 patients, one epoch. On a machine
whose cores are busy the replicates are no slower than single runs on one thread, and than such on two. Each replicate
has the bits that it has alone, whatever the threads: that is checked first. `--quick` takes 16 replicates.
"""

import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.harness import Case, main
from benchmarks.visible_explain import EXAMPLE
from dagnn.nn import DagNN
from dagnn.visible.runs import ReplicateTraining, Run, Start, single_threaded, train, with_one_output

PATIENTS, HOW = 300, ReplicateTraining(epochs=1)
_SPIN = [sys.executable, "-c", "while True: pass"]


class Runs:
    """The same trainings in two ways: all at once, and one after another."""

    def __init__(self, replicates: int) -> None:
        dag, _ = runpy.run_path(str(EXAMPLE))["reactome"]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pathways without a protein, constants here
            self.net = DagNN(with_one_output(dag, "root"), output_activation="tanh")
        self.replicates = replicates
        self.x = torch.randn(PATIENTS, len(dag.inputs))
        self.y = (torch.randn(PATIENTS) > 0).float()

    def at_once(self, number: int | None = None) -> list[Run]:
        """All replicates, or one of them alone, trained on the threads that PyTorch may use."""
        plan = self.net._plan_on[torch.device("cpu")]
        with single_threaded() as threads:
            chosen = range(self.replicates) if number is None else [number]
            first = Start(self.net)
            runs = [first.run(plan, k, self.x, self.y, k) for k in chosen]
            train(runs, HOW, is_label=True, threads=threads, done=lambda count: None)
        return runs

    def one_by_one(self, threads: int) -> Callable[[], None]:
        """A plain loop, on so many threads."""

        def run() -> None:
            with single_threaded():
                torch.set_num_threads(threads)
                for k in range(self.replicates):
                    self._single(k)

        return run

    def _single(self, k: int) -> None:
        net = self.net
        net.reset_parameters(torch.Generator().manual_seed(k))
        optimizer = torch.optim.AdamW(net.parameters(), lr=HOW.lr, weight_decay=HOW.weight_decay, fused=True)
        for rows in torch.from_numpy(np.random.default_rng(k).permutation(PATIENTS)).split(HOW.batch_size):
            optimizer.zero_grad()
            logits = HOW.gain * net(self.x[rows])[:, 0]
            binary_cross_entropy_with_logits(logits, self.y[rows]).backward()
            optimizer.step()

    def check(self) -> None:
        """Bits of three replicates, alone and among all, on one thread and two; and the plain loop learns the same."""
        found = [self.at_once()]
        with single_threaded():
            found.append(self.at_once())
            alone = {k: self.at_once(k)[0] for k in (0, 1, self.replicates - 1)}
            self._single(1)
        for k, run in alone.items():
            for runs in found:
                assert torch.equal(runs[k].weight, run.weight) and torch.equal(runs[k].bias, run.bias), k
        assert torch.allclose(self.net.edge_weight, alone[1].weight, atol=1e-4)


@contextmanager
def busy(processes: int = 2) -> Iterator[None]:
    """So many processes that compute all the time."""
    others = [subprocess.Popen(_SPIN) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def cases(quick: bool) -> Iterable[Case]:
    """One thread, two, and two on a machine that is busy."""
    if find_spec("binn") is None:
        print("Reactome is not here: pip install --no-deps binn", file=sys.stderr)
        return
    runs = Runs(16 if quick else 50)
    name = f"{runs.replicates} replicates"
    peers = {"single runs": runs.one_by_one(1)}
    one = Case(f"{name}, one thread", runs.at_once, peers, required=1 / 0.6, check=runs.check, threads=1)
    yield one
    yield replace(one, name=f"{name}, two threads", required=1 / 0.35, threads=2)
    both = peers | {"single runs on two threads": runs.one_by_one(2)}
    with busy():
        yield replace(one, name=f"{name}, two threads, both cores busy", peers=both, required=1.0, threads=2)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
