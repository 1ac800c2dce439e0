"""Operations learned from short answers alone are exact at 1,000 digits, in at most 10 CPU minutes each.

Every operation is learned from 12,000 random answers of 1 to 4 digits, some of them the same; `gcd` begins with the
cells of `/` and `*`, which are learned first and count. A row is required to have a certificate and no wrong answer at
any length. Half of the divisors have half as many digits. The Transformer is a small standard one (sinusoidal
positions, answers written from the last digit on), trained on the same answers for the CPU time that ours took to
learn, or `--least`.

    python -m benchmarks.answers [--quick] [--seeds 3] [--no-transformer]
"""

import argparse
import math
import random
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from dagnn.answers import ARITHMETIC, Arithmetic, Learned, learn
from dagnn.answers.operation import Pair

MOST_SECONDS = 600.0
PAD, END = 0, 1


class Row(NamedTuple):
    """What came out for an operation and a seed."""

    operation: str
    seed: int
    answers: int
    learned_seconds: float
    seconds: float
    certified: bool
    right: dict[int, float]
    transformer: dict[int, float]

    @property
    def ok(self) -> bool:
        return self.certified and self.seconds <= MOST_SECONDS and all(share == 1 for share in self.right.values())


class Transformer(nn.Module):
    """A causal Transformer over question and answer as one text: 4 layers of 128, 4 heads."""

    def __init__(self, symbols: str) -> None:
        super().__init__()
        self.number = {symbol: i + 2 for i, symbol in enumerate(symbols)}
        self.symbols = "  " + symbols
        self.embedding = nn.Embedding(len(self.symbols), 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, norm=nn.LayerNorm(128), enable_nested_tensor=False)
        self.logits = nn.Linear(128, len(self.symbols))

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 ``[batch, length]`` to logits ``[batch, length, symbols]``."""
        length = tokens.shape[1]
        angle = torch.arange(length)[:, None] * torch.exp(torch.arange(64) * (-math.log(10_000) / 64))
        state = self.embedding(tokens) + torch.cat([angle.sin(), angle.cos()], 1)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        logits: Tensor = self.logits(self.layers(state, mask=mask, is_causal=True))
        return logits

    def encode(self, text: str) -> list[int]:
        return [self.number[symbol] for symbol in text]

    def fit(self, pairs: Sequence[Pair], seconds: float, seed: int) -> None:
        """Trains on questions and answers, answers from the last symbol on."""
        texts = [self.encode(f"{'?'.join(question)}=") for question, _ in pairs]
        rows = [[*text, *self.encode(answer[::-1]), END] for text, (_, answer) in zip(texts, pairs, strict=True)]
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
        asked = torch.tensor(list(map(len, texts)))
        is_answer = (torch.arange(1, longest) >= asked[:, None]) & (tokens[:, 1:] != PAD)
        generator = torch.Generator().manual_seed(seed)
        optimizer = torch.optim.AdamW(self.parameters(), lr=5e-4)
        start = time.process_time()
        while time.process_time() - start < seconds:
            which = torch.randint(len(rows), (128,), generator=generator)
            logits = self(tokens[which, :-1])[is_answer[which]]
            loss = functional.cross_entropy(logits, tokens[which, 1:][is_answer[which]])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters(), 1.0)
            optimizer.step()

    @torch.no_grad()
    def answers(self, questions: Sequence[tuple[str, ...]], most: int) -> list[str]:
        """Greedy answers to questions of equal lengths, at most so many symbols."""
        tokens = torch.tensor([self.encode(f"{'?'.join(question)}=") for question in questions])
        asked = tokens.shape[1]
        for _ in range(most):
            tokens = torch.cat([tokens, self(tokens)[:, -1:].argmax(2)], 1)
        found = []
        for row in tokens[:, asked:].tolist():
            written = row[: row.index(END)] if END in row else row
            found.append("".join(self.symbols[i] for i in written)[::-1])
        return found


def questions_of(arithmetic: Arithmetic, digits: int, count: int, seed: int) -> list[tuple[str, str]]:
    """Random questions of a length."""
    rng = random.Random(f"{seed} {digits}")
    halves = arithmetic.operation.name == "/"
    return [arithmetic.question(rng, (digits, digits // 2 if halves and i % 2 else digits)) for i in range(count)]


def share_right(arithmetic: Arithmetic, questions: Sequence[tuple[str, str]], answers: Sequence[str]) -> float:
    """Part of the answers that are exact."""
    canonical = arithmetic.operation.canonical
    right = [canonical(arithmetic.exact(*q)) == a for q, a in zip(questions, answers, strict=True)]
    return sum(right) / len(right)


def transformer_row(arithmetic: Arithmetic, pairs: Sequence[Pair], seconds: float, seed: int) -> dict[int, float]:
    """A Transformer's share of right answers at 4 digits, which it saw, and at 10 and 30."""
    torch.manual_seed(seed)
    network = Transformer("0123456789r?=")
    network.fit(pairs, seconds, seed)
    shares = {}
    for digits, count in ((4, 200), (10, 100), (30, 10)):
        asked = questions_of(arithmetic, digits, count, seed + 1)
        given = [""] * count
        for half in {len(question[1]) for question in asked}:
            some = [i for i, question in enumerate(asked) if len(question[1]) == half]
            answers = network.answers([asked[i] for i in some], 2 * digits + 3)
            for i, answer in zip(some, answers, strict=True):
                given[i] = arithmetic.operation.canonical(answer) if answer.count("r") < 2 else answer
        shares[digits] = share_right(arithmetic, asked, given)
    return shares


