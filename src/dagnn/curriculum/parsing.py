"""Text to expressions: `parse` reads Polish, `from_infix` reads infix text as people type it, ``2*x + 5 = 13``.

Each suggests the other where that was meant. Infix text is

=============================  ========================================================================
``+ - * / ^``                  as in Python, ``^`` and ``**`` alike: ``-x^2`` is ``-(x^2)``
``2x``, ``3(x+1)``             a product; so is ``(x+1)(x-1)``. Not after ``/`` or ``^``: ``1/2x`` is refused
``sin(x)``, ``ln(x)``          a function; ``log`` and ``ln`` are the natural logarithm; ``sin x`` of one word
``d/dx x^2``                   the derivative of what follows, up to the end or a parenthesis
``diff(E, x)``                 the same
``integrate(E, x)``            an antiderivative; ``integrate(E, x, 0, 1)`` is the integral from 0 to 1
``2*x + 5 = 13``               solved for its one symbol; ``solve(y = 2*x, x)`` says for which
``subst(E, x, 2)``             E at x = 2
=============================  ========================================================================

A name of several letters is one symbol: ``xy`` is not ``x*y``. What can be read in two ways is refused,
``sinx``, ``dy/dx`` and ``d/dx xy`` too.
"""

import re
from itertools import groupby
from typing import NamedTuple

from dagnn.curriculum.expression import (
    FUNCTIONS,
    MAX_DEPTH,
    Expr,
    check,
    free_symbols,
    leaf_of,
    read_polish,
    shortened,
    to_text,
)
from dagnn.errors import ExpressionError

_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_SIGNS = {
    **dict.fromkeys("-−–", "-"),  # the keyboard's, Unicode's minus, and the dash that editors make of it
    **dict.fromkeys(("*", "×", "·", "⋅", "∗"), "*"),
    **dict.fromkeys("/÷∕", "/"),
    **dict.fromkeys(("^", "**"), "^"),
    **dict.fromkeys(("=", "=="), "="),
    **{sign: sign for sign in "+(),"},
}
_WORD = rf"(?:(?![{_SUPERSCRIPTS}])[^\W\d])(?:(?![{_SUPERSCRIPTS}])\w)*"
_TOKEN = re.compile(
    rf"(?P<slope>d\s*/\s*d(?P<by>{_WORD})(?!\w))|(?P<higher>d(?:\^|\*\*)?[{_SUPERSCRIPTS}\d]+\s*/\s*d[^\W\d])"
    rf"|(?P<number>\d+(?:\.\d+)?|\.\d+)|(?P<word>{_WORD})|(?P<super>⁻?[{_SUPERSCRIPTS}]+)"
    r"|(?P<sign>\*\*|==|[-−–*×·⋅∗/÷∕^=+(),])|(?P<other>\S)"
)
_ALIASES = {
    "ln": "log", "int": "integrate", "integral": "integrate", "diff": "derive", "derivative": "derive", "π": "pi",
    "√": "sqrt",
}  # fmt: skip
# A function and its operand written as one word: sinx, ln2, cos2x.
_RUN_ON_CALL = re.compile(rf"({'|'.join((*FUNCTIONS, 'ln'))})(\d*[xyzθ]|\d+|pi|π)")
_DIFFERENTIAL = re.compile(r"d[^\W\d]")
# operator -> numbers of arguments
_CALLS = {**dict.fromkeys((*FUNCTIONS, "approx"), (1,)), "derive": (2,), "integrate": (2, 4), "subst": (3,)}
# What may stand before a factor without a sign between: 2x, (x+1)(x-1).
_NUMBER, _CLOSED, _OTHER = "number", "closed", "other"
# A sign that begins a parenthesis and is set apart: infix text hardly ever has one, Polish text nothing else.
_POLISH_SIGN = re.compile(r"\(\s*[-−–+*/^]\s")


class _Token(NamedTuple):
    kind: str
    text: str
    glued: bool  # no space before it


