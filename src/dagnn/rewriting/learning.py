"""`RewritingTask`: a rewriting system of your own from its rules to a trained network, and how well that does."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from dagnn.errors import ConfigError, GraphError
from dagnn.rewriting.machine import LabelTokens, RewritingMachine, RuleRewriter
from dagnn.rewriting.network import GraphRewriter
from dagnn.rewriting.system import (
    Neighbourhood,
    NeighbourhoodTokens,
    Replacement,
    ReplacementTokens,
    Signature,
    encode_replacement,
    read_neighbourhood,
)

# A label, or a tuple of a label and its children: ("plus", "zero", ("next", "zero")).
Term: TypeAlias = str | tuple[Any, ...]
Rule: TypeAlias = Callable[[Neighbourhood], Replacement | None]


def encode_term(term: Term, signature: Signature) -> list[int]:
    """A term as preorder label ids.

    Args:
        term: a label, or a tuple ``(label, child, ...)``.
        signature: gives the ids of the labels.

    Raises:
        GraphError: a label is unknown, or has another number of children than its arity.

    >>> from dagnn.rewriting import Label
    >>> signature = Signature((Label("zero", 0), Label("next", 1), Label("plus", 2, neighbourhood_depth=1)))
    >>> encode_term(("plus", ("next", "zero"), "zero"), signature)
    [2, 1, 0, 0]
    """
    return list(encode_replacement(term, signature))


def decode_term(tokens: LabelTokens, signature: Signature) -> Term:
    """The term that preorder label ids spell: a label, or a tuple ``(label, child, ...)``.

    Raises:
        GraphError: the ids are not exactly one tree of the signature's labels.

    >>> from dagnn.rewriting import Label
    >>> signature = Signature((Label("zero", 0), Label("next", 1), Label("plus", 2, neighbourhood_depth=1)))
    >>> decode_term([2, 1, 0, 0], signature)
    ('plus', ('next', 'zero'), 'zero')
    """
    done: list[Term] = []  # from the last token to the first, so that children are there before their parent
    for at in range(len(tokens) - 1, -1, -1):
        if not 0 <= tokens[at] < len(signature.labels):
            raise GraphError(f"token {at} is {tokens[at]}, expected a label id below {len(signature.labels)}.")
        label = signature.labels[tokens[at]]
        if label.arity > len(done):
            raise GraphError(f"the children of token {at}, {label.name!r}, are missing: give one whole tree.")
        children = [done.pop() for _ in range(label.arity)]
        done.append((label.name, *children) if children else label.name)
    if len(done) != 1:
        raise GraphError(f"the tokens spell {len(done)} trees, expected one.")
    return done[0]


@dataclass(frozen=True)
class Score:
    """How a network did on random terms.

    Attributes:
        depth: of the terms.
        right: how many of them the judge accepted.
        count: how many there were.
        nodes: their mean number of nodes.

    >>> Score(depth=9, right=199, count=200, nodes=61.5).share
    0.995
    """

    depth: int
    right: int
    count: int
    nodes: float

    @property
    def share(self) -> float:
        """The share of right answers, 0 .. 1."""
        return self.right / self.count


@dataclass(frozen=True)
class RewritingTask:
    """A rewriting system, with random terms to learn it from and a judge of normal forms.

    The network sees the (neighbourhood, replacement) pairs that random terms of `depth` lead to, and nothing else.

    Attributes:
        signature: the labels.
        rule: what replaces a neighbourhood, given as its root: a node of it, a label, a tuple ``(label, child, ...)``
            of such, or None to leave it.
        term: a random term ``term(random, depth)``: a label or a tuple ``(label, child, ...)``.
        is_right: ``is_right(term, normal_form)``, the judge. It should share no code with the rules.
        depth: of the terms to learn from, at least 1.

    Raises:
        ConfigError: ``depth`` is below 1.

    >>> from dagnn.rewriting import Label
    >>> signature = Signature((Label("zero", 0), Label("next", 1), Label("plus", 2, neighbourhood_depth=1)))
    >>> def rule(plus):
    ...     a, b = plus.children
    ...     return b if a.kind == "zero" else ("next", ("plus", a[0], b))
    >>> def term(draw, depth):
    ...     number = lambda n: ("next", number(n - 1)) if n else "zero"
    ...     return ("plus", number(draw.randint(0, depth)), number(draw.randint(0, depth)))
    >>> task = RewritingTask(signature, rule, term, lambda a, b: str(a).count("next") == str(b).count("next"), depth=4)
    >>> net = task.learn(terms=100, width=32)
    >>> task.score(net, depth=12, count=50).share
    1.0
    """

    signature: Signature
    rule: Rule
    term: Callable[[random.Random, int], Term]
    is_right: Callable[[Term, Term], bool]
    depth: int

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ConfigError(f"depth must be at least 1, got {self.depth}.")

    def replacement(self, neighbourhood: NeighbourhoodTokens) -> ReplacementTokens:
        """What the rule puts in the place of a neighbourhood, as tokens."""
        return encode_replacement(self.rule(read_neighbourhood(neighbourhood, self.signature)), self.signature)

    def neighbourhoods(self, terms: Iterable[Term], *, budget: int = 200_000) -> list[NeighbourhoodTokens]:
        """The distinct neighbourhoods that the rules meet on the way to the normal forms of some terms.

        Args:
            terms: any number.
            budget: rewrite steps for each term; one that needs more counts as far as it came.

        Raises:
            GraphError: a term, or what the rule returned, is no tree of the signature's labels.
        """
        machine = RewritingMachine(self.signature, RuleRewriter(self.replacement), eager=True)
        machine.run([encode_term(term, self.signature) for term in terms], budget=budget)
        return [machine.neighbourhood(number) for number in range(machine.num_neighbourhoods)]

    def learn(
        self,
        *,
        terms: int = 10_000,
        width: int = 128,
        blocks: int = 1,
        batch_size: int = 512,
        max_steps: int = 3000,
        lr: float = 3e-3,
        seed: int = 0,
    ) -> GraphRewriter:
        """A network that has learned the rules from random terms at `depth`.

        Training ends when every neighbourhood is rewritten right and the mean loss of a pass is below 0.01, or after
        ``max_steps`` batches.

        Args:
            terms: how many random terms the rules are shown on.
            width, blocks: size of the `GraphRewriter`.
            batch_size: neighbourhoods of a batch.
            max_steps: the most batches.
            lr: learning rate of Adam; it falls to a tenth in the course of ``max_steps``.
            seed: of the terms, the first weights and the batches. PyTorch's own generator is left as it was.

        Raises:
            ConfigError: there is no term, or no neighbourhood in any.
        """
        if terms < 1 or batch_size < 1 or max_steps < 1:
            raise ConfigError(
                f"terms, batch_size and max_steps must be at least 1, got {terms}, {batch_size} and {max_steps}."
            )
        draw = random.Random(seed)
        seen = self.neighbourhoods(self.term(draw, self.depth) for _ in range(terms))
        if not seen:
            raise ConfigError(f"none of {terms} terms has a node to rewrite: give a label a neighbourhood_depth.")
        replacements = [self.replacement(neighbourhood) for neighbourhood in seen]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = GraphRewriter.from_neighbourhoods(
                self.signature, seen, width=width, blocks=blocks, num_slots=max(1, *map(len, replacements))
            )
            self._train(net, seen, replacements, batch_size, max_steps, lr)
        return net.eval()

    def score(self, net: GraphRewriter, *, depth: int, count: int = 1000, seed: int = 1) -> Score:
        """How many normal forms of new random terms the judge accepts; a term without a normal form is wrong.

        Args:
            net: as `learn` gave it.
            depth: of the terms.
            count: how many.
            seed: of the terms.

        Raises:
            ConfigError: ``count`` is below 1.
        """
        if count < 1:
            raise ConfigError(f"count must be at least 1, got {count}.")
        draw = random.Random(f"{seed} at {depth}")
        terms = [self.term(draw, depth) for _ in range(count)]
        encoded = [encode_term(term, self.signature) for term in terms]
        results = net.solve(encoded, budget=200_000)
        right = sum(
            result.tokens is not None and self.is_right(term, decode_term(result.tokens, self.signature))
            for term, result in zip(terms, results, strict=True)
        )
        return Score(depth, right, count, sum(map(len, encoded)) / count)

    def report(self, *, count: int = 1000, seed: int = 0) -> list[Score]:
        """Learns, prints a line for the depth that was learned from and for twice and three times that, and returns
        the scores."""
        net = self.learn(seed=seed)
        print(f"learned from terms of depth {self.depth}: {net.num_parameters():,} parameters")
        scores = [self.score(net, depth=times * self.depth, count=count) for times in (1, 2, 3)]
        for score in scores:
            print(f"depth {score.depth:2}: {score.share:7.2%} of {count} right, {score.nodes:.0f} nodes on average")
        return scores

    def _train(
        self,
        net: GraphRewriter,
        seen: Sequence[NeighbourhoodTokens],
        replacements: Sequence[ReplacementTokens],
        batch_size: int,
        max_steps: int,
        lr: float,
    ) -> None:
        rows = net.encode(seen)
        targets = net.features.encode_targets(seen, replacements, net.num_slots)
        optimizer = torch.optim.Adam(net.parameters(), lr)
        step = 0
        while step < max_steps:
            total = 0.0
            for items in torch.split(torch.randperm(len(seen)), batch_size):
                for group in optimizer.param_groups:
                    group["lr"] = lr * 0.1 ** min(1.0, step / max_steps)
                net.zero_grad()
                loss = net.loss(rows[items], targets[items])
                loss.backward()  # type: ignore[no-untyped-call]
                net.clip_gradients(1.0)
                optimizer.step()
                total += float(loss.detach()) * len(items)
                step += 1
            if total < 0.01 * len(seen) and net.rewrite(seen) == replacements:
                return
