"""DiscreteCell learns ListOps from the values of short expressions, and is right at any length and number of arguments.

The tree of each expression is given. For each seed the cell learns from 20,000 different expressions of the published
grammar, of at most 100 tokens and 5 arguments, and the value of each; shorter ones come first. What is not given: which
token is which digit, which digit is above which, and what an operator does. What the cell brings along: that a node is
one of 10 symbols, and that an operator folds a table over its operands or over two of their quantiles.

Training stops when the hard cell is right on all that it was trained on, and begins again with other weights when it is
not after 400 steps, for 600 CPU seconds at most: no test set plays a part. Beside it: a TreeLSTM of ours by the same
data, and the published accuracy of BT-Cell (Ray Chowdhury, Caragea, "Beam Tree Recursive Cells", ICML 2023), which is
*not* given the tree, and so solves a harder task.

    python -m benchmarks.listops [--quick] [--seeds 0,1,2] [--peer-seconds 100] [--json FILE]
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.harness import as_json
from benchmarks.listops_data import Expression, Grammar, Tokens, joined, parsed
from dagnn.nn import ChildSumTreeLSTMCell, DagSweep, DiscreteCell, NodeHead

TRAINED, LONGEST, BATCH, STEPS, LR = 20_000, 100, 512, 400, 0.05
MOST_SECONDS = 600.0
# Name: arguments, depth, tokens; what is required of ours in percent; BT-Cell. Longest arguments are drawn at the depth
# of BT-Cell's own sets.
SETS: dict[str, tuple[tuple[int, int, int, int], float, float | None]] = {
    "at most 100": ((5, 20, 1, 100), 99.9, 99.9),
    "200 - 300": ((5, 20, 200, 300), 99.9, 99.5),
    "500 - 600": ((5, 20, 500, 600), 99.9, 99.0),
    "900 - 1000": ((5, 20, 900, 1000), 99.9, 98.0),
    "10 arguments": ((10, 9, 100, 1000), 99.0, 76.0),
    "15 arguments": ((15, 9, 100, 1000), 99.0, None),
}

Model = Callable[[Tensor, object], Tensor]


class Row(NamedTuple):
    """Right answers in percent, by test set, in the order of `SETS`."""

    model: str
    tree: str
    seed: int | None
    cpu_seconds: float | None
    trained_on: float | None  # percent right of what was trained on
    percent: tuple[float | None, ...]


def training_set(seed: int, count: int) -> list[Expression]:
    """Different expressions, the shortest first."""
    rng, grammar, found = random.Random(seed), Grammar(longest=LONGEST), dict[Tokens, None]()
    while len(found) < count:
        found[grammar.draw(rng, 1, LONGEST)] = None
    return [parsed(tokens) for tokens in sorted(found, key=len)]


def test_sets(count: int) -> dict[str, list[Expression]]:
    """The same for all seeds."""
    rng = random.Random("test")
    return {name: [parsed(tokens) for tokens in _drawn(rng, count, *shape)] for name, (shape, _, _) in SETS.items()}


def _drawn(rng: random.Random, count: int, args: int, depth: int, shortest: int, longest: int) -> Iterator[Tokens]:
    grammar = Grammar(args, depth, longest)
    for _ in range(count):
        yield grammar.draw(rng, shortest, longest)


def percent_right(model: Model, expressions: list[Expression]) -> float:
    """How often the most likely symbol of the root is the value."""
    right = 0
    with torch.no_grad():
        for i in range(0, len(expressions), 500):
            batch = joined(expressions[i : i + 500])
            right += int((model(batch.symbols, batch.dag)[batch.roots].argmax(1) == batch.values).sum())
    return 100 * right / len(expressions)


def batches(train: list[Expression], rng: random.Random, steps: int) -> Iterator[list[Expression]]:
    """The shortest tenth at first, all from three quarters of the steps on."""
    for step in range(steps):
        known = train[: int(len(train) * min(1.0, 0.1 + 1.2 * step / steps))]
        yield rng.sample(known, min(BATCH, len(known)))


def trained(seed: int, train: list[Expression], seconds: float = MOST_SECONDS) -> tuple[Model, float, float]:
    """A hard cell, the CPU seconds it took, and the percentage that is right of what it was trained on."""
    begin, best, attempt = time.process_time(), (-1.0, DiscreteCell(14, 10, operators=4)), 0
    while best[0] < 100 and time.process_time() - begin < seconds:
        cell, share = _attempt(1000 * seed + attempt, train)
        best = max(best, (share, cell), key=lambda one: one[0])
        attempt += 1
        if share < 100:
            print(f"seed {seed}, attempt {attempt}: {share:.2f} % right of what was trained on", file=sys.stderr)
    sweep = DagSweep(best[1])
    return (lambda symbols, dag: sweep(torch.eye(14), dag, symbols)), time.process_time() - begin, best[0]


def _attempt(seed: int, train: list[Expression]) -> tuple[DiscreteCell, float]:
    torch.manual_seed(seed)
    rng = random.Random(seed)
    cell = DiscreteCell(14, 10, operators=4)
    sweep, one_hot = DagSweep(cell), torch.eye(14)
    # An operator chooses between its operands and their quantiles slowly: at first it can use neither.
    rest = [parameter for parameter in cell.parameters() if parameter is not cell.in_order]
    groups = [{"params": rest, "lr": LR}, {"params": [cell.in_order], "lr": LR / 20}]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - 0.9 * step / STEPS)
    share = 0.0
    for step, expressions in enumerate(batches(train, rng, STEPS)):
        cell.sharpness = 2 + 6 * step / STEPS
        batch = joined(expressions)
        p = sweep(one_hot, batch.dag, batch.symbols)[batch.roots].gather(1, batch.values.unsqueeze(1))
        optimizer.zero_grad()
        (-(p + 1e-12).log().mean()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if step % 50 == 49:
            cell.sharpness = math.inf
            hard: Model = lambda symbols, dag: sweep(one_hot, dag, symbols)  # noqa: E731
            share = percent_right(hard, rng.sample(train, min(1000, len(train))))
            share = percent_right(hard, train) if share == 100 or step == STEPS - 1 else share
            if share == 100:
                break
    return cell, share


class TreeLSTM(nn.Module):
    """The peer: our child-sum TreeLSTM with a matrix for each operator, and logits."""

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.symbols = nn.Parameter(torch.randn(14, hidden))
        self.sweep = DagSweep(ChildSumTreeLSTMCell(hidden, hidden, operators=4))
        self.head = NodeHead(hidden, 10)

    def forward(self, symbols: Tensor, dag: object) -> Tensor:
        logits: Tensor = self.head(self.sweep(self.symbols, dag, symbols))
        return logits


def trained_peer(seed: int, train: list[Expression], seconds: float) -> tuple[Model, float, float]:
    """The TreeLSTM by Adam, the same expressions in the same order, until the CPU seconds are over."""
    torch.manual_seed(seed)
    rng, begin, model = random.Random(seed), time.process_time(), TreeLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    while (spent := time.process_time() - begin) < seconds:
        known = train[: int(len(train) * min(1.0, 0.1 + 1.2 * spent / seconds))]
        batch = joined(rng.sample(known, BATCH))
        logits = model(batch.symbols, batch.dag)[batch.roots]
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, batch.values).backward()
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - 0.9 * spent / seconds)
        optimizer.step()
    return model, time.process_time() - begin, percent_right(model, train)


COLUMNS = ("model", "tree", "seed", *SETS, "trained on", "CPU s")


def cells_of(row: Row) -> list[str]:
    """A line of the table."""
    numbers = ["" if value is None else f"{value:.4g}" for value in (*row.percent, row.trained_on, row.cpu_seconds)]
    return [row.model, row.tree, "" if row.seed is None else str(row.seed), *numbers]


def line(cells: Sequence[str]) -> str:
    """Cells as Markdown."""
    return f"| {' | '.join(cells)} |"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, 200 expressions a test set, no peer")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--count", type=int, default=1000, help="expressions of each test set")
    parser.add_argument(
        "--peer-seconds", type=float, default=100.0, help="CPU seconds of the TreeLSTM; 0 leaves it out"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in given.seeds.split(",")][: 1 if given.quick else None]
    count, peer_seconds = (200, 0.0) if given.quick else (given.count, given.peer_seconds)

    print(line(COLUMNS))
    print(line(["---"] * len(COLUMNS)))
    rows = [Row("BT-Cell, published", "not given", None, None, None, tuple(known for _, _, known in SETS.values()))]
    print(line(cells_of(rows[0])), flush=True)
    tests = test_sets(count)
    for seed in seeds:
        train = training_set(seed, TRAINED)
        contestants = {"DiscreteCell": lambda seed=seed, train=train: trained(seed, train)}
        if peer_seconds and seed == seeds[0]:
            contestants["TreeLSTM"] = lambda seed=seed, train=train: trained_peer(seed, train, peer_seconds)
        for name, learn in contestants.items():
            model, seconds, share = learn()
            percent = tuple(percent_right(model, test) for test in tests.values())
            rows.append(Row(name, "given", seed, seconds, share, percent))
            print(line(cells_of(rows[-1])), flush=True)
    if given.json:
        written = as_json((__doc__ or "").splitlines()[0], [], quick=given.quick)
        written |= {"kind": "table", "columns": list(COLUMNS), "rows": [cells_of(row) for row in rows]}
        given.json.write_text(json.dumps(written, indent=1) + "\n")
    required = [least for _, least, _ in SETS.values()]
    ours = [row for row in rows if row.model == "DiscreteCell"]
    met = [
        (row.cpu_seconds or 0) <= MOST_SECONDS
        and all((found or 0) >= least for found, least in zip(row.percent, required, strict=True))
        for row in ours
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
