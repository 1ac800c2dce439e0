"""Six planted pathways, three of them deep, should be found by `explain_replicates`, and nothing on shuffled labels.

A data seed draws a graph (100 pathways on five levels below a root, 1,000 genes, each in one pathway or two), plants
six pathways of which none feeds another, three of them three to five edges below the root, and draws 2,000 patients:
a pathway is active or not, its genes follow with noise, and the disease follows the six. 3 replicates, 19 shuffles.

- Ranks: all six are among the first 20 hidden nodes by the difference of shares; ancestors, through which the same
  signal flows, count as other nodes. Beside it the rank by the mean share, which follows the shape of the graph.
- Power: of the six, those significant at 5 %, family-wise over all pathways.
- Level: the same patients with their labels in a random order. A hit is any significant pathway: in 5 % of
  the data seeds, and a binomial count of so many stays below the bar with a probability of 97.5 %.

Three minutes of CPU time; `--quick`, with fewer data seeds, half a minute. The numbers do not depend on the machine.
"""

import argparse
import datetime
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from benchmarks.harness import as_json
from dagnn.graph import Dag
from dagnn.visible import Replicates, ReplicateTraining, explain_replicates

PATHWAYS, TOPS, GENES, PATIENTS, PLANTED, DEEP, FIRST = 100, 10, 1_000, 2_000, 6, 3, 20
TRAINING = ReplicateTraining(epochs=20, batch_size=200, lr=0.01, weight_decay=16.0, hidden_decay=0.0)
SEEDS, NULL_SEEDS = 20, 60


class Data(NamedTuple):
    """Patients of one data seed, and the pathways behind their disease."""

    dag: Dag
    x: Tensor
    y: Tensor
    planted: list[str]
    above: set[str]