def parse(text: str) -> Expr:
    """The expression that a Polish text writes.

    Raises:
        ExpressionError: the text is not one expression; the message names the position (from 0), and says the Polish
            form of infix text such as ``2*x + 5``.

    >>> parse("(+ (* 2 x) 5)")
    ('+', ('*', 2, 'x'), 5)
    """
    try:
        return read_polish(text)
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
    reader = _Reader(text)
    expr = reader.whole()
    check(expr)
    if _is_polish(text, expr) or (reader.has_bare_product and _POLISH_SIGN.search(text)):
        raise ExpressionError(
            f"{shortened(text)} looks like Polish text, which means something else: read it with parse, or write "
            "a * for every product and no space behind '(-'."
        )
    return expr


class _Reader:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0
        self.has_bare_product = False

    def whole(self) -> Expr:
        if not self._tokens:
            raise ExpressionError("the text is empty: write an expression such as 2*x + 5.")
        left = self._sum()
        if not self._takes("="):
            self._end()
            return left
        right = self._sum()
        self._end()
        symbols = sorted(free_symbols(left) | free_symbols(right))
        if len(symbols) != 1:
            which = f"has the symbols {', '.join(symbols)}" if symbols else "has no symbol"
            raise ExpressionError(
                f"the equation {shortened(self._text)} {which}: write solve(L = R, x) for one of them."
            )
        return ("solve", ("=", left, right), symbols[0])

    def _end(self) -> None:
        token = self._peek()
        if token is not None:
            raise ExpressionError(f"{self._place()}: nothing may follow there, got {token.text!r}.")

    def _sum(self) -> Expr:
        self._go_deeper()
        first, is_slope = self._product()
        rest: list[tuple[str, Expr]] = []
        while (sign := self._takes("+", "-")) is not None:
            if is_slope:
                raise self._ambiguous("what d/dx is taken of", "d/dx (...)")
            operand, is_slope = self._product()
            rest.append((sign, operand))
        self._depth -= 1
        return _chained(first, rest)

    def _product(self) -> tuple[Expr, bool]:
        """And whether it ends with a ``d/dx`` whose operand a sum could go on."""
        token = self._peek()
        if token is not None and token.kind == "slope":
            return self._slope()
        first, kind = self._factor()
        rest: list[tuple[str, Expr]] = []
        sign: str | None = None
        while True:
            following = self._peek()
            taken = self._takes("*", "/")
            if taken is None:
                if following is None or not _starts_factor(following):
                    return _chained(first, rest), False
                if kind == _OTHER or sign == "/" or (following.kind in ("number", "super")):
                    raise self._ambiguous("a product without its sign", "a * between the factors")
                taken, self.has_bare_product = "*", True
                if following.kind == "word" and kind == _NUMBER and following.glued:
                    self._refuse_run_on(following.text)
            following = self._peek()
            if following is not None and following.kind == "slope":
                operand, is_open = self._slope()
                return _chained(first, [*rest, (taken, operand)]), is_open
            ends = [part.text for part in (token, following) if part is not None]
            if taken == "/" and len(ends) == 2 and all(map(_DIFFERENTIAL.fullmatch, ends)):
                raise self._ambiguous("/".join(ends), f"d/{ends[1]} (...)")
            operand, kind = self._factor()
            rest.append((taken, operand))
            sign = taken

    def _slope(self) -> tuple[Expr, bool]:
        """``d/dx`` of a product, or of what stands in parentheses alone."""
        token = self._tokens[self._next]
        self._next += 1
        symbol = token.text
        following = self._peek()
        if following is None or not _starts_factor(following):
            raise ExpressionError(
                f"{self._place()}: d/d{symbol} needs a product behind it, as in d/dx x^2 or d/dx (x^2 + 1)."
            )
        in_parentheses, start = following.text == "(", self._next
        self._go_deeper()
        operand, is_open = self._product()
        self._depth -= 1
        self._refuse_hidden(symbol, operand)
        closed = in_parentheses and self._closing(start) == self._next
        behind = None if not in_parentheses or closed else self._tokens[self._closing(start)]
        if behind is not None and behind.text != "^" and behind.kind != "super":
            raise self._ambiguous("what d/dx is taken of", "d/dx (...)")
        return ("derive", operand, symbol), not closed or is_open

    def _closing(self, start: int) -> int:
        """The token behind the parenthesis that closes the one at ``start``."""
        depth = 0
        for i in range(start, len(self._tokens)):
            depth += {"(": 1, ")": -1}.get(self._tokens[i].text, 0)
            if depth == 0:
                return i + 1
        return len(self._tokens)

    def _factor(self) -> tuple[Expr, str]:
        """A signed power, and what kind of thing it ends with."""
        sign, negative = self._takes("+", "-"), False
        while sign is not None:
            negative ^= sign == "-"
            sign = self._takes("+", "-")
        base, kind = self._atom()
        token = self._peek()
        if self._takes("^"):
            self._go_deeper()
            base, kind = ("^", base, self._factor()[0]), _OTHER
            self._depth -= 1
        elif token is not None and token.kind == "super":
            self._next += 1
            digits = "".join("-" if sign == "⁻" else str(_SUPERSCRIPTS.index(sign)) for sign in token.text)
            base, kind = ("^", base, leaf_of(digits)), _OTHER
            after = self._peek()
            if after is not None and (after.kind == "super" or after.text == "^"):
                raise self._ambiguous("a power of a power", "parentheses")
        if negative:
            base = leaf_of(f"-{base}") if kind == _NUMBER else ("-", base)
        return base, kind

    def _atom(self) -> tuple[Expr, str]:
        token = self._peek()
        if token is None:
            raise ExpressionError(f"{shortened(self._text)} ends where an operand is missing.")
        self._next += 1
        if token.kind == "number":
            after = self._peek()
            if after is not None and after.glued and after.kind == "word" and re.match(r"[eE](\d|$)", after.text):
                beyond = self._tokens[self._next + 1] if self._next + 1 < len(self._tokens) else None
                if after.text not in "eE" or (beyond is not None and beyond.glued and beyond.text in ("+", "-")):
                    raise self._ambiguous("a power of ten", "2*10^3 or 2*e")
            number = token.text if token.text[0] != "." else f"0{token.text}"
            return leaf_of(number), _NUMBER
        if token.text == "(":
            inner = self._sum()
            self._expect(")")
            return inner, _CLOSED
        if token.kind == "word":
            return self._word(token)
        if token.kind == "higher":
            raise ExpressionError(f"{self._place()}: write a second derivative as d/dx (d/dx E).")
        if token.kind == "slope":
            raise self._ambiguous("d/dx", "diff(E, x)")
        raise ExpressionError(f"{self._place()}: expected a number, a symbol or '(', got {token.text!r}.")

    def _word(self, token: _Token) -> tuple[Expr, str]:
        name = _ALIASES.get(token.text, token.text)
        after = self._peek()
        if name in _CALLS or name == "solve":
            if after is not None and after.text == "(":
                self._next += 1
                return self._call(name), _CLOSED
            if name in FUNCTIONS and after is not None and after.kind in ("number", "word"):
                beyond = self._tokens[self._next + 1] if self._next + 1 < len(self._tokens) else None
                if beyond is None or beyond.text in ("+", "-", ")", ",", "="):
                    return (name, self._atom()[0]), _OTHER
            raise ExpressionError(f"{self._place()}: write what {name} is taken of in parentheses: {name}(...).")
        if after is not None and after.text == "(":
            raise ExpressionError(
                f"{self._place()}: {token.text} is no function; write {token.text}*(...) for a product. "
                f"The functions are {' '.join(sorted([*_CALLS, 'solve']))}."
            )
        run_on = _RUN_ON_CALL.fullmatch(token.text)
        if run_on is not None:
            raise self._ambiguous(token.text, f"{run_on[1]}({run_on[2]}), or another name for a symbol")
        return leaf_of(name), _OTHER

    def _call(self, name: str) -> Expr:
        if name == "solve":
            return self._solve()
        arguments = [self._sum()]
        while self._takes(","):
            arguments.append(self._sum())
        self._expect(")")
        if len(arguments) not in _CALLS[name]:
            counts = " or ".join(map(str, _CALLS[name]))
            raise ExpressionError(
                f"{name} takes {counts} argument{'' if counts == '1' else 's'}, got {len(arguments)}."
            )
        if name in ("derive", "integrate"):
            self._refuse_hidden(arguments[1], arguments[0])
        return (name, *arguments)

    def _solve(self) -> Expr:
        left = self._sum()
        right: Expr = self._sum() if self._takes("=") else 0
        symbol: Expr | None = self._atom()[0] if self._takes(",") else None
        self._expect(")")
        if symbol is None:
            symbols = sorted(free_symbols(left) | free_symbols(right))
            if len(symbols) != 1:
                raise ExpressionError("solve needs the symbol to solve for: write solve(L = R, x).")
            symbol = symbols[0]
        return ("solve", ("=", left, right), symbol)

    def _refuse_run_on(self, word: str) -> None:
        """``2xy``: one symbol or two?"""
        number = self._tokens[self._next - 1].text
        name = _ALIASES.get(word, word)
        if len(word) > 1 and name not in _CALLS and name != "pi":
            raise self._ambiguous(f"{number}{word}", f"{number}*{word} for one symbol, or a * between the letters")

    def _refuse_hidden(self, symbol: Expr, operand: Expr) -> None:
        """``d/dx xy``: is xy one symbol, of which x is no part?"""
        for name in sorted(free_symbols(operand)):
            if isinstance(symbol, str) and symbol in name and len(symbol) == 1 < len(name) < 4 and name.isalpha():
                raise self._ambiguous(name, f"a * between the letters, or a longer name for a symbol without {symbol}")

    def _go_deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError(f"nested deeper than {MAX_DEPTH}: split the expression.")

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _takes(self, *signs: str) -> str | None:
        """The sign that comes next, passed over, if it is one of these."""
        token = self._peek()
        if token is None or token.kind != "sign" or token.text not in signs:
            return None
        self._next += 1
        return token.text

    def _expect(self, sign: str) -> None:
        if self._takes(sign) is None:
            token = self._peek()
            raise ExpressionError(
                f"{self._place()}: expected {sign!r}, got {'the end' if token is None else repr(token.text)}."
            )

    def _place(self) -> str:
        return f"in {shortened(self._text)}"

    def _ambiguous(self, what: str, instead: str) -> ExpressionError:
        return ExpressionError(f"{self._place()}: {what} can be read in two ways: write {instead}.")


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    end = 0
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if match["slope"] is not None:
            kind, word = "slope", match["by"]
            if tokens and tokens[-1].kind == "number" and match.start() == end:
                raise ExpressionError(f"in {shortened(text)}: write a space or * before d/d{word}.")
        else:
            word = match.group()
        if kind == "other" and word == "√":
            kind = "word"
        if kind == "other":
            raise ExpressionError(f"in {shortened(text)}: {word!r} is no sign of infix text.")
        tokens.append(_Token(kind, _SIGNS.get(word, word), match.start() == end))
        end = match.end()
    return tokens


def _starts_factor(token: _Token) -> bool:
    return token.kind in ("number", "word", "slope", "higher", "super") or token.text == "("


def _chained(first: Expr, rest: list[tuple[str, Expr]]) -> Expr:
    """``first sign operand sign operand ...``; a chain of one sign is one operator, so that long sums are not deep."""
    result = first
    for sign, pairs in groupby(rest, key=lambda pair: pair[0]):
        operands = [operand for _, operand in pairs]
        goes_on = isinstance(result, tuple) and result[0] == sign and len(result) > 2
        result = (*result, *operands) if goes_on else (sign, result, *operands)  # type: ignore[misc]
    return result


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
        polish = read_polish(text)
    except ExpressionError:
        return False
    return polish != expr and not (isinstance(polish, tuple) and len(polish) == 2)
