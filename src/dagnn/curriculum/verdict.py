"""Is an answer right? `judge` decides for any answer; `confirmed` checks the generator's answers by a second route.

`judge` compares with the engine's answer. `confirmed` shares no code with the route that made the answer, and is cheap:

=====  ===========================================  ==================================================
level  the answer comes from                        it is confirmed by
=====  ===========================================  ==================================================
1-3    rational arithmetic in Python                rational arithmetic in FLINT
4      floating point, far from every edge          interval arithmetic, which proves the digits
5      symbolic differentiation                     central differences at complex points; where doubles
                                                    cannot tell, in intervals at real points
6      the antiderivative that was drawn;           central differences of the answer;
       antiderivative at the bounds, exact          Boole's rule, exact for these degrees
7      the roots that were drawn                    both sides evaluated at the roots, exact; their number
=====  ===========================================  ==================================================
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

from flint import arb, ctx, fmpq

from dagnn.curriculum.exact.answer import answer as exact_answer
from dagnn.curriculum.exact.answer import equivalent, resolve
from dagnn.curriculum.exact.calculus import derivative
from dagnn.curriculum.exact.evaluate import complex_value, place
from dagnn.curriculum.exact.precise import Undecided, approximate_once, enclosure, refuse_undefined, same_decimal
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
    if level == 4 and same_decimal(given, expected):
        return Verdict(True, "the same number")
    if level == 7 and _roots(given) == _roots(expected):
        return Verdict(True, "the same roots")
    if level in (4, 7) or (level != 5 and number_of(expected) is not None):
        value = number_of(given)
        if level not in (4, 7) and value is not None and from_fraction(value) == expected:
            return Verdict(False, f"the right value, but not in its one spelling: {place(expected)}")
        return Verdict(False, f"{place(given)}, not {place(expected)}")
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


# Off the real axis, where log and sqrt have no edge; on both sides of the imaginary one, where a power may vanish.
_POINTS = (0.83 + 0.21j, 1.37 - 0.29j, -0.71 + 0.33j, 2.3 + 0.4j, 0.31 - 0.17j, -1.9 - 0.6j)
_STEP = 1e-5
# Of the other symbols of an expression: any values will do.
_OTHERS = {"y": Fraction(137, 100), "z": Fraction(71, 100)}
_OTHERS_AT = {name: complex(float(value)) for name, value in _OTHERS.items()}
_AGREEING_POINTS = 2
_REAL_POINTS = tuple(Fraction(n, 100) for n in (83, -71, 137, 230, -190, 510, 31, -430))
_SHORT_STEP = Fraction(1, 10**12)
_BITS = 256
_NOTHING = arb("1e-50")  # what cancels at 256 bits, over the step


def confirmed(level: int, expr: Expr, answer: Expr) -> bool:
    """Does the second route give the same answer? False also where it cannot tell."""
    try:
        return _ROUTES[level](expr, answer)
    except (ArithmeticError, LookupError, ValueError):
        return False


def _confirm_rational(expr: Expr, answer: Expr) -> bool:
    return bool(_value(expr, {}) == _number(answer))


def _value(expr: Expr, values: Mapping[str, fmpq]) -> fmpq:
    """The exact value of ``+ - * /``, whole powers and ``subst``, two operands each.

    ValueError or LookupError for anything else, ZeroDivisionError where there is no value.
    """
    if isinstance(expr, int):
        return fmpq(expr)
    if isinstance(expr, str):
        return values[expr]
    head = expr[0]
    if head == "subst":
        return _value(expr[1], {**values, expr[2]: _value(expr[3], values)})
    _, first, second = expr
    a = _value(first, values)
    if head == "^" and isinstance(second, int):
        power: fmpq = a**second
        return power
    b = _value(second, values)
    if head == "+":
        return a + b
    if head == "-":
        return a - b
    if head == "*":
        return a * b
    if head == "/":
        return a / b
    raise ValueError(f"{head} has no rational value here.")


def _confirm_digits(expr: Expr, answer: Expr) -> bool:
    return approximate_once(expr) == answer


def _confirm_derivative(expr: Expr, answer: Expr) -> bool:
    assert isinstance(expr, tuple)
    return _is_slope(expr[1], answer, expr[2])


def _confirm_integral(expr: Expr, answer: Expr) -> bool:
    assert isinstance(expr, tuple)
    if len(expr) == 3:
        return _is_slope(answer, expr[1], expr[2])
    _, integrand, symbol, lower, upper = expr
    # Boole's rule integrates polynomials up to degree 5 exactly, and asks for nothing but values.
    width = fmpq(upper - lower)
    at = [_value(integrand, {symbol: lower + width * i / 4}) for i in range(5)]
    area = width / 90 * (7 * at[0] + 32 * at[1] + 12 * at[2] + 32 * at[3] + 7 * at[4])
    return bool(area == _number(answer))


def _is_slope(whole: Expr, slope: Expr, symbol: str) -> bool:
    """Is ``slope`` the derivative of ``whole`` at two points, by central differences?

    A wrong derivative is wrong at every point; a right one may fail where rounding or a far term of the Taylor
    series is too large. So points that disagree are passed over.
    """
    agree = doubtful = 0
    for point in _POINTS:
        try:
            after = complex_value(whole, {**_OTHERS_AT, symbol: point + _STEP})
            before = complex_value(whole, {**_OTHERS_AT, symbol: point - _STEP})
            expected = complex_value(slope, {**_OTHERS_AT, symbol: point})
        except (ArithmeticError, ValueError):
            continue
        measured = (after - before) / (2 * _STEP)
        gap, closest = abs(measured - expected), min(abs(expected), abs(measured))
        # Not where both are 0: the slope of exp(x - 52) + 1 is lost in the rounding of the 1.
        if closest and gap <= 1e-6 * closest:
            agree += 1
            if agree == _AGREEING_POINTS:
                return True
        elif gap <= 1e-10 * abs(after) + 1e-12:
            doubtful += 1
    return doubtful > 0 and _is_slope_precisely(whole, slope, symbol)


def _is_slope_precisely(whole: Expr, slope: Expr, symbol: str) -> bool:
    """As ``_is_slope``, in interval arithmetic at real points."""
    agree = 0
    with ctx.workprec(_BITS):
        for point in _REAL_POINTS:
            try:
                after = enclosure(whole, _BITS, {**_OTHERS, symbol: point + _SHORT_STEP})
                before = enclosure(whole, _BITS, {**_OTHERS, symbol: point - _SHORT_STEP})
                expected = enclosure(slope, _BITS, {**_OTHERS, symbol: point})
            except (ExpressionError, Undecided):
                continue
            measured = (after - before) * (10**12 // 2)
            # The formula errs by the square of the step.
            if 0 in measured and 0 in expected:
                agree += bool(abs(measured) < _NOTHING and abs(expected) < _NOTHING)
            else:
                agree += bool(abs(measured - expected) <= arb("1e-18") * abs(expected) + arb("1e-44") * abs(after))
            if agree == _AGREEING_POINTS:
                return True
    return False


def _confirm_roots(expr: Expr, answer: Expr) -> bool:
    assert isinstance(expr, tuple)
    (_, left, right), symbol = expr[1], expr[2]
    roots = answer[1:] if isinstance(answer, tuple) and answer[0] == "roots" else (answer,)
    known = [value for value in map(_number, roots) if value is not None]

    def gap(x: fmpq) -> fmpq:
        return _value(left, {symbol: x}) - _value(right, {symbol: x})

    if len(known) < len(roots) or known != sorted(set(known)) or any(gap(root) != 0 for root in known):
        return False
    # Two roots are all that a quadratic has. With one root r, gap = c (x - r) or c (x - r)^2: three values tell.
    r = known[0]
    one, two, three = gap(r + 1), gap(r + 2), gap(r + 3)
    if len(known) == 2:
        s = known[1]
        c = one / (1 * (r + 1 - s)) if r + 1 != s else two / (2 * (r + 2 - s))
        return c != 0 and all(gap(r + i) == c * i * (r + i - s) for i in (1, 2, 3))
    return one != 0 and ((two, three) == (2 * one, 3 * one) or (two, three) == (4 * one, 9 * one))


def _number(answer: Expr) -> fmpq | None:
    """What an answer writes; None unless it is a number in its one spelling."""
    value = number_of(answer)
    if value is None or from_fraction(value) != answer:
        return None
    return fmpq(value.numerator, value.denominator)


_ROUTES: Mapping[int, Callable[[Expr, Expr], bool]] = {
    1: _confirm_rational,
    2: _confirm_rational,
    3: _confirm_rational,
    4: _confirm_digits,
    5: _confirm_derivative,
    6: _confirm_integral,
    7: _confirm_roots,
}
