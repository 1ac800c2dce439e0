"""Samples of the seven levels: drawn, answered, split and verified, each a pure function of its seed and index.

The split of an expression is a pure function of its canonical form, the same on every machine: the expression and its
rearrangements (``(+ 2 3)``, ``(+ 3 2)``) have one hash and so one split. The seed of a run changes which expressions
are drawn, never the split that they belong to.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from math import gcd
from typing import Literal

from dagnn.curriculum.draw import (
    DROP_REASONS,
    HELD_OUT_PART,
    ILL_CONDITIONED,
    NUMBER_LIMIT,
    OTHER_SPLIT,
    REPEATED,
    TOO_LARGE,
    UNDEFINED,
    UNVERIFIED,
    Draws,
    Dropped,
    Preset,
    with_digits,
)
from dagnn.curriculum.exact.answer import simplified
from dagnn.curriculum.exact.calculus import definite_integral, derivative
from dagnn.curriculum.exact.evaluate import LimitError, evaluate, is_well_rounded, well_conditioned_value
from dagnn.curriculum.exact.precise import decimal_leaf, refuse_undefined
from dagnn.curriculum.expression import CONSTANTS, Expr, from_fraction, is_decimal, size, walk
from dagnn.curriculum.levels import LevelSpec, check_drawn, level_spec, preset_of
from dagnn.curriculum.verdict import confirmed
from dagnn.errors import ConfigError, ExpressionError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

# In percent of all classes. A training expression must have no held-out part, and one of level 2 has about five
# parts: 12 % held out keeps 60 % of its draws (15 % keeps 50 %, and thins the large ones more).
TEST_SHARE = 8
VALIDATION_SHARE = 4

_COMMUTATIVE = frozenset(("+", "*", "="))
# Parts with these heads could be the input of a level even where a symbol is free: (derive (^ x 2) x).
_LEVEL_HEADS = frozenset(("derive", "integrate", "solve", "subst"))
_NO_SYMBOLS: frozenset[str] = frozenset()


def split_of(expr: Expr) -> Split:
    """The split that an expression belongs to.

    Numbers belong to training, reduced fractions too: ``(/ 7 3)`` is its own answer, and if it were held out, no
    training expression could contain 7/3.

    Raises:
        ExpressionError: nested too deep.

    >>> split_of(("+", 2, 3)) == split_of(("+", 3, 2))
    True
    """
    try:
        return "train" if _is_number(expr) else _split_of_text(canonical_text(expr))
    except RecursionError:
        raise ExpressionError("the expression is nested too deep: split it.") from None


def has_held_out_part(expr: Expr) -> bool:
    """Does the expression, or a part that could be the input of a level, belong to validation or test?

    Such parts are those without free symbols and those headed by ``derive``, ``integrate``, ``solve`` or ``subst``;
    ``(approx E)`` counts as E.
    """
    parts: list[str] = []
    text = _visit(expr, parts)[0]
    if not (parts and parts[-1] == text) and not _is_number(expr):
        parts.append(text)
    return any(_split_of_text(part) != "train" for part in parts)


def canonical_text(expr: Expr) -> str:
    """The text that is hashed: operands of ``+ * =`` sorted, ``(approx E)`` as E."""
    # _visit gives it too, in three times the time; every draw of a held-out split needs it, and 9 of 10 are dropped.
    if not isinstance(expr, tuple):
        return str(expr)
    if len(expr) == 3:  # nearly all: half the time of a list that is sorted and joined
        head, first, second = expr
        first = canonical_text(first) if isinstance(first, tuple) else str(first)
        second = canonical_text(second) if isinstance(second, tuple) else str(second)
        if second < first and head in _COMMUTATIVE:
            return f"({head} {second} {first})"
        return f"({head} {first} {second})"
    head = expr[0]
    if head == "approx":
        return canonical_text(expr[1])
    texts = [canonical_text(operand) for operand in expr[1:]]
    if head in _COMMUTATIVE:
        texts.sort()
    return f"({head} {' '.join(texts)})"


def check_split(split: str) -> Split:
    """The split's name, if it is one; else a ConfigError."""
    for known in SPLITS:
        if split == known:
            return known
    raise ConfigError(f"split {split!r} does not exist: the splits are {', '.join(SPLITS)}.")


def _visit(expr: Expr, parts: list[str]) -> tuple[str, frozenset[str]]:
    """Canonical text and free symbols; appends the text of every part that could be the input of a level."""
    if isinstance(expr, int):
        return str(expr), _NO_SYMBOLS
    if isinstance(expr, str):
        return expr, _NO_SYMBOLS if expr in CONSTANTS or is_decimal(expr) else frozenset((expr,))
    head = expr[0]
    if head == "approx":
        return _visit(expr[1], parts)
    texts, free = [], _NO_SYMBOLS
    for position, operand in enumerate(expr[1:]):
        text, symbols = _visit(operand, parts)
        texts.append(text)
        if symbols and not (position == 1 and head in _LEVEL_HEADS):
            free = free | symbols if free else symbols
    if head in _COMMUTATIVE:
        texts.sort()
    text = f"({head} {' '.join(texts)})"
    if head in _LEVEL_HEADS:
        free -= {expr[2]}
        parts.append(text)
    elif not free and not _is_number(expr):
        parts.append(text)
    return text, free


