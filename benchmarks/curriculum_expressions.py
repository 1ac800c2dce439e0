"""The expressions of the curriculum comparison, the same for every contestant, and the exact engine's score.

Training draws from what `dagnn train` traces: sample 0 .. n - 1 of the training split of every level, of the same seed.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dagnn.curriculum import CurriculumConfig, Sample, judge, level_spec, make_sample

LEVELS = (1, 2, 3, 4, 5, 6, 7)
DEPTHS = (3, 5, 8)
DEPTH_LEVELS = tuple(level for level in LEVELS if level_spec(level).has_depth)
# Training has integers of at most two digits here.
LONGER_LEVELS, LONGER_DIGITS = (1, 2), 4

# What answers: expressions in, an expression or None (no answer) for each.
Solver = Callable[[Sequence[Sample]], Sequence[object]]


@dataclass(frozen=True)
class Question:
    """A set of test expressions.

    Attributes:
        name: such as ``"level 2"``, ``"level 2, depth 5"``.
        level: which level judges the answers.
        samples: the expressions.
    """

    name: str
    level: int
    samples: tuple[Sample, ...]


def questions(count: int, *, seed: int, depths: Sequence[int] = DEPTHS) -> Iterator[Question]:
    """The test sets: every level as it is drawn, then by depth, then with longer integers.

    Args:
        count: expressions of each set.
        seed: of their streams, the contestants' own.
        depths: spine depths of the levels that have one.
    """
    for level in LEVELS:
        yield Question(f"level {level}", level, drawn(level, count, seed=seed, split="test"))
    for depth in depths:
        for level in DEPTH_LEVELS:
            samples = drawn(level, count, seed=seed, split="test", depth=depth)
            yield Question(f"level {level}, depth {depth}", level, samples)
    for level in LONGER_LEVELS:
        samples = drawn(level, count, seed=seed, split="test", digits=LONGER_DIGITS)
        yield Question(f"level {level}, integers of {LONGER_DIGITS} digits", level, samples)


def drawn(
    level: int, count: int, *, seed: int, split: str, depth: int | None = None, digits: int | None = None
) -> tuple[Sample, ...]:
    """The first samples of a stream."""
    return tuple(
        make_sample(level, seed=seed, index=index, split=split, depth=depth, digits=digits) for index in range(count)
    )


def default_sizes() -> dict[int, int]:
    """Training expressions of every level that `dagnn train` traces."""
    curriculum = CurriculumConfig().curriculum
    return {level: curriculum.samples_of(level) for level in LEVELS}


def training_samples(seed: int, sizes: Mapping[int, int] | None = None) -> Iterator[Sample]:
    """Training expressions without end, every level as often, each level's own again and again in its order.

    Args:
        seed: of the run.
        sizes: level -> how many different draws there are; None: as many as `dagnn train` traces.
    """
    sizes = sizes or default_sizes()
    rng = random.Random(seed)
    levels = sorted(sizes)
    kept: dict[int, list[Sample]] = {level: [] for level in levels}
    position = dict.fromkeys(levels, 0)
    while True:
        level = rng.choice(levels)
        at, samples = position[level] % sizes[level], kept[level]
        position[level] += 1
        if at == len(samples):
            samples.append(make_sample(level, seed=seed, index=at))
        yield samples[at]


def right_answers(samples: Sequence[Sample], answers: Sequence[object]) -> int:
    """How many the exact engine calls right."""
    return sum(judge(sample.level, sample.input, given).right for sample, given in zip(samples, answers, strict=True))


def accuracies(solve: Solver, asked: Iterator[Question], *, told: Callable[[str], object] = print) -> dict[str, float]:
    """Question's name -> part that was answered right, 0 .. 1."""
    found = {}
    for question in asked:
        found[question.name] = right_answers(question.samples, solve(question.samples)) / len(question.samples)
        told(f"{question.name}: {100 * found[question.name]:.2f} %")
    return found
