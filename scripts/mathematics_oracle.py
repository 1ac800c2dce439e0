"""The value of an expression by mpmath, fractions, dual numbers, quadrature and SymPy: no code of the engine."""

from fractions import Fraction

import mpmath
import sympy

FUNCTIONS = ("sin", "cos", "tan", "log", "exp", "sqrt")
POINTS = ((0.83, 0.21), (1.37, -0.29), (-0.71, 0.33))
mp = mpmath.mp
REAL_POINTS = [mp.mpf(p) for p in ("-2.3", "-0.71", "0.37", "1.9", "5.3")]
OTHERS = {"y": mp.mpf("1.37"), "z": mp.mpf("0.71")}


class Undefined(Exception):
    """The oracle finds no real value."""


class Unknown(Exception):
    """The oracle cannot tell."""


def fraction(expr, values):
    """The rational value of + - * / ^ and subst."""
    if isinstance(expr, int):
        return Fraction(expr)
    if isinstance(expr, str):
        return values[expr] if expr in values else Fraction(expr)
    head, *operands = expr
    if head == "subst":
        return fraction(operands[0], {**values, operands[1]: fraction(operands[2], values)})
    parts = [fraction(operand, values) for operand in operands]
    if len(parts) == 1:
        return -parts[0]
    result = parts[0]
    for part in parts[1:]:
        match head:
            case "+":
                result += part
            case "-":
                result -= part
            case "*":
                result *= part
            case "/":
                result /= part
            case "^":
                result **= part
    return result


def real(expr, values):
    """The real value in mpmath; every part has to have one."""
    if isinstance(expr, int):
        return mp.mpf(expr)
    if isinstance(expr, str):
        if expr in values:
            return values[expr]
        if expr in ("e", "pi"):
            return +getattr(mp, expr)
        if expr[0] in "-0123456789":
            return mp.mpf(expr)
        raise Unknown(expr)
    head = expr[0]
    if head == "subst":
        return real(expr[1], {**values, expr[2]: real(expr[3], values)})
    if head == "derive":
        return slope(expr[1], values, expr[2])
    if head == "integrate" and len(expr) == 5:
        return area(expr, values)
    if head in ("integrate", "solve", "roots", "approx", "="):
        raise Unknown(head)
    operands = [real(operand, values) for operand in expr[1:]]
    return apply(head, operands)


def undefined(why, a):
    """`Undefined`; but `Unknown` where ``a`` may be 0 and below it by rounding alone, as tan(pi) is."""
    return Undefined(why) if a == 0 or abs(a) > 1e-30 else Unknown(why)


def function(head, a):
    """sin pi is 0, which no number of digits of pi would give."""
    value = getattr(mp, head)(a)
    if head in ("sin", "cos", "tan") and mp.im(a) == 0 and abs(value) < mp.mpf(10) ** (8 - mp.dps) * max(1, abs(a)):
        return mp.mpf(0)
    return value


def apply(head, operands):
    a = operands[0]
    if len(operands) == 1:
        if head in ("log", "sqrt") and (a < 0 or (a == 0 and head == "log")):
            raise undefined(head, a)
        if head == "exp" and abs(a) > 1e6:
            raise Unknown("exp")
        return -a if head == "-" else function(head, a)
    for b in operands[1:]:
        if head == "+":
            a = a + b
        elif head == "-":
            a = a - b
        elif head == "*":
            a = a * b
        elif head == "/":
            if b == 0:
                raise Undefined("division by zero")
            a = a / b
        else:
            a = power(a, b)
    return a


def power(a, b):
    if b == int(b) and abs(b) < 1e6:
        if a == 0 and b < 0:
            raise Undefined("0 to a negative power")
        return a ** int(b)
    if a < 0 and abs(b - mp.nint(b)) < mp.mpf(10) ** -25:
        raise Unknown("is the exponent whole?")
    if a < 0 or (a == 0 and b < 0):
        raise undefined("a negative base", a)
    if a == 0:
        return a
    if abs(b * mp.log(a)) > 1e6:
        raise Unknown("a large power")
    return a**b


def slope(expr, values, symbol):
    """By dual numbers."""
    return dual(expr, values, symbol)[1]