def _is_number(expr: Expr) -> bool:
    """A leaf, or a fraction in its one spelling."""
    if not isinstance(expr, tuple):
        return True
    return (
        len(expr) == 3
        and expr[0] == "/"
        and isinstance(expr[1], int)
        and isinstance(expr[2], int)
        and expr[2] > 1
        and gcd(expr[1], expr[2]) == 1
    )


def _split_of_text(text: str) -> Split:
    # BLAKE2, not crc32: that one is linear, and its remainders favour some digits of short expressions.
    bucket = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") % 100
    if bucket < TEST_SHARE:
        return "test"
    return "validation" if bucket < TEST_SHARE + VALIDATION_SHARE else "train"


# Depth 12 on level 2 keeps one draw in a few thousand; what keeps none in this many never will.
MAX_ATTEMPTS = 200_000
# Nodes of a level-5 answer; more when the depth was set by hand, so that deeper inputs are not thinned out.
_LARGEST_DERIVATIVE = 60
_LARGEST_DEEP_DERIVATIVE = 200


@dataclass(frozen=True, slots=True)
class Sample:
    """One verified input and its answer.

    ``input`` is as the level reads it: on level 4 without the ``(approx ...)`` that its level implies.
    `make_sample`, `stream` and `dataset` return such samples.

    >>> make_sample(1, seed=0, index=0)
    Sample(id='L1-train-0-0', level=1, split='train', input=('-', 22, 53), answer=-31)
    """

    id: str
    level: int
    split: Split
    input: Expr
    answer: Expr


@dataclass(slots=True)
class GenerationStats:
    """How many draws were kept, and why the others were dropped; one object may count several calls.

    >>> stats = GenerationStats()
    >>> samples = dataset(1, 5, stats=stats)
    >>> stats.kept, stats.attempted >= 5
    (5, True)
    """

    attempted: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(DROP_REASONS, 0)))
    seconds: float = 0.0

    @property
    def samples_per_second(self) -> float:
        """Kept samples per second of drawing; 0 before the first."""
        return self.kept / self.seconds if self.seconds else 0.0


def make_sample(
    level: int,
    *,
    seed: int,
    index: int,
    split: str = "train",
    preset: str = "full",
    depth: int | None = None,
    digits: int | None = None,
    stats: GenerationStats | None = None,
) -> Sample:
    """Sample ``index`` of a stream, made alone: the same in every process and on every machine.

    Args:
        level: 1 to 7.
        seed: of the stream; it changes what is drawn, never which split an expression belongs to.
        index: from 0.
        split: ``"train"``, ``"validation"`` or ``"test"``. No expression of the last two occurs in training, not even
            inside another expression.
        preset: ``"full"``, or ``"small"`` for small numbers and depth at most 2.
        depth: of the expression, 1 to 12, in the place of the level's own; levels 1 and 6 have none to set.
        digits: of the whole numbers of levels 1 to 3, 1 to 12, in the place of the preset's own: 4 draws within 9999.
            Every value then has a numerator and denominator of at most twice as many digits.
        stats: counts this call's draws.

    Raises:
        ConfigError: an argument out of range, or a depth or a number of digits at which no draw is usable.

    >>> sample = make_sample(2, seed=0, index=7)
    >>> sample == make_sample(2, seed=0, index=7)
    True
    """
    spec, sizes, known_split = level_spec(level), preset_of(preset), check_split(split)
    check_drawn(spec, depth=depth, digits=digits)
    if digits is not None:
        sizes = with_digits(sizes, digits)
    _check_whole("seed", seed)
    _check_whole("index", index)
    counted = GenerationStats() if stats is None else stats
    start = time.perf_counter()
    sample_id = (
        f"L{level}-{split}-{seed}-{index}{'' if preset == 'full' else '-' + preset}"
        f"{f'-d{depth}' if depth else ''}{f'-n{digits}' if digits else ''}"
    )
    draws = Draws(sample_id)
    try:
        for _ in range(MAX_ATTEMPTS):
            counted.attempted += 1
            try:
                expr, answer = _attempt(spec, sizes, depth, known_split, draws)
            except Dropped as drop:
                counted.dropped[drop.reason] += 1
                continue
            counted.kept += 1
            return Sample(sample_id, level, known_split, expr, answer)
    finally:
        counted.seconds += time.perf_counter() - start
    raise ConfigError(
        f"level {level} found no sample at depth={depth}, digits={digits} in {MAX_ATTEMPTS:,} draws: "
        "choose smaller ones."
    )


