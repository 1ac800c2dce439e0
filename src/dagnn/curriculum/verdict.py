"""The engine's word on an answer: right or wrong, and why. The answer may come from a network and be anything."""

from dataclasses import dataclass
from itertools import islice

from dagnn.curriculum.exact.answer import answer as exact_answer
from dagnn.curriculum.exact.answer import resolve
from dagnn.curriculum.exact.derivative import derivative
from dagnn.curriculum.exact.equivalence import equivalent
from dagnn.curriculum.exact.evaluate import place
from dagnn.curriculum.exact.precise import refuse_undefined, same_decimal
from dagnn.curriculum.exact.simplify import simplify
from dagnn.curriculum.expression import FUNCTIONS, Expr, check, from_fraction, number_of, size, to_binary, walk
from dagnn.curriculum.levels import level_spec
from dagnn.errors import ExpressionError

# An answer of a generated sample has at most 200 nodes; a runaway one must not take seconds to refuse. A sum is quickly
# judged, while a product of n factors has a derivative of n^2.
LARGEST_ANSWER = 25_000
LARGEST_TERM = 1_000

_PLAIN_OPERATORS = frozenset(("+", "-", "*", "/", "^", *FUNCTIONS))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer is right, and why; `judge` returns it.

    >>> Verdict(False, "6, not 5").right
    False
    """

    right: bool
    reason: str


def judge(level: int, expression: Expr, answer: object) -> Verdict:
    """Is this the answer?

    =====  ========================================================================================
    level  right is
    =====  ========================================================================================
    1-3    the number in its one spelling: an ``int``, or ``(/ n d)`` reduced with d above 1
    4      the 3 significant digits, as a whole number or a decimal
    5      any expression equivalent to the derivative
    6      definite: as levels 1 to 3 where the integral is rational, else anything equivalent;
           indefinite: anything whose derivative is equivalent to the integrand
    7      the same set of roots, in any order, each in its one spelling
    =====  ========================================================================================

    A derivative or an antiderivative with a part that has no real value is wrong, ``(* 0 (log -1))`` for 0 too.

    Args:
        level: 1 to 7.
        expression: the input, as ``Sample.input``.
        answer: anything at all; garbage is wrong, with the reason.

    Raises:
        ConfigError: there is no such level.
        ExpressionError: the *input* is no expression, or has no answer.

    >>> judge(5, ("derive", ("^", "x", 2), "x"), ("+", "x", "x"))
    Verdict(right=True, reason='equivalent to (* 2 x)')
    """
    level_spec(level)
    check(expression)
    problem = _garbage(answer)
    if problem is not None:
        exact_answer(expression, level)  # an input without an answer is the caller's mistake, whatever the answer
        return Verdict(False, problem)
    given: Expr = answer  # type: ignore[assignment]  # _garbage has checked it
    if level == 6 and isinstance(expression, tuple) and expression[0] == "integrate" and len(expression) == 3:
        return _judge_antiderivative(expression, given)
    expected = exact_answer(expression, level)
    if given == expected:
        return Verdict(True, "equal to the engine's answer")
    if level == 4:
        return _judge_digits(expected, given)
    if level == 7:
        return _judge_roots(expected, given)
    value = number_of(expected)
    if value is not None and level != 5:
        return _judge_number(expected, given)
    named = f"equivalent to {place(expected)}"
    verdict = _judge_equivalence(expected, given, named, f"not {named}")
    # A definite integral may be log(-1) - log(-2), the antiderivative at its bounds: the two turns cancel.
    return verdict if level == 6 else _real(given, verdict)


def _garbage(answer: object) -> str | None:
    """Why this cannot be an answer at all, or None."""
    if not isinstance(answer, int | str | tuple):
        return f"no expression: {type(answer).__name__}"
    try:
        check(answer)
    except ExpressionError as error:
        return f"no expression: {error}"
    if size(answer) > LARGEST_ANSWER:
        return f"more than {LARGEST_ANSWER:,} nodes"
    if size(answer) > LARGEST_TERM and any(size(term) > LARGEST_TERM for term in _terms(answer)):
        return f"a term of more than {LARGEST_TERM:,} nodes"
    left = _left_over(answer)
    return None if left is None else f"not worked out: {left} is left"


def _terms(answer: Expr) -> list[Expr]:
    """What is added up, however deep the sum."""
    terms, waiting = [], [answer]
    while waiting:
        item = waiting.pop()
        if isinstance(item, tuple) and item[0] in ("+", "-"):
            waiting += item[1:]
        else:
            terms.append(item)
    return terms


def is_worked_out(answer: Expr, level: int | None = None) -> bool:
    """Whether an expression has the form of an answer: numbers, symbols, arithmetic and functions, or roots of those.

    On levels 1 to 4 and 7 that is a number, or numbers.

    >>> is_worked_out(("+", 2, ("derive", "x", "x"))), is_worked_out(("/", 3, 0), 7)
    (False, False)
    """
    if level in (1, 2, 3, 4, 7):
        is_roots = level == 7 and isinstance(answer, tuple) and answer[0] == "roots"
        numbers = answer[1:] if is_roots and isinstance(answer, tuple) else (answer,)
        return all(number_of(number) is not None for number in numbers)
    return _left_over(answer) is None


def _left_over(answer: Expr) -> str | None:
    """An operator that no answer has, such as derive or a name of the engine's own."""
    for item in walk(answer):
        if isinstance(item, tuple) and item[0] not in _PLAIN_OPERATORS and not (item is answer and item[0] == "roots"):
            return str(item[0])
    return None