def dual(expr, values, symbol):
    """Value and derivative, real or complex."""
    if not isinstance(expr, tuple):
        return (values[symbol], mp.mpf(1)) if expr == symbol else (real(expr, values), mp.mpf(0))
    head, *rest = expr
    if head not in ("+", "-", "*", "/", "^", *FUNCTIONS):
        raise Unknown(head)
    (a, da), *others = [dual(operand, values, symbol) for operand in rest]
    if not others:
        if head == "-":
            return -a, -da
        if head in ("log", "sqrt") and mp.im(a) == 0 and mp.re(a) < 0 and not isinstance(values[symbol], mp.mpc):
            raise Undefined(head)
        if head == "exp" and abs(a) > 1e4:
            raise Unknown("exp")
        if (head == "log" and a == 0) or (head == "sqrt" and a == 0):
            raise Undefined(head)
        value = function(head, a)
        inner = {
            "sin": lambda: mp.cos(a),
            "cos": lambda: -mp.sin(a),
            "tan": lambda: 1 + value**2,
            "log": lambda: 1 / a,
            "exp": lambda: value,
            "sqrt": lambda: 1 / (2 * value),
        }[head]()
        return value, inner * da
    for b, db in others:
        if head == "+":
            a, da = a + b, da + db
        elif head == "-":
            a, da = a - b, da - db
        elif head == "*":
            a, da = a * b, da * b + a * db
        elif head == "/":
            if b == 0:
                raise Undefined("division by zero")
            a, da = a / b, (da * b - a * db) / b**2
        elif db == 0 and mp.im(b) == 0 and b == int(mp.re(b)):
            n = int(mp.re(b))
            if abs(n) > 10_000 or (a == 0 and n <= 0):
                raise Unknown("power")
            a, da = a**n, n * a ** (n - 1) * da if n else mp.mpf(0)
        else:
            if a == 0 or (not isinstance(values[symbol], mp.mpc) and mp.re(a) < 0):
                raise Undefined("a base that is not positive")
            if abs(b * mp.log(a)) > 1e4:
                raise Unknown("a large power")
            value = mp.exp(b * mp.log(a))
            a, da = value, value * (db * mp.log(a) + b * da / a)
    return a, da


def area(expr, values):
    """By quadrature on pieces; Undefined where the integrand is at a point."""
    _, integrand, symbol, lower, upper = expr
    start, end = real(lower, values), real(upper, values)
    if abs(end - start) > 1e3:
        raise Unknown("a long interval")
    pieces = mp.linspace(start, end, 9)
    for x in mp.linspace(start, end, 65):
        real(integrand, {**values, symbol: x})
    total, error = mp.quad(lambda x: real(integrand, {**values, symbol: x}), pieces, error=True)
    if error > mp.mpf(10) ** (-12) * (1 + abs(total)):
        raise Unknown("quadrature")
    return total


def near(a, b, places=20):
    return abs(a - b) <= mp.mpf(10) ** -places * max(abs(a), abs(b)) + mp.mpf(10) ** -(places + 10)


def settled(expr):
    """The value at growing precision, until three agree; Unknown where they do not."""
    before, undefined = None, None
    for digits in (60, 300, 1200, 3000):
        with mp.workdps(digits):
            try:
                value, undefined = real(expr, {}), None
            except Undefined as error:  # or so it seems, as long as digits are missing
                before, undefined = None, error
                continue
        if before is not None and value != 0 and abs(value - before) <= abs(value) * mp.mpf(10) ** -15:
            return value
        before = value
    if undefined is None and abs(value) < mp.mpf(10) ** -2500:
        return mp.mpf(0)
    raise undefined or Unknown("not settled")


def has_its_digits(given, value):
    """Is this ``value`` to 3 significant digits? Half a unit of the third digit at most."""
    if isinstance(given, tuple) or value == 0 or given == 0:
        return given == value
    with mp.workdps(60):
        unit = mp.mpf(10) ** (mp.floor(mp.log10(abs(value))) - 2)
        return abs(mp.mpf(str(given)) - value) <= unit * (mp.mpf("0.5") + mp.mpf("1e-12"))


def check_number(expr, given):
    if fraction(expr, {}) != fraction(given, {}):
        return f"should be {fraction(expr, {})}"
    return None


def check_digits(expr, given):
    value = settled(expr)
    return None if has_its_digits(given, value) else f"should be {mp.nstr(value, 8)}"


def check_derivative(expr, given):
    return compare_slopes(expr[1], given, expr[2])


def check_integral(expr, given):
    if len(expr) == 3:
        return compare_slopes(given, expr[1], expr[2])
    value = area(expr, {})
    return None if near(value, real(given, {}), 10) else f"should be {mp.nstr(value, 15)}"


