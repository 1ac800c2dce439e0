"""The expression language as nested tuples in Python: what is legal, and what every part of `curriculum` asks of one.

An expression is an ``int``, a ``str`` (a symbol, or a decimal such as ``"0.1"``) or a tuple
``(operator, operand, ...)``: ``("+", ("*", 2, "x"), 5)`` is the text ``(+ (* 2 x) 5)``.

=====================  =======================================================================
``+ * /``              two operands or more, read from the left; kept as written
``-``                  the same, and ``(- a)`` is the negative
``^ =``                two operands
``sin cos tan``        one operand, in radians
``log exp sqrt``       one operand; ``log`` is the natural logarithm
``(subst E x v)``      E with the value v for the symbol x
``(derive E x)``       the derivative
``(integrate E x)``    an antiderivative; ``(integrate E x a b)`` is the integral from a to b
``(solve (= L R) x)``  the solution, or ``(roots r1 r2)`` in rising order
``(approx E)``         the value to 3 significant digits
=====================  =======================================================================

The symbols ``e`` and ``pi`` are constants. Nothing here knows what an operator means: see ``exact``. Polish text is
read and written here; ``parsing`` also reads infix text, and suggests the one where the other was meant.
"""

import difflib
import itertools
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction
from typing import Any, NoReturn

from dagnn.errors import ExpressionError

# Any, not Expr, inside the tuple: its first item is always the operator, which no recursive type can say.
Expr = int | str | tuple[Any, ...]

FUNCTIONS = ("sin", "cos", "tan", "log", "exp", "sqrt")
CONSTANTS = ("e", "pi")
# operator -> fewest and most operands; None is "any number".
ARITY: Mapping[str, tuple[int, int | None]] = {
    "+": (2, None),
    "-": (1, None),
    "*": (2, None),
    "/": (2, None),
    "^": (2, 2),
    "=": (2, 2),
    **dict.fromkeys(FUNCTIONS, (1, 1)),
    "subst": (3, 3),
    "derive": (2, 2),
    "integrate": (2, 4),
    "solve": (2, 2),
    "roots": (1, None),
    "approx": (1, 1),
}
_FOLDED = ("+", "-", "*", "/")
# operator -> the operand that names the symbol it binds.
BINDERS: Mapping[str, int] = {"subst": 2, "derive": 2, "integrate": 2, "solve": 2}

# Deep enough for anything written by hand, shallow enough for recursive functions under Python's limit of 1,000 frames.
MAX_DEPTH = 100
MAX_SIZE = 100_000
# Python refuses to print integers above 4,300 digits.
MAX_DIGITS = 4_000
MAX_BITS = 13_288  # log2(10 ** 4,000)

# Words that are no symbols, though they could name one; and what to write.
_NO_SYMBOLS: Mapping[str, str] = {
    "\N{GREEK SMALL LETTER PI}": "pi",
    **dict.fromkeys(("inf", "Inf", "infinity", "Infinity", "oo", "nan", "NaN"), "a number"),
}

_INTEGER = re.compile(r"-?[0-9]+")
_DECIMAL = re.compile(r"-?[0-9]+\.[0-9]+")
_WORD_OF_POLISH = re.compile(r"[()]|[^\s()]+")
_KEYBOARD = str.maketrans({"\N{MINUS SIGN}": "-", "\N{EN DASH}": "-"})


# What others call our operators; the nearest spelling of int would be sin.
_OTHER_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("ln", "Log", "log_e", "loge"), "log"),
    **dict.fromkeys(("int", "Int", "integral", "Integrate", "antiderivative"), "integrate"),
    **dict.fromkeys(("diff", "Diff", "D", "d", "derivative", "d/dx"), "derive"),
    **dict.fromkeys(("\N{MINUS SIGN}", "\N{EN DASH}", "minus", "sub", "neg"), "-"),
    **dict.fromkeys(("\N{MULTIPLICATION SIGN}", "\N{MIDDLE DOT}", "\N{DOT OPERATOR}", "times", "mul"), "*"),
    **dict.fromkeys(("\N{DIVISION SIGN}", "div", "over"), "/"),
    **dict.fromkeys(("**", "pow", "power"), "^"),
    **dict.fromkeys(("plus", "add", "sum"), "+"),
    **dict.fromkeys(("==", "eq"), "="),
    **dict.fromkeys(("N", "evalf", "numeric"), "approx"),
}


