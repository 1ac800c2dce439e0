"""The rivals that see the engine's steps: a Transformer with a scratchpad, and one inside our rewriting machine."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from benchmarks.curriculum_expressions import default_sizes, training_samples
from benchmarks.curriculum_rivals import Settings, bucketed
from benchmarks.curriculum_steps import STEP_WORDS, Scratchpad, answer_of, first_text, is_last
from benchmarks.curriculum_text import BEGIN, Words, padded
from benchmarks.curriculum_transformer import Seq2SeqTransformer, answer_loss
from dagnn.curriculum import Sample
from dagnn.curriculum.accuracy import STEP_BUDGET
from dagnn.curriculum.engine import from_term, to_term
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.traces import NeighbourhoodSet, collect_neighbourhoods
from dagnn.rewriting import LEAVE, NeighbourhoodTokens, ReplacementTokens, RewritingMachine, read_neighbourhood
from dagnn.rewriting.system import neighbourhood_nodes

_LONGEST_TEXT = 240
# A longest scratchpad of training has 60 steps; an expression of depth 8 may need more.
_MOST_STEPS = 120
_AT_ONCE = 128
_ROUNDS = 600
LARGEST_COUNT = 10_000  # as in our own training

Pair = tuple[list[int], list[int]]


class ScratchpadTransformer:
    """(A2) From one expression of the engine's scratchpad to the next, until it says that it is done.

    ``settings.options``: ``grain`` of the `Scratchpad` ("numbers"), and ``pairs``, the steps that are learned of each
    training expression, drawn anew each time (8).
    """

    def __init__(self, settings: Settings, seed: int, examples: Iterator[Sample] | None = None) -> None:
        torch.manual_seed(seed)
        self.model = Seq2SeqTransformer(STEP_WORDS, STEP_WORDS, settings.size)
        self._settings, self._seed = settings, seed
        self._samples = training_samples(seed) if examples is None else examples
        self._scratchpad = Scratchpad(settings.options.get("grain", "numbers"))

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Expressions, and what follows with `BEGIN` before it."""
        for batch in bucketed(
            self._pairs(), lambda pair: len(pair[0]) + len(pair[1]), self._settings.batch, seed=self._seed
        ):
            yield padded([text for text, _ in batch]), padded([[BEGIN, *following] for _, following in batch])

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return answer_loss(self.model(*batch), batch[1])

    def solve(self, samples: Sequence[Sample]) -> list[object]:
        """The answers; equal expressions are asked for once, and a scratchpad that comes back to one has none."""
        texts = [first_text(sample) for sample in samples]
        following: dict[tuple[int, ...], list[int]] = {}
        for _ in range(_MOST_STEPS):
            open_texts = {tuple(text) for text in texts if not is_last(text) and len(text) <= _LONGEST_TEXT}
            asked = sorted(open_texts - following.keys(), key=len)
            for first in range(0, len(asked), _AT_ONCE):
                part = asked[first : first + _AT_ONCE]
                following.update(zip(part, self.model.greedy(part, longest=_LONGEST_TEXT), strict=True))
            if not asked:
                break
            texts = [text if is_last(text) else following.get(tuple(text), []) for text in texts]
        return [answer_of(text, sample) for text, sample in zip(texts, samples, strict=True)]

    def _pairs(self) -> Iterator[Pair]:
        rng = random.Random(self._seed)
        for sample in self._samples:
            texts = self._scratchpad.texts(sample)
            steps = list(itertools.pairwise(texts))
            yield from rng.sample(steps, min(len(steps), self._settings.options.get("pairs", 8)))


# A neighbourhood shows labels, and nodes that it has shown before; a replacement has labels, nodes of the
# neighbourhood, or `leave`.
_NODES = [(f"node {number}", 0) for number in range(85)]
NEIGHBOURHOOD_WORDS = Words([*((shown.name, 0) for shown in SIGNATURE.shown), *_NODES])
REPLACEMENT_WORDS = Words([*((label.name, label.arity) for label in SIGNATURE.labels), *_NODES, ("leave", 0)])
_RESERVED = 2  # padding and beginning come before the numbers that neighbourhoods and replacements have
_LEAVE = REPLACEMENT_WORDS.id_of["leave"]
_LONGEST_REPLACEMENT = 32


