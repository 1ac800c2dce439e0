"""How the rivals of the curriculum comparison are trained: by the clock of the processor, and judged on the way."""

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from benchmarks.curriculum_expressions import LEVELS, drawn, right_answers, training_samples
from benchmarks.curriculum_text import BEGIN, WORDS, decode, encode, encode_answer, padded
from benchmarks.curriculum_transformer import Seq2SeqTransformer, TransformerSize, answer_loss
from dagnn.curriculum import Sample

T = TypeVar("T")
POOL = 16  # batches that are sorted by length together
_ASKED_AT_ONCE = 128
_LONGEST_ANSWER = 300


@dataclass(frozen=True)
class Settings:
    """How a rival is trained.

    Attributes:
        lr: peak of the learning rate.
        batch: examples per step.
        warmup: part of the CPU time in which the rate rises.
        size: of the network.
        options: what else a rival can be told, by name.
    """

    lr: float = 1e-3
    batch: int = 128
    warmup: float = 0.03
    size: TransformerSize = field(default_factory=TransformerSize)
    options: dict[str, Any] = field(default_factory=dict)


class Rival(Protocol):
    """What `train` needs of a contestant."""

    model: nn.Module

    def batches(self) -> Iterator[Any]:
        """Training batches without end; ``len(batch[0])`` is the number of examples."""
        ...

    def loss(self, batch: Any) -> Tensor: ...

    def solve(self, samples: Sequence[Sample]) -> list[object]:
        """An answer to each expression, or None."""
        ...


@dataclass
class Trained:
    """What training took, and how the accuracy rose.

    Attributes:
        cpu_seconds: of training, the drawing of expressions included, evaluations not.
        steps, examples: optimizer steps, and examples in them.
        curve: (CPU seconds, level -> accuracy on validation expressions), in order.
    """

    cpu_seconds: float = 0.0
    steps: int = 0
    examples: int = 0
    loss: float = 0.0
    curve: list[tuple[float, dict[int, float]]] = field(default_factory=list)


def train(
    rival: Rival,
    settings: Settings,
    *,
    cpu_seconds: float,
    seed: int,
    looks: int = 10,
    asked: int = 60,
    told: Callable[[str], object] = print,
    clock: Callable[[], float] = time.process_time,
    already: float = 0.0,
) -> Trained:
    """AdamW with warm-up and a cosine that ends with the CPU time.

    Args:
        cpu_seconds: of this process.
        seed: of the run, whose first validation expressions are asked on the way.
        looks: how often accuracy is looked at, the end included; that time does not count.
        asked: validation expressions per level and look.
        told: called with a line for each look.
        clock: CPU seconds.
        already: CPU seconds that count and have passed before.
    """
    optimizer = torch.optim.AdamW(rival.model.parameters(), settings.lr, betas=(0.9, 0.98), weight_decay=0.01)
    found = Trained()
    validation = {level: drawn(level, asked, seed=seed, split="validation") for level in LEVELS} if looks else {}
    begin = clock() - already
    rival.model.train()
    batches = rival.batches()
    next_look = cpu_seconds / looks if looks else math.inf
    while True:
        found.cpu_seconds = clock() - begin
        part = found.cpu_seconds / cpu_seconds
        if found.cpu_seconds >= next_look or (looks and part >= 1):
            paused = clock()
            accuracy = _looked(rival, validation)
            found.curve.append((found.cpu_seconds, accuracy))
            told(_line(found, accuracy))
            next_look += cpu_seconds / looks
            begin += clock() - paused
        if part >= 1:
            return found
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * rate(part, settings.warmup)
        batch = next(batches)
        loss = rival.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(rival.model.parameters(), 1.0)
        optimizer.step()
        found.steps += 1
        found.examples += len(batch[0])
        found.loss = loss.item() if found.steps == 1 else 0.98 * found.loss + 0.02 * loss.item()


def rate(part: float, warmup: float) -> float:
    """The learning rate's part of its peak when this part of the time is over: a rise, then a half cosine to 1 %."""
    if part < warmup:
        return 0.01 + 0.99 * part / warmup
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, (part - warmup) / (1 - warmup))))


def bucketed(
    examples: Iterator[T], length: Callable[[T], int], batch: int, *, seed: int, pool: int = POOL
) -> Iterator[list[T]]:
    """Batches of examples of about the same length, in random order."""
    rng = random.Random(seed)
    while True:
        taken = sorted(itertools.islice(examples, batch * pool), key=length)
        parts = [taken[first : first + batch] for first in range(0, len(taken), batch)]
        rng.shuffle(parts)
        yield from parts


def asked_in_parts(
    samples: Sequence[Sample], text: Callable[[Sample], Sequence[Any]], answer: Callable[[list[Sample]], list[object]]
) -> list[object]:
    """Answers in the order of the samples, asked by rising length in batches."""
    order = sorted(range(len(samples)), key=lambda item: len(text(samples[item])))
    answers: list[object] = [None] * len(samples)
    for first in range(0, len(order), _ASKED_AT_ONCE):
        items = order[first : first + _ASKED_AT_ONCE]
        for item, given in zip(items, answer([samples[item] for item in items]), strict=True):
            answers[item] = given
    return answers


class AnswersTransformer:
    """(A) A Transformer from the text of an expression to the text of its answer."""

    def __init__(self, settings: Settings, seed: int, examples: Iterator[Sample] | None = None) -> None:
        torch.manual_seed(seed)
        self.model = Seq2SeqTransformer(WORDS, WORDS, settings.size)
        self._settings, self._seed = settings, seed
        self._samples = training_samples(seed) if examples is None else examples

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Texts, and answers with `BEGIN` before them."""
        pairs = (
            (encode(sample.input), [BEGIN, *encode_answer(sample.answer, sample.level)]) for sample in self._samples
        )
        for batch in bucketed(pairs, lambda pair: len(pair[0]) + len(pair[1]), self._settings.batch, seed=self._seed):
            yield padded([text for text, _ in batch]), padded([answer for _, answer in batch])

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return answer_loss(self.model(*batch), batch[1])

    def solve(self, samples: Sequence[Sample]) -> list[object]:
        def answers(part: list[Sample]) -> list[object]:
            texts = self.model.greedy([encode(sample.input) for sample in part], longest=_LONGEST_ANSWER)
            return [decode(text) for text in texts]

        return asked_in_parts(samples, lambda sample: encode(sample.input), answers)


def _looked(rival: Rival, validation: dict[int, tuple[Sample, ...]]) -> dict[int, float]:
    rival.model.eval()
    accuracy = {
        level: right_answers(samples, rival.solve(samples)) / len(samples) for level, samples in validation.items()
    }
    rival.model.train()
    return accuracy


def _line(found: Trained, accuracy: dict[int, float]) -> str:
    shown = " / ".join(f"{100 * part:.0f}" for part in accuracy.values())
    return (
        f"{found.cpu_seconds / 60:.2f} CPU min, {found.steps:,} steps, "
        f"{found.examples / max(found.cpu_seconds, 1e-9):.0f} examples/s, loss {found.loss:.3f}: {shown} %"
    )
