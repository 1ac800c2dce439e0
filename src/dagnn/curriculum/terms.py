"""Expressions as terms of the rewriting system, and normal forms back as answers."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from dagnn.curriculum.decimals import decimal_leaf
from dagnn.curriculum.expression import CONSTANTS, Expr, from_fraction, is_decimal, symbols_of, to_binary
from dagnn.curriculum.levels import LEVELS
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.rules.fixed_point import DECIMALS
from dagnn.errors import ExpressionError

# Symbols that the generator draws; others are renamed to these, so that `(derive (^ speed 2) speed)` is no news.
_FAMILIAR = ("x", "y", "z")
_LETTERS = (*_FAMILIAR, *"abcdfghijklmnopqrstuvw")

_ID = SIGNATURE.id_of
_POSITIVE, _NEGATIVE, _END = _ID["positive"], _ID["negative"], _ID["end"]
_DIGIT = [_ID[f"d{digit}"] for digit in range(10)]
_NAMES = tuple(label.name for label in SIGNATURE.labels)
_ARITY = tuple(label.arity for label in SIGNATURE.labels)


def to_term(expression: Expr, level: int | None = None) -> tuple[list[int], dict[str, str]]:
    """The preorder label ids of an expression, and the names of the symbols that were renamed (letter -> name).

    Args:
        expression: any expression of the language; sums of many operands are folded from the left.
        level: a numeric level reads the expression as ``(approx ...)``.

    Raises:
        ExpressionError: more different symbols than the rewriting system has letters, or ``roots`` of another
            number of values than two.
    """
    letters = _letters_for(expression)
    tokens: list[int] = []
    if level is not None and LEVELS[level].numeric:
        tokens.append(_ID["approx"])
    _write(to_binary(expression), letters, tokens)
    return tokens, {letter: name for name, letter in letters.items() if letter != name}


def from_term(tokens: Sequence[int], names: Mapping[str, str] | None = None) -> Expr:
    """The expression that a term writes; digit chains become numbers.

    A label of the system that is no operator of the language, such as a half-finished sum, stays in the
    result under its own name, so a stuck term can be shown.
    """
    return _read(iter(tokens), names or {})


def _letters_for(expression: Expr) -> dict[str, str]:
    """Symbol -> letter, the identity for symbols that are familiar."""
    symbols = symbols_of(expression)
    letters = {name: name for name in symbols if name in _FAMILIAR}
    free = [letter for letter in _LETTERS if letter not in letters]
    strangers = sorted(symbols - set(letters))
    if len(strangers) > len(free):
        raise ExpressionError(f"the expression has {len(symbols)} symbols, the rewriting system takes {len(_LETTERS)}.")
    return letters | dict(zip(strangers, free, strict=False))


def _write(expression: Expr, letters: Mapping[str, str], tokens: list[int]) -> None:
    if isinstance(expression, int):
        _write_integer(expression, tokens)
    elif isinstance(expression, str):
        if is_decimal(expression):
            _write(from_fraction(Fraction(expression)), letters, tokens)
        else:
            tokens.append(_ID[expression if expression in CONSTANTS else letters[expression]])
    else:
        head = "definite" if expression[0] == "integrate" and len(expression) == 5 else expression[0]
        if len(expression) - 1 != _ARITY[_ID[head]]:
            raise ExpressionError(f"{head} with {len(expression) - 1} operands has no rewrite rule.")
        tokens.append(_ID[head])
        for operand in expression[1:]:
            _write(operand, letters, tokens)


def _write_integer(value: int, tokens: list[int]) -> None:
    tokens.append(_NEGATIVE if value < 0 else _POSITIVE)
    value = abs(value)
    while value:
        value, digit = divmod(value, 10)
        tokens.append(_DIGIT[digit])
    tokens.append(_END)


def _read(tokens: Iterator[int], names: Mapping[str, str]) -> Expr:
    token = next(tokens)
    name = _NAMES[token]
    if name in ("positive", "negative"):
        value = _read_chain(tokens)
        if isinstance(value, int):
            return -value if name == "negative" else value
        return (name, value)
    if name == "fraction":
        numerator, denominator = _read(tokens, names), _read_chain(tokens)
        return ("/", numerator, denominator)
    if name == "decimal":
        value = _read(tokens, names)
        return decimal_leaf(Fraction(value, 10**DECIMALS)) if isinstance(value, int) else (name, value)
    if _ARITY[token] == 0:
        return names.get(name, name)
    children = [_read(tokens, names) for _ in range(_ARITY[token])]
    return ("integrate" if name == "definite" else name, *children)


def _read_chain(tokens: Iterator[int]) -> Expr:
    """A closed digit chain as an integer; anything else (a sum still to be done) as it stands."""
    value, scale = 0, 1
    open_digits: list[str] = []
    for token in tokens:
        name = _NAMES[token]
        if name == "end":
            return value
        if name[0] == "d" and name[1:].isdigit():
            value += scale * int(name[1:])
            scale *= 10
            open_digits.append(name)
            continue
        children = [_read(tokens, {}) for _ in range(_ARITY[token])]
        inner: Expr = (name, *children) if children else name
        for digit in reversed(open_digits):
            inner = (digit, inner)
        return inner
    raise AssertionError("a digit chain without its end")
