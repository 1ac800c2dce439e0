"""A second opinion on every generated answer, by a route that shares no code with the first and is cheap.

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
from fractions import Fraction

from flint import arb, ctx, fmpq

from dagnn.curriculum.exact.evaluate import complex_value
from dagnn.curriculum.exact.precise import Undecided, approximate_once, enclosure
from dagnn.curriculum.expression import Expr, from_fraction, number_of
from dagnn.errors import ExpressionError

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
