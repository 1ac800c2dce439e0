"""Is a network right at every step that expressions of a level can ask for? Every one is asked, none is drawn.

`closure_of` lists the neighbourhoods, `certify` asks the network about each, and looks for an expression that shows a
wrong one. What follows from it, and what does not, is proved in docs/explanation/certificate.md.
"""

import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from dagnn.curriculum.accuracy import model_of, opened_run
from dagnn.curriculum.closure import Call, Closure, Value, is_number
from dagnn.curriculum.draw import OPERATORS, Draws, part_of, with_depth
from dagnn.curriculum.engine import RuleEngine, neighbourhood_text, replacement_text, to_term
from dagnn.curriculum.exact.answer import answer
from dagnn.curriculum.expression import FUNCTIONS, MAX_DIGITS, Expr, symbols_of, to_text
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.smaller_steps import Proposer
from dagnn.curriculum.solving import solve_with
from dagnn.errors import ConfigError, ExpressionError
from dagnn.rewriting.machine import RewritingMachine
from dagnn.rewriting.system import NeighbourhoodTokens, ReplacementTokens

EXPRESSIONS = 20_000
# Steps of one expression in the search, which the network may need many more of.
_BUDGET = 20_000
_SECONDS_OF_ONE = 10.0
_CHUNK = 500
_SHOWN = 5

_ZERO: Value = ("positive", "Zero")
_INTEGERS: tuple[Value, ...] = (_ZERO, *((sign, size) for sign in ("positive", "negative") for size in ("One", "Many")))
_SYMBOLS = ("x", "y", "z")


class _Language(NamedTuple):
    """The expressions of a level.

    Attributes:
        claim: what they are, in words.
        calls: the operations on values of sub-expressions, given all of these.
        leaves: values of what stands alone.
        nested: whether operands may be operations.
        outermost: what may stand around them all, but never inside, given the values of all sub-expressions.
    """

    claim: str
    calls: Callable[[Collection[Value]], Iterator[Call]]
    leaves: tuple[Value, ...] = _INTEGERS
    nested: bool = True
    outermost: Callable[[Collection[Value]], Iterator[Call]] = lambda values: iter(())


def _arithmetic(values: Collection[Value]) -> Iterator[Call]:
    return itertools.product(OPERATORS, values, values)


def _with_powers(values: Collection[Value]) -> Iterator[Call]:
    yield from _arithmetic(values)
    yield from itertools.product("^", values, _INTEGERS)


def _with_symbols(values: Collection[Value]) -> Iterator[Call]:
    yield from _with_powers(values)
    yield from itertools.product(["subst"], values, _SYMBOLS, filter(is_number, values))


def _derivatives(values: Collection[Value]) -> Iterator[Call]:
    yield from _with_powers(values)
    yield from itertools.product(FUNCTIONS, values)
    yield from itertools.product(["derive"], values, _SYMBOLS[:1])


def _equations(values: Collection[Value]) -> Iterator[Call]:
    yield from itertools.product("=", values, values)
    yield ("solve", "=", _SYMBOLS[0])


_LANGUAGES: Mapping[int, _Language] = {
    1: _Language("one of + - * / on two whole numbers, of any length", _arithmetic, nested=False),
    2: _Language("+ - * / on whole numbers, of any length, nested to any depth", _arithmetic),
    3: _Language(
        "+ - * / and powers with a whole exponent, on whole numbers of any length and at most three symbols, with "
        "symbols bound to numbers, nested to any depth",
        _with_symbols,
        (*_INTEGERS, *_SYMBOLS),
    ),
    5: _Language(
        "derivatives by x, of + - * /, powers with a whole exponent, sin cos tan log exp sqrt, on whole numbers of any "
        "length, e, pi and at most three symbols, nested to any depth",
        _derivatives,
        (*_INTEGERS, *_SYMBOLS, "e", "pi"),
    ),
    7: _Language(
        "equations in x of + - * / and powers with a whole exponent, on whole numbers of any length and x, nested to "
        "any depth, without a part above the second degree, and without x in a divisor or under an exponent other than "
        "0, 1 and 2",
        _with_powers,
        (*_INTEGERS, _SYMBOLS[0]),
        outermost=_equations,
    ),
}
LEVELS = tuple(_LANGUAGES)
"""The levels whose neighbourhoods are known to be finitely many."""


