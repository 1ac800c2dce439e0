"""Facts about digits that a network is not sure of, worked out in smaller steps that it is sure of.

A product of two digits is a sum of equal ones; a sum is found by counting, a difference by looking for the sum. A
network that was never shown 7 * 8 guesses it; one that was shown how to add need not.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from itertools import product
from typing import NamedTuple, Protocol

from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.rules.numbers import chain, digit_constant, digit_of
from dagnn.rewriting.machine import RewritingMachine
from dagnn.rewriting.network import Proposal
from dagnn.rewriting.system import (
    Neighbourhood,
    NeighbourhoodTokens,
    Replacement,
    ReplacementTokens,
    encode_replacement,
    read_neighbourhood,
)

# A network is sure at this confidence: at the end of training the least of a million steps has 0.999.
SURE = 0.99
_DIGITS = [f"d{digit}" for digit in range(10)]
_SUMS = {"add": 0, "add_carry": 1}
_DIFFERENCES = {"subtract": "add", "subtract_borrow": "add_carry"}
_DIGIT_OF = {SIGNATURE.id_of[label]: digit for digit, label in enumerate(_DIGITS)}
_END = SIGNATURE.id_of["end"]
# The same sum may meet other neighbourhoods when it is part of a longer number, or its operands change places: where
# one of them was never shown, another may have been.
_LONGER = (0, 100)
_BUDGET = 10_000  # steps of a term; 9 additions of two digits take about 40


_Reading = Callable[[list[int]], Replacement | None]


class Proposer(Protocol):
    """A network that gives a confidence with each replacement, such as `GraphRewriter`."""

    def propose(self, neighbourhoods: Sequence[NeighbourhoodTokens]) -> Sequence[Proposal]: ...


class _Way(NamedTuple):
    """Terms whose values tell a fact, and what the fact is then."""

    terms: Sequence[Replacement]
    read: _Reading


class Judged(NamedTuple):
    """A proposal, and what it rests on.

    Attributes:
        unseen: it rests on a neighbourhood that training never showed.
        guesses: it rests on a fact about digits that training never showed.
        worked_out: it comes from smaller steps.
    """

    proposal: Proposal
    unseen: bool
    guesses: bool = False
    worked_out: bool = False

    @property
    def rank(self) -> tuple[bool, float]:
        return not self.guesses, self.proposal.confidence


class FinerSteps:
    """A network that works out by smaller steps which facts about digits it is not sure of.

    Sums, differences and products of digits have smaller steps, anything else none. Every smaller step is the
    network's own, and the least sure of them is the confidence of the whole. Of several ways the surest is taken, if
    it is surer than the network is without.

    Args:
        model: the network.
        trained: the neighbourhoods of its training, where they are known. A fact that is not among them is believed
            last, however sure the network is: it was seen to be sure of wrong ones.
        least: the confidence from which on any other fact is believed at once.
    """

    def __init__(
        self, model: Proposer, trained: Container[NeighbourhoodTokens] | None = None, *, least: float = SURE
    ) -> None:
        self._model, self._trained, self._least = model, trained, least
        self._judged: dict[NeighbourhoodTokens, Judged] = {}

    def propose(self, neighbourhoods: Sequence[NeighbourhoodTokens]) -> list[Proposal]:
        """Replacements with their confidences."""
        return [each.proposal for each in self.judge(neighbourhoods)]

    def rewrite(self, neighbourhoods: Sequence[NeighbourhoodTokens]) -> list[ReplacementTokens]:
        """Replacements alone, for a `RewritingMachine`."""
        return [each.proposal.replacement for each in self.judge(neighbourhoods)]

    def judge(self, neighbourhoods: Sequence[NeighbourhoodTokens]) -> list[Judged]:
        """Replacements with their confidences, and what they rest on."""
        new = [each for each in dict.fromkeys(neighbourhoods) if each not in self._judged]
        for neighbourhood, guess in zip(new, self.guess(new) if new else (), strict=True):
            self._judged[neighbourhood] = guess  # which its own smaller steps get, should one of them lead back here
            if guess.unseen or guess.proposal.confidence < self._least:
                self._work_out(neighbourhood, guess)
        return [self._judged[neighbourhood] for neighbourhood in neighbourhoods]

    def guess(self, neighbourhoods: Sequence[NeighbourhoodTokens]) -> list[Judged]:
        """The same without smaller steps."""
        return [
            Judged(proposal, self._trained is not None and neighbourhood not in self._trained)
            for neighbourhood, proposal in zip(neighbourhoods, self._model.propose(neighbourhoods), strict=True)
        ]

    def _work_out(self, neighbourhood: NeighbourhoodTokens, guess: Judged) -> None:
        ways = list(_ways(read_neighbourhood(neighbourhood, SIGNATURE)))
        best = self._judged[neighbourhood] = guess._replace(guesses=guess.unseen and bool(ways))
        for way in ways:
            found = self._along(way)
            if found is not None and found.rank > best.rank:
                best = self._judged[neighbourhood] = found

    def _along(self, way: _Way) -> Judged | None:
        """What the values of the way's terms tell; None where a term has none that is a number."""
        asked = _Asked(self)
        machine = RewritingMachine(SIGNATURE, asked)
        values = [_value(each.tokens) for each in machine.run([_term(term) for term in way.terms], budget=_BUDGET)]
        replacement = None if None in values else way.read([value for value in values if value is not None])
        if replacement is None:
            return None
        proposal = Proposal(encode_replacement(replacement, SIGNATURE), asked.confidence)
        return Judged(proposal, asked.unseen, asked.guesses, worked_out=True)


