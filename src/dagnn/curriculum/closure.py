"""Every neighbourhood that a set of expressions can lead to, for numbers of any length and expressions of any depth.

A rewrite step sees a node whose children are in normal form. `Closure` therefore runs the rules on *calls*: a label and
one value for each child, where a value is a set of normal forms:

    "Zero", "One", "Many"   the digit chain of 0, of 1, all chains of numbers from 2 on
    "7", "less", "x"        a label without children
    ("pair", "Zero", "One") all terms with this label over these values: numbers, pairs and triples
    "+:number"              all terms whose root is shown so; `Closure.parts` says what their operands may be

It draws every neighbourhood that a call can show, with equal parts as one node wherever they may be equal, looks up
what replaces each, and follows the calls in the replacements until no call, no result and no neighbourhood is new.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.rules.numbers import NEGATIVE_FRACTION, NUMBER, NUMBERS, TAG_CHILD
from dagnn.rewriting.system import NeighbourhoodTokens, ReplacementTokens

# A string or a tuple of a label and values; mypy has no recursive alias across functions yet.
Value: TypeAlias = Any
Call: TypeAlias = tuple[Any, ...]
# An operand of a form: its name, and the operand's position.
Part: TypeAlias = tuple[str, int]

_LABELS = SIGNATURE.labels
_DEPTH = {label.name: label.neighbourhood_depth for label in _LABELS}
_SHOWN_ID = {shown.name: i for i, shown in enumerate(SIGNATURE.shown)}
_ARITY = {shown.name: shown.arity for shown in SIGNATURE.shown}
_KIND = {shown.name: shown.kind for shown in SIGNATURE.shown}
_DIGITS = tuple(f"d{digit}" for digit in range(10))
_CHAINS = ("Zero", "One", "Many")
# Labels whose values keep the values of their children apart. Of all others one value holds all terms.
_DETAILED = (*NUMBERS, "pair", "triple")
# Sorts of unknown chains: the least number that each may be.
_LOWEST = {"Nat": 0, "Pos": 1, "Many": 2, "Big": 4}
_NEAR = 3  # numbers up to it are shown apart


class _Drawn(NamedTuple):
    """A term to be drawn: labels as far as they matter; where `label` is empty, something unknown of a sort."""

    label: str
    shown: str
    children: tuple["_Drawn", ...] = ()
    sort: str | Part = ""


_END = _Drawn("end", "end")
_SMALL = (_END, *(_Drawn(f"d{digit}", f"d{digit}", (_END,)) for digit in range(1, _NEAR + 1)))


def drawings(value: Value, visible: int) -> list[_Drawn]:
    """All ways to draw a value, of which so many levels are within sight."""
    if value in _CHAINS:
        return _chains(value, visible)
    if isinstance(value, str):
        parts = tuple(_Drawn("", "", sort=(value, i)) for i in range(_ARITY[value]))
        return [_Drawn(_KIND[value], value, parts)]
    label, *inner = value
    if visible and label in ("positive", "negative"):
        sign, far = ("", "positive:>3") if label == "positive" else ("-", "negative:<-3")
        numbers = {"Zero": (0,), "One": (1,), "Many": range(2, _NEAR + 1)}[inner[0]]
        near = [_Drawn(label, f"{label}:{sign}{number}", (_SMALL[number],)) for number in numbers]
        return near + [_Drawn(label, far, (_Drawn("", "", sort="Big"),))] * (inner[0] == "Many")
    # What is out of sight here may be in sight elsewhere, and shows its tag there.
    shown = label if visible else ""
    if visible and label == "fraction":
        shown = NEGATIVE_FRACTION if inner[0][0] == "negative" else "fraction:>0"
    below = 0 if label in NUMBERS else max(0, visible - 1)
    return [_Drawn(label, shown, parts) for parts in itertools.product(*(drawings(part, below) for part in inner))]


def _chains(sort: str, visible: int) -> list[_Drawn]:
    """All ways to draw a digit chain."""
    if sort in ("Zero", "One"):
        return [_SMALL[sort == "One"]]
    if not visible:
        return [_Drawn("", "", sort=sort)]
    rest = {"d0": "Pos", "d1": "Pos" if sort == "Many" else "Nat"}
    below = [
        _Drawn(digit, digit, (inner,)) for digit in _DIGITS for inner in _chains(rest.get(digit, "Nat"), visible - 1)
    ]
    return [_END, *below] if sort == "Nat" else below


class Picture(NamedTuple):
    """A neighbourhood that a call can show.

    Attributes:
        tokens: the neighbourhood.
        values: of each of its nodes, what it may be; where nothing is known but whose operand it is, empty.
        parts: of each of its nodes, the operands that it is: it may only be what all of them may be.
    """

    tokens: NeighbourhoodTokens
    values: tuple[tuple[Value, ...], ...]
    parts: tuple[frozenset[Part], ...]


def pictures(call: Call) -> list[Picture]:
    """Every neighbourhood that a call can show; parts that are out of sight are equal wherever they can be."""
    label, *values = call
    depth = _DEPTH[label]
    assert depth is not None
    # For the tag of a negative number one more digit must be known.
    visible = depth + (label == "negative")
    found: dict[Picture, None] = {}
    for tops in itertools.product(*(drawings(value, visible) for value in values)):
        # The root shows its own tag too.
        shown = label if label not in TAG_CHILD else value_of(label, tuple(values))
        if label == "negative":
            shown = f"negative:-{_SMALL.index(tops[0])}" if tops[0] in _SMALL[1:] else "negative:<-3"
        for graph in _graphs(_Drawn(label, shown, tops)):
            found[graph.picture(depth)] = None
    return list(found)


class _Node:
    """A node of a drawing. `same_as`: another one that it is."""

    __slots__ = ("children", "drawn", "same_as")

    def __init__(self, drawn: _Drawn) -> None:
        self.drawn = drawn
        self.same_as: _Node | None = None
        self.children = [_Node(child) for child in drawn.children]

    def below(self) -> Iterator["_Node"]:
        for child in self.children:
            yield child
            yield from child.below()


class _Impossible(Exception):
    """No term looks like that."""


def _graphs(drawn: _Drawn) -> Iterator["_Graph"]:
    """The drawing as graphs: each unknown part is something of its own, or the same node as another one."""
    root = _Node(drawn)
    nodes = list(root.below())
    labelled = [node for node in nodes if node.drawn.label]
    in_chains = {node for node in labelled if node.drawn.label in ("end", *_DIGITS)}
    chains = [node for node in labelled if node in in_chains]
    terms = [node for node in labelled if node not in in_chains]
    unknown = [node for node in nodes if not node.drawn.label]
    for _ in _ways_to_share(unknown, chains, terms):
        try:
            yield _Graph(root, nodes)
        except _Impossible:
            continue


def _ways_to_share(unknown: Sequence[_Node], chains: list[_Node], terms: list[_Node]) -> Iterator[None]:
    """Sets `same_as` of the unknown nodes, each way once: to one of `chains` or `terms`, which are what a chain and an
    operand may be, to an unknown one before it that is something of its own, or to none."""
    if not unknown:
        yield
        return
    node, *rest = unknown
    is_chain = isinstance(node.drawn.sort, str)
    for other in chains if is_chain else terms:
        node.same_as = other
        yield from _ways_to_share(rest, chains, terms)
    node.same_as = None
    own = [node]
    yield from _ways_to_share(rest, chains + own if is_chain else chains, terms if is_chain else terms + own)


@dataclass
class _Entry:
    """A node of a graph in which equal sub-graphs are one node."""

    label: str
    shown: str
    children: tuple[int, ...]
    lowest: int = 0  # of an unknown chain: the least number that it may be
    parts: frozenset[Part] = frozenset()


class _Graph:
    """A drawing with equal sub-graphs as one node, as the machine's term graph has it."""

    def __init__(self, root: _Node, nodes: list[_Node]) -> None:
        self._number_of: dict[_Node, int] = {}
        self._busy: set[_Node] = set()
        self._made: dict[tuple[Any, ...], int] = {}
        self._entries: list[_Entry] = []
        self._root = self._number(root)
        self._one = self._made.get(("d1", self._made.get(("end",))))
        for entry in self._entries:
            if not entry.label and not entry.parts:
                # A number of its own: neither 0 nor 1 where these are drawn.
                entry.lowest = 0 if ("end",) not in self._made else 1 if self._one is None else 2
        for node in nodes:
            if not node.drawn.label and isinstance(node.drawn.sort, str):
                self._at_least(self._number_of[node], _LOWEST[node.drawn.sort])
            elif node.drawn.label == "d0":
                self._at_least(self._number_of[node.children[0]], 1)

    def _number(self, node: _Node) -> int:
        if node in self._number_of:
            return self._number_of[node]
        if node in self._busy:
            raise _Impossible  # a part of itself
        self._busy.add(node)
        drawn = node.drawn
        if node.same_as is not None:
            number = self._number(node.same_as)
        else:
            children = tuple(map(self._number, node.children))
            key = (drawn.label, *children) if drawn.label else (node,)
            number = self._made.setdefault(key, len(self._entries))
            if number == len(self._entries):
                self._entries.append(_Entry(drawn.label, "", children))
            self._entries[number].shown = self._entries[number].shown or drawn.shown
        if not isinstance(drawn.sort, str):
            self._entries[number].parts |= {drawn.sort}
        self._number_of[node] = number
        return number

    def _at_least(self, number: int, bound: int) -> None:
        """Sees to it that a chain is a number from `bound` on."""
        entry = self._entries[number]
        if not entry.label:
            entry.lowest = max(entry.lowest, bound)
        elif (entry.label == "end" and bound) or (number == self._one and bound > 1):
            raise _Impossible
        elif entry.label in _DIGITS and int(entry.label[1]) < bound:
            self._at_least(entry.children[0], 1)

    def _values(self, number: int) -> tuple[Value, ...]:
        entry = self._entries[number]
        if not entry.label:
            return () if entry.parts else _CHAINS[min(entry.lowest, 2) :]
        if entry.label not in (*_DETAILED, "end", *_DIGITS):
            return (entry.shown,)
        inner = itertools.product(*map(self._values, entry.children))
        return tuple(dict.fromkeys(value_of(entry.label, part) for part in inner))

    def picture(self, limit: int) -> Picture:
        """As the machine writes the neighbourhood of the root, see `term_graph`."""
        tokens: list[int] = []
        order: list[int] = []
        labelled: set[int] = set()
        stack = [(self._root, 0)]
        while stack:
            number, depth = stack.pop()
            if number in order:
                tokens.append(len(SIGNATURE.shown) + order.index(number))
                if depth > limit or number in labelled:
                    continue
            else:
                order.append(number)
                if depth > limit:
                    tokens.append(SIGNATURE.hidden)
                    continue
            labelled.add(number)
            entry = self._entries[number]
            assert entry.label, f"a neighbourhood of depth {limit} shows the label of an unknown operand"
            tokens.append(_SHOWN_ID[entry.shown])
            below = limit + 1 if depth and entry.label in NUMBERS else depth + 1
            stack.extend((child, below) for child in reversed(entry.children))
        values = [self._values(number) if i else () for i, number in enumerate(order)]
        return Picture(tuple(tokens), tuple(values), tuple(self._entries[number].parts for number in order))


