"""Teaches a network another rewriting system than mathematics: Boolean formulas to negation normal form.

The rules are shown as (neighbourhood, replacement) pairs only. The network then rewrites formulas deeper than any that
it was trained on, and every answer is checked against the formula's truth table.
"""

import itertools

from dagnn.rewriting import Label, RewritingTask, Signature

VARIABLES = ("a", "b", "c")
SIGNATURE = Signature(
    (
        *(Label(name, 0) for name in (*VARIABLES, "true", "false")),
        *(Label(name, arity, neighbourhood_depth=1) for name, arity in (("and", 2), ("or", 2), ("not", 1))),
    )
)
OTHER = {"and": "or", "or": "and", "true": "false", "false": "true"}


def rule(node):
    """De Morgan, double negation, constants and repeated operands."""
    a, b = (*node.children, None)[:2]
    if node.kind == "not":
        if a.kind == "not":
            return a[0]
        if a.children:
            return (OTHER[a.kind], ("not", a[0]), ("not", a[1]))
        return OTHER.get(a.kind)
    neutral, absorbing = ("true", "false") if node.kind == "and" else ("false", "true")
    if absorbing in (a.kind, b.kind):
        return absorbing
    if neutral in (a.kind, b.kind):
        return b if a.kind == neutral else a
    return a if a is b else None


def formula(draw, depth):
    """A random formula."""
    name = draw.choice(("and", "or", "not") if depth else (*VARIABLES, "true", "false"))
    arity = SIGNATURE.labels[SIGNATURE.id_of[name]].arity
    below = [formula(draw, draw.randint(max(0, depth - 2), depth - 1)) for _ in range(arity)]
    return (name, *below) if below else name


def value(t, assignment):
    """The truth of a formula."""
    match t:
        case ("not", a):
            return not value(a, assignment)
        case ("and" | "or" as name, a, b):
            return (all if name == "and" else any)((value(a, assignment), value(b, assignment)))
    return assignment[t]


def is_nnf(t):
    return isinstance(t, str) or (t[1] in VARIABLES if t[0] == "not" else all(map(is_nnf, t[1:])))


def is_right(before, after):
    """The same truth table, and `not` before variables only."""
    tables = ({"true": True, "false": False, **dict(zip(VARIABLES, row, strict=True))} for row in TRUTHS)
    return is_nnf(after) and all(value(before, table) == value(after, table) for table in tables)


TRUTHS = list(itertools.product((False, True), repeat=len(VARIABLES)))
TASK = RewritingTask(SIGNATURE, rule, formula, is_right, depth=4)
JUDGE = ("value", "is_nnf", "is_right", "TRUTHS")

if __name__ == "__main__":
    TASK.report()
