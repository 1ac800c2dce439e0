"""The engine's steps as text: what the scratchpad Transformer of the curriculum comparison learns.

A step takes a whole expression to the next one. All innermost places where a rule applies are rewritten at once, which
makes the scratchpad as short as it can be. There are two grains:

- ``"rules"``: one rule at each place; a product of two numbers is many expressions long, digit by digit.
- ``"numbers"``: at each place, as many rules as it takes until all its digits belong to finished numbers; a product
  of two numbers is one step.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.curriculum_text import WORDS, Words, decode, encode_answer
from dagnn.curriculum import LEVELS, Expr, Sample
from dagnn.curriculum.engine import RuleEngine, from_term, to_term
from dagnn.curriculum.rules import SIGNATURE
from dagnn.rewriting import RewritingMachine

GRAINS = ("rules", "numbers")
_RESERVED = 2  # padding and beginning
_NUM_LABELS = len(SIGNATURE.labels)
_DONE = _RESERVED + _NUM_LABELS
_ANSWERS = _DONE + 1

# The engine's labels, `done` before the last expression of a scratchpad, and the words of an answer given at once.
STEP_WORDS = Words(
    [
        *((label.name, label.arity) for label in SIGNATURE.labels),
        ("done", 1),
        *((f"={name}", arity) for name, arity in zip(WORDS.names, WORDS.arities, strict=True)),
    ]
)

_DIGITS = frozenset(SIGNATURE.id_of[name] for name in ("end", *(f"d{digit}" for digit in range(10))))
_HOLDS_DIGITS = _DIGITS | {SIGNATURE.id_of[name] for name in ("positive", "negative", "fraction")}

# A term: its label, then its children. `Any` because no alias is recursive.
Term = tuple[Any, ...]


class Scratchpad:
    """Traces expressions by the exact engine and writes their steps as texts.

    Level 4, where the engine takes thousands of steps, has no scratchpad: the answer is given at once.

    Args:
        grain: one of `GRAINS`.
        most_steps: a longer scratchpad is not written: the answer is given at once.
        most_words: the same for a longer expression.
    """

    def __init__(self, grain: str = "numbers", *, most_steps: int = 60, most_words: int = 160) -> None:
        assert grain in GRAINS, grain
        self._grain, self._most_steps, self._most_words = grain, most_steps, most_words
        self._machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
        self._after: dict[Term, Term] = {}

    def texts(self, sample: Sample) -> list[list[int]]:
        """The expressions of a scratchpad as words, from the input to ``(done answer)``."""
        tokens = to_term(sample.input, sample.level)[0]
        if LEVELS[sample.level].numeric:  # 2,000 rules on average
            return [words_of(tokens), at_once(sample)]
        result, steps = self._machine.trace(tokens)
        assert result.tokens is not None, result.stopped
        next_of = {term_of(step.before): term_of(step.after) for step in steps}
        state = term_of(tokens)
        texts = [words_of(tokens)]
        while len(texts) <= self._most_steps:
            following = self._next(state, next_of)
            if following is state:
                last = [_DONE, *texts[-1]]
                return [*texts[:-1], last] if len(texts) > 1 else [texts[0], last]
            state = following
            texts.append(words_of(flat(state)))
            if len(texts[-1]) > self._most_words:
                break
        return [texts[0], at_once(sample)]

    def _next(self, term: Term, next_of: dict[Term, Term]) -> Term:
        """The term with all its innermost redexes rewritten; the same object where there is none."""
        children = [self._next(child, next_of) for child in term[1:]]
        if any(new is not old for new, old in zip(children, term[1:], strict=True)):
            return (term[0], *children)
        if term not in next_of:
            return term
        if self._grain == "rules":
            return next_of[term]
        after = self._after.get(term)
        if after is None:
            after = self._after[term] = finished(next_of[term], next_of)
        return after


def finished(term: Term, next_of: dict[Term, Term]) -> Term:
    """The term after as many rules as it takes until all its digits belong to finished numbers."""
    while not has_finished_numbers(term):
        children = [finished(child, next_of) for child in term[1:]]
        if all(new is old for new, old in zip(children, term[1:], strict=True)):
            if term in next_of:
                term = next_of[term]
                continue
            children = [one_rule_each(child, next_of) for child in children]
            if all(new is old for new, old in zip(children, term[1:], strict=True)):
                return term  # such as a quotient with its rest: what is above it goes on
        term = (term[0], *children)
    return term


def one_rule_each(term: Term, next_of: dict[Term, Term]) -> Term:
    """The term with one rule applied at all its innermost redexes; the same object where there is none."""
    children = [one_rule_each(child, next_of) for child in term[1:]]
    if any(new is not old for new, old in zip(children, term[1:], strict=True)):
        return (term[0], *children)
    return next_of.get(term, term)


def has_finished_numbers(term: Term) -> bool:
    """Whether every digit in the term belongs to a finished number."""
    holds = term[0] in _HOLDS_DIGITS
    return all((holds or child[0] not in _DIGITS) and has_finished_numbers(child) for child in term[1:])


def at_once(sample: Sample) -> list[int]:
    """The answer as a last text, without the steps."""
    return [_ANSWERS + word for word in encode_answer(sample.answer, sample.level)]


def first_text(sample: Sample) -> list[int]:
    """The words of an input."""
    return words_of(to_term(sample.input, sample.level)[0])


def answer_of(text: Sequence[int], sample: Sample) -> Expr | None:
    """What a last text answers; None when it is no last text, or spells nothing."""
    if text and text[0] == _DONE and STEP_WORDS.is_whole(text) and max(text[1:]) < _DONE:
        names = to_term(sample.input, sample.level)[1]
        return from_term([word - _RESERVED for word in text[1:]], names)
    if text and min(text) >= _ANSWERS:
        return decode([word - _ANSWERS for word in text])
    return None


def is_last(text: Sequence[int]) -> bool:
    """Whether nothing is to follow: it says so, gives an answer, or is no expression."""
    return not STEP_WORDS.is_whole(text) or text[0] >= _DONE


def words_of(tokens: Sequence[int]) -> list[int]:
    """The engine's label ids as words."""
    return [_RESERVED + token for token in tokens]


def term_of(tokens: Sequence[int]) -> Term:
    """The term that preorder label ids spell."""
    stack: list[Term] = []
    for token in reversed(tokens):
        stack.append((token, *[stack.pop() for _ in range(SIGNATURE.labels[token].arity)]))
    return stack[0]


def flat(term: Term) -> list[int]:
    """The preorder label ids of a term."""
    tokens = [term[0]]
    for child in term[1:]:
        tokens += flat(child)
    return tokens
