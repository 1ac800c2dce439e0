"""(derive E x): one rule for each operator and function."""

from dagnn.curriculum.rules.numbers import integer, is_number
from dagnn.curriculum.rules.registry import rule
from dagnn.graph.rewriting.window import Replacement, Window


@rule("derive", depth=1)
def derive(f: Window, x: Window) -> Replacement | None:
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
def derive_power(a: Window, b: Window, x: Window) -> Replacement:
    """(a ^ b)': the power rule for a number b, else a^b (b log a)'."""
    if is_number(b):
        return ("*", ("*", b, ("^", a, ("-", b, integer(1)))), ("derive", a, x))
    return ("*", ("^", a, b), ("derive", ("*", b, ("log", a)), x))