def made(seed: int) -> Data:
    """The graph, the patients and what was planted."""
    random = np.random.default_rng(seed)
    parents, depth = _hierarchy(random)
    members = _members(random)
    planted = _planted(random, members, parents, depth)
    names, genes = [f"pathway {k:02d}" for k in range(PATHWAYS)], [f"gene {k:03d}" for k in range(GENES)]
    edges = [(genes[gene], names[k]) for k, own in enumerate(members) for gene in sorted(own)]
    edges += [(names[k], "root" if j is None else names[j]) for k, above in enumerate(parents) for j in above]
    activity, x = random.normal(size=(PATIENTS, PLANTED)), random.normal(size=(PATIENTS, GENES))
    for place, k in enumerate(planted):
        x[:, sorted(members[k])] += activity[:, [place]]
    direction = random.permutation([1, -1] * (PLANTED // 2))
    ill = random.random(PATIENTS) < 1 / (1 + np.exp(-6 * activity @ direction))
    above = {names[j] for k in planted for j in _ancestors(parents, k)}
    dag = Dag(edges, inputs=genes, outputs=["root"])
    return Data(dag, torch.from_numpy(x).float(), torch.from_numpy(ill).float(), [names[k] for k in planted], above)


def _hierarchy(random: np.random.Generator) -> tuple[list[list[int | None]], list[int]]:
    """Parents of every pathway, None for the root, and its distance from the root; one in seven has two parents."""
    parents: list[list[int | None]] = [[None] for _ in range(TOPS)]
    depth = [1] * TOPS
    for k in range(TOPS, PATHWAYS):
        candidates = [j for j in range(k) if depth[j] < 5]
        chosen = sorted({int(j) for j in random.choice(candidates, 1 + int(random.random() < 1 / 7))})
        parents.append([*chosen])
        depth.append(1 + min(depth[j] for j in chosen))
    return parents, depth


def _members(random: np.random.Generator) -> list[set[int]]:
    """Genes of every pathway: each has its own, and one gene in ten is in a second pathway."""
    popularity = np.exp(random.normal(0, 0.5, PATHWAYS))
    home = np.concatenate(
        [np.arange(PATHWAYS), random.choice(PATHWAYS, GENES - PATHWAYS, p=popularity / popularity.sum())]
    )
    members: list[set[int]] = [set(np.flatnonzero(home == k).tolist()) for k in range(PATHWAYS)]
    for gene in random.choice(GENES, GENES // 10, replace=False).tolist():
        members[int(random.integers(PATHWAYS))].add(gene)
    return members


def _planted(
    random: np.random.Generator,
    members: Sequence[set[int]],
    parents: Sequence[Sequence[int | None]],
    depth: Sequence[int],
) -> list[int]:
    """Three pathways near the root and three deep ones, of 8 to 40 genes, that share none; none feeds another."""
    chosen = list[int]()
    taken = set[int]()
    for k in random.permutation(PATHWAYS).tolist():
        alike = sum((depth[k] >= 3) == (depth[other] >= 3) for other in chosen)
        room = DEEP if depth[k] >= 3 else PLANTED - DEEP
        is_apart = all(k not in _ancestors(parents, j) and j not in _ancestors(parents, k) for j in chosen)
        if 8 <= len(members[k]) <= 40 and taken.isdisjoint(members[k]) and alike < room and is_apart:
            chosen.append(k)
            taken |= members[k]
    assert len(chosen) == PLANTED
    return chosen


def _ancestors(parents: Sequence[Sequence[int | None]], k: int) -> set[int]:
    direct = {j for j in parents[k] if j is not None}
    return direct.union(*(_ancestors(parents, j) for j in direct))


def explained(data: Data, y: Tensor, seed: int) -> Replicates:
    """3 replicates and 19 shuffles."""
    return explain_replicates(data.dag, data.x, y, replicates=3, shuffles=19, training=TRAINING, seed=seed)


def places(found: Replicates, values: Tensor, names: Sequence[str]) -> list[int]:
    """The ranks of some nodes among the hidden ones, from 1, ascending."""
    hidden = (~found.p_values.isnan()).nonzero().flatten().tolist()
    order = sorted(hidden, key=lambda node: -float(values[node]))
    rank = {found.node_names[node]: place for place, node in enumerate(order, start=1)}
    return sorted(rank[name] for name in names)


def shuffled(y: Tensor, seed: int) -> Tensor:
    """The labels in a random order."""
    order: NDArray[np.int64] = np.random.default_rng([seed, 1]).permutation(len(y))
    return y[torch.from_numpy(order)]


COLUMNS = ["what", "data seeds", "found", "bar", ""]


def rows(quick: bool) -> list[list[str]]:
    """All cells as they are shown; the last says "ok" or "MISSED"."""
    seeds, null_seeds = (5, 10) if quick else (SEEDS, NULL_SEEDS)
    worst, inside, by_share, hits, others, scores = (
        list[int](),
        list[int](),
        list[int](),
        list[int](),
        list[int](),
        list[float](),
    )
    for seed in range(seeds):
        data = made(seed)
        found = explained(data, data.y, seed)
        ranks = places(found, found.difference, data.planted)
        worst.append(ranks[-1])
        inside.append(sum(rank <= FIRST for rank in ranks))
        by_share.append(places(found, found.mean, data.planted)[-1])
        significant = set(found.significant())
        hits.append(len(significant & set(data.planted)))
        others.append(len(significant - set(data.planted) - data.above))
        scores.append(float(found.scores.mean()))
        print(f"seed {seed}: last rank {worst[-1]}, {hits[-1]} of 6 significant", file=sys.stderr, flush=True)
    wrong = 0
    for seed in range(1000, 1000 + null_seeds):
        data = made(seed)
        wrong += bool(explained(data, shuffled(data.y, seed), seed).significant())
    allowed = int(stats.binom.ppf(0.975, null_seeds, 0.05))
    count, strong = sum(place <= FIRST for place in worst), sum(number >= PLANTED - 1 for number in hits)
    first = f"all six planted in the first {FIRST} of {PATHWAYS}"
    return [
        _row(f"{first}, by the difference of shares", seeds, _share(count, seeds), "95 %", count >= 0.95 * seeds),
        _row(f"of the 6 in the first {FIRST}, mean", seeds, f"{np.mean(inside):.2f}"),
        _row(f"{first}, by the mean share", seeds, _share(sum(place <= FIRST for place in by_share), seeds)),
        _row("at least 5 of the 6 significant", seeds, _share(strong, seeds), "95 %", strong >= 0.95 * seeds),
        _row("of the 6 significant, mean", seeds, f"{np.mean(hits):.2f}"),
        _row("others that are significant, no ancestors, mean", seeds, f"{np.mean(others):.1f}"),
        _row("held-out area under the ROC curve, mean", seeds, f"{np.mean(scores):.3f}"),
        _row(
            "any hit on shuffled labels",
            null_seeds,
            _share(wrong, null_seeds),
            f"{allowed / null_seeds:.0%} at most",
            wrong <= allowed,
        ),
    ]


def _row(what: str, seeds: int, found: str, bar: str = "", ok: bool | None = None) -> list[str]:
    return [what, str(seeds), found, bar, "" if ok is None else "ok" if ok else "MISSED"]


def _share(count: int, of: int) -> str:
    return f"{count} ({count / of:.0%})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a bar is missed."""
    headline = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=headline)
    parser.add_argument("--quick", action="store_true", help="fewer data seeds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    given = parser.parse_args(arguments)
    begin = time.process_time()
    found = rows(given.quick)
    widths = [max(len(line[column]) for line in [COLUMNS, *found]) for column in range(len(COLUMNS))]
    for line in [COLUMNS, *found]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print(f"{time.process_time() - begin:.0f} CPU seconds")
    if given.json is not None:
        about: dict[str, Any] = as_json(headline, [], quick=given.quick)
        table = {"kind": "table", "columns": COLUMNS, "rows": found, "date": f"{datetime.date.today()}"}
        given.json.write_text(json.dumps(about | table, indent=1, ensure_ascii=False) + "\n")
    return 1 if any(line[-1] == "MISSED" for line in found) else 0


if __name__ == "__main__":
    sys.exit(main())
