"""The exact engine as a rewriting system: rewrites an expression step by step to its normal form.

`to_term` and `from_term` translate between expressions and the machine's terms, `to_dag` and `from_dag` between
expressions and graphs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from dagnn.curriculum.exact.precise import decimal_leaf
from dagnn.curriculum.expression import (
    ARITY,
    BINDERS,
    CONSTANTS,
    MAX_DIGITS,
    MAX_SIZE,
    Expr,
    check,
    from_fraction,
    is_decimal,
    shortened,
    symbols_of,
    to_text,
    walk,
)
from dagnn.curriculum.levels import level_spec
from dagnn.curriculum.parsing import parse
from dagnn.curriculum.rules import SIGNATURE, apply_rule
from dagnn.curriculum.rules.elementary import DECIMALS
from dagnn.errors import ExpressionError, GraphError
from dagnn.graph import Dag
from dagnn.rewriting.machine import Rewriter, RewritingMachine, Rewritten
from dagnn.rewriting.system import (
    Neighbourhood,
    NeighbourhoodTokens,
    ReplacementTokens,
    encode_replacement,
    neighbourhood_nodes,
    read_neighbourhood,
)

# Level 4 takes about 2,000 steps on average; the largest seen in 10,000 samples took 11,000.
MAX_STEPS = 200_000

# First the letters that the generator draws, so that `(derive (^ speed 2) speed)` looks like a drawn expression.
_LETTERS = tuple("xyzabcdfghijklmnopqrstuvw")

_ID = SIGNATURE.id_of
_POSITIVE, _NEGATIVE, _END = _ID["positive"], _ID["negative"], _ID["end"]
_DIGIT = [_ID[f"d{digit}"] for digit in range(10)]
_VALUE_OF_DIGIT = {f"d{digit}": digit for digit in range(10)}
_LARGEST_REST = 10 ** (MAX_DIGITS - 1)
_FOLDED = ("+", "-", "*", "/")
_NAMES = tuple(label.name for label in SIGNATURE.labels)
_ARITY = tuple(label.arity for label in SIGNATURE.labels)


class RuleEngine:
    """A `Rewriter` that answers neighbourhoods by the rules of `dagnn.curriculum.rules`."""

    def rewrite(self, neighbourhoods: Sequence[NeighbourhoodTokens]) -> list[ReplacementTokens]:
        return [
            encode_replacement(apply_rule(read_neighbourhood(neighbourhood, SIGNATURE)), SIGNATURE)
            for neighbourhood in neighbourhoods
        ]


@dataclass(frozen=True)
class RewriteStep:
    """One step of a trace.

    Attributes:
        neighbourhood: what the step looked at, as tokens (see `read_neighbourhood`).
        replacement: what it put there, as tokens.
        before, after: the sub-expression that was rewritten, and what it became; None where that is longer than 4,096
            labels.
    """

    neighbourhood: NeighbourhoodTokens
    replacement: ReplacementTokens
    before: Expr | None
    after: Expr | None

    def __str__(self) -> str:
        before, after = ("..." if part is None else to_text(part) for part in (self.before, self.after))
        return f"{before} -> {after}"


Trace: TypeAlias = list[RewriteStep]


def normal_form(expression: Expr, level: int | None = None, *, budget: int = MAX_STEPS) -> Expr:
    """The expression rewritten until no rule applies.

    Args:
        expression: any expression of the language.
        level: a numeric level reads the expression as ``(approx ...)``.
        budget: rewrite steps.

    Raises:
        ConfigError: there is no such level.
        ExpressionError: no expression, one that the rules cannot express (see `to_term`), or no normal form within
            the budget.

    >>> normal_form(("derive", ("^", "x", 2), "x"))
    ('*', 2, 'x')
    """
    check(expression)
    term, names = to_term(expression, level)
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    return _result(expression, machine.run([term], budget=budget)[0], names)


def trace(
    expression: Expr, level: int | None = None, *, rewriter: Rewriter | None = None, budget: int = MAX_STEPS
) -> tuple[Expr, Trace]:
    """The normal form, and every step that led to it, innermost first; errors as of `normal_form`.

    Args:
        expression: any expression of the language.
        level: a numeric level reads the expression as ``(approx ...)``.
        rewriter: rewrites the neighbourhoods; None is the exact engine, a trained `GraphRewriter` is another.
        budget: rewrite steps.
    """
    check(expression)
    term, names = to_term(expression, level)
    machine = RewritingMachine(SIGNATURE, rewriter or RuleEngine(), eager=rewriter is None)
    result, steps = machine.trace(term, budget=budget)
    replacement_of = {machine.neighbourhood(w): machine.replacement(w) or () for w in range(machine.num_neighbourhoods)}

    def written(tokens: list[int]) -> Expr | None:
        return from_term(tokens, names) if tokens else None

    return _result(expression, result, names), [
        RewriteStep(step.neighbourhood, replacement_of[step.neighbourhood], written(step.before), written(step.after))
        for step in steps
    ]


def to_dag(expr: Expr, share: bool = False) -> Dag:
    """The graph of an expression, as ``Dag.from_polish`` builds it.

    Args:
        expr: any expression.
        share: make equal sub-expressions one node.

    Returns:
        A Dag with the node attribute "label" (tuple of str) and the edge attribute "position" (int64 ``[num_edges]``,
        0 for the first operand).

    Raises:
        ExpressionError: not an expression.

    >>> to_dag(("*", ("+", "x", 1), ("+", "x", 1)), share=True).num_nodes
    4
    """
    check(expr)
    return Dag.from_polish(to_text(expr), share=share)


def from_dag(dag: Dag) -> Expr:
    """The expression of a graph; shared nodes are written out. ``from_dag(to_dag(expr)) == expr``.

    Raises:
        GraphError: not one expression: no label or position, or more than one node without a user.
        ExpressionError: a label that the language does not have, a wrong number of operands, or an expression of more
            than 100,000 nodes when sharing is undone.

    >>> from_dag(to_dag(("+", "x", 1)))
    ('+', 'x', 1)
    """
    try:
        text = dag.to_polish(max_tokens=2 * MAX_SIZE)
    except GraphError as error:
        if "max_tokens" not in str(error):
            raise
        raise ExpressionError(f"the graph writes out to more than {MAX_SIZE:,} nodes: keep it shared.") from None
    return parse(text)


def to_term(expression: Expr, level: int | None = None) -> tuple[list[int], dict[str, str]]:
    """The preorder label ids of an expression, and the names of the symbols that were renamed (letter -> name).

    Args:
        expression: any expression of the language; sums of many operands are folded from the left.
        level: a numeric level reads the expression as ``(approx ...)``.

    Raises:
        ConfigError: there is no such level.
        ExpressionError: more different symbols than the rewriting system has letters, ``roots`` of another
            number of values than two, or an operator that is none of the language.
    """
    letters = _letters_for(expression)
    tokens: list[int] = []
    is_approximation = isinstance(expression, tuple) and expression[0] == "approx"
    if level is not None and level_spec(level).numeric and not is_approximation:
        tokens.append(_ID["approx"])
    _write(expression, letters, tokens)
    return tokens, {letter: name for name, letter in letters.items() if letter != name}


def from_term(tokens: Sequence[int], names: Mapping[str, str] | None = None, *, numerals: bool = False) -> Expr:
    """The expression that a term writes; digit chains become numbers.

    Args:
        tokens: preorder label ids.
        names: of the symbols that were renamed, from `to_term`.
        numerals: writes a digit chain that is no number yet as ``#23``, for people to read; otherwise it is
            ``(d3 (d2 end))``.

    A label of the system that is no operator of the language, such as a half-finished sum, stays in the
    result under its own name, so a stuck term can be shown; so does a number of more than 4,000 digits.
    """
    known = names or {}
    parts: list[_Part] = []
    # From the last label back, so that a node's children are there before it: no recursion, whatever the depth.
    for token in reversed(tokens):
        children = [parts.pop() for _ in range(_ARITY[token])]
        parts.append(_part(_NAMES[token], children, known, numerals))
    return parts.pop().expression


def neighbourhood_text(neighbourhood: NeighbourhoodTokens) -> str:
    """A neighbourhood for people to read: ``?1`` is a part that is out of sight, and the same one wherever it comes."""
    return _text(read_neighbourhood(neighbourhood, SIGNATURE), _marks(neighbourhood))


def replacement_text(neighbourhood: NeighbourhoodTokens, replacement: ReplacementTokens) -> str:
    """What takes the place of a neighbourhood, with the parts as `neighbourhood_text` names them."""
    if not replacement:
        return "leaves it as it is"
    nodes, marks = neighbourhood_nodes(read_neighbourhood(neighbourhood, SIGNATURE)), _marks(neighbourhood)
    parts: list[str] = []
    for token in reversed(replacement):
        if token >= len(SIGNATURE.labels):
            parts.append(_text(nodes[token - len(SIGNATURE.labels)], marks))
            continue
        label = SIGNATURE.labels[token]
        inner = "".join(f" {parts.pop()}" for _ in range(label.arity))
        parts.append(f"({label.name}{inner})" if inner else label.name)
    return parts.pop()


def _marks(neighbourhood: NeighbourhoodTokens) -> dict[int, str]:
    """Names for what is out of sight: index -> name."""
    hidden = [node for node in neighbourhood_nodes(read_neighbourhood(neighbourhood, SIGNATURE)) if node.label == "?"]
    return {node.index: f"?{number}" for number, node in enumerate(hidden, 1)}


def _text(node: Neighbourhood, marks: Mapping[int, str]) -> str:
    if node.index in marks:
        return marks[node.index]
    inner = "".join(f" {_text(child, marks)}" for child in node.children)
    return f"({node.label}{inner})" if inner else node.label


def _result(expression: Expr, result: Rewritten, names: dict[str, str]) -> Expr:
    if result.tokens is None:
        raise ExpressionError(f"{shortened(to_text(expression))}: {result.stopped}.")
    return from_term(result.tokens, names)


class _Part(NamedTuple):
    """A sub-term: as an expression, and as a natural number where it is a closed digit chain."""

    expression: Expr
    natural: int | None = None


def _letters_for(expression: Expr) -> dict[str, str]:
    """Symbol -> letter: x for the one that the outermost operator binds, as the generator draws it; then the others."""
    bound = dict.fromkeys(
        item[BINDERS[item[0]]] for item in walk(expression) if isinstance(item, tuple) and item[0] in BINDERS
    )
    symbols = list(bound | dict.fromkeys(sorted(symbols_of(expression))))
    if len(symbols) > len(_LETTERS):
        raise ExpressionError(
            f"the expression has {len(symbols)} symbols, the rewriting system takes {len(_LETTERS)}: "
            "give some of them values first."
        )
    return dict(zip(symbols, _LETTERS, strict=False))


def _write(expression: Expr, letters: Mapping[str, str], tokens: list[int]) -> None:
    """Appends the term; a loop, because 1,000 operands are folded 1,000 deep."""
    waiting = [expression]
    while waiting:
        item = waiting.pop()
        if isinstance(item, int):
            _write_integer(item, tokens)
        elif isinstance(item, str):
            if is_decimal(item):
                waiting.append(from_fraction(Fraction(item)))
            else:
                tokens.append(_ID[item if item in CONSTANTS else letters[item]])
        else:
            head, *operands = item
            if head == "-" and len(operands) == 1:
                operands = [0, *operands]
            folded = len(operands) - 1 if head in _FOLDED and len(operands) > 2 else 1
            name = "definite" if head == "integrate" and len(operands) == 4 else head
            if head not in ARITY or len(operands) - folded + 1 != _ARITY[_ID[name]]:
                raise ExpressionError(f"{head} with {len(operands)} operands has no rewrite rule.")
            tokens.extend([_ID[name]] * folded)
            waiting.extend(reversed(operands))


def _write_integer(value: int, tokens: list[int]) -> None:
    tokens.append(_NEGATIVE if value < 0 else _POSITIVE)
    value = abs(value)
    while value:
        value, digit = divmod(value, 10)
        tokens.append(_DIGIT[digit])
    tokens.append(_END)


def _part(name: str, children: Sequence[_Part], names: Mapping[str, str], numerals: bool) -> _Part:
    if name == "end":
        return _Part(name, 0)
    inner = [child.expression for child in children]
    natural = children[0].natural if children else None
    if name in _VALUE_OF_DIGIT:
        chain: Expr = (name, *inner)
        if numerals and isinstance(inner[0], str) and (inner[0] == "end" or inner[0].startswith("#")):
            chain = f"#{inner[0].lstrip('#').removeprefix('end')}{_VALUE_OF_DIGIT[name]}"
        if natural is None or natural >= _LARGEST_REST:
            return _Part(chain)
        return _Part(chain, 10 * natural + _VALUE_OF_DIGIT[name])
    if name in ("positive", "negative") and natural is not None:
        return _Part(natural if name == "positive" else -natural)
    if name == "fraction":
        denominator = children[1].expression if children[1].natural is None else children[1].natural
        return _Part(("/", inner[0], denominator))
    if name == "decimal" and isinstance(inner[0], int):
        return _Part(decimal_leaf(Fraction(inner[0], 10**DECIMALS)))
    if not children:
        return _Part(names.get(name, name))
    return _Part(("integrate" if name == "definite" else name, *inner))
