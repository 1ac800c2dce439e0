"""Text to expressions: Polish by `parse`, infix by `from_infix`, each with a word on the other where it is meant."""

import difflib
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from dagnn.curriculum.expression import (
    ARITY,
    MAX_DEPTH,
    MAX_SIZE,
    Expr,
    check,
    check_application,
    leaf_of,
    shortened,
    to_text,
)
from dagnn.curriculum.infix import read_infix
from dagnn.errors import ExpressionError

_TOKEN = re.compile(r"[()]|[^\s()]+")

# A sign that begins a parenthesis and is set apart: infix text hardly ever has one, Polish text nothing else.
_POLISH_SIGN = re.compile(r"\(\s*[-−–+*/^]\s")

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


def parse(text: str) -> Expr:
    """The expression that a Polish text writes.

    Raises:
        ExpressionError: the text is not one expression; the message names the position (from 0), and says the Polish
            form of infix text such as ``2*x + 5``.

    >>> parse("(+ (* 2 x) 5)")
    ('+', ('*', 2, 'x'), 5)
    """
    try:
        return _read_polish(text)
    except ExpressionError as error:
        polish = _polish_of_infix(text)
        if polish is None:
            raise
        raise ExpressionError(f"{error} Read as infix text it is {polish}: write that.") from None


def from_infix(text: str) -> Expr:
    """The expression that an infix text writes; an equation is solved for its one symbol.

    Raises:
        ExpressionError: it is no infix text, or one that can be read in two ways; the message says what to write.

    >>> from_infix("2*x + 5 = 13")
    ('solve', ('=', ('+', ('*', 2, 'x'), 5), 13), 'x')
    >>> from_infix("d/dx x^2")
    ('derive', ('^', 'x', 2), 'x')
    """
    if not isinstance(text, str):
        raise ExpressionError(f"from_infix reads text such as '2*x + 5', got {type(text).__name__}.")
    expr, has_bare_product = read_infix(text)
    check(expr)
    if _is_polish(text, expr) or (has_bare_product and _POLISH_SIGN.search(text)):
        raise ExpressionError(
            f"{shortened(text)} looks like Polish text, which means something else: read it with parse, or write "
            "a * for every product and no space behind '(-'."
        )
    return expr


def _read_polish(text: str) -> Expr:
    """As `parse`, without a word on infix text."""
    if not isinstance(text, str):
        raise ExpressionError(f"parse reads text such as '(+ 2 3)', got {type(text).__name__}.")
    open_lists: list[list[Any]] = []
    opened_at: list[int] = []
    result: Expr | None = None
    size = 0
    for match in _TOKEN.finditer(text):
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


def _polish_of_infix(text: object) -> str | None:
    """The Polish form of an infix text; None for what is none, or too long to show."""
    if not isinstance(text, str) or len(text) > 200 or text.isidentifier():
        return None
    try:
        return to_text(from_infix(text))
    except ExpressionError:
        return None


def _is_polish(text: str, expr: Expr) -> bool:
    """Is it Polish text too, with another meaning? ``(- 5 -3)`` is."""
    try:
        polish = _read_polish(text)
    except ExpressionError:
        return False
    return polish != expr and not (isinstance(polish, tuple) and len(polish) == 2)
