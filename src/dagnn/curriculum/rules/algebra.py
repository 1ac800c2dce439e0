"""Rules of algebra and calculus: simplification, special values, equations, derivatives, integrals, substitution."""

from dagnn.curriculum.rules.numbers import (
    MINUS_ONE,
    ONE,
    TWO,
    ZERO,
    arithmetic,
    constructor,
    has_number,
    integer,
    is_negative,
    is_number,
    rule,
)
from dagnn.rewriting.system import Neighbourhood, Replacement

# Operators whose operands may be exchanged.
COMMUTATIVE = ("+", "*")

constructor("e", "pi", *"abcdfghijklmnopqrstuvwxyz")


@rule("+", depth=1)
def plus(a: Neighbourhood, b: Neighbourhood) -> Replacement | None:
    if is_number(a) and is_number(b):
        return arithmetic("+", a, b)
    if a.label == ZERO:
        return b
    if b.label == ZERO:
        return a
    if is_number(a):
        return ("+", b, a)
    if is_number(b) and has_number(a, "+"):
        return ("+", a[0], ("+", a[1], b))
    if a is b:
        return ("*", integer(2), a)
    return None


@rule("-", depth=1)
def minus(a: Neighbourhood, b: Neighbourhood) -> Replacement | None:
    if is_number(a) and is_number(b):
        return arithmetic("-", a, b)
    if b.label == ZERO:
        return a
    if a is b:
        return integer(0)
    if a.label == ZERO:
        return ("*", integer(-1), b)
    if is_number(b):
        return ("+", a, ("negate", b))
    return None


@rule("*", depth=1)
def times(a: Neighbourhood, b: Neighbourhood) -> Replacement | None:
    if is_number(a) and is_number(b):
        return arithmetic("*", a, b)
    if ZERO in (a.label, b.label):
        return integer(0)
    if a.label == ONE:
        return b
    if b.label == ONE:
        return a
    if is_number(b):
        return ("*", b, a)
    if has_number(b, "*"):
        return ("*", ("*", a, b[0]), b[1]) if is_number(a) else ("*", b[0], ("*", a, b[1]))
    if has_number(a, "*"):
        return ("*", a[0], ("*", a[1], b))
    if a is b:
        return ("^", a, integer(2))
    return None


@rule("/", depth=1)
def over(a: Neighbourhood, b: Neighbourhood) -> Replacement | None:
    if is_number(a) and is_number(b):
        return arithmetic("/", a, b)
    if b.label == ZERO:
        return None
    if a.label == ZERO:
        return integer(0)
    if is_number(b):
        return ("*", ("/", integer(1), b), a)
    if a is b:
        return integer(1)
    if has_number(a, "*"):
        return ("*", a[0], ("/", a[1], b))
    if has_number(b, "*"):
        return ("*", ("/", integer(1), b[0]), ("/", a, b[1]))
    if is_number(a) and a.label != ONE:
        return ("*", a, ("/", integer(1), b))
    return None


@rule("^", depth=1)
def power(a: Neighbourhood, b: Neighbourhood) -> Replacement | None:
    if is_number(a) and is_number(b) and b.kind != "fraction":
        return arithmetic("^", a, b)
    if b.label == ZERO:
        return integer(1)
    if b.label == ONE:
        return a
    if a.label == ZERO and is_number(b) and not is_negative(b):
        return integer(0)
    if b.kind in ("positive", "negative") and has_number(a, "^"):
        # Only for a whole b: (x^2)^(1/2) is not x where x is negative.
        return ("^", a[0], ("*", a[1], b))
    return None


def _function(name: str, values: dict[str, int]) -> None:
    """A function that is rewritten only where its value is an integer."""

    @rule(name, depth=1)
    def at_special_value(a: Neighbourhood) -> Replacement | None:
        return integer(values[a.label]) if a.label in values else None


_function("sin", {ZERO: 0})
_function("cos", {ZERO: 1})
_function("tan", {ZERO: 0})
_function("log", {ONE: 0, "e": 1})
_function("exp", {ZERO: 1})
_function("sqrt", {ZERO: 0, ONE: 1})


constructor("=", "roots", arity=2)
constructor("polynomial", arity=3)
constructor("no_rational_roots")


@rule("solve", depth=1)
def solve(equation: Neighbourhood, x: Neighbourhood) -> Replacement | None:
    if equation.kind != "=":
        return None
    left, right = equation.children
    return ("root_of", ("polynomial_minus", ("coefficients", left, x), ("coefficients", right, x)))


