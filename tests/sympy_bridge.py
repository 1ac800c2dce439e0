"""Our expressions as SymPy's, which shares no code with us."""

import sympy

_CONSTANTS = {"e": sympy.E, "pi": sympy.pi}
_FUNCTIONS = {name: getattr(sympy, name) for name in ("sin", "cos", "tan", "log", "exp", "sqrt")}


def to_sympy(expr):
    if isinstance(expr, int):
        return sympy.Integer(expr)
    if isinstance(expr, str):
        if expr[0] in "-0123456789":
            return sympy.Rational(expr)
        return _CONSTANTS.get(expr) or sympy.Symbol(expr)
    head, *operands = expr
    if head == "subst":
        body, name, value = operands
        return to_sympy(body).subs(sympy.Symbol(name), to_sympy(value))
    values = [to_sympy(operand) for operand in operands]
    if head in _FUNCTIONS:
        return _FUNCTIONS[head](values[0])
    result = values[0]
    if len(values) == 1:
        return -result
    for value in values[1:]:
        if head == "+":
            result = result + value
        elif head == "-":
            result = result - value
        elif head == "*":
            result = result * value
        elif head == "/":
            result = result / value
        else:
            result = result**value
    return result


_POINTS = tuple(sympy.Rational(text) for text in ("0.37", "1.31", "-0.7"))


def same_function(a, b):
    """Have two SymPy expressions the same value at every point where they have one, and at two at least?

    A little off the real axis, where no branch is ambiguous; to 12 of 30 digits.
    """
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    seen = 0
    for point in _POINTS:
        values = {s: point + sympy.I * sympy.Rational(11 + 3 * i, 100) for i, s in enumerate(symbols)}
        x, y = (sympy.N(expression.subs(values), 30) for expression in (a, b))
        if any(not v.is_number or v.has(sympy.nan, sympy.zoo, sympy.oo) for v in (x, y)):
            continue
        seen += 1
        if abs(x - y) > sympy.Float("1e-12") * (1 + abs(x)):
            return False
    return seen >= 2