def compare_slopes(whole, given, symbol):
    points = [{**OTHERS, symbol: mp.mpc(x, y)} for x, y in POINTS]
    wrong = list(filter(None, (slope_differs(whole, given, point, symbol) for point in points)))
    # log(exp(u)) is u for every real u, and another branch of it for a complex one.
    if wrong and "log" in str(whole):
        on_axis = [slope_differs(whole, given, {**OTHERS, symbol: mp.mpc(x)}, symbol) for x in REAL_POINTS]
        wrong = list(filter(None, on_axis)) if None in on_axis else wrong
    return wrong[0] if wrong else None


def slope_differs(whole, given, point, symbol):
    """What is wrong at a point; None where nothing is, or "" where one of the two has no value."""
    try:
        right, ours = dual(whole, point, symbol)[1], dual(given, point, symbol)[0]
    except (Unknown, Undefined, ZeroDivisionError):
        return ""
    if near(right, ours, 15) or abs(right - ours) <= mp.mpf(10) ** -15 * scale(whole, point, symbol):
        return None
    if scale(whole, point, symbol) > 1:  # a sine of 10 ** 10 and more has lost the digits that are compared
        return ""
    if on_a_cut(whole, point, symbol) or on_a_cut(given, point, symbol):
        beside = [{**point, **{k: OTHERS[k] + mp.mpc(0, y) for k in OTHERS if k != symbol}} for y in (0.01, -0.01)]
        if not any(on_a_cut(one, at, symbol) for one in (whole, given) for at in beside):
            found = [slope_differs(whole, given, at, symbol) for at in beside]
            return "" if "" in found else None if None in found else found[0]
        return ""
    return f"at {mp.nstr(point[symbol], 4)} should be {mp.nstr(right, 12)}, is {mp.nstr(ours, 12)}"


def scale(expr, point, symbol):
    """What cancellation may have left an error of."""
    largest, waiting = mp.mpf(0), [expr]
    while waiting:
        item = waiting.pop()
        if isinstance(item, tuple):
            waiting += item[1:]
            value = dual(item, point, symbol)
            largest = max(largest, abs(value[0]), abs(value[1]))
    return largest * mp.mpf(10) ** -10


def on_a_cut(expr, point, symbol):
    """Is a logarithm or a square root of a negative number whose imaginary part, and so its branch, is rounding?"""
    waiting = [expr]
    while waiting:
        item = waiting.pop()
        if isinstance(item, tuple):
            waiting += item[1:]
            if item[0] in ("log", "sqrt", "^"):
                value = mp.mpc(dual(item[1], point, symbol)[0])
                if value.real < 0 and 0 < abs(value.imag) < -value.real * mp.mpf(10) ** -30:
                    return True
    return False


def check_roots(expr, given):
    _, left, right = expr[1]
    symbol = expr[2]
    roots = given[1:] if isinstance(given, tuple) and given[0] == "roots" else (given,)
    values = [fraction(root, {}) for root in roots]
    for value in values:
        try:
            if fraction(left, {symbol: value}) != fraction(right, {symbol: value}):
                return f"{value} is no root"
        except ZeroDivisionError:
            return f"a part has no value at {value}"
    if real_roots(left, right, symbol) != sorted(set(values)):
        return f"should be {real_roots(left, right, symbol)}"
    return None


def real_roots(left, right, symbol):
    """All real solutions, by SymPy; those at which a part has no value left out."""
    x = sympy.Symbol(symbol)
    difference = as_sympy(left) - as_sympy(right)
    if difference.has(sympy.zoo, sympy.nan):
        raise Undefined("division by zero")
    top, _ = sympy.fraction(sympy.together(difference))
    found = set()
    for root in sympy.Poly(sympy.expand(top), x).real_roots():
        if not root.is_Rational:
            return ["irrational"]
        value = Fraction(int(root.p), int(root.q))
        try:
            fraction(left, {symbol: value}), fraction(right, {symbol: value})
        except ZeroDivisionError:
            continue
        found.add(value)
    return sorted(found)


def as_sympy(expr):
    if isinstance(expr, int):
        return sympy.Integer(expr)
    if isinstance(expr, str):
        return sympy.Rational(expr) if expr[0] in "-0123456789" else sympy.Symbol(expr)
    parts = [as_sympy(operand) for operand in expr[1:]]
    if len(parts) == 1:
        return -parts[0]
    result = parts[0]
    for part in parts[1:]:
        match expr[0]:
            case "+":
                result = result + part
            case "-":
                result = result - part
            case "*":
                result = result * part
            case "/":
                result = result / part
            case "^":
                result = result**part
    return result


CHECKS = {
    1: check_number, 2: check_number, 3: check_number, 4: check_digits, 5: check_derivative, 6: check_integral,
    7: check_roots,
}  # fmt: skip