class _Asked:
    """A `Rewriter` that keeps what its steps rested on, and the confidence of the least sure."""

    def __init__(self, steps: FinerSteps) -> None:
        self._steps, self.guesses, self.unseen, self.confidence = steps, False, False, 1.0

    def rewrite(self, neighbourhoods: Sequence[NeighbourhoodTokens]) -> list[ReplacementTokens]:
        for each in (judged := self._steps.judge(neighbourhoods)):
            self.guesses |= each.guesses
            self.unseen |= each.unseen
            self.confidence = min(self.confidence, each.proposal.confidence)
        return [each.proposal.replacement for each in judged]


def _ways(root: Neighbourhood) -> Iterator[_Way]:
    """The ways to a fact about digits, shorter ones first; none for what is no such fact."""
    kinds = [child.kind for child in root.children]
    if root.kind == "times_digit" and kinds[0].isdecimal() and kinds[1].isdecimal() and kinds[2] in _DIGITS:
        yield from _product_ways(root)
    elif root.kind in _SUMS and all(kind in _DIGITS for kind in kinds):
        yield from _sum_ways(root)
    elif root.kind in _DIFFERENCES and all(kind in _DIGITS for kind in kinds):
        yield from _difference_ways(root)
    elif root.kind == "add_carry" and "end" in kinds and any(kind in _DIGITS for kind in kinds):
        yield from _successor_ways(root)


def _product_ways(root: Neighbourhood) -> Iterator[_Way]:
    factor, carry, number = root.children
    a, b = int(factor.kind), digit_of(number)

    def read(values: list[int]) -> Replacement:
        rest = ("times_digit", factor, digit_constant(values[0] // 10), number[0])
        return (f"d{values[0] % 10}", rest)

    for longer, (times, digit) in product(_LONGER, sorted({(a, b), (b, a)})):
        for add in (_added_before, _added_behind):
            total = chain(longer + int(carry.kind))
            for _ in range(times):
                total = add("add", total, chain(digit))
            yield _Way([total], _without(longer, read))


def _sum_ways(root: Neighbourhood) -> Iterator[_Way]:
    a, b = digit_of(root[0]), digit_of(root[1])

    def read(values: list[int]) -> Replacement:
        return (f"d{values[0] % 10}", ("add" if values[0] < 10 else "add_carry", root[0][0], root[1][0]))

    yield _Way([(root.kind, chain(b), chain(a))], read)
    for longer, (start, count) in product(_LONGER, ((a, b), (b, a))):
        for add in (_added_before, _added_behind):
            total = chain(longer + start)
            for _ in range(count + _SUMS[root.kind]):
                total = add("add_carry", total, "end")
            yield _Way([total], _without(longer, read))


def _successor_ways(root: Neighbourhood) -> Iterator[_Way]:
    digit = root[1] if root[0].kind == "end" else root[0]

    def read(values: list[int]) -> Replacement:
        return (f"d{values[0]}", digit[0]) if values[0] < 10 else ("d0", ("add_carry", digit[0], "end"))

    for longer, add in product(_LONGER, (_added_before, _added_behind)):
        total = chain(longer + digit_of(digit))
        yield _Way([add("add_carry", total, "end")], _without(longer, read))
        yield _Way([add("add", total, chain(1))], _without(longer, read))


def _difference_ways(root: Neighbourhood) -> Iterator[_Way]:
    """The digit that gives the first when the second is added to it."""
    first, second = digit_of(root[0]), digit_of(root[1])

    def read(values: list[int]) -> Replacement | None:
        fit = [digit for digit, value in enumerate(values) if value % 10 == first]
        if len(fit) != 1:
            return None
        following = "subtract" if values[fit[0]] < 10 else "subtract_borrow"
        return (f"d{fit[0]}", (following, root[0][0], root[1][0]))

    for longer, add in product(_LONGER, (_added_before, _added_behind)):
        terms = [add(_DIFFERENCES[root.kind], chain(longer + digit), chain(second)) for digit in range(10)]
        yield _Way(terms, _without(longer, read))


def _added_before(label: str, total: Replacement, more: Replacement) -> Replacement:
    return (label, total, more)


def _added_behind(label: str, total: Replacement, more: Replacement) -> Replacement:
    return (label, more, total)


def _without(longer: int, read: _Reading) -> _Reading:
    return lambda values: read([value - longer for value in values]) if min(values) >= longer else None


def _term(term: Replacement) -> list[int]:
    head, *parts = term if isinstance(term, tuple) else (term,)
    return [SIGNATURE.id_of[head], *(token for part in parts for token in _term(part))]


def _value(tokens: Sequence[int] | None) -> int | None:
    """The natural number of a digit chain; None for anything else."""
    if tokens is None or tokens[-1] != _END or any(token not in _DIGIT_OF for token in tokens[:-1]):
        return None
    value = 0
    for token in reversed(tokens[:-1]):
        value = 10 * value + _DIGIT_OF[token]
    return value