@rule("coefficients", depth=1)
def coefficients(f: Neighbourhood, x: Neighbourhood) -> Replacement | None:
    zero = integer(0)
    if f is x:
        return ("polynomial", zero, integer(1), zero)
    if is_number(f):
        return ("polynomial", f, zero, zero)
    if f.kind in ("+", "-", "*"):
        name = {"+": "polynomial_plus", "-": "polynomial_minus", "*": "polynomial_times"}[f.kind]
        return (name, ("coefficients", f[0], x), ("coefficients", f[1], x))
    if f.kind == "^":
        return ("polynomial_power", ("coefficients", f[0], x), f[1])
    return None


def _termwise(name: str, operator: str) -> None:
    @rule(name, depth=1)
    def termwise(p: Neighbourhood, q: Neighbourhood) -> Replacement | None:
        if not p.kind == q.kind == "polynomial":
            return None
        return ("polynomial", *((operator, a, b) for a, b in zip(p.children, q.children, strict=True)))


_termwise("polynomial_plus", "+")
_termwise("polynomial_minus", "-")


@rule("polynomial_times", depth=1)
def polynomial_times(p: Neighbourhood, q: Neighbourhood) -> Replacement | None:
    if not p.kind == q.kind == "polynomial":
        return None
    _, a1, a2 = p.children
    _, b1, b2 = q.children
    return ("product_up_to_square", ("+", ("*", a1, b2), ("*", a2, b1)), ("*", a2, b2), p, q)


@rule("product_up_to_square", depth=1)
def product_up_to_square(
    c3: Neighbourhood, c4: Neighbourhood, p: Neighbourhood, q: Neighbourhood
) -> Replacement | None:
    """p q, whose coefficients of x^3 and x^4 are c3 and c4: no rule solves an equation of a higher degree."""
    if not c3.label == c4.label == ZERO or not p.kind == q.kind == "polynomial":
        return None
    a0, a1, a2 = p.children
    b0, b1, b2 = q.children
    return (
        "polynomial",
        ("*", a0, b0),
        ("+", ("*", a0, b1), ("*", a1, b0)),
        ("+", ("*", a0, b2), ("+", ("*", a1, b1), ("*", a2, b0))),
    )


@rule("polynomial_power", depth=1)
def polynomial_power(p: Neighbourhood, exponent: Neighbourhood) -> Replacement | None:
    return ("polynomial_times", p, p) if p.kind == "polynomial" and exponent.label == TWO else None


@rule("root_of", depth=1)
def root_of(p: Neighbourhood) -> Replacement | None:
    return ("root_by_degree", p[2], p) if p.kind == "polynomial" else None


@rule("root_by_degree", depth=1)
def root_by_degree(leading: Neighbourhood, p: Neighbourhood) -> Replacement | None:
    if p.kind != "polynomial":
        return None
    c0, c1, c2 = p.children
    if leading.label == ZERO:
        return ("/", ("negate", c0), c1)
    discriminant = ("-", ("*", c1, c1), ("*", integer(4), ("*", c2, c0)))
    return ("quadratic_formula", ("pair", c1, c2), ("square_root", discriminant))


@rule("quadratic_formula", depth=1)
def quadratic_formula(coefficients: Neighbourhood, root: Neighbourhood) -> Replacement | None:
    if root.kind == "irrational":
        return "no_rational_roots"
    if coefficients.kind != "pair" or not is_number(root):
        return None
    b, a = coefficients.children
    if root.label == ZERO:
        return ("/", ("negate", b), ("*", integer(2), a))
    return (
        "in_order",
        ("/", ("-", ("negate", b), root), ("*", integer(2), a)),
        ("/", ("+", ("negate", b), root), ("*", integer(2), a)),
    )


@rule("in_order", depth=0)
def in_order(a: Neighbourhood, b: Neighbourhood) -> Replacement:
    return ("in_order_by", ("-", a, b), ("pair", a, b))


@rule("in_order_by", depth=1)
def in_order_by(difference: Neighbourhood, pair: Neighbourhood) -> Replacement | None:
    if pair.kind != "pair":
        return None
    return ("roots", *pair.children) if is_negative(difference) else ("roots", pair[1], pair[0])


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
    """f / slope, where the slope is constant: only then is it the integral over x."""
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
    """f at the upper bound minus f at the lower one."""
    return ("-", ("subst", f, x, upper), ("subst", f, x, lower))


# No rule has applied to what is left of these, and they still need their symbol: f at x = 1 does not tell the value
# of the integral of f over x there.
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
