"""ListOps by its published grammar: expressions of an exact range of lengths, their values, and many as one Dag.

Source: Nangia, Bowman, "ListOps: A Diagnostic Dataset for Latent Tree Learning", NAACL SRW 2018. An expression is a
digit, or with probability 1/4 an operator and 2 .. max_args parts, all numbers as likely; what is at max_depth is a
digit. A length counts digits, operators and closing brackets. MED of an even number of parts is the mean of the middle
two, rounded down.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.graph import Dag

OPERATORS = ("MIN", "MAX", "MED", "SM")
END = 10 + len(OPERATORS)  # tokens: digits 0 .. 9, operators from 10, and the bracket that closes
NESTED = 0.25

Tokens = tuple[int, ...]
Weights = NDArray[np.float64]


class Grammar:
    """Draws expressions of a range of lengths, with the probabilities that the grammar gives them in that range.

    Expressions of a thousand tokens are so rare that drawing until one comes takes days: the probability of each length
    is worked out for each depth, and parts are drawn with the lengths that they have in the whole.

    Args:
        max_args: most parts of an operator.
        max_depth: depth of the deepest digits; the whole expression has depth 1.
        longest: most tokens.
    """

    def __init__(self, max_args: int = 5, max_depth: int = 20, longest: int = 1000) -> None:
        self.max_args, self.max_depth, size = max_args, max_depth, longest + 1
        digit, nothing = np.eye(2, size)[1], np.eye(1, size)[0]
        # of_parts[depth][k][n]: the probability that k expressions at this depth have n tokens together.
        self.of_parts: list[list[Weights]] = [[] for _ in range(max_depth + 1)]
        for depth in range(max_depth, 0, -1):
            one = digit
            if depth < max_depth:
                inner = sum(self.of_parts[depth + 1][2:])
                one = (1 - NESTED) * digit + NESTED / (max_args - 1) * np.concatenate([np.zeros(2), inner[:-2]])
            self.of_parts[depth] = [nothing, one]
            for _ in range(2, max_args + 1):
                self.of_parts[depth].append(np.convolve(self.of_parts[depth][-1], one)[:size])

    def draw(self, rng: random.Random, shortest: int, longest: int) -> Tokens:
        """One expression of ``shortest .. longest`` tokens."""
        tokens: list[int] = []
        length = shortest + _pick(rng, self.of_parts[1][1][shortest : longest + 1])
        self._write(rng, tokens, 1, length)
        return tuple(tokens)

    def _write(self, rng: random.Random, tokens: list[int], depth: int, length: int) -> None:
        if length == 1:
            tokens.append(rng.randrange(10))
            return
        below, left = self.of_parts[depth + 1], length - 2
        parts = 2 + _pick(rng, np.array([together[left] for together in below[2:]]))
        tokens.append(10 + rng.randrange(len(OPERATORS)))
        for others in range(parts - 1, 0, -1):
            # The first has 1 .. left - 1 tokens, the others what is left.
            own = 1 + _pick(rng, below[1][1:left] * below[others][left - 1 : 0 : -1])
            self._write(rng, tokens, depth + 1, own)
            left -= own
        self._write(rng, tokens, depth + 1, left)
        tokens.append(END)


def _pick(rng: random.Random, weights: Weights) -> int:
    """An index, as likely as its weight."""
    up_to = weights.cumsum()
    return int(up_to.searchsorted(rng.random() * up_to[-1], side="right"))


class Expression(NamedTuple):
    """Nodes in the order of their tokens: each one's symbol, its parent (-1 for none) and its place there."""

    symbols: list[int]
    parents: list[int]
    places: list[int]
    value: int


def parsed(tokens: Tokens) -> Expression:
    """The tree of an expression and its value."""
    symbols, parents, places = list[int](), list[int](), list[int]()
    waiting: list[tuple[int, list[int]]] = []  # operators whose bracket is open, with the values so far
    value = 0
    for token in tokens:
        if token == END:
            node, values = waiting.pop()
            value = applied(OPERATORS[symbols[node] - 10], values)
        else:
            parents.append(waiting[-1][0] if waiting else -1)
            places.append(len(waiting[-1][1]) if waiting else 0)
            symbols.append(token)
            if token >= 10:
                waiting.append((len(symbols) - 1, []))
                continue
            value = token
        if waiting:
            waiting[-1][1].append(value)
    return Expression(symbols, parents, places, value)


def applied(operator: str, values: Sequence[int]) -> int:
    """What an operator makes of its arguments."""
    if operator == "SM":
        return sum(values) % 10
    if operator == "MED":
        ranked, half = sorted(values), len(values) // 2
        return (ranked[(len(values) - 1) // 2] + ranked[half]) // 2
    return min(values) if operator == "MIN" else max(values)


class Batch(NamedTuple):
    """Many expressions as one Dag, from digits to roots; its node attribute "operator" is 0 for digits."""

    symbols: Tensor  # int64 [num_nodes], 0 .. 13
    dag: Dag
    roots: Tensor  # int64 [expressions]
    values: Tensor  # int64 [expressions]


def joined(expressions: Sequence[Expression]) -> Batch:
    """Expressions as a batch."""
    sizes = torch.tensor([len(one.symbols) for one in expressions])
    roots = sizes.cumsum(0) - sizes
    symbols = torch.tensor([symbol for one in expressions for symbol in one.symbols])
    parents = torch.tensor([parent for one in expressions for parent in one.parents])
    places = torch.tensor([place for one in expressions for place in one.places])
    nodes = (parents >= 0).nonzero().flatten()
    edges = torch.stack([nodes, (parents + roots.repeat_interleave(sizes))[nodes]], 1)
    operator = {"operator": (symbols - 10).clamp(min=0)}
    dag = Dag(edges, len(symbols), node_attributes=operator, edge_attributes={"position": places[nodes]})
    return Batch(symbols, dag, roots, torch.tensor([one.value for one in expressions]))
