"""Cells drawn as users write them: compiled as on tensors, in float64 and float32, on any threads, None for None."""

from collections.abc import Callable

import pytest
import torch
from drawn_cells import DrawnCell, drawn_cell, drawn_graph, results
from torch import Tensor

from dagnn.nn import DagSweep

DEFAULT, MORE = 8, 200  # cells; each takes a second, most of it in LLVM
SMALL, TIES = 1e-9, 1e-4
"""What float64 may differ by, and a difference in float32 that only a kink makes, where two values nearly tie."""


def by_reference(evaluate: Callable[[], list[Tensor | None]]) -> list[Tensor | None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGNN_KERNELS", "reference")
        return evaluate()


def distances(found: list[Tensor | None], expected: list[Tensor | None]) -> list[float]:
    """Of every result, relative to its largest number, or to a thousandth of the largest of all."""
    largest = [0.0 if one is None or not one.numel() else one.abs().max().item() for one in expected]
    return [
        (ours.double() - right.double()).abs().max().item() / (size + 1e-3 * max(1, *largest))
        for ours, right, size in zip(found, expected, largest, strict=True)
        if ours is not None and right is not None and right.numel()
    ]


def features(graph, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(graph.num_nodes, 3, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check_float64(drawn: DrawnCell, sweep: DagSweep, seed: int) -> None:
    graph = drawn_graph(seed, drawn.operators)
    x = features(graph, seed)
    ours, theirs = results(sweep, x, graph), by_reference(lambda: results(sweep, x, graph))
    assert [one is None for one in ours] == [one is None for one in theirs], drawn.source
    off = max(distances(ours, theirs))
    if off > SMALL:  # unless what is asked is a matter of rounding: as far away after a change of the last digits
        noise = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0)) * 1e-14
        shaken = by_reference(lambda: results(sweep, x * (1 + noise), graph))
        assert off <= 10 * max(distances(shaken, theirs)), f"{off}\n{drawn.source}"


def check_special(drawn: DrawnCell, sweep: DagSweep, seed: int) -> None:
    graph = drawn_graph(seed, drawn.operators)
    for value in (float("nan"), float("inf"), -float("inf")):
        x = features(graph, seed)
        x[:: 1 + seed % 3, seed % 3] = value
        ours, theirs = results(sweep, x, graph)[0], by_reference(lambda x=x: results(sweep, x, graph))[0]
        torch.testing.assert_close(ours, theirs, rtol=SMALL, atol=SMALL, equal_nan=True, msg=drawn.source)


def check_threads(drawn: DrawnCell, sweep: DagSweep, seed: int) -> None:
    graph, found, before = drawn_graph(seed, drawn.operators), [], torch.get_num_threads()
    x = features(graph, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dagnn.kernels.sweep.passes.PARALLEL_WORK", 0)
        patch.setattr("dagnn.kernels.sweep.passes.PARALLEL_SPEEDUP", 0)
        try:
            for threads in (1, 2):
                torch.set_num_threads(threads)
                names = ["y", "x", *(name.rpartition(".")[2] for name, _ in sweep.named_parameters())]
                of = zip(names, results(sweep, x, graph), strict=True)
                # Features are multiplied by PyTorch, whose libraries may add in another order on two threads.
                found.append([one for name, one in of if name not in ("x", "feature_weight") and one is not None])
        finally:
            torch.set_num_threads(before)
    assert all(map(torch.equal, *found)), drawn.source


def check_float32(drawn: DrawnCell, sweep: DagSweep, seed: int) -> None:
    """The error is at most twice that of PyTorch's, over a few graphs without near ties."""
    kept, errors = 0, None
    for number in range(6):
        graph = drawn_graph(seed + 1000 * number, drawn.operators)
        x = features(graph, seed + number, torch.float32)
        ours, theirs = results(sweep.float(), x, graph), by_reference(lambda x=x, graph=graph: results(sweep, x, graph))
        exact = by_reference(lambda x=x, graph=graph: results(sweep.double(), x.double(), graph))
        if max(distances(ours, exact)) > TIES or max(distances(theirs, exact)) > TIES:
            continue
        kept += 1
        row = torch.tensor(
            [
                [0.0 if one is None else (one.double() - right).norm().item() for one in (ours[k], theirs[k])]
                + [0.0 if right is None else right.norm().item()]
                for k, right in enumerate(exact)
            ]
        )
        errors = row if errors is None else errors + row
    assert kept >= 3, drawn.source
    mine, others, size = errors.unbind(1)
    assert (mine <= 2 * others + 2.0**-22 * (size + 0.01 * size.max())).all(), f"{errors}\n{drawn.source}"


@pytest.mark.parametrize(
    "seed", [*range(DEFAULT), *(pytest.param(k, marks=pytest.mark.slow) for k in range(DEFAULT, MORE))]
)
def test_a_drawn_cell_computes_what_its_lines_say(seed):
    drawn = drawn_cell(seed)
    sweep = drawn.build(features=3, hidden=(1, 3, 5, 8, 17)[seed % 5])
    for training in (True, False) if "training" in drawn.source else (False,):
        sweep.train(training)
        reason = next(iter(sweep.cells.values())).explain()
        if training and "formulas have no torch.dropout: line" in reason:
            continue
        assert reason == "compiled", drawn.source
        check_float64(drawn, sweep, seed)
    check_special(drawn, sweep, seed)
    check_threads(drawn, sweep, seed)
    check_float32(drawn, sweep, seed)