def to_text(expr: Expr) -> str:
    """Polish text; ``parse`` reads it back to an equal expression.

    >>> to_text(("+", ("*", 2, "x"), 5))
    '(+ (* 2 x) 5)'
    """
    if not isinstance(expr, tuple):
        return str(expr)
    words: list[str] = []
    waiting: list[Any] = [expr]
    while waiting:
        item = waiting.pop()
        if isinstance(item, tuple):
            words.append(f"({item[0]}" if item else "(")
            waiting.append(")")
            waiting.extend(reversed(item[1:]))
        else:
            words.append(str(item))
    return " ".join(words).replace(" )", ")")


def read_polish(text: str) -> Expr:
    """The expression that a Polish text writes: `parse` without its hint at infix text, and with its errors."""
    if not isinstance(text, str):
        raise ExpressionError(f"parse reads text such as '(+ 2 3)', got {type(text).__name__}.")
    open_lists: list[list[Any]] = []
    opened_at: list[int] = []
    result: Expr | None = None
    size = 0
    for match in _WORD_OF_POLISH.finditer(text):
        token, at = match.group(), match.start()
        if result is not None:
            raise ExpressionError(f"the expression ends before position {at}, but {shortened(token)} follows: drop it.")
        # A node is a leaf or an opening parenthesis: the operator behind it names the node, and ")" ends it.
        if token == "(":
            size += 1
            if open_lists and not open_lists[-1]:
                _refuse_operator(token, at)
            if len(open_lists) >= MAX_DEPTH:
                raise ExpressionError(f"nested deeper than {MAX_DEPTH} at position {at}: split the expression.")
            open_lists.append([])
            opened_at.append(at)
            continue
        if token == ")":
            if not open_lists:
                raise ExpressionError(f"')' at position {at} closes nothing: drop it, or open a parenthesis before it.")
            application = tuple(open_lists.pop())
            check_application(application, f" at position {opened_at.pop()}")
            done: Expr = application
        elif open_lists and not open_lists[-1]:
            if token not in ARITY:
                _refuse_operator(token, at)
            done = token
        else:
            done = leaf_of(token, f" at position {at}")
            size += 1
        if size > MAX_SIZE:
            raise ExpressionError(f"the expression has more than {MAX_SIZE:,} nodes at position {at}: split it.")
        if open_lists:
            open_lists[-1].append(done)
        else:
            result = done
    if open_lists:
        raise ExpressionError(f"the parenthesis at position {opened_at[-1]} is never closed: add ')'.")
    if result is None:
        raise ExpressionError("the text is empty: write an expression such as (+ 2 3).")
    return result


