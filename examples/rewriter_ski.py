"""Teaches a network the SKI combinators, with partial applications as labels of their own: every rule sees two nodes.

The judge is a normal-order reducer, written for itself: normal forms are unique, whatever the order of the steps.
"""

from dagnn.rewriting import Label, RewritingTask, Signature

SIGNATURE = Signature(
    (
        *(Label(name, 0) for name in ("S", "K", "I", "x", "y", "z")),
        *(Label(name, arity) for name, arity in (("K1", 1), ("S1", 1), ("S2", 2))),
        Label("app", 2, neighbourhood_depth=1),
    )
)


def rule(app):
    """`K1` is K with its argument, `S2` is S with two; an application of x, y or z stays."""
    f, a = app.children
    match f.kind:
        case "I":
            return a
        case "K" | "S":
            return (f.kind + "1", a)
        case "K1":
            return f[0]
        case "S1":
            return ("S2", f[0], a)
        case "S2":
            return ("app", ("app", f[0], a), ("app", f[1], a))


def term(draw, depth):
    """Applications, mostly of K and I: many terms of S alone have no normal form."""
    if depth == 0 or draw.random() < 0.1:
        return draw.choices(("S", "K", "I", "x", "y", "z"), (2, 3, 3, 1, 1, 1))[0]
    sides = [term(draw, depth - 1), term(draw, draw.randint(0, max(0, depth - 3)))]
    return ("app", *(sides if draw.random() < 0.8 else sides[::-1]))


def plain(t):
    """Partial applications written as applications."""
    if isinstance(t, str):
        return t
    head, *rest = t[0][0] if t[0] != "app" else plain(t[1]), *(t[1:] if t[0] != "app" else t[2:])
    for one in rest:
        head = ("app", head, plain(one))
    return head


def reduced(t, steps):
    """The normal form by the leftmost outermost redex; None when it takes more than some steps."""
    arguments = []
    while True:
        while not isinstance(t, str):
            arguments.append(t[2])
            t = t[1]
        needed = {"I": 1, "K": 2, "S": 3}.get(t, len(arguments) + 1)
        if needed > len(arguments):
            break
        steps[0] -= 1
        if steps[0] < 0:
            return None
        given = [arguments.pop() for _ in range(needed)]
        if t == "S":
            arguments.append(("app", given[1], given[2]))
            arguments.append(given[2])
        t = given[0]
    for one in reversed(arguments):
        inner = reduced(one, steps)
        if inner is None:
            return None
        t = ("app", t, inner)
    return t


def is_right(t, normal_form):
    return reduced(t, [10_000]) == plain(normal_form)


TASK = RewritingTask(SIGNATURE, rule, term, is_right, depth=5)
JUDGE = ("plain", "reduced", "is_right")

if __name__ == "__main__":
    TASK.report()
