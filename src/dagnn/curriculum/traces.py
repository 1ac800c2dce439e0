"""The training set of the curriculum: every distinct neighbourhood of many traces, with its replacement and counts."""

import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import numpy as np

from dagnn.curriculum.draw import Draws, part_of
from dagnn.curriculum.engine import RuleEngine, to_term
from dagnn.curriculum.expression import FUNCTIONS, Expr
from dagnn.curriculum.generator import has_held_out_part, make_sample
from dagnn.curriculum.levels import LEVELS, level_spec
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.rules.elementary import constant_terms
from dagnn.curriculum.rules.numbers import RULES
from dagnn.errors import ConfigError
from dagnn.rewriting.dataset import NeighbourhoodSet
from dagnn.rewriting.machine import LabelTokens, RewritingMachine
from dagnn.rewriting.system import LEAVE, NeighbourhoodTokens, ReplacementTokens, encode_replacement

# Kinds of neighbourhoods. A network must see a fact of the last two, such as 7 * 8 + 5 or the sine of 0.3, to know it.
SYMBOLIC, DIGITS, PRODUCTS, CONSTANTS = "symbolic", "digits", "digit products", "functions"
KINDS = (SYMBOLIC, DIGITS, PRODUCTS, CONSTANTS)

# Of the files of rules; every other one is symbolic.
_KIND_OF_SUBJECT = {"numbers": DIGITS, "elementary": CONSTANTS}

# Samples traced before the shared stack is unwound; enough to make the cost of one call small.
_CHUNK = 500
# How often each drilled term counts beside the drawn samples.
_DRILL_COUNT = 25
_SHARED_INTEGRALS = 20_000  # 6 CPU seconds


def collect_neighbourhoods(
    samples: Mapping[int, int], *, seed: int = 0, preset: str = "full", processes: int = 1
) -> NeighbourhoodSet:
    """Traces samples ``0 .. n - 1`` of the training split of every level and gathers their neighbourhoods.

    Args:
        samples: level -> number of samples.
        seed, preset: of the samples, see `make_sample`, whose errors it has.
        processes: how many share the work; the result is the same for any number.
    """
    for level, count in samples.items():
        level_spec(level)
        if count < 1:
            raise ConfigError(f"samples of level {level} = {count}: expected at least 1.")
    if not samples:
        raise ConfigError("samples names no level: give at least one, such as {1: 1000}.")
    levels = tuple(sorted(samples))
    if processes <= 1:
        parts = [_trace_share(samples, seed, preset, 0, 1)]
    else:
        # Not fork: a forked child would wait forever for PyTorch's threads, which the parent may already run.
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            with _ignoring_ctrl_c():
                shares = [
                    pool.submit(_trace_share, samples, seed, preset, number, processes) for number in range(processes)
                ]
            parts = [share.result() for share in shares]

    replacement_of: dict[NeighbourhoodTokens, ReplacementTokens] = {}
    counts: dict[int, Counter[NeighbourhoodTokens]] = {level: Counter() for level in levels}
    for known, counted in parts:
        replacement_of |= known
        for level, counter in counted.items():
            counts[level].update(counter)
    neighbourhoods = sorted(replacement_of)
    return NeighbourhoodSet(
        neighbourhoods,
        [replacement_of[neighbourhood] for neighbourhood in neighbourhoods],
        np.array([[counts[level][neighbourhood] for level in levels] for neighbourhood in neighbourhoods], np.int64),
        levels,
    )


def with_more(
    collected: NeighbourhoodSet, found: Mapping[int, Mapping[NeighbourhoodTokens, ReplacementTokens]]
) -> NeighbourhoodSet:
    """The set with what was found at each level, such as its closure: what is new counts once, at the lowest."""
    replacement_of = dict(zip(collected.neighbourhoods, collected.replacements, strict=True))
    counts = dict(zip(collected.neighbourhoods, collected.counts, strict=True))
    for level, more in sorted(found.items()):
        once = np.array([stage == level for stage in collected.stages], np.int64)
        for neighbourhood, replacement in more.items():
            replacement_of.setdefault(neighbourhood, replacement)
            counts.setdefault(neighbourhood, once)
    neighbourhoods = sorted(replacement_of)
    return NeighbourhoodSet(
        neighbourhoods,
        [replacement_of[each] for each in neighbourhoods],
        np.stack([counts[each] for each in neighbourhoods]),
        collected.stages,
    )