def _refuse_operator(token: str, at: int) -> NoReturn:
    close = [_OTHER_NAMES[token]] if token in _OTHER_NAMES else difflib.get_close_matches(token, ARITY, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"the operators are {' '.join(ARITY)}."
    raise ExpressionError(f"expected an operator at position {at}, got {shortened(token)}: {hint}")


def leaf_of(token: str, where: str = "") -> int | str:
    """The leaf that a word writes: an ``int``, a decimal or a symbol.

    Else an ExpressionError, whose message has ``where``, such as ``" at position 3"``.
    """
    if _INTEGER.fullmatch(token):
        if len(token) > MAX_DIGITS:
            raise ExpressionError(f"the number {token[:12]}...{where} has more than {MAX_DIGITS:,} digits.")
        return int(token)
    if _DECIMAL.fullmatch(token):
        if len(token) > MAX_DIGITS:
            raise ExpressionError(f"the number {token[:12]}...{where} has more than {MAX_DIGITS:,} digits.")
        return token
    if token in ARITY:
        raise ExpressionError(f"{token!r}{where} is an operator without parentheses: write ({token} ...).")
    if token.isidentifier():
        plain = token if token.isascii() else unicodedata.normalize("NFKC", token)
        if plain != token or token in _NO_SYMBOLS:
            raise ExpressionError(f"{shortened(token)}{where} is no symbol: write {_NO_SYMBOLS.get(token, plain)}.")
        return token
    typed = token.translate(_KEYBOARD)
    if typed != token and (_INTEGER.fullmatch(typed) or _DECIMAL.fullmatch(typed)):
        raise ExpressionError(f"{shortened(token)}{where} has a minus that no keyboard has: write {typed}.")
    raise ExpressionError(
        f"{shortened(token)}{where} is neither a number (7, -3, 0.5) nor a symbol (letters, then digits or _)."
    )


def is_decimal(leaf: str) -> bool:
    """Is this leaf a decimal number, not a symbol?"""
    return leaf[0] in "-0123456789"


def check(expr: Expr) -> None:
    """Refuse what is not an expression; for tuples that did not come from ``parse``.

    ExpressionError for a wrong type, operator, number of operands or leaf, or one deeper or larger than allowed.
    """
    size = 0
    waiting: list[tuple[Any, int]] = [(expr, 0)]
    while waiting:
        item, level = waiting.pop()
        size += 1
        if size > MAX_SIZE:
            raise ExpressionError(f"the expression has more than {MAX_SIZE:,} nodes: split it.")
        if isinstance(item, tuple):
            if level >= MAX_DEPTH:
                raise ExpressionError(f"nested deeper than {MAX_DEPTH}: split the expression.")
            if not item or not isinstance(item[0], str) or item[0] not in ARITY:
                raise ExpressionError(f"a tuple starts with an operator, got {shortened(item[0] if item else '()')}.")
            check_application(item, "")
            waiting.extend((operand, level + 1) for operand in item[1:])
        elif isinstance(item, str):
            leaf_of(item)
        elif not isinstance(item, int) or isinstance(item, bool):
            raise ExpressionError(f"a leaf is an int or a str, got {type(item).__name__} {shortened(item)}.")
        elif item.bit_length() > MAX_BITS:
            raise ExpressionError(f"a number has more than {MAX_DIGITS:,} digits.")


def check_application(expr: tuple[Any, ...], where: str) -> None:
    """Number of operands, and a symbol where an operator binds one."""
    if not expr:
        raise ExpressionError(f"empty parentheses{where}: write an operator and its operands, such as (+ 2 3).")
    head, given = expr[0], len(expr) - 1
    fewest, most = ARITY[head]
    if given < fewest or (most is not None and given > most) or (head == "integrate" and given == 3):
        raise ExpressionError(f"{head}{where} takes {_operands(head)}, got {given}.")
    if head in BINDERS:
        name = expr[BINDERS[head]]
        if not isinstance(name, str) or is_decimal(name) or name in CONSTANTS:
            raise ExpressionError(
                f"{head}{where} needs a symbol as operand {BINDERS[head]}, got {shortened(to_text(name))}: "
                "any name but the constants e and pi."
            )
        if head == "solve" and not (isinstance(expr[1], tuple) and expr[1][0] == "="):
            raise ExpressionError(
                f"solve{where} needs an equation (= L R) as operand 1, got {shortened(to_text(expr[1]))}."
            )


def _operands(head: str) -> str:
    if head == "integrate":
        return "2 operands (E x) or 4 (E x from to)"
    fewest, most = ARITY[head]
    count = f"{fewest} operand{'s' if fewest != 1 else ''}"
    return count if most == fewest else f"at least {count}"


def walk(expr: Expr) -> Iterator[Expr]:
    """Every sub-expression, the whole first, operands from the left."""
    waiting = [expr]
    while waiting:
        item = waiting.pop()
        yield item
        if isinstance(item, tuple):
            waiting.extend(reversed(item[1:]))


def left_spine(expr: Expr, operators: Collection[str]) -> tuple[Expr, list[tuple[Any, ...]]]:
    """The first operand of the first operand ... below a chain of operators, and the chain, innermost first.

    A sum of 10,000 terms is 10,000 deep there, and nowhere else: who loops over the chain recurses 100 deep at most.

    >>> left_spine(("-", ("+", "x", 1), 2), "+-")
    ('x', [('+', 'x', 1), ('-', ('+', 'x', 1), 2)])
    """
    if not isinstance(expr, tuple) or len(expr) < 3 or expr[0] not in operators:
        return expr, []
    chain = [expr]
    first = expr[1]
    while isinstance(first, tuple) and len(first) > 2 and first[0] in operators:
        chain.append(first)
        first = first[1]
    chain.reverse()
    return first, chain


def size(expr: Expr) -> int:
    """Number of nodes: operators and leaves."""
    return sum(1 for _ in walk(expr))


def depth(expr: Expr) -> int:
    """Longest path from the top to a leaf, in edges; 0 for a leaf."""
    deepest, layer = -1, [expr]
    while layer:
        deepest += 1
        layer = [operand for item in layer if isinstance(item, tuple) for operand in item[1:]]
    return deepest


def symbols_of(expr: Expr) -> frozenset[str]:
    """Every symbol that occurs, bound or free, without the constants ``e`` and ``pi``."""
    leaves = {item for item in walk(expr) if isinstance(item, str)}
    return frozenset(leaf for leaf in leaves if leaf not in CONSTANTS and not is_decimal(leaf))


def free_symbols(expr: Expr) -> frozenset[str]:
    """Symbols that still lack a value: those that no ``subst``, definite integral or ``solve`` binds.

    ``(derive E x)`` and ``(integrate E x)`` leave x free: their answers are functions of it.
    """
    found: set[str] = set()
    waiting: list[tuple[Expr, frozenset[str]]] = [(expr, frozenset())]
    while waiting:
        item, bound = waiting.pop()
        if isinstance(item, tuple):
            if item[0] in ("subst", "solve") or (item[0] == "integrate" and len(item) == 5):
                waiting.append((item[1], bound | {item[2]}))
                waiting += [(operand, bound) for operand in item[3:]]
            else:
                waiting += [(operand, bound) for operand in item[1:]]
        elif isinstance(item, str) and not (item in bound or item in CONSTANTS or is_decimal(item)):
            found.add(item)
    return frozenset(found)


def bind(expr: Expr, values: Mapping[str, Expr | Fraction]) -> Expr:
    """The expression with values for its symbols, as nested ``(subst E x v)``: the input form of level 3.

    All values are bound at once: ``{"x": "y", "y": "x"}`` exchanges x and y.

    Args:
        expr: any expression.
        values: symbol -> number (``int``, ``Fraction``, a decimal such as ``"0.5"``) or expression.

    Raises:
        ExpressionError: a name is not a symbol, or does not occur in the expression.

    >>> bind(("+", "x", 3), {"x": 2})
    ('subst', ('+', 'x', 3), 'x', 2)
    """
    check(expr)
    free = free_symbols(expr)
    for name in values:
        if name not in free:
            known = ", ".join(sorted(free)) or "none"
            raise ExpressionError(
                f"{name!r} is no free symbol of {shortened(to_text(expr))}: its free symbols are {known}."
            )
    numbers = {name: from_fraction(value) if isinstance(value, Fraction) else value for name, value in values.items()}
    later, taken = set(numbers), set(free).union(*map(symbols_of, [expr, *numbers.values()]))
    waits: dict[str, str] = {}  # a symbol in a value, and its stand-in until all are bound
    for name, number in numbers.items():
        check(number)
        later.discard(name)
        for other in sorted(free_symbols(number) & later):
            waits.setdefault(other, fresh_symbol(other, taken))
            taken.add(waits[other])
            number = ("subst", number, other, waits[other])
        expr = ("subst", expr, name, number)
    for other, waiting in waits.items():
        expr = ("subst", expr, waiting, other)
    check(expr)
    return expr


def fresh_symbol(name: str, taken: Collection[str]) -> str:
    """A symbol like this one that is none of those taken."""
    return next(f"{name}_{n}" for n in itertools.count(1) if f"{name}_{n}" not in taken)


def to_binary(expr: Expr) -> Expr:
    """The same expression with two operands for every ``+ - * /``: folded from the left, and ``(- a)`` as ``(- 0 a)``.

    >>> to_binary(("-", 1, 2, 3))
    ('-', ('-', 1, 2), 3)
    """
    folded, chain = left_spine(expr, _FOLDED)
    if isinstance(folded, tuple):
        operands = [to_binary(operand) for operand in folded[1:]]
        folded = ("-", 0, operands[0]) if folded[0] == "-" else (folded[0], *operands)
    for item in chain:
        for operand in item[2:]:
            folded = (item[0], folded, to_binary(operand))
    return folded


def number_of(expr: Expr) -> Fraction | None:
    """The rational that a number writes: an ``int``, a decimal or ``(/ int int)``; None for everything else.

    >>> number_of("0.1"), number_of(("/", 6, 4)), number_of("x")
    (Fraction(1, 10), Fraction(3, 2), None)
    """
    if isinstance(expr, int):
        return Fraction(expr)
    if isinstance(expr, str):
        return Fraction(expr) if is_decimal(expr) else None
    if len(expr) == 3 and expr[0] == "/" and isinstance(expr[1], int) and isinstance(expr[2], int) and expr[2]:
        return Fraction(expr[1], expr[2])
    return None


def from_fraction(value: Fraction) -> Expr:
    """The one spelling of a rational: an ``int``, or ``(/ numerator denominator)`` reduced, denominator above 1."""
    if value.denominator == 1:
        return value.numerator
    return ("/", value.numerator, value.denominator)


def shortened(item: object) -> str:
    """The item quoted, its middle cut out when long."""
    try:
        text = repr(item)
    except (ValueError, RecursionError):  # an integer of more than 4,300 digits, or nested too deep
        return f"a huge {type(item).__name__}"
    return text if len(text) <= 60 else f"{text[:40]}...{text[-12:]}"
