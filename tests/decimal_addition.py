"""A small rewriting system for tests: sums of natural numbers, digit by digit, least significant digit first."""

from collections.abc import Sequence

from dagnn.rewriting.system import (
    Label,
    NeighbourhoodTokens,
    ReplacementTokens,
    Signature,
    encode_replacement,
    read_neighbourhood,
)

DIGITS = tuple(f"d{i}" for i in range(10))

SIGNATURE = Signature(
    labels=(
        Label("end", 0),
        *(Label(name, 1) for name in DIGITS),
        Label("number", 1),
        Label("add", 2, neighbourhood_depth=1),
        Label("carry", 2, neighbourhood_depth=1),
        Label("+", 2, neighbourhood_depth=2),
        Label("forever", 1, neighbourhood_depth=1),
        Label("grow", 1, neighbourhood_depth=0),
    ),
    opaque=frozenset({"number"}),
    tags={("end", ""): "0", ("d1", "0"): "1", ("number", "0"): "zero", ("number", "1"): "one", ("number", "*"): "big"},
    tagged=frozenset({"number"}),
)


def replacement_of(tokens: NeighbourhoodTokens) -> ReplacementTokens:
    """The rules of addition; `forever` rewrites to itself by way of a sum, `grow` never stops growing."""
    neighbourhood = read_neighbourhood(tokens, SIGNATURE)
    if neighbourhood.kind == "forever":
        return encode_replacement(("forever", ("+", ("number", "end"), neighbourhood[0])), SIGNATURE)
    if neighbourhood.kind == "grow":
        return encode_replacement(("grow", ("grow", ("d1", neighbourhood[0]))), SIGNATURE)
    a, b = neighbourhood.children
    if neighbourhood.kind == "+":
        if a.label == "number:zero":
            return encode_replacement(b, SIGNATURE)
        if b.label == "number:zero":
            return encode_replacement(a, SIGNATURE)
        return encode_replacement(("number", ("add", a[0], b[0])), SIGNATURE)
    carry = int(neighbourhood.kind == "carry")
    if a.kind == b.kind == "end":
        return encode_replacement(("d1", "end") if carry else "end", SIGNATURE)
    if "end" in (a.kind, b.kind) and not carry:
        return encode_replacement(b if a.kind == "end" else a, SIGNATURE)
    total = carry + sum(int(x.kind[1]) for x in (a, b) if x.kind != "end")
    rest = [x[0] if x.children else "end" for x in (a, b)]
    return encode_replacement((f"d{total % 10}", ("carry" if total > 9 else "add", *rest)), SIGNATURE)


def number_tokens(value: int) -> list[int]:
    """Label ids of a natural number."""
    ids = SIGNATURE.id_of
    digits = [ids[f"d{digit}"] for digit in reversed(str(value))] if value else []
    return [ids["number"], *digits, ids["end"]]


def sum_tokens(values: Sequence[int]) -> list[int]:
    """Label ids of ``(+ ... (+ a b) c)``."""
    tokens = number_tokens(values[0])
    for value in values[1:]:
        tokens = [SIGNATURE.id_of["+"], *tokens, *number_tokens(value)]
    return tokens


def value_of(tokens: Sequence[int]) -> int:
    """The number that a normal form writes."""
    names = [SIGNATURE.labels[token].name for token in tokens]
    assert names[0] == "number"
    assert names[-1] == "end"
    return int("".join(name[1] for name in reversed(names[1:-1])) or "0")