def engine_answer(neighbourhood: NeighbourhoodTokens) -> ReplacementTokens:
    """What the exact engine puts in the place of a neighbourhood."""
    return RuleEngine().rewrite([neighbourhood])[0]


@functools.cache
def closure_of(level: int) -> Mapping[NeighbourhoodTokens, ReplacementTokens]:
    """Every neighbourhood that expressions of a level, one of `LEVELS`, can lead to, and what replaces it.

    Expressions may have any length and depth. About one in eight neighbourhoods cannot occur, since relations between
    values are forgotten.
    """
    language = _language(level)
    closure = Closure(engine_answer)
    # The digits and the signs of the input are rewritten too.
    for call in itertools.product(("d0", "negative"), ("One", "Many")):
        closure.ask(call)
    values: dict[Value, None] = dict.fromkeys(language.leaves)
    while True:
        calls = list(language.calls(values))
        for call in (*calls, *language.outermost(values)):
            closure.ask(call)
        closure.run()
        new = {value for call in calls for value in closure.results[call]} - values.keys()
        if not new or not language.nested:
            return closure.replacement_of
        values |= dict.fromkeys(sorted(new, key=str))


def _language(level: int) -> _Language:
    if level not in _LANGUAGES:
        raise ConfigError(
            f"level {level} has no certificate: whether its neighbourhoods are finitely many is not known. "
            f"The levels that have one are {', '.join(map(str, LEVELS))}."
        )
    return _LANGUAGES[level]


class Network(Proposer, Protocol):
    """What `certify` asks, such as `GraphRewriter`."""

    def leads(
        self, neighbourhoods: Sequence[NeighbourhoodTokens], replacements: Sequence[ReplacementTokens]
    ) -> Sequence[float]: ...


@dataclass(frozen=True)
class Counterexample:
    """A neighbourhood at which a network is wrong.

    Attributes:
        neighbourhood: as text; letters are parts out of sight, equal letters the same part.
        expected, written: what the engine and what the network put there, as text.
        expression: text of an expression that leads to it; empty where none was found.
        answer: text of the exact answer to that.
        given: what the network made of it, in words.
    """

    neighbourhood: str
    expected: str
    written: str
    expression: str = ""
    answer: str = ""
    given: str = ""

    @property
    def lines(self) -> list[str]:
        """As `dagnn certify` prints it."""
        shown = [f"  wrong at {self.neighbourhood}: writes {self.written}, the engine {self.expected}"]
        if not self.expression:
            return [*shown, "    no expression was found that leads there; perhaps none does"]
        return [*shown, f"    {self.expression} leads there; the answer is {self.answer}, the network: {self.given}"]


@dataclass(frozen=True)
class Certificate:
    """What asking a network about every neighbourhood of a level gave.

    Attributes:
        level, claim: which expressions.
        neighbourhoods: how many were asked, all that there can be.
        wrong: how many of them the network answers otherwise than the engine.
        least_lead: the least difference of logits, over all of them, between what the engine says and anything else.
        counterexamples: some of the wrong ones, those with an expression first.
        reached: of the wrong ones, those for which an expression was found.
    """

    level: int
    claim: str
    neighbourhoods: int
    wrong: int
    least_lead: float
    counterexamples: tuple[Counterexample, ...] = ()
    reached: int = 0

    @property
    def holds(self) -> bool:
        """Whether the network takes the engine's steps on every expression of the level."""
        return not self.wrong

    @property
    def lines(self) -> list[str]:
        """What `dagnn certify` prints."""
        if self.holds:
            return [
                f"level {self.level}: right for every input: {self.claim}",
                f"  the network writes what the exact engine writes at all {self.neighbourhoods:,} neighbourhoods that "
                f"such an input can lead to; least lead {self.least_lead:.2f} logits",
            ]
        return [
            f"level {self.level}: NOT right for every input: wrong at {self.wrong:,} of {self.neighbourhoods:,} "
            f"neighbourhoods, {self.reached:,} of them shown by an expression",
            *(line for each in self.counterexamples for line in each.lines),
        ]

    def summary(self) -> dict[str, Any]:
        """As JSON values."""
        return {"holds": self.holds, **asdict(self)}