def value_of(label: str, values: tuple[Value, ...]) -> Value:
    """The value of the terms with this label over these values."""
    if label == "end":
        return "Zero"
    if label in _DIGITS:
        return "One" if (label, *values) == ("d1", "Zero") else "Many"
    if label in _DETAILED:
        return (label, *values)
    return f"{label}:{NUMBER}" if label in TAG_CHILD and is_number(values[TAG_CHILD[label]]) else label


def is_number(value: Value) -> bool:
    """Whether all terms of a value are numbers."""
    return isinstance(value, tuple) and value[0] in NUMBERS


_ZERO: Value = ("positive", "Zero")
# What may be left as it is and still have a value; every other label is left where there is none.
_NORMAL = {"+", "-", "*", "/", "^", "d0", "negative", "sin", "cos", "tan", "log", "exp", "sqrt"}


def _divides_by_zero(label: str, *values: Value) -> bool:
    return (label == "/" and values[1] == _ZERO) or (label == "^" and values[0] == _ZERO)


def _is_of_high_degree(label: str, *values: Value) -> bool:
    """Whether a call is a polynomial above the second degree, which no rule goes on with."""
    return label == "product_up_to_square" and values[:2] != (_ZERO, _ZERO)


class Closure:
    """The neighbourhoods of some calls, and of all calls that those lead to; ``answer``: what replaces one.

    Attributes:
        replacement_of: neighbourhood -> what replaces it.
        results: call -> values that it can have.
        parts: operand of a form -> values that it can have.
        left: calls that have no value, such as a division by zero, each with a neighbourhood of it.
    """

    def __init__(self, answer: Callable[[NeighbourhoodTokens], ReplacementTokens]) -> None:
        self._answer = answer
        self.replacement_of: dict[NeighbourhoodTokens, ReplacementTokens] = {}
        self.results: dict[Call, set[Value]] = {}
        self.parts: dict[Part, set[Value]] = {}
        self.left: dict[Call, NeighbourhoodTokens] = {}
        self._users: dict[Call, set[Call]] = {}
        self._shown_by: dict[str, set[Call]] = {}  # form -> calls whose neighbourhoods show its operands
        self._pictures: dict[Call, list[Picture]] = {}
        self._waiting: dict[Call, None] = {}

    def ask(self, call: Call, user: Call | None = None) -> set[Value]:
        """The values that a call is known to have; `run` follows it. A label that is never rewritten has its own."""
        if _DEPTH[call[0]] is None:
            return {self._built(call[0], call[1:])}
        if call not in self.results:
            self.results[call] = set()
            self._users[call] = set()
            self._waiting[call] = None
            for form in {value for value in call[1:] if isinstance(value, str) and _ARITY.get(value)}:
                self._shown_by.setdefault(form, set()).add(call)
        if user is not None:
            self._users[call].add(user)
        return self.results[call]

    def run(self) -> None:
        """Follows all calls until nothing new comes."""
        while self._waiting:
            call = next(iter(self._waiting))
            del self._waiting[call]
            if _is_of_high_degree(*call):
                continue  # pictures without end, and none of an expression that has a value
            if call not in self._pictures:
                self._pictures[call] = pictures(call)
            known: dict[tuple[Any, ...], set[Value]] = {}
            new: set[Value] = set()
            for picture in self._pictures[call]:
                new |= self._results_of(call, picture, known)
            if not new <= self.results[call]:
                self.results[call] |= new
                self._waiting |= dict.fromkeys(sorted(self._users[call], key=str))

    def _results_of(self, call: Call, picture: Picture, known: dict[tuple[Any, ...], set[Value]]) -> set[Value]:
        values: list[frozenset[Value]] = []
        for own, parts in zip(picture.values, picture.parts, strict=True):
            possible = [self.parts.get(part, set()) for part in parts]
            if own:
                if any(each.isdisjoint(own) for each in possible):
                    return set()  # nothing is an operand there and looks so
                values.append(frozenset(own))
            else:
                values.append(frozenset(set.intersection(*possible)) if possible else frozenset())
                if possible and not values[-1]:
                    return set()
        if picture.tokens not in self.replacement_of:
            self.replacement_of[picture.tokens] = self._answer(picture.tokens)
        replacement = self.replacement_of[picture.tokens]
        if not replacement:
            if call[0] in _NORMAL and not _divides_by_zero(*call):
                return {self._built(call[0], call[1:])}
            self.left[call] = picture.tokens
            return set()
        # Most neighbourhoods of a call differ only in what is equal out of sight: they have the same results.
        key = tuple(values[t - len(_LABELS)] if t >= len(_LABELS) else t for t in replacement)
        if key not in known:
            known[key] = self._followed(call, key)
        return known[key]

    def _followed(self, call: Call, replacement: tuple[Any, ...]) -> set[Value]:
        """The values of a replacement: label ids, and sets of values where it points to a node."""
        parts: list[Iterable[Value]] = []
        for token in reversed(replacement):
            if isinstance(token, frozenset):
                parts.append(token)
                continue
            label, found = _LABELS[token], set()
            for inner in itertools.product(*[parts.pop() for _ in range(label.arity)]):
                found |= self.ask((label.name, *inner), user=call)
            parts.append(found)
        return set(parts.pop())

    def _built(self, label: str, values: tuple[Value, ...]) -> Value:
        value = value_of(label, values)
        if isinstance(value, str) and _ARITY.get(value):
            for i, each in enumerate(values):
                possible = self.parts.setdefault((value, i), set())
                if each not in possible:
                    possible.add(each)
                    self._waiting |= dict.fromkeys(sorted(self._shown_by.get(value, ()), key=str))
        return value