def _judge_number(expected: Expr, given: Expr) -> Verdict:
    value = number_of(given)
    if value is not None and from_fraction(value) == expected:
        return Verdict(False, f"the right value, but not in its one spelling: {place(expected)}")
    return Verdict(False, f"{place(given)}, not {place(expected)}")


def _judge_digits(expected: Expr, given: Expr) -> Verdict:
    if same_decimal(given, expected):
        return Verdict(True, "the same number")
    return Verdict(False, f"{place(given)}, not {place(expected)}")


def _judge_roots(expected: Expr, given: Expr) -> Verdict:
    if _roots(given) == _roots(expected):
        return Verdict(True, "the same roots")
    return Verdict(False, f"{place(given)}, not {place(expected)}")


def _roots(expr: Expr) -> set[Expr]:
    return set(expr[1:]) if isinstance(expr, tuple) and expr[0] == "roots" else {expr}


def _judge_antiderivative(expression: Expr, given: Expr) -> Verdict:
    assert isinstance(expression, tuple)
    integrand, symbol = simplify(resolve(to_binary(expression[1]))), expression[2]
    try:
        slope = derivative(simplify(to_binary(given)), symbol)
    except (ExpressionError, RecursionError) as error:
        return Verdict(False, f"cannot be differentiated: {error}")
    if next(islice(walk(slope), LARGEST_ANSWER, None), None) is not None:
        return Verdict(False, f"its derivative has more than {LARGEST_ANSWER:,} nodes")
    verdict = _judge_equivalence(
        integrand, slope, "its derivative is the integrand", f"its derivative is not {place(integrand)}"
    )
    return _real(given, verdict)


def _real(given: Expr, verdict: Verdict) -> Verdict:
    """The verdict, but wrong where a part of the answer has no real value: ``(* 0 (log -1))`` is not 0."""
    try:
        refuse_undefined(given)
    except ExpressionError as error:
        return Verdict(False, str(error)) if verdict.right else verdict
    return verdict


def _judge_equivalence(expected: Expr, given: Expr, right: str, wrong: str) -> Verdict:
    try:
        same = equivalent(expected, to_binary(given))
    except (ExpressionError, RecursionError) as error:
        return Verdict(False, f"cannot be compared: {error}")
    return Verdict(same, right if same else wrong)