class NeighbourhoodTransformer:
    """(A3) Our rewriting machine with the Transformer in the place of our network: neighbourhoods and replacements as
    text.

    It learns from the neighbourhoods that ours learns from, drawn by the same weights; tracing them is part of its
    time.
    """

    def __init__(
        self,
        settings: Settings,
        seed: int,
        neighbourhoods: NeighbourhoodSet | None = None,
        *,
        sizes: Mapping[int, int] | None = None,
    ) -> None:
        torch.manual_seed(seed)
        self.model = Seq2SeqTransformer(NEIGHBOURHOOD_WORDS, REPLACEMENT_WORDS, settings.size)
        self._settings, self._seed, self._neighbourhoods, self._sizes = settings, seed, neighbourhoods, sizes

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Neighbourhoods, and replacements with `BEGIN` before them."""
        if self._neighbourhoods is None:
            self._neighbourhoods = collect_neighbourhoods(self._sizes or default_sizes(), seed=self._seed)
        collected = self._neighbourhoods
        weights = np.sqrt(np.minimum(collected.counts.sum(1), LARGEST_COUNT))
        generator = np.random.default_rng(self._seed)

        def pairs() -> Iterator[Pair]:
            while True:
                for item in generator.choice(len(collected), 4096, p=weights / weights.sum()):
                    yield (
                        neighbourhood_text(collected.neighbourhoods[item]),
                        replacement_text(collected.replacements[item]),
                    )

        for batch in bucketed(pairs(), lambda pair: len(pair[1]), self._settings.batch, seed=self._seed, pool=4):
            yield padded([text for text, _ in batch]), padded([[BEGIN, *text] for _, text in batch])

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return answer_loss(self.model(*batch), batch[1])

    def rewrite(self, neighbourhoods: Sequence[NeighbourhoodTokens]) -> list[ReplacementTokens]:
        """The replacements, as a `Rewriter` gives them; what is no replacement leaves its neighbourhood as it is."""
        found: list[ReplacementTokens] = []
        for first in range(0, len(neighbourhoods), _AT_ONCE):
            part = neighbourhoods[first : first + _AT_ONCE]
            replies = self.model.greedy(
                [neighbourhood_text(neighbourhood) for neighbourhood in part], longest=_LONGEST_REPLACEMENT
            )
            found += [replacement_of(reply, neighbourhood) for reply, neighbourhood in zip(replies, part, strict=True)]
        return found

    def solve(self, samples: Sequence[Sample]) -> list[object]:
        terms = [to_term(sample.input, sample.level) for sample in samples]
        machine = RewritingMachine(SIGNATURE, self)
        results = machine.run([term for term, _ in terms], budget=STEP_BUDGET, rounds=_ROUNDS)
        return [
            None if result.tokens is None else from_term(result.tokens, names)
            for result, (_, names) in zip(results, terms, strict=True)
        ]


def neighbourhood_text(neighbourhood: NeighbourhoodTokens) -> list[int]:
    """A neighbourhood as words."""
    return [_RESERVED + token for token in neighbourhood]


def replacement_text(replacement: ReplacementTokens) -> list[int]:
    """A replacement as words."""
    return [_RESERVED + token for token in replacement] or [_LEAVE]


def replacement_of(text: Sequence[int], neighbourhood: NeighbourhoodTokens) -> ReplacementTokens:
    """The replacement that words spell; to leave it where they spell none of this neighbourhood."""
    num_nodes = len(neighbourhood_nodes(read_neighbourhood(neighbourhood, SIGNATURE)))
    last = _RESERVED + len(SIGNATURE.labels) + num_nodes - 1
    if not REPLACEMENT_WORDS.is_whole(text) or max(text) > last:
        return LEAVE
    return tuple(word - _RESERVED for word in text)