def measured(
    name: str,
    seed: int,
    known: dict[str, tuple[Learned, float]],
    *,
    answers: int = 12_000,
    lengths: Sequence[int] = (10, 100, 1000),
    count: int = 1000,
    least: float | None = 60.0,
) -> Row:
    """Learns an operation, judges it, and trains a Transformer beside it (None: does not). ``known`` gains it."""
    arithmetic = ARITHMETIC[name]
    pairs = arithmetic.pairs(answers, seed=seed)
    start = time.process_time()
    learned = learn(arithmetic.operation, pairs, seed=seed, given=[known[other][0] for other in arithmetic.given])
    certified = learned.certificate().holds
    seconds = time.process_time() - start + sum(known[other][1] for other in arithmetic.given)
    known[name] = learned, seconds
    right = {}
    for digits in lengths:
        asked = questions_of(arithmetic, digits, count, seed)
        right[digits] = share_right(arithmetic, asked, learned.answers(asked))
    total = time.process_time() - start + sum(known[other][1] for other in arithmetic.given)
    transformer = {} if least is None else transformer_row(arithmetic, pairs, max(seconds, least), seed)
    return Row(name, seed, answers, seconds, total, certified, right, transformer)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, 100 questions of at most 100 digits")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--least", type=float, default=60.0, help="CPU seconds of a Transformer, at least")
    parser.add_argument("--no-transformer", action="store_true")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    sys.set_int_max_str_digits(100_000)
    least = None if given.no_transformer else 5.0 if given.quick else given.least
    sizes = {"lengths": (10, 100), "count": 100} if given.quick else {}
    print("| operation | seed | answers | CPU s learned, with judging | certified | right | Transformer | |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    for seed in range(1 if given.quick else given.seeds):
        known: dict[str, tuple[Learned, float]] = {}
        for name in ARITHMETIC:
            row = measured(name, seed, known, least=least, **sizes)
            rows.append(row)
            shares = [", ".join(f"{n:,}: {share:.1%}" for n, share in s.items()) for s in (row.right, row.transformer)]
            print(
                f"| {name} | {seed} | {row.answers:,} | {row.learned_seconds:.1f}, {row.seconds:.0f} | "
                f"{'yes' if row.certified else 'NO'} | {shares[0]} | {shares[1]} | {'ok' if row.ok else 'MISSED'} |",
                flush=True,
            )
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
