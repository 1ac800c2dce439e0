"""Verified samples come at 3,000 a second or more on one core, and traces faster than by the same rewriting in Python.

All times are CPU seconds of one core, so a busy machine does not blur them. Three cases for each level, samples of the
training and of the test split, and traces:

- samples: draw, answer, assign to a split, confirm by the second route. The limit is the time that 3,000 samples a
  second would take, so the ratio is samples per second / 3,000. Of the test split 11 of 12 draws are dropped.
- traces: rewrite the inputs of samples drawn before, and count every neighbourhood on the way. The peer is the same
  innermost rewriting of hash-consed nodes in plain Python; both begin with an empty graph, ask the same rules once for
  every neighbourhood, and must count the same neighbourhoods. The case names the steps, neighbourhoods left as they are
  included.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from benchmarks import harness
from benchmarks.harness import Case
from dagnn.curriculum.engine import RuleEngine, to_term
from dagnn.curriculum.generator import make_sample
from dagnn.curriculum.levels import LEVELS
from dagnn.curriculum.rules import SIGNATURE
from dagnn.rewriting import LEAVE, NeighbourhoodTokens, ReplacementTokens, RewritingMachine
from dagnn.rewriting.machine import LabelTokens

SAMPLES_PER_SECOND = 3_000
SEED = 0
# Level 4 takes 2,000 steps for each; on level 5 most neighbourhoods are new, and asking the rules, which both sides do
# alike, is most of the work until many samples have been seen.
TRACES = {1: 3_000, 2: 2_000, 3: 2_000, 4: 200, 5: 12_000, 6: 1_500, 7: 1_500}


def samples_case(level: int, count: int, split: str = "train") -> Case:
    """Drawing against the clock."""
    return Case(
        f"level {level}, {split}: {count:,} verified samples",
        ours=lambda: [make_sample(level, seed=SEED, index=index, split=split) for index in range(count)],
        limits={f"{SAMPLES_PER_SECOND:,} samples/s": count / SAMPLES_PER_SECOND},
    )


def traces_case(level: int, count: int) -> Case:
    """The same terms rewritten by both."""
    terms = terms_of(level, count)
    steps = sum(compiled_counts(terms).values())

    def check() -> None:
        assert compiled_counts(terms) == plain_counts(terms), (
            f"the neighbourhoods of level {level} are counted otherwise"
        )

    return Case(
        f"level {level}: {count:,} traces, {steps:,} steps",
        ours=lambda: compiled(terms),
        peers={"plain Python": lambda: plain(terms)},
        required=1.0,
        check=check,
    )


def terms_of(level: int, count: int) -> list[LabelTokens]:
    """The inputs of the first samples of a level."""
    return [to_term(make_sample(level, seed=SEED, index=index).input, level)[0] for index in range(count)]


def compiled(terms: Sequence[LabelTokens]) -> RewritingMachine:
    """Ours, from an empty graph and an empty memo."""
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    machine.absorb(terms)
    return machine


def compiled_counts(terms: Sequence[LabelTokens]) -> Counter[NeighbourhoodTokens]:
    """How often ours met every neighbourhood."""
    machine = compiled(terms)
    return Counter({machine.neighbourhood(w): int(times) for w, times in enumerate(machine.counts)})


def plain(terms: Sequence[LabelTokens]) -> "PlainMachine":
    """The peer, from an empty graph and an empty memo."""
    machine = PlainMachine()
    for term in terms:
        machine.normal_form(machine.built(term, ()))
    return machine


def plain_counts(terms: Sequence[LabelTokens]) -> Counter[NeighbourhoodTokens]:
    """How often the peer met every neighbourhood."""
    return Counter(plain(terms).times)


class Node:
    """A term, one object for equal terms."""

    __slots__ = ("children", "label", "normal_form", "shown", "tag")

    def __init__(self, label: int, children: "tuple[Node, ...]", tag: int, shown: int) -> None:
        self.label, self.children, self.tag, self.shown = label, children, tag, shown
        self.normal_form: Node | None = None


class PlainMachine:
    """Innermost rewriting in plain Python, with a memo of neighbourhoods.

    Attributes:
        times: neighbourhood -> how often it was met.
    """

    def __init__(self) -> None:
        tables = SIGNATURE.tables
        # Lists: NumPy's arrays are slower to index one by one.
        self._arity, self._opaque = tables.arity.tolist(), tables.opaque.tolist()
        self._depth, self._next_tag = tables.neighbourhood_depth.tolist(), tables.next_tag.tolist()
        self._shown_id, self._tag_child = tables.shown_id.tolist(), tables.tag_child.tolist()
        self._rules = RuleEngine()
        self._nodes: dict[tuple[int, tuple[Node, ...]], Node] = {}
        self._replacement_of: dict[NeighbourhoodTokens, ReplacementTokens] = {}
        self.times: dict[NeighbourhoodTokens, int] = {}

    def built(self, tokens: Sequence[int], pointers: Sequence[Node]) -> Node:
        """The node that preorder tokens describe; those beyond the labels point into `pointers`."""
        num_labels = len(self._arity)
        stack: list[Node] = []
        for token in reversed(tokens):
            if token >= num_labels:
                stack.append(pointers[token - num_labels])
            else:
                stack.append(self._node(token, tuple([stack.pop() for _ in range(self._arity[token])])))
        return stack[0]

    def normal_form(self, node: Node) -> Node:
        """The node rewritten until no rule applies; operands first."""
        on_the_way: list[Node] = []
        while node.normal_form is None:
            children = tuple([child.normal_form or self.normal_form(child) for child in node.children])
            if children != node.children:
                on_the_way.append(node)
                node = self._node(node.label, children)
            elif self._depth[node.label] < 0:
                node.normal_form = node
            else:
                neighbourhood, nodes = self._neighbourhood(node)
                replacement = self._replacement(neighbourhood)
                if replacement == LEAVE:
                    node.normal_form = node
                else:
                    on_the_way.append(node)
                    node = self.built(replacement, nodes)
        for earlier in on_the_way:
            earlier.normal_form = node.normal_form
        return node.normal_form

    def _node(self, label: int, children: tuple[Node, ...]) -> Node:
        node = self._nodes.get((label, children))
        if node is None:
            tag = self._next_tag[label][children[self._tag_child[label]].tag if children else 0]
            node = self._nodes[label, children] = Node(label, children, tag, self._shown_id[label][tag])
        return node

    def _replacement(self, neighbourhood: NeighbourhoodTokens) -> ReplacementTokens:
        replacement = self._replacement_of.get(neighbourhood)
        if replacement is None:
            (replacement,) = self._rules.rewrite([neighbourhood])
            self._replacement_of[neighbourhood] = replacement
            self.times[neighbourhood] = 0
        self.times[neighbourhood] += 1
        return replacement

    def _neighbourhood(self, root: Node) -> tuple[NeighbourhoodTokens, list[Node]]:
        """What a step at `root` sees, and its distinct nodes."""
        limit, hidden = self._depth[root.label], SIGNATURE.hidden
        tokens: list[int] = []
        place: dict[Node, int] = {}
        labelled: set[Node] = set()
        stack = [(root, 0)]
        while stack:
            node, depth = stack.pop()
            if node in place:
                tokens.append(hidden + 1 + place[node])
                if depth > limit or node in labelled:
                    continue
            else:
                place[node] = len(place)
                if depth > limit:
                    tokens.append(hidden)
                    continue
            labelled.add(node)
            tokens.append(node.shown)
            below = limit + 1 if depth and self._opaque[node.label] else depth + 1
            stack.extend([(child, below) for child in reversed(node.children)])
        return tuple(tokens), list(place)


def cases(quick: bool) -> Iterable[Case]:
    """Samples and traces of every level; as many steps or neighbourhoods on each as make a second or so in full."""
    for split in ("train", "test"):
        for level in LEVELS:
            yield samples_case(level, 300 if quick else 3_000, split)
    for level, size in TRACES.items():
        yield traces_case(level, size // 8 if quick else size)


if __name__ == "__main__":
    sys.exit(harness.main(__doc__, cases, clock=time.process_time))
