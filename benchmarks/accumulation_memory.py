"""Accumulation needs hardly more memory than weights, optimizer state and one set of gradients.

Peak of all live tensors during the second window, in copies of the float32 parameters, for an MLP of 12 layers and 64
micro-batches; the batch itself does not count. Allocations are those that torch's CPU allocator tells the profiler.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.harness import Row, as_json
from dagnn.accumulation import GradientAccumulator

LAYERS, ITEMS, K = 12, 2048, 64


def mlp(width: int, dtype: torch.dtype) -> nn.Module:
    """12 linear layers with tanh between them."""
    torch.manual_seed(0)
    parts = [part for _ in range(LAYERS) for part in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*parts[:-1]).to(dtype)


def peak_copies(
    width: int, dtype: torch.dtype, make_optimizer: Callable[[Any], torch.optim.Optimizer], **options: Any
) -> float:
    """Peak live memory of a window in copies of the parameters at 4 bytes each."""
    model = mlp(width, dtype)
    optimizer = make_optimizer(model.parameters())
    accumulator = GradientAccumulator(model, optimizer, **options)
    batch = torch.randn(ITEMS, width).to(dtype)

    def window() -> None:
        for one in accumulator.windows([batch], micro_batch_size=ITEMS // K):
            for x in one:
                one.backward(model(x).float().square().mean())
            one.step()

    window()  # the first one makes the optimizer state
    states = [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]
    before = sum(tensor.numel() * tensor.element_size() for tensor in [*model.parameters(), *states])
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        window()
    return (before + peak_bytes(profiler)) / (4 * sum(p.numel() for p in model.parameters()))


def peak_bytes(profiler: Any) -> int:
    """Highest sum of allocations minus releases since the profile began, in bytes."""
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    live = highest = 0
    for _, change in changes:
        live += change
        highest = max(highest, live)
    return highest


CASES: list[tuple[str, float, dict[str, Any]]] = [
    (
        "AdamW (weights 1, state 2, gradients 1)",
        4.4,
        {"dtype": torch.float32, "make_optimizer": lambda p: torch.optim.AdamW(p, fused=True)},
    ),
    (
        "SGD with momentum, eager='momentum' (weights 1, momentum 1)",
        2.3,
        {
            "dtype": torch.float32,
            "make_optimizer": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, foreach=False),
            "eager": "momentum",
            "on_nonfinite": "raise",
        },
    ),
    (
        "bfloat16 AdamW, float32 sums (weights 0.5, state 1, gradients 1)",
        2.7,
        {"dtype": torch.bfloat16, "make_optimizer": lambda p: torch.optim.AdamW(p, foreach=False)},
    ),
]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 when a case takes more than its limit."""
    headline = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=headline)
    parser.add_argument("--quick", action="store_true", help="narrower layers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)

    print(headline)
    rows = []
    for name, limit, options in CASES:
        copies = peak_copies(256 if arguments.quick else 512, **options)
        ratio = limit / copies
        # Copies of the parameters stand where other benchmarks have seconds.
        rows.append(Row(f"{name}, K={K}", f"limit {limit}", limit, copies, ratio, ratio, ratio, 1.0, ratio >= 1.0, 1))
        print(f"{'ok' if ratio >= 1 else 'MISSED':6}  {copies:5.2f} copies, limit {limit}  {name}")
    if arguments.json:
        arguments.json.write_text(json.dumps(as_json(headline, rows, quick=arguments.quick), indent=1) + "\n")
    return 0 if all(asdict(row)["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