def with_shared_integrals(collected: NeighbourhoodSet, *, seed: int, preset: str) -> NeighbourhoodSet:
    """The set with what integrals lead to whose integrand is an operation on a training sample's and a part of it.

    Level 6 has no list of all neighbourhoods, and its samples hardly ever hold the same twice: a network that was right
    at all that they lead to had 50 of 300 such integrals wrong. What no trace met counts once.
    """
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    for first in range(0, _SHARED_INTEGRALS, _CHUNK):
        drawn = (
            _shared_integral(seed, preset, index) for index in range(first, min(first + _CHUNK, _SHARED_INTEGRALS))
        )
        machine.clear_graph()
        machine.absorb([to_term(expression)[0] for expression in drawn if not has_held_out_part(expression)])
    numbers = range(machine.num_neighbourhoods)
    return with_more(collected, {6: {machine.neighbourhood(w): machine.replacement(w) or LEAVE for w in numbers}})


def _shared_integral(seed: int, preset: str, index: int) -> Expr:
    draws = Draws(f"shared 6 {seed} {preset} {index}")
    sample = make_sample(6, seed=seed, index=index, preset=preset).input
    assert isinstance(sample, tuple)
    whole, *rest = sample[1:]
    operator, part = draws.choice(("+", "+", "-", "-", "*", "/")), part_of(draws, whole)
    return ("integrate", (operator, whole, part) if draws.chance(0.5) else (operator, part, whole), *rest)


def kind_of(neighbourhood: NeighbourhoodTokens) -> str:
    """One of `KINDS`, by the file of the rule that rewrites the neighbourhood.

    Symbolic are algebra, substitution, derivatives, integrals and equations; digits are the steps of rational
    arithmetic but for the product of two digits with a carry; functions are level 4's, with their constants.
    """
    label = SIGNATURE.shown[neighbourhood[0]].kind
    if label == "times_digit":
        return PRODUCTS
    return _KIND_OF_SUBJECT.get(RULES[label].__module__.rpartition(".")[2], SYMBOLIC)


@contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    """Processes started inside ignore Ctrl-C: a terminal sends it to all of them, and each would print a traceback.

    The parent gets it too, and terminates them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only there may Python set a handler
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


_Share = tuple[dict[NeighbourhoodTokens, ReplacementTokens], dict[int, Counter[NeighbourhoodTokens]]]


def _trace_share(samples: Mapping[int, int], seed: int, preset: str, number: int, shares: int) -> _Share:
    """Every `shares`-th chunk of every level, from chunk `number` on."""
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    counted: dict[int, Counter[NeighbourhoodTokens]] = {}
    for level, count in sorted(samples.items()):
        counter = counted[level] = Counter()
        drilled = _drilled_terms(level)
        if drilled and number == 0:
            for neighbourhood, times in _counted(machine, [drilled]).items():
                counter[neighbourhood] = times * _DRILL_COUNT
        chunks = (
            [
                to_term(make_sample(level, seed=seed, index=index, preset=preset).input, level)[0]
                for index in range(first, min(first + _CHUNK, count))
            ]
            for first in range(number * _CHUNK, count, shares * _CHUNK)
        )
        counter.update(_counted(machine, chunks))
    known = {machine.neighbourhood(w): machine.replacement(w) or () for w in range(machine.num_neighbourhoods)}
    return known, counted


def _drilled_terms(level: int) -> list[LabelTokens]:
    """What drawn samples never or hardly ever hold: operations without a value, numbers out of range, equations and
    integrals without an answer, powers with a function as exponent, the constant e, and every constant of level 4."""
    numbers: list[Expr] = [0, 1, 2, 3, 12, -1, -2, -3, -12, ("/", 1, 2), ("/", -1, 2)]
    divisions: list[Expr] = [("/", a, 0) for a in numbers]
    functions: list[Expr] = ["x", ("+", "x", 3), ("*", 2, "x"), ("^", "x", 2), *((f, "x") for f in FUNCTIONS)]
    powers: list[Expr] = [("derive", ("^", a, b), "x") for a in [*functions, 2, "e"] for b in functions]
    square: Expr = ("^", "x", 2)
    sides: list[tuple[Expr, Expr]] = [
        *((square, n) for n in (*range(-9, 10), 12, 99, ("/", 1, 2), ("/", 4, 9))),
        *((("+", square, ("*", b, "x")), c) for b in (1, 2, -3) for c in (1, -1, 5, -5)),
        *((("*", ("+", "x", a), ("-", "x", b)), c) for a in (1, 3, -2) for b in (0, 2, -5) for c in (0, 6)),
        *((left, left) for left in ("x", ("+", "x", 3), ("*", 2, "x"))),
        *((a, b) for a in (1, -2) for b in (1, 2)),
        *((("^", "x", n), a) for n in (0, 1, 3, 4, 12) for a in (0, 8)),
        *((("*", square, "x"), a) for a in (0, 8)),
        *(((f, "x"), 1) for f in FUNCTIONS),
        (("/", 1, "x"), 2),
    ]
    unknown: list[Expr] = [
        *((f, square) for f in FUNCTIONS),
        *((f, ("/", 1, "x")) for f in FUNCTIONS),
        *(("*", "x", (f, a)) for f in FUNCTIONS for a in ("x", ("^", "x", 3))),
        *(("*", (f, "x"), (g, "x")) for f in FUNCTIONS for g in FUNCTIONS),
        *(("/", (f, "x"), "x") for f in FUNCTIONS),
        *((f, "x") for f in FUNCTIONS),
        ("^", "x", "x"),
        ("^", 2, "x"),
    ]
    drilled: dict[int, list[Expr]] = {
        1: divisions,
        3: [*(("^", 0, exponent) for exponent in (-1, -2, -3, -12)), *(("^", a, n) for a in numbers for n in (0, 1))],
        4: [
            *divisions,
            *((f, a) for f in ("log", "sqrt") for a in (0, -1, -2, -3, -12, ("/", -1, 2))),
            *(("exp", sign * a) for sign in (1, -1) for a in (26, 30, 50, 99, 100, 250, 1000, 2000, 12345, 10**6)),
            *((f, a) for f in ("sin", "cos", "tan") for a in (10_000, 12_345, -20_000, 10**6, 10**9)),
            *(("+", ("approx", a), ("sin", b)) for a in numbers for b in (1, ("approx", a))),
        ],
        5: [("log", 0), ("/", "x", 0), *powers],
        6: [
            *(("integrate", ("/", a, "x"), "x", *b) for a in numbers[1:] for b in ((1, "e"), ("e", 1), (1, 2))),
            *(("integrate", f, "x") for f in unknown),
        ],
        7: [("solve", ("=", *both), "x") for both in sides],
    }
    terms: list[LabelTokens] = [to_term(expression, level)[0] for expression in drilled.get(level, [])]
    if LEVELS[level].numeric:
        terms += [encode_replacement(term, SIGNATURE) for term in constant_terms()]
    return terms


def _counted(machine: RewritingMachine, chunks: Iterable[Sequence[LabelTokens]]) -> Counter[NeighbourhoodTokens]:
    """How often every neighbourhood comes when the machine rewrites these chunks."""
    before = machine.counts
    for chunk in chunks:
        # A sub-term that an earlier chunk shares would not be rewritten, nor counted, again; and which chunks come
        # earlier depends on the number of processes.
        machine.clear_graph()
        machine.absorb(chunk)
    new = machine.counts
    new[: len(before)] -= before
    return Counter({machine.neighbourhood(int(w)): int(new[w]) for w in np.flatnonzero(new)})
