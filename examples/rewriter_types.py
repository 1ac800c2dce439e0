"""Teaches a network to infer types: functions with an annotated argument, calls, `let`, conditions, comparisons.

`infer c t` is the type of t in the context c, a list of types by de Bruijn index; an ill-typed term has the type
`error`. The judge is a recursive checker.
"""

import functools

from dagnn.rewriting import Label, RewritingTask, Signature

LABELS = {"int": 0, "bool": 0, "to": 2, "error": 0, "none": 0, "bind": 2, "number": 0, "truth": 0, "zero": 0, "succ": 1}
LABELS |= {"lam": 2, "call": 2, "let": 2, "if": 3, "less": 2}
STEPS = {"infer": 2, "from": 2, "body": 3, "result": 2, "either": 3, "order": 2}
SIGNATURE = Signature(
    (*(Label(name, n) for name, n in LABELS.items()), *(Label(name, n, 1) for name, n in STEPS.items()))
)


def rule(node):
    a, b, *rest = node.children
    if "error" in (each.kind for each in node.children):
        return "error"
    match node.kind, b.kind:
        case "infer", "number" | "truth":
            return "int" if b.kind == "number" else "bool"
        case "infer", "zero" | "succ":
            return "error" if a.kind == "none" else a[0] if b.kind == "zero" else ("infer", a[1], b[0])
        case "infer", "lam":
            return ("from", b[0], ("infer", ("bind", b[0], a), b[1]))
        case "infer", "let":
            return ("body", ("infer", a, b[0]), a, b[1])
        case "infer", kind:
            step = {"call": "result", "if": "either", "less": "order"}[kind]
            return (step, *(("infer", a, each) for each in b.children))
        case "from", _:  # an argument to a result
            return ("to", a, b)
        case "body", _:  # what a `let` binds, the context, the body
            return ("infer", ("bind", a, b), rest[0])
        case "result", _:  # a function, its argument
            return a[1] if a.kind == "to" and a[0] is b else "error"
        case "either", _:  # a condition, two branches
            return b if a.kind == "bool" and b is rest[0] else "error"
    return "bool" if (a.kind, b.kind) == ("int", "int") else "error"


def typed(draw, depth, wanted, context):
    """A term that has the type as a rule: one choice in a hundred is a mistake."""
    wanted = draw.choice(("int", "bool")) if draw.random() < 0.01 else wanted
    known = [index for index, kind in enumerate(context) if kind == wanted]
    if known and draw.random() < (0.2 if depth else 0.8):
        return functools.reduce(lambda index, _: ("succ", index), range(draw.choice(known)), "zero")
    other = draw.choice(("int", "bool", ("to", "int", "bool")))
    short, depth = draw.randint(0, max(0, depth - 3)), depth - 1
    match draw.choice(("let", "if", "call", "own")) if depth >= 0 else "own", wanted:
        case "let", _:
            return ("let", typed(draw, short, other, context), typed(draw, depth, wanted, (other, *context)))
        case "if", _:
            sides = [typed(draw, short, kind, context) for kind in ("bool", wanted)]
            return ("if", *sides, typed(draw, depth, wanted, context))
        case "call", _:
            return ("call", typed(draw, depth, ("to", other, wanted), context), typed(draw, short, other, context))
        case _, ("to", a, b):
            return ("lam", a, typed(draw, max(0, depth), b, (a, *context)))
        case _, "bool" if depth >= 0:
            return ("less", typed(draw, depth, "int", context), typed(draw, short, "int", context))
    return "number" if wanted == "int" else "truth"


def question(draw, depth):
    return ("infer", "none", typed(draw, depth, draw.choice(("int", "bool")), ()))


def type_of(t, context):
    """The type of a term, or None."""
    match t:
        case "number" | "truth":
            return {"number": "int", "truth": "bool"}[t]
        case "zero" | ("succ", _):
            return context[str(t).count("succ")] if str(t).count("succ") < len(context) else None
        case ("lam", a, body):
            b = type_of(body, (a, *context))
            return b and ("to", a, b)
        case ("let", a, body):
            a = type_of(a, context)
            return a and type_of(body, (a, *context))
    first, *rest = (type_of(part, context) for part in t[1:])
    if t[0] == "call":
        return first[2] if rest[0] and first and first[:2] == ("to", rest[0]) else None
    if t[0] == "if":
        return rest[0] if first == "bool" and rest[0] == rest[1] else None
    return "bool" if first == rest[0] == "int" else None


def is_right(t, found):
    return (type_of(t[2], ()) or "error") == found


TASK = RewritingTask(SIGNATURE, rule, question, is_right, depth=5)
JUDGE = ("type_of", "is_right")

if __name__ == "__main__":
    TASK.report()