def stream(
    level: int,
    *,
    seed: int = 0,
    split: str = "train",
    preset: str = "full",
    depth: int | None = None,
    digits: int | None = None,
    start: int = 0,
    stats: GenerationStats | None = None,
) -> Iterator[Sample]:
    """Samples ``start``, ``start + 1``, ... without end. Arguments and errors as `make_sample`.

    >>> next(stream(1, seed=0)).input
    ('-', 22, 53)
    """
    level_spec(level)
    preset_of(preset)
    check_split(split)
    check_drawn(level_spec(level), depth=depth, digits=digits)
    return (
        make_sample(level, seed=seed, index=index, split=split, preset=preset, depth=depth, digits=digits, stats=stats)
        for index in count(start)
    )


def dataset(
    level: int,
    size: int,
    *,
    seed: int = 0,
    split: str = "train",
    preset: str = "full",
    depth: int | None = None,
    digits: int | None = None,
    distinct: bool = False,
    stats: GenerationStats | None = None,
) -> list[Sample]:
    """The first ``size`` samples of a stream, as a list.

    Args:
        distinct: pass over samples whose input came before (a quarter of level 5 repeats: short derivatives), so the
            list has ``size`` different inputs and its indices gaps.

    Raises:
        ConfigError: as ``make_sample``; a negative size; or a level with fewer distinct inputs than `size`.

    >>> [sample.input for sample in dataset(1, 3)]
    [('-', 22, 53), ('*', -51, -9), ('/', 96, 87)]
    """
    _check_whole("size", size)
    counted = GenerationStats() if stats is None else stats
    samples: list[Sample] = []
    seen: set[Expr] = set()
    repeats_in_a_row = 0
    endless = stream(level, seed=seed, split=split, preset=preset, depth=depth, digits=digits, stats=counted)
    while len(samples) < size:
        sample = next(endless)
        if distinct and sample.input in seen:
            counted.kept -= 1
            counted.dropped[REPEATED] += 1
            repeats_in_a_row += 1
            if repeats_in_a_row == 1_000:
                raise ConfigError(
                    f"level {level} has about {len(samples)} distinct {split} inputs at preset={preset!r}, "
                    f"depth={depth}, digits={digits}, fewer than size={size}: choose a smaller one."
                )
            continue
        repeats_in_a_row = 0
        seen.add(sample.input)
        samples.append(sample)
    return samples


def _attempt(spec: LevelSpec, sizes: Preset, depth: int | None, split: Split, draws: Draws) -> tuple[Expr, Expr]:
    """One draw, through every check; the cheap ones first."""
    expr, answer = spec.draw(draws, sizes, depth)
    if split == "train":
        if has_held_out_part(expr):
            raise Dropped(OTHER_SPLIT if split_of(expr) != split else HELD_OUT_PART)
    elif split_of(expr) != split:
        raise Dropped(OTHER_SPLIT)
    if answer is None:
        answer = _answer(spec.number, expr, depth, sizes.number_limit)
    if spec.number >= 5:
        refuse_large_numbers(expr)
        refuse_large_numbers(answer)
    if not confirmed(spec.number, expr, answer):
        raise Dropped(UNVERIFIED)
    return expr, answer


def _answer(level: int, expr: Expr, depth: int | None, number_limit: int) -> Expr:
    """The exact answer within the limits of the level."""
    if level == 4:
        try:
            digits = well_conditioned_value(expr)
        except (ExpressionError, OverflowError):
            raise Dropped(ILL_CONDITIONED) from None
        if not is_well_rounded(digits):
            raise Dropped(ILL_CONDITIONED)
        return decimal_leaf(digits)
    try:
        if level == 5:
            return _derivative(expr, _LARGEST_DEEP_DERIVATIVE if depth else _LARGEST_DERIVATIVE)
        if level == 6:
            assert isinstance(expr, tuple)
            return definite_integral(*expr[1:])
        return from_fraction(evaluate(expr, limit=number_limit))
    except LimitError:
        raise Dropped(TOO_LARGE) from None
    except ExpressionError:
        raise Dropped(UNDEFINED) from None


def _derivative(expr: Expr, largest: int) -> Expr:
    assert isinstance(expr, tuple)
    function = simplified(expr[1])  # (log -2) beside an x is refused, and (sqrt (- (- x x) 1)): values are real
    result = derivative(function, expr[2])
    refuse_undefined(result)  # (log -2) from (^ -2 x)
    refuse_large_numbers(function)
    if size(result) > largest:
        raise Dropped(TOO_LARGE)
    return result


def _check_whole(name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{name} must be a whole number of at least 0, got {value!r}.")


def refuse_large_numbers(expr: Expr) -> None:
    """Drop a draw that writes a number above 9999."""
    if any(isinstance(item, int) and not -NUMBER_LIMIT <= item <= NUMBER_LIMIT for item in walk(expr)):
        raise Dropped(TOO_LARGE)