BOUNDS = (
    "as far as the steps and digits that a command allows (dagnn solve: --budget steps, numbers of "
    f"{MAX_DIGITS:,} digits), for inputs that have a value, and given that the engine's rules are right"
)


def certify_run(
    run: str | Path,
    levels: Sequence[int] = (1, 2, 3),
    *,
    expressions: int = EXPRESSIONS,
    note: Callable[[str], object] = lambda line: None,
) -> list[Certificate]:
    """The certificates of a run's network, see `certify`; errors as of that, and as of `opened_run`."""
    if not levels:
        raise ConfigError(f"no level is given: name some of {', '.join(map(str, LEVELS))}.")
    for level in levels:
        _language(level)
    model = model_of(opened_run(run)[2])
    return [certify(model, level, expressions=expressions, note=note) for level in levels]


def certify(
    model: Network, level: int, *, expressions: int = EXPRESSIONS, note: Callable[[str], object] = lambda line: None
) -> Certificate:
    """Asks a network about every neighbourhood of a level.

    Args:
        model: in eval mode.
        level: one of `LEVELS`; else a ConfigError.
        expressions: how many to draw in search of some that lead to what it gets wrong.
        note: called with a line about what is being done.
    """
    language = _language(level)
    note(f"level {level}: listing the neighbourhoods")
    closure = closure_of(level)
    asked, right = list(closure), list(closure.values())
    note(f"level {level}: asking the network about {len(asked):,} neighbourhoods")
    written = {
        neighbourhood: proposal.replacement
        for neighbourhood, proposal in zip(asked, model.propose(asked), strict=True)
        if proposal.replacement != closure[neighbourhood]
    }
    leads = model.leads(asked, right)
    reached: dict[NeighbourhoodTokens, Expr] = {}
    if written:
        note(f"level {level}: looking for expressions that lead to {len(written):,} wrong ones")
        reached = expressions_for(level, written, expressions=expressions)
    shown = sorted(written, key=lambda each: (each not in reached, len(each), each))[:_SHOWN]
    return Certificate(
        level,
        language.claim,
        len(asked),
        len(written),
        min(leads),
        tuple(_counterexample(model, each, written[each], closure[each], reached.get(each)) for each in shown),
        len(reached),
    )


def _counterexample(
    model: Proposer,
    neighbourhood: NeighbourhoodTokens,
    written: ReplacementTokens,
    expected: ReplacementTokens,
    expression: Expr | None,
) -> Counterexample:
    texts = (replacement_text(neighbourhood, tokens) for tokens in (expected, written))
    found = Counterexample(neighbourhood_text(neighbourhood), *texts)
    if expression is None:
        return found
    # A wrong step may lead round in circles.
    solution = solve_with(model, expression, budget=_BUDGET, seconds=_SECONDS_OF_ONE)
    given = (f"{solution.answer}, " if solution.answer else "") + solution.verdict
    return replace(found, expression=to_text(expression), answer=to_text(answer(expression)), given=given)


