"""Teaches a network another rewriting system than mathematics: Boolean formulas to negation normal form.

The rules are shown as (neighbourhood, replacement) pairs only. The network then rewrites formulas deeper than any that
it was trained on, and every answer is checked against the formula's truth table.
"""

import itertools
import random

import torch

from dagnn.rewriting import (
    GraphRewriter,
    Label,
    RewritingMachine,
    RuleRewriter,
    Signature,
    encode_replacement,
    read_neighbourhood,
)

VARIABLES = ("a", "b", "c")
SIGNATURE = Signature(
    (
        *(Label(name, 0) for name in (*VARIABLES, "true", "false")),
        Label("and", 2, neighbourhood_depth=1),
        Label("or", 2, neighbourhood_depth=1),
        Label("not", 1, neighbourhood_depth=1),
    )
)
OTHER = {"and": "or", "or": "and", "true": "false", "false": "true"}


def rule(tokens):
    """De Morgan, double negation, constants and repeated operands."""
    neighbourhood = read_neighbourhood(tokens, SIGNATURE)
    a, b = (*neighbourhood.children, None)[:2]
    replacement = None
    if neighbourhood.kind == "not":
        if a.kind == "not":
            replacement = a[0]
        elif a.children:
            replacement = (OTHER[a.kind], ("not", a[0]), ("not", a[1]))
        elif a.kind in OTHER:
            replacement = OTHER[a.kind]
    elif a is b:
        replacement = a
    else:
        neutral, absorbing = ("true", "false") if neighbourhood.kind == "and" else ("false", "true")
        if absorbing in (a.kind, b.kind):
            replacement = absorbing
        elif neutral in (a.kind, b.kind):
            replacement = b if a.kind == neutral else a
    return encode_replacement(replacement, SIGNATURE)


def formula(draw, depth):
    """A random formula as preorder label ids."""
    names = ("and", "or", "not") if depth else (*VARIABLES, "true", "false")
    label = SIGNATURE.labels[SIGNATURE.id_of[draw.choice(names)]]
    tokens = [SIGNATURE.id_of[label.name]]
    for _ in range(label.arity):
        tokens += formula(draw, draw.randint(max(0, depth - 2), depth - 1))
    return tokens


def value(tokens, assignment):
    """The truth of a formula."""

    def read(rest):
        label = SIGNATURE.labels[next(rest)]
        operands = [read(rest) for _ in range(label.arity)]
        if label.name == "not":
            return not operands[0]
        return all(operands) if label.name == "and" else any(operands) if operands else assignment[label.name]

    return read(iter(tokens))


def is_normal(before, after):
    """The same truth table, and `not` before variables only."""
    names = [SIGNATURE.labels[token].name for token in after]
    for truths in itertools.product((False, True), repeat=len(VARIABLES)):
        assignment = dict(zip(VARIABLES, truths, strict=True)) | {"true": True, "false": False}
        if value(before, assignment) != value(after, assignment):
            return False
    return all(name != "not" or following in VARIABLES for name, following in itertools.pairwise(names))


if __name__ == "__main__":
    torch.manual_seed(0)
    draw = random.Random(0)
    teacher = RewritingMachine(SIGNATURE, RuleRewriter(rule), eager=True)
    teacher.run([formula(draw, 4) for _ in range(3_000)])
    neighbourhoods = [teacher.neighbourhood(w) for w in range(teacher.num_neighbourhoods)]

    net = GraphRewriter.from_neighbourhoods(SIGNATURE, neighbourhoods, width=64, blocks=1, num_slots=8)
    rows = net.features.encode(neighbourhoods)
    targets = net.features.encode_targets(
        neighbourhoods, [rule(neighbourhood) for neighbourhood in neighbourhoods], net.num_slots
    )
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(150):
        net.zero_grad()
        net.loss(rows, targets).backward()
        net.clip_gradients(1.0)
        optimizer.step()

    print(f"{len(neighbourhoods)} distinct neighbourhoods of formulas of depth 4, {net.num_parameters():,} parameters")
    for depth in (4, 8, 12):
        formulas = [formula(draw, depth) for _ in range(100)]
        results = net.solve(formulas)
        right = sum(r.tokens is not None and is_normal(f, r.tokens) for f, r in zip(formulas, results, strict=True))
        print(f"depth {depth:2}: {right} of 100 formulas right, {sum(map(len, formulas)) / 100:.0f} nodes on average")
