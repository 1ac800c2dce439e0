"""Exact accumulation costs at most 3 % over the bare loop on a 1 ms step, and less than Accelerate or Lightning Fabric.

A case is one window of 16 micro-batches: forward, backward, optimizer step, gradients to None. The bare loop multiplies
each loss by its share and does nothing else: no norm, no check for inf, no report. Accelerate (`accumulate`) and
Lightning Fabric (`no_backward_sync`) run the same window, each as its documentation says, if they are installed.
"""

import copy
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from benchmarks.harness import Case, main
from dagnn.accumulation import GradientAccumulator

K = 16
ALLOWED = 1.03
Batches = list[tuple[Tensor, Tensor]]


def mlp(layers: int, width: int) -> nn.Module:
    """``layers`` linear layers with tanh between them."""
    torch.manual_seed(0)
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*parts[:-1])


def batches(items: int, width: int) -> Batches:
    """One window of equal micro-batches."""
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(items, width, generator=generator), torch.randn(items, width, generator=generator))
        for _ in range(K)
    ]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """The cheapest optimizer, so that overhead is not hidden behind it."""
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def bare_loop(model: nn.Module, loader: Batches) -> Callable[[], None]:
    """What one writes by hand."""
    optimizer, total = sgd(model), sum(len(x) for x, _ in loader)

    def run() -> None:
        for x, y in loader:
            (mse_loss(model(x), y) * (len(x) / total)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def ours(model: nn.Module, loader: Batches) -> Callable[[], None]:
    """Windows over a loader that does not end, one window per call."""
    accumulator = GradientAccumulator(model, sgd(model))
    windows = accumulator.windows(_endless(loader), micro_batches=K)

    def run() -> None:
        window = next(windows)
        for x, y in window:
            window.backward(mse_loss(model(x), y))
        window.step()

    return run


def accelerate_loop(model: nn.Module, loader: Batches) -> Callable[[], None]:
    """Accelerate's ``accumulate``."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=K)
    prepared, optimizer = accelerator.prepare(model, sgd(model))

    def run() -> None:
        for x, y in loader:
            with accelerator.accumulate(prepared):
                accelerator.backward(mse_loss(prepared(x), y))
                optimizer.step()
                optimizer.zero_grad()

    return run


def fabric_loop(model: nn.Module, loader: Batches) -> Callable[[], None]:
    """Lightning Fabric's explicit form, with the division that its documentation leaves out."""
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    prepared, optimizer = fabric.setup(model, sgd(model))

    def run() -> None:
        for index, (x, y) in enumerate(loader):
            is_accumulating = (index + 1) % K != 0
            with fabric.no_backward_sync(prepared, enabled=is_accumulating):
                fabric.backward(mse_loss(prepared(x), y) / K)
            if not is_accumulating:
                optimizer.step()
                optimizer.zero_grad()

    return run


def cases(quick: bool) -> Iterable[Case]:
    """A step of about one millisecond, and a small one, where overhead weighs most (reported only)."""
    shapes = [("about 1 ms a micro-batch", 6, 144, 80, 1 / ALLOWED), ("tiny micro-batches", 6, 32, 8, None)]
    for name, layers, width, items, required in shapes:
        model, loader = mlp(layers, width), batches(items, width)
        yield _case(name, {"bare loop": bare_loop}, model, loader, required)
        peers: dict[str, Callable[[nn.Module, Batches], Callable[[], None]]] = {}
        if importlib.util.find_spec("accelerate"):
            peers["Accelerate"] = accelerate_loop
        if importlib.util.find_spec("lightning_fabric"):
            peers["Lightning Fabric"] = fabric_loop
        if peers:
            yield _case(name, peers, model, loader, 1.0 if required else None)


def _case(name: str, peers: dict[str, Any], model: nn.Module, loader: Batches, required: float | None) -> Case:
    models = {peer: copy.deepcopy(model) for peer in ("ours", *peers)}
    runs = {peer: (peers.get(peer) or ours)(models[peer], loader) for peer in models}

    def check() -> None:
        for run in runs.values():
            run()
        expected = list(models["ours"].parameters())
        for peer in peers:
            for a, b in zip(models[peer].parameters(), expected, strict=True):
                assert torch.allclose(a, b, rtol=1e-4, atol=1e-6), f"{peer} makes another step"

    details = f"{name}: K={K}, {_num_parameters(model):,} parameters, {len(loader[0][0])} items, float32"
    return Case(details, runs["ours"], {p: runs[p] for p in peers}, required=required, check=check, threads=1)


def _num_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _endless(loader: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    for window in repeat(loader):
        yield from window


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