def expressions_for(
    level: int, wanted: Collection[NeighbourhoodTokens], *, expressions: int = EXPRESSIONS
) -> dict[NeighbourhoodTokens, Expr]:
    """Expressions of a level, each with a value, that lead the exact engine to some of these neighbourhoods.

    It draws expressions, whose numbers and operands repeat themselves and have the digits that are shown there, until
    all are found or so many are drawn.
    """
    found: dict[NeighbourhoodTokens, Expr] = {}
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    missing = dict.fromkeys(sorted(wanted))
    for first in range(0, expressions, _CHUNK):
        if not missing:
            break
        hints = [_names_in(each) for each in missing]
        drawn = (drawn_expression(level, i, hints[i % len(hints)]) for i in range(first, first + _CHUNK))
        chunk = [expression for expression in drawn if _has_value(expression, level)]
        known = machine.num_neighbourhoods
        machine.clear_graph()
        machine.run([to_term(expression)[0] for expression in chunk], budget=_BUDGET)
        met = {machine.neighbourhood(number) for number in range(known, machine.num_neighbourhoods)} & missing.keys()
        for expression in chunk if met else ():
            alone = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
            alone.run([to_term(expression)[0]], budget=_BUDGET)
            here = {alone.neighbourhood(number) for number in range(alone.num_neighbourhoods)} & missing.keys()
            found |= dict.fromkeys(here, expression)
            missing = {each: None for each in missing if each not in here}
            met -= here
            if not met:
                break
    return found


def _names_in(neighbourhood: NeighbourhoodTokens) -> tuple[str, ...]:
    """The labels that a neighbourhood shows; digits without the mark of a chain."""
    kinds = (SIGNATURE.shown[token].kind for token in neighbourhood if token < SIGNATURE.hidden)
    return tuple(kind[1:] if kind[0] == "d" and kind[1:].isdecimal() else kind for kind in kinds)


def drawn_expression(level: int, index: int, names: Sequence[str] = ()) -> Expr:
    """A small expression of a level whose numbers, and operands, share parts: what random ones hardly ever do.

    Another one for each ``index``, which should have these digits, operators and symbols.
    """
    language = _language(level)
    draws = Draws(f"certificate {level} {index}")
    wanted = names if names and draws.chance(0.7) else ()
    digits = [name for name in wanted if name.isdecimal()] or "0123456789"
    pieces = ["".join(draws.choice(digits) for _ in range(draws.choice((1, 1, 2)))) for _ in range(2)]
    symbols = [value for value in language.leaves if isinstance(value, str)]
    symbols += [name for name in wanted if name in symbols]

    def leaf() -> Expr:
        return draws.choice(symbols) if symbols and draws.chance(0.5) else _number(draws, pieces)

    operators = (*OPERATORS, "^") if symbols else OPERATORS
    if "e" in symbols:
        operators = (*operators, *FUNCTIONS)
    operators = (*operators, *(name for name in 2 * tuple(wanted) if name in operators))
    depth = draws.choice((1, 1, 2, 2, 3)) if language.nested else 1
    expression = with_depth(draws, depth, operators, leaf)
    if level == 5:
        return ("derive", expression, "x")
    if level == 7:
        return _equation(draws, expression, leaf)
    for symbol in sorted(symbols_of(expression)):
        expression = ("subst", expression, symbol, _number(draws, pieces))
    return expression


def _equation(draws: Draws, left: Expr, leaf: Callable[[], Expr]) -> Expr:
    """An equation with such a left side or, half of the time, with two small whole roots; often the same is added to
    both sides."""
    right = with_depth(draws, draws.choice((0, 1, 1, 2)), ("+", "-"), leaf)
    if draws.chance(0.5):
        first, second = (("-", "x", draws.within(draws.choice((1, 3, 20)))) for _ in range(2))
        left, right = ("*", first, second), ("*", 0, right)
    if draws.chance(0.5):
        same = part_of(draws, draws.choice((left, right)))
        operator = draws.choice(("+", "-"))
        left, right = (operator, left, same), (operator, right, same)
    return ("solve", ("=", left, right), "x")


def _number(draws: Draws, pieces: Sequence[str]) -> int:
    """A whole number made of such pieces and of any digits."""
    anything = str(draws.integer(0, 9))
    number = int("".join(draws.choice((*pieces, *pieces, anything)) for _ in range(draws.choice((1, 1, 2, 3)))))
    return -number if draws.chance(0.3) else number


def _has_value(expression: Expr, level: int) -> bool:
    try:
        answer(expression, level)
    except ExpressionError:
        return False
    return True
