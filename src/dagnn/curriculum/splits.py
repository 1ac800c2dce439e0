"""Which split an expression belongs to: a pure function of its canonical form, the same on every machine.

An expression and its rearrangements (``(+ 2 3)``, ``(+ 3 2)``) have one hash and so one split. The seed of a run
changes which expressions are drawn, never to which split they belong.
"""

from hashlib import blake2b
from math import gcd
from typing import Literal

from dagnn.curriculum.expression import CONSTANTS, Expr, is_decimal
from dagnn.errors import ConfigError, ExpressionError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

# In percent of all classes. A training expression must have no held-out part, and one of level 2 has about five
# parts: 12 % held out keeps 60 % of its draws (15 % keeps 50 %, and thins the large ones more).
TEST_SHARE = 8
VALIDATION_SHARE = 4

_COMMUTATIVE = frozenset(("+", "*", "="))
# Parts with these heads could be the input of a level even where a symbol is free: (derive (^ x 2) x).
_LEVEL_HEADS = frozenset(("derive", "integrate", "solve", "subst"))
_NO_SYMBOLS: frozenset[str] = frozenset()


def split_of(expr: Expr) -> Split:
    """The split that an expression belongs to.

    Numbers belong to training, reduced fractions too: ``(/ 7 3)`` is its own answer, and if it were held out, no
    training expression could contain 7/3.

    Raises:
        ExpressionError: nested too deep.

    >>> split_of(("+", 2, 3)) == split_of(("+", 3, 2))
    True
    """
    try:
        return "train" if _is_number(expr) else _split_of_text(canonical_text(expr))
    except RecursionError:
        raise ExpressionError("the expression is nested too deep: split it.") from None


def has_held_out_part(expr: Expr) -> bool:
    """Does the expression, or a part that could be the input of a level, belong to validation or test?

    Such parts are those without free symbols and those headed by ``derive``, ``integrate``, ``solve`` or ``subst``;
    ``(approx E)`` counts as E.
    """
    parts: list[str] = []
    text = _visit(expr, parts)[0]
    if not (parts and parts[-1] == text) and not _is_number(expr):
        parts.append(text)
    return any(_split_of_text(part) != "train" for part in parts)


def canonical_text(expr: Expr) -> str:
    """The text that is hashed: operands of ``+ * =`` sorted, ``(approx E)`` as E."""
    # _visit gives it too, in three times the time; every draw of a held-out split needs it, and 9 of 10 are dropped.
    if not isinstance(expr, tuple):
        return str(expr)
    if len(expr) == 3:  # nearly all: half the time of a list that is sorted and joined
        head, first, second = expr
        first = canonical_text(first) if isinstance(first, tuple) else str(first)
        second = canonical_text(second) if isinstance(second, tuple) else str(second)
        if second < first and head in _COMMUTATIVE:
            return f"({head} {second} {first})"
        return f"({head} {first} {second})"
    head = expr[0]
    if head == "approx":
        return canonical_text(expr[1])
    texts = [canonical_text(operand) for operand in expr[1:]]
    if head in _COMMUTATIVE:
        texts.sort()
    return f"({head} {' '.join(texts)})"


def check_split(split: str) -> Split:
    """The split's name, if it is one.

    Raises:
        ConfigError: it is none of train, validation and test.
    """
    for known in SPLITS:
        if split == known:
            return known
    raise ConfigError(f"split {split!r} does not exist: the splits are {', '.join(SPLITS)}.")


def _visit(expr: Expr, parts: list[str]) -> tuple[str, frozenset[str]]:
    """Canonical text and free symbols; appends the text of every part that could be the input of a level."""
    if isinstance(expr, int):
        return str(expr), _NO_SYMBOLS
    if isinstance(expr, str):
        return expr, _NO_SYMBOLS if expr in CONSTANTS or is_decimal(expr) else frozenset((expr,))
    head = expr[0]
    if head == "approx":
        return _visit(expr[1], parts)
    texts, free = [], _NO_SYMBOLS
    for position, operand in enumerate(expr[1:]):
        text, symbols = _visit(operand, parts)
        texts.append(text)
        if symbols and not (position == 1 and head in _LEVEL_HEADS):
            free = free | symbols if free else symbols
    if head in _COMMUTATIVE:
        texts.sort()
    text = f"({head} {' '.join(texts)})"
    if head in _LEVEL_HEADS:
        free -= {expr[2]}
        parts.append(text)
    elif not free and not _is_number(expr):
        parts.append(text)
    return text, free


def _is_number(expr: Expr) -> bool:
    """A leaf, or a fraction in its one spelling."""
    if not isinstance(expr, tuple):
        return True
    return (
        len(expr) == 3
        and expr[0] == "/"
        and isinstance(expr[1], int)
        and isinstance(expr[2], int)
        and expr[2] > 1
        and gcd(expr[1], expr[2]) == 1
    )


def _split_of_text(text: str) -> Split:
    # BLAKE2, not crc32: that one is linear, and its remainders favour some digits of short expressions.
    bucket = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") % 100
    if bucket < TEST_SHARE:
        return "test"
    return "validation" if bucket < TEST_SHARE + VALIDATION_SHARE else "train"
