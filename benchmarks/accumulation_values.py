"""Ragged, tail and empty windows through Accelerate, Lightning Fabric and dagnn: the value that each gives.

The model is ``w * x`` with one weight, the loss its mean, so an update with learning rate 1 subtracts a mean of the
inputs: the right value is the mean over all items of the window. Prints the table of docs/guides/accumulation.md. A
library that is not installed is left out; each runs the loop that its documentation shows (Fabric with the division by
K that its users add).
"""

import argparse
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from dagnn.accumulation import GradientAccumulator

Loop = Callable[[list[Tensor], int], list[float]]

CASES: list[tuple[str, list[Tensor], int, list[float]]] = [
    ("nine items of 1, then one of 11; K=2", [torch.ones(9), torch.tensor([11.0])], 2, [2.0]),
    ("four items of 1, then one of 6; K=2", [torch.ones(4), torch.tensor([6.0])], 2, [2.0]),
    ("six equal batches of 1; K=4", [torch.ones(1)] * 6, 4, [1.0, 1.0]),
    ("items 1 to 10 in batches of 4, 4, 2; K=2", list(torch.arange(1.0, 11.0).split(4)), 2, [4.5, 9.5]),
    ("three batches of 1; K=4", [torch.ones(1)] * 3, 4, [1.0]),
    ("four items of 2, then a batch without items; K=5", [torch.full((1,), 2.0)] * 4 + [torch.ones(0)], 5, [2.0]),
]


class Weight(nn.Module):
    """``w * x``."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


def with_dagnn(batches: list[Tensor], k: int) -> list[float]:
    """Windows of this library."""
    model = Weight()
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0))
    moved = Moved(model)
    for window in accumulator.windows(batches, micro_batches=k):
        for x in window:
            window.backward(model(x).mean())
        window.step()
        moved.note()
    return moved.values


def with_accelerate(batches: list[Tensor], k: int) -> list[float]:
    """``accelerator.accumulate`` over a prepared loader, which forces a step at the end of an epoch."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
    model = Weight()
    loader = torch.utils.data.DataLoader(batches, batch_size=None)  # type: ignore[arg-type, var-annotated]
    prepared, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), loader)
    moved = Moved(model)
    for x in loader:
        with accelerator.accumulate(prepared):
            accelerator.backward(prepared(x).mean())
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            moved.note()
    return moved.values


def with_fabric(batches: list[Tensor], k: int) -> list[float]:
    """``fabric.no_backward_sync``; steps after every k-th batch."""
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model = Weight()
    prepared, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=1.0))
    moved = Moved(model)
    for index, x in enumerate(batches):
        is_accumulating = (index + 1) % k != 0
        with fabric.no_backward_sync(prepared, enabled=is_accumulating):
            fabric.backward(prepared(x).mean() / k)
        if not is_accumulating:
            optimizer.step()
            optimizer.zero_grad()
            moved.note()
    return moved.values


class Moved:
    """What each update subtracted from the weight."""

    def __init__(self, model: Weight) -> None:
        self._model = model
        self._before = 0.0
        self.values: list[float] = []

    def note(self) -> None:
        now = float(self._model.w.detach())
        self.values.append(self._before - now)
        self._before = now


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 when dagnn gives a wrong value."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the same: this takes a few seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    arguments = parser.parse_args(argv)

    loops: dict[str, Loop] = {"dagnn": with_dagnn}
    if importlib.util.find_spec("accelerate"):
        loops["Accelerate"] = with_accelerate
    if importlib.util.find_spec("lightning_fabric"):
        loops["Lightning Fabric"] = with_fabric

    print(f"| updates of | right | {' | '.join(loops)} |")
    print("|---" * (len(loops) + 2) + "|")
    rows, ok = [], True
    for name, batches, k, right in CASES:
        found = {library: loop(batches, k) for library, loop in loops.items()}
        ok &= _equal(found["dagnn"], right)
        print(f"| {name} | {_text(right)} | {' | '.join(_text(values, right) for values in found.values())} |")
        rows.append({"case": name, "right": right, "found": found})
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "ok": ok}, indent=1) + "\n")
    return 0 if ok else 1


def _equal(values: Sequence[float], right: Sequence[float]) -> bool:
    return len(values) == len(right) and all(
        math.isclose(a, b, rel_tol=1e-6) for a, b in zip(values, right, strict=True)
    )


def _text(values: Sequence[float], right: Sequence[float] | None = None) -> str:
    text = ", ".join(f"{value:.4g}" for value in values) or "no update"
    return text if right is None or _equal(values, right) else f"**{text}**"


if __name__ == "__main__":
    sys.exit(main())
