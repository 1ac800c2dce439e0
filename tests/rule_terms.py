"""Terms of the exact engine, built by hand from labels and rewritten: what the tests of its rules need."""

from dagnn.curriculum.engine import RuleEngine, from_term, to_term
from dagnn.curriculum.expression import Expr, to_text
from dagnn.curriculum.parsing import parse
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.rules.elementary import DECIMALS
from dagnn.curriculum.rules.numbers import integer
from dagnn.rewriting import Replacement, RewritingMachine, encode_replacement

# A fixed-point number is a whole number of parts of this size.
SCALE = 10**DECIMALS

# One for all tests: it asks the rules once for every neighbourhood.
MACHINE = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)


def normal(term: Replacement) -> Expr:
    """The normal form of a term such as ``("add", chain(3), chain(4))``; naturals stay digit chains."""
    return _normal(encode_replacement(term, SIGNATURE))


def rewritten(text: str, level: int | None = None) -> str:
    """The normal form of an expression, both as Polish text."""
    term, names = to_term(parse(text), level)
    return to_text(_normal(term, names))


def fixed_value(term: Replacement) -> float:
    """The number that a term in fixed point is rewritten to."""
    label, scaled = normal(term)
    assert label == "fixed"
    return scaled / SCALE


def fixed_term(scaled: int) -> Replacement:
    """``scaled / SCALE`` in fixed point."""
    return ("fixed", integer(scaled))


def _normal(tokens, names=None) -> Expr:
    result = MACHINE.run([tokens])[0]
    assert result.tokens is not None, result.stopped
    return from_term(result.tokens, names)
