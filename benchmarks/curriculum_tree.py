"""The recursive rival: a TreeLSTM over the expression graph with deep supervision, and a tree decoder.

The encoder is `DagSweep` with `TreeLSTMCell`: operands before operators, equal sub-expressions once, a symbol with a
value is a node above that value. Every inner node is also to tell its value, where it has one. The decoder writes the
answer in preorder and knows of every word where in the tree it stands: below which word, as which operand, how deep.
It attends to all nodes of the expression.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.curriculum_expressions import training_samples
from benchmarks.curriculum_rivals import Settings, asked_in_parts, bucketed
from benchmarks.curriculum_text import BEGIN, WORDS, decode, encode_answer, padded
from benchmarks.curriculum_transformer import (
    DecoderCache,
    TransformerSize,
    answer_loss,
    embedding,
    grown,
    later,
    positions,
)
from dagnn.curriculum import Expr, Sample
from dagnn.curriculum.expression import FUNCTIONS
from dagnn.graph import Dag
from dagnn.nn import DagSweep, TreeLSTMCell

DIGITS = 4  # of numerator and denominator in the values of inner nodes, and of the integers at the leaves
_LARGEST_VALUE = 10**DIGITS - 1
_OPERATORS = ("+", "-", "*", "/", "^", "=", *FUNCTIONS, "bind", "derive", "integrate", "definite", "bounds", "solve")
_LEAVES = ("number", "x", "y", "z", "e", "pi")
_KIND = {name: number for number, name in enumerate((*_LEAVES, *_OPERATORS))}
_MAX_DEPTH = 63
_LONGEST_ANSWER = 300


@dataclass(frozen=True)
class Node:
    """A node of an expression graph: kind, operands by number, the integer at a leaf, its value if that is known."""

    kind: str
    operands: tuple[int, ...] = ()
    number: int | None = None
    value: Fraction | None = None


def graph_of(expression: Expr) -> list[Node]:
    """The nodes of an expression, operands first, the root last; equal ones once."""
    nodes: list[Node] = []
    index: dict[Node, int] = {}

    def add(node: Node) -> int:
        if node not in index:
            index[node] = len(nodes)
            nodes.append(node)
        return index[node]

    def read(item: Expr, bound: dict[str, int]) -> int:
        if isinstance(item, int):
            return add(Node("number", number=item, value=Fraction(item)))
        if isinstance(item, str):
            return add(Node("bind", (bound[item],), value=nodes[bound[item]].value) if item in bound else Node(item))
        head, *operands = item
        if head == "subst":
            return read(operands[0], bound | {operands[1]: read(operands[2], bound)})
        if head in ("derive", "solve") or (head == "integrate" and len(operands) == 2):
            return add(Node(head, (read(operands[0], bound),)))
        if head == "integrate":
            bounds = add(Node("bounds", (read(operands[2], bound), read(operands[3], bound))))
            return add(Node("definite", (read(operands[0], bound), bounds)))
        children = [read(operand, bound) for operand in operands]
        if head == "-" and len(children) == 1:
            children.insert(0, read(0, bound))
        root = children[0]
        for child in children[1:]:
            root = add(Node(head, (root, child), value=_value(head, nodes[root].value, nodes[child].value)))
        return root if len(children) > 1 else add(Node(head, (root,)))

    root = read(expression, {})
    # A constant function under another: the root is the last node unless it was there before.
    return nodes if root == len(nodes) - 1 else [*nodes, Node("bind", (root,), value=nodes[root].value)]


class TreeNetwork(nn.Module):
    """Encoder, value head and decoder."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        width = size.width
        self.size = size
        self.kind = embedding(len(_KIND), width)
        self.digits = nn.Linear(1 + 10 * DIGITS, width, bias=False)
        self.sweep = DagSweep(TreeLSTMCell(width, width, max_children=2))
        self.norm = nn.LayerNorm(width)
        self.value = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, 2 + 20 * DIGITS))
        self.word = embedding(len(WORDS), width)
        self.parent = embedding(len(WORDS), width)
        self.place = embedding(5, width)
        self.depth = embedding(_MAX_DEPTH + 1, width)
        self.root = nn.Linear(width, width)
        layer = nn.TransformerDecoderLayer(
            width, size.heads, size.inner, size.dropout, "gelu", batch_first=True, norm_first=True
        )
        self.decoder = nn.TransformerDecoder(layer, size.layers, norm=nn.LayerNorm(width))
        self.output = nn.Linear(width, len(WORDS))

    def encoded(self, graphs: Sequence[Sequence[Node]]) -> tuple[Tensor, Tensor, Tensor]:
        """States of all nodes ``[nodes, width]``; by graph, root first, ``[graphs, longest, width]``; and the mask of
        these, True where there is nothing."""
        nodes = [node for graph in graphs for node in graph]
        offsets = [0]
        for graph in graphs:
            offsets.append(offsets[-1] + len(graph))
        features = self.kind(torch.tensor([_KIND[node.kind] for node in nodes]))
        leaves = [number for number, node in enumerate(nodes) if node.number is not None]
        numbers = [nodes[leaf].number or 0 for leaf in leaves]
        shown = functional.one_hot(torch.tensor([_digits(number) for number in numbers]).view(-1, DIGITS), 10).flatten(
            1
        )
        sign = torch.tensor([[float(number < 0)] for number in numbers]).view(-1, 1)
        features = features.index_add(0, torch.tensor(leaves), self.digits(torch.cat([sign, shown.float()], 1)))
        states = self.norm(self.sweep(features, _joined_dag(graphs, offsets)))

        longest = max(map(len, graphs))
        items = torch.tensor(
            [[*range(last - 1, first - 1, -1), *[first] * (longest - last + first)] for first, last in _ranges(offsets)]
        )
        hidden = torch.arange(longest) >= torch.tensor([len(graph) for graph in graphs])[:, None]
        return states, states[items], hidden

    def forward(self, graphs: Sequence[Sequence[Node]], answers: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the words of `answers` ``[batch, longest, words]``, and the states of all nodes.

        Args:
            answers: int64 ``[batch, longest]``, beginning with `BEGIN`.
            slots: int64 ``[batch, longest, 3]``: parent word, place and depth of the word that is to follow.
        """
        states, memory, hidden = self.encoded(graphs)
        inputs = self.inputs(answers, slots) + positions(answers.shape[1], self.size.width)
        inputs = inputs + self.root(memory[:, :1])
        decoded = self.decoder(
            inputs, memory, tgt_mask=later(answers.shape[1]), tgt_is_causal=True, memory_key_padding_mask=hidden
        )
        return self.output(decoded), states

    def inputs(self, words: Tensor, slots: Tensor) -> Tensor:
        """The last words, and where the next ones will stand."""
        parent, place, depth = slots.unbind(-1)
        return self.word(words) + self.parent(parent) + self.place(place) + self.depth(depth.clamp(max=_MAX_DEPTH))

    def value_loss(self, states: Tensor, graphs: Sequence[Sequence[Node]]) -> Tensor:
        """Mean cross-entropy of sign and digits of every inner node whose value is a fraction of `DIGITS` digits."""
        known = [
            (number, node.value)
            for number, node in enumerate(node for graph in graphs for node in graph)
            if node.value is not None and node.operands
        ]
        if not known:
            return states.sum() * 0
        scores = self.value(states[torch.tensor([number for number, _ in known])])
        sign = torch.tensor([int(value < 0) for _, value in known])
        digits = torch.tensor([_digits(value.numerator) + _digits(value.denominator) for _, value in known])
        return functional.cross_entropy(scores[:, :2], sign) + 2 * DIGITS * functional.cross_entropy(
            scores[:, 2:].reshape(-1, 10), digits.flatten()
        )

    @torch.no_grad()
    def greedy(self, graphs: Sequence[Sequence[Node]], *, longest: int) -> list[list[int]]:
        """The most likely next word, again and again until the tree is whole."""
        _, memory, hidden = self.encoded(graphs)
        cache = DecoderCache(self.decoder, memory, hidden)
        root, position = self.root(memory[:, 0]), positions(longest, self.size.width)
        trees = [Slots() for _ in graphs]

        def scores(words: Tensor, step: int) -> Tensor:
            if step:
                for tree, word in zip(trees, words.tolist(), strict=True):
                    tree.add(word)
            slots = torch.tensor([tree.next for tree in trees])
            return self.output(cache.step(self.inputs(words, slots) + position[step] + root))

        return grown(scores, len(graphs), WORDS, longest)


class Slots:
    """Where the next word of a preorder text stands."""

    def __init__(self) -> None:
        self._open: list[list[int]] = [[BEGIN, 0, 1]]  # word, operands that are there, operands that it takes

    @property
    def next(self) -> tuple[int, int, int]:
        """Parent word, place among its operands, depth; all 0 when the tree is whole."""
        if not self._open:
            return (0, 0, 0)
        word, there, _ = self._open[-1]
        return (word, there, len(self._open))

    def add(self, word: int) -> None:
        """The next word is there; nothing happens to a whole tree."""
        if not self._open:
            return
        self._open[-1][1] += 1
        self._open.append([word, 0, WORDS.arities[word]])
        while self._open and self._open[-1][1] == self._open[-1][2]:
            self._open.pop()


def slots_of(text: Sequence[int]) -> list[tuple[int, int, int]]:
    """Where each word of a whole text stands, and zeros after the last."""
    tree, found = Slots(), []
    for word in text:
        found.append(tree.next)
        tree.add(word)
    return [*found, tree.next]


class TreeRival:
    """(B) ``settings.options``: ``values``, the weight of the values of inner nodes in the loss (0.2)."""

    def __init__(self, settings: Settings, seed: int, examples: Iterator[Sample] | None = None) -> None:
        torch.manual_seed(seed)
        self.model = TreeNetwork(settings.size)
        self._settings, self._seed = settings, seed
        self._samples = training_samples(seed) if examples is None else examples

    def batches(self) -> Iterator[tuple[list[list[Node]], Tensor, Tensor]]:
        """Graphs, answers with `BEGIN` before them, and the slots of their words."""
        pairs = ((graph_of(sample.input), encode_answer(sample.answer, sample.level)) for sample in self._samples)
        for batch in bucketed(pairs, lambda pair: len(pair[1]), self._settings.batch, seed=self._seed):
            texts = [text for _, text in batch]
            longest = max(map(len, texts)) + 1
            slots = [slots_of(text) for text in texts]
            yield (
                [graph for graph, _ in batch],
                padded([[BEGIN, *text] for text in texts]),
                torch.tensor([[*each, *[(0, 0, 0)] * (longest - len(each))] for each in slots]),
            )

    def loss(self, batch: tuple[list[list[Node]], Tensor, Tensor]) -> Tensor:
        graphs, answers, slots = batch
        scores, states = self.model(graphs, answers, slots)
        weight = self._settings.options.get("values", 0.2)
        return answer_loss(scores, answers) + weight * self.model.value_loss(states, graphs)

    def solve(self, samples: Sequence[Sample]) -> list[object]:
        def answers(part: list[Sample]) -> list[object]:
            graphs = [graph_of(sample.input) for sample in part]
            return [decode(text) for text in self.model.greedy(graphs, longest=_LONGEST_ANSWER)]

        return asked_in_parts(samples, lambda sample: graph_of(sample.input), answers)


def _joined_dag(graphs: Sequence[Sequence[Node]], offsets: Sequence[int]) -> Dag:
    """All graphs as one, edges from operand to operator."""
    edges, places = [], []
    for graph, offset in zip(graphs, offsets, strict=False):
        for target, node in enumerate(graph):
            for place, source in enumerate(node.operands):
                edges.append((offset + source, offset + target))
                places.append(place)
    return Dag(
        torch.tensor(edges).view(-1, 2), num_nodes=offsets[-1], edge_attributes={"position": torch.tensor(places)}
    )


def _ranges(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    return pairwise(offsets)


def _digits(number: int) -> list[int]:
    """Lowest first."""
    return [abs(number) // 10**power % 10 for power in range(DIGITS)]


def _value(operator: str, a: Fraction | None, b: Fraction | None) -> Fraction | None:
    """The value of a node, where it is a fraction that the value head can say."""
    if a is None or b is None or (operator == "/" and b == 0) or operator not in ("+", "-", "*", "/", "^"):
        return None
    if operator == "^" and (b.denominator != 1 or not 0 <= b <= 20):
        return None
    calculated: Any = {
        "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b, "^": lambda: a ** int(b),
    }[operator]()  # fmt: skip
    value = Fraction(calculated)
    return value if max(abs(value.numerator), value.denominator) <= _LARGEST_VALUE else None
