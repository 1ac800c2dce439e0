"""(derive E x), (integrate E x), definite integrals, and (subst E x v)."""

from dagnn.curriculum.rules.numbers import MINUS_ONE, ONE, integer, is_number, rule
from dagnn.rewriting.system import Neighbourhood, Replacement


@rule("derive", depth=1)
def derive(f: Neighbourhood, x: Neighbourhood) -> Replacement | None:
    if f is x:
        return integer(1)
    if is_number(f) or not f.children:
        return integer(0)
    a, b = f.children if len(f.children) == 2 else (f[0], f[0])
    da, db = ("derive", a, x), ("derive", b, x)
    match f.kind:
        case "+" | "-":
            return (f.kind, da, db)
        case "*":
            return ("+", ("*", da, b), ("*", a, db))
        case "/":
            return ("/", ("-", ("*", da, b), ("*", a, db)), ("^", b, integer(2)))
        case "^":
            return ("derive_power", a, b, x)
        case "sin":
            return ("*", ("cos", a), da)
        case "cos":
            return ("*", ("*", integer(-1), ("sin", a)), da)
        case "tan":
            return ("*", ("+", ("^", f, integer(2)), integer(1)), da)
        case "log":
            return ("*", ("/", integer(1), a), da)
        case "exp":
            return ("*", f, da)
        case "sqrt":
            return ("*", ("*", ("/", integer(1), integer(2)), ("/", integer(1), f)), da)
    return None


@rule("derive_power", depth=1)
def derive_power(a: Neighbourhood, b: Neighbourhood, x: Neighbourhood) -> Replacement:
    """(a ^ b)': the power rule for a number b, else a^b (b log a)'."""
    if is_number(b):
        return ("*", ("*", b, ("^", a, ("-", b, integer(1)))), ("derive", a, x))
    return ("*", ("^", a, b), ("derive", ("*", b, ("log", a)), x))


_INTEGRABLE = ("sin", "cos", "exp")


@rule("integrate", depth=2)
def integrate(f: Neighbourhood, x: Neighbourhood) -> Replacement | None:
    if f is x:
        return ("*", ("/", integer(1), integer(2)), ("^", x, integer(2)))
    if is_number(f) or not f.children:
        return ("*", f, x)
    if f.kind in _INTEGRABLE:
        return _by_slope(_antiderivative(f.kind, f[0]), ("derive", f[0], x), x)
    if f.kind in ("+", "-"):
        return (f.kind, ("integrate", f[0], x), ("integrate", f[1], x))
    if f.kind == "*":
        return _product(f[0], f[1], x)
    if f.kind == "/" and f[0].label == ONE and f[1] is x:
        return ("log", x)
    if f.kind == "^" and is_number(f[1]):
        return _power(f[0], f[1], x)
    return None


def _by_slope(f: Replacement, slope: Replacement, x: Neighbourhood) -> Replacement:
    """f / slope, as far as the slope is constant: only then is it the integral over x."""
    return ("times_constant", ("/", integer(1), slope), f, x)


@rule("times_constant", depth=2)
def times_constant(factor: Neighbourhood, f: Neighbourhood, x: Neighbourhood) -> Replacement | None:
    """factor * f where x is not in the factor: a number, a symbol or one over a symbol."""
    base = factor[1] if factor.kind == "/" and factor[0].label == ONE else factor
    return ("*", factor, f) if is_number(factor) or not (base.children or base is x) else None


def _antiderivative(function: str, inner: Neighbourhood) -> Replacement:
    """The function whose derivative is `function`, at `inner`."""
    if function == "sin":
        return ("*", integer(-1), ("cos", inner))
    return ("sin" if function == "cos" else "exp", inner)


def _product(a: Neighbourhood, b: Neighbourhood, x: Neighbourhood) -> Replacement | None:
    if is_number(a):
        return ("*", a, ("integrate", b, x))
    if a.kind in _INTEGRABLE:
        # Substitution: f(u) times a multiple of u'.
        return ("times_constant", ("/", b, ("derive", a[0], x)), _antiderivative(a.kind, a[0]), x)
    if a is x and b.kind in _INTEGRABLE:
        # By parts: x g(u) with u linear.
        return ("by_parts", _by_slope(_antiderivative(b.kind, b[0]), ("derive", b[0], x), x), x)
    return None


@rule("by_parts", depth=0)
def by_parts(g: Neighbourhood, x: Neighbourhood) -> Replacement:
    """The integral of x g' over x."""
    return ("-", ("*", x, g), ("integrate", g, x))


def _power(base: Neighbourhood, exponent: Neighbourhood, x: Neighbourhood) -> Replacement:
    if exponent.label == MINUS_ONE:
        return _by_slope(("log", base), ("derive", base, x), x)
    raised = ("+", exponent, integer(1))
    return _by_slope(("^", base, raised), ("*", raised, ("derive", base, x)), x)


@rule("definite", depth=0)
def definite(f: Neighbourhood, x: Neighbourhood, lower: Neighbourhood, upper: Neighbourhood) -> Replacement:
    return ("between", ("integrate", f, x), x, lower, upper)


@rule("between", depth=0)
def between(f: Neighbourhood, x: Neighbourhood, lower: Neighbourhood, upper: Neighbourhood) -> Replacement:
    """f at the upper bound less f at the lower one."""
    return ("-", ("subst", f, x, upper), ("subst", f, x, lower))


# What is left of these has found no rule, and still needs its symbol: the integral of f over x has no value at x = 1
# that f at 1 would tell.
_BINDING = ("subst", "derive", "integrate", "times_constant", "coefficients")


@rule("subst", depth=1)
def subst(expression: Neighbourhood, symbol: Neighbourhood, value: Neighbourhood) -> Replacement | None:
    if expression is symbol:
        return value
    if is_number(expression) or not expression.children:
        return expression
    if expression.kind in _BINDING:
        return None
    return (expression.kind, *(("subst", child, symbol, value) for child in expression.children))
