"""Expressions as text for the rivals of the curriculum comparison: preorder words of fixed arity.

A number is its sign and then its digits, lowest first, one word each; the highest digit is a word of its own (``3.``),
so every text is a tree in preorder and ends by itself. An answer of level 4 is ``~+`` or ``~-``, three digits, highest
first, and the power of ten: the form that is kindest to a network that cannot calculate it exactly.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dagnn.curriculum import Expr, decimal_of_digits
from dagnn.curriculum.expression import FUNCTIONS, is_decimal

PAD, BEGIN = 0, 1
_SMALLEST_POWER, _LARGEST_POWER = -12, 12
_FOLDED = ("+", "-", "*", "/")


class Words:
    """Words by number, with how many operands follow each.

    Attributes:
        names: word by number; the first two are the padding and the beginning of every text.
        arity: operands by number: int64 ``[len(names)]``.
        id_of: number by word.
    """

    def __init__(self, words: Iterable[tuple[str, int]]) -> None:
        listed = [("<pad>", 0), ("<begin>", 0), *words]
        self.names = [name for name, _ in listed]
        self.arity = torch.tensor([arity for _, arity in listed])
        self.arities: list[int] = self.arity.tolist()
        self.id_of = {name: number for number, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def is_whole(self, ids: Sequence[int]) -> bool:
        """Whether the words are exactly one tree."""
        missing = 1
        for word in ids:
            if missing == 0 or word in (PAD, BEGIN):
                return False
            missing += self.arities[word] - 1
        return missing == 0


WORDS = Words(
    [
        *((operator, 2) for operator in ("+", "-", "*", "/", "^", "=", "derive", "integrate", "solve", "roots")),
        *((function, 1) for function in FUNCTIONS),
        ("subst", 3),
        ("definite", 4),
        *((leaf, 0) for leaf in ("x", "y", "z", "e", "pi")),
        ("positive", 1),
        ("negative", 1),
        *((str(digit), 1) for digit in range(10)),
        *((f"{digit}.", 0) for digit in range(10)),
        ("~+", 2),
        ("~-", 2),
        *((f"E{power}", 0) for power in range(_SMALLEST_POWER, _LARGEST_POWER + 1)),
    ]
)


def encode(expression: Expr) -> list[int]:
    """The words of an expression; sums of many operands are folded from the left.

    >>> [WORDS.names[word] for word in encode(("+", -27, "x"))]
    ['+', 'negative', '7', '2.', 'x']
    """
    names: list[str] = []
    _write(expression, names)
    return [WORDS.id_of[name] for name in names]


def encode_answer(answer: Expr, level: int) -> list[int]:
    """The words of an answer; on level 4 in its three digits."""
    if level != 4 or answer == 0:
        return encode(answer)
    text = str(answer).lstrip("-")
    whole, _, part = text.partition(".")
    digits = (whole + part).lstrip("0")
    power = -len(part) + len(digits) - 3
    digits = digits[:3].ljust(3, "0")
    sign = "~-" if str(answer).startswith("-") else "~+"
    return [WORDS.id_of[name] for name in (sign, digits[0], digits[1], f"{digits[2]}.", f"E{power}")]


def decode(ids: Sequence[int]) -> Expr | None:
    """The expression that words spell; None where they spell none.

    >>> decode(encode(("integrate", ("^", "x", 2), "x", 0, "e")))
    ('integrate', ('^', 'x', 2), 'x', 0, 'e')
    """
    if not WORDS.is_whole(ids):
        return None
    stack: list[object] = []
    for word in reversed(ids):
        operands = [stack.pop() for _ in range(WORDS.arities[word])]
        part = _read(WORDS.names[word], operands)
        if part is None:
            return None
        stack.append(part)
    return None if isinstance(stack[0], _Digits) else stack[0]  # type: ignore[return-value]


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of different length as one tensor: int64 ``[len(rows), longest]``."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])


class _Digits(str):
    """Digits of a number that is being read, in the order of the words."""


def _write(item: Expr, names: list[str]) -> None:
    if isinstance(item, int):
        names.append("negative" if item < 0 else "positive")
        lowest_first = str(abs(item))[::-1]
        names += [*lowest_first[:-1], f"{lowest_first[-1]}."]
    elif isinstance(item, str):
        if is_decimal(item):
            raise ValueError(f"a decimal such as {item} has words only as an answer of level 4")
        names.append(item)
    else:
        head, *operands = item
        if head == "-" and len(operands) == 1:
            operands = [0, *operands]
        folded = len(operands) - 1 if head in _FOLDED else 1
        names += ["definite" if head == "integrate" and len(operands) == 4 else head] * folded
        for operand in operands:
            _write(operand, names)


def _read(name: str, operands: list[object]) -> object:
    """The part that a word and its operands spell, or None."""
    if name[0].isdigit():
        rest = operands[0] if operands else _Digits()
        return _Digits(name[0] + rest) if isinstance(rest, _Digits) else None
    if name in ("positive", "negative"):
        if not isinstance(operands[0], _Digits):
            return None
        value = int(operands[0][::-1])
        return -value if name == "negative" else value
    if name in ("~+", "~-"):
        digits, power = operands
        if not isinstance(digits, _Digits) or not (isinstance(power, str) and power.startswith("E")):
            return None
        return decimal_of_digits(int(digits) * (-1 if name == "~-" else 1), int(power[1:]))
    if any(isinstance(operand, _Digits) for operand in operands):
        return None
    return ("integrate" if name == "definite" else name, *operands) if operands else name
