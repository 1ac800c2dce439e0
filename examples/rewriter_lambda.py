"""Teaches a network to normalise lambda terms with de Bruijn indices, by the rules of the lambda-upsilon calculus.

A substitution is a term: `clos t s` is t under s, `slash a` puts a for index 0, `lift s` is s under a binder, `shift`
adds 1. Source: Lescanne, "From lambda-sigma to lambda-upsilon", POPL 1994. The terms are simply typed, so all of them
have normal forms; the judge evaluates them with Python's own functions and reads the result back.
"""

from dagnn.rewriting import Label, RewritingTask, Signature

SIGNATURE = Signature(
    (
        *(Label(name, 1) for name in ("succ", "lam", "slash", "lift")),
        *(Label("zero", 0), Label("shift", 0), Label("app", 2, neighbourhood_depth=1), Label("clos", 2, 1)),
    )
)


def rule(node):
    """The eight rules."""
    a, b = node.children
    match node.kind, a.kind, b.kind:
        case "app", "lam", _:
            return ("clos", a[0], ("slash", b))
        case "clos", "app", _:
            return ("app", ("clos", a[0], b), ("clos", a[1], b))
        case "clos", "lam", _:
            return ("lam", ("clos", a[0], ("lift", b)))
        case "clos", "zero", "slash":
            return b[0]
        case "clos", "succ", "slash":
            return a[0]
        case "clos", "zero", "lift":
            return "zero"
        case "clos", "succ", "lift":
            return ("clos", ("clos", a[0], b[0]), "shift")
        case "clos", "zero" | "succ", "shift":
            return ("succ", a)


def typed(draw, depth, wanted, context):
    """A term of a type: "o", or a pair (from, to). The context lists the types of the indices, one "o" at least."""
    fits = [index for index, kind in enumerate(context) if kind == wanted]
    if depth > 0 and draw.random() < 0.6:
        argument = draw.choice(("o", "o", ("o", "o")))
        function = typed(draw, depth - 1, (argument, wanted), context)
        return ("app", function, typed(draw, draw.randint(0, max(0, depth - 3)), argument, context))
    if wanted != "o" and (depth > 0 or not fits):
        return ("lam", typed(draw, depth - 1, wanted[1], [wanted[0], *context]))
    return index_term(draw.choice(fits))


def index_term(index):
    return ("succ", index_term(index - 1)) if index else "zero"


FREE = ["o", ("o", "o")]


def value(t, environment):
    """A function of Python, or a neutral term over levels."""
    match t:
        case "zero":
            return environment[0]
        case ("succ", n):
            return value(n, environment[1:])
        case ("lam", body):
            return lambda a: value(body, (a, *environment))
        case ("app", f, a):
            f, a = value(f, environment), value(a, environment)
            return f(a) if callable(f) else (f, a)


def read_back(v, size):
    if callable(v):
        return ("lam", read_back(v(size), size + 1))
    return index_term(size - 1 - v) if isinstance(v, int) else ("app", read_back(v[0], size), read_back(v[1], size))


def is_right(t, normal_form):
    return read_back(value(t, (1, 0)), 2) == normal_form


TASK = RewritingTask(SIGNATURE, rule, lambda draw, depth: typed(draw, depth, "o", FREE), is_right, depth=5)
JUDGE = ("value", "read_back", "is_right")

if __name__ == "__main__":
    TASK.report()
