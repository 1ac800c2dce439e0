"""A rewriting system: its signature (labels and arities), what one step sees, and what it returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dagnn.errors import GraphError

MAX_ARITY = 4
# A neighbourhood of depth 2 has 1 + 4 + 16 nodes within sight and 64 hidden ones: the compiled loop's buffers hold
# no more.
MAX_NEIGHBOURHOOD_DEPTH = 2


@dataclass(frozen=True)
class Label:
    """A function symbol of the term graph.

    Attributes:
        name: without blanks, parentheses or colons, and not ``?``; unique in its signature.
        arity: number of children, 0 .. 4.
        neighbourhood_depth: how many levels below a node of this label a rewrite step may look, 0 .. 2,
            or None for a constructor, which is never rewritten.

    >>> Label("plus", 2, neighbourhood_depth=1)
    Label(name='plus', arity=2, neighbourhood_depth=1)
    """

    name: str
    arity: int
    neighbourhood_depth: int | None = None


@dataclass(frozen=True)
class Signature:
    """All labels of a rewriting system and how neighbourhoods show them.

    Attributes:
        labels: in a fixed order; a label's position is its id.
        opaque: labels whose children a neighbourhood hides (they stay copyable), unless the node is
            the one being rewritten. Numbers are opaque: a rule about sums need not see digits.
        tags: a bottom-up tree automaton that summarises what is out of sight: maps
            (label, tag of one child) to a tag. ``"*"`` matches any other tag. A node without an
            entry has the empty tag. With ``{("end", ""): "0", ("positive", "0"): "0"}``
            the number zero is shown as ``positive:0``.
        tagged: labels that are shown together with their tag, as ``label:tag``.
        tag_child: label -> position of the child whose tag counts; the first one where there is no entry.

    Raises:
        GraphError: a name is used twice or cannot be shown, an arity or a neighbourhood depth is out of range, or a tag
            or `tag_child` names an unknown label, or a child that its label does not have.

    >>> signature = Signature((Label("zero", 0), Label("next", 1), Label("plus", 2, neighbourhood_depth=1)))
    >>> signature.id_of
    {'zero': 0, 'next': 1, 'plus': 2}
    """

    labels: tuple[Label, ...]
    opaque: frozenset[str] = frozenset()
    tags: Mapping[tuple[str, str], str] = field(default_factory=dict)
    tagged: frozenset[str] = frozenset()
    tag_child: Mapping[str, int] = field(default_factory=dict)

    id_of: dict[str, int] = field(init=False, repr=False, compare=False)
    """Label name -> id."""
    shown: tuple["Shown", ...] = field(init=False, repr=False, compare=False)
    """What a neighbourhood may show, by id: every label, every ``label:tag``, and last ``?`` (a hidden node)."""
    tables: "SignatureTables" = field(init=False, repr=False, compare=False)
    """The signature as integer arrays, for the compiled loops."""

    def __post_init__(self) -> None:
        names = [label.name for label in self.labels]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise GraphError(f"the label {twice!r} is declared twice: give every label its own name.")
        for label in self.labels:
            if not 0 <= label.arity <= MAX_ARITY:
                raise GraphError(
                    f"the label {label.name!r} has arity {label.arity}, expected 0 .. {MAX_ARITY}: "
                    "split it into a chain of labels with fewer children."
                )
            if label.neighbourhood_depth is not None and not 0 <= label.neighbourhood_depth <= MAX_NEIGHBOURHOOD_DEPTH:
                raise GraphError(
                    f"the label {label.name!r} has neighbourhood_depth {label.neighbourhood_depth}, "
                    f"expected 0 .. {MAX_NEIGHBOURHOOD_DEPTH} "
                    "or None: let a step look less far and pass what it saw to the next one."
                )
            if label.name in ("", "?") or any(sign in ":()" or sign.isspace() for sign in label.name):
                raise GraphError(
                    f"the label {label.name!r} cannot be shown: use a name without blanks, parentheses or colons, "
                    "other than '?'."
                )
        unknown = ({name for name, _ in self.tags} | self.opaque | self.tagged | set(self.tag_child)) - set(names)
        if unknown:
            raise GraphError(f"tags or opaque labels name {min(unknown)!r}, which is not a label: declare it.")
        for label in self.labels:
            position = self.tag_child.get(label.name, 0)
            if not 0 <= position < max(1, label.arity):
                raise GraphError(
                    f"tag_child[{label.name!r}] = {position}, but the label has {label.arity} children: "
                    "name one of them by its position from 0."
                )
        # Derived once; a frozen dataclass takes attributes only this way.
        object.__setattr__(self, "id_of", {name: i for i, name in enumerate(names)})
        object.__setattr__(self, "shown", _shown(self))
        object.__setattr__(self, "tables", _build_tables(self))

    @property
    def hidden(self) -> int:
        """The id of ``?`` in `shown`."""
        return len(self.shown) - 1


class Shown(NamedTuple):
    """One thing that a neighbourhood may show: a label, with its tag where it has one, or ``?``."""

    name: str
    kind: str
    arity: int
    opaque: bool
    neighbourhood_depth: int | None


class SignatureTables(NamedTuple):
    """A signature as arrays, for compiled functions; ids are positions in `Signature.labels` and `Signature.shown`.

    Attributes:
        arity: int64 ``[labels]``.
        neighbourhood_depth: int64 ``[labels]``; -1 for constructors.
        opaque: bool ``[labels]``.
        next_tag: int64 ``[labels, tags]``, by the tag of the child at `tag_child` (0 where there is none).
        tag_child: int64 ``[labels]``.
        shown_id: int64 ``[labels, tags]``, by the node's own tag.
        hidden: int64 ``[1]``, the id of ``?``.
    """

    arity: np.ndarray
    neighbourhood_depth: np.ndarray
    opaque: np.ndarray
    next_tag: np.ndarray
    tag_child: np.ndarray
    shown_id: np.ndarray
    hidden: np.ndarray


def _shown(signature: Signature) -> tuple[Shown, ...]:
    label_of = {label.name: label for label in signature.labels}
    kinds = [(label.name, label.name) for label in signature.labels]
    # By the label's position, not its name: names carry nothing.
    order = {label.name: position for position, label in enumerate(signature.labels)}
    tagged = {(order[name], tag) for (name, _), tag in signature.tags.items() if name in signature.tagged and tag}
    return (
        *(
            Shown(name, kind, label_of[kind].arity, kind in signature.opaque, label_of[kind].neighbourhood_depth)
            for name, kind in kinds + [(f"{kinds[i][0]}:{tag}", kinds[i][0]) for i, tag in sorted(tagged)]
        ),
        Shown("?", "?", 0, False, None),
    )


def _build_tables(signature: Signature) -> SignatureTables:
    tags, ids = ["", *sorted(set(signature.tags.values()) - {""})], signature.id_of
    tag_id = {tag: i for i, tag in enumerate(tags)}
    next_tag = np.zeros((len(ids), len(tags)), np.int64)
    for (name, child_tag), tag in signature.tags.items():
        if child_tag == "*":
            explicit = [tag_id[c] for n, c in signature.tags if n == name and c != "*"]
            others = np.setdiff1d(np.arange(len(tags)), explicit)
            next_tag[ids[name], others] = tag_id[tag]
        else:
            next_tag[ids[name], tag_id[child_tag]] = tag_id[tag]

    shown_of = {shown.name: i for i, shown in enumerate(signature.shown)}
    shown_id = np.empty_like(next_tag)
    for name, label_id in ids.items():
        for tag, t in tag_id.items():
            shown_id[label_id, t] = shown_of.get(f"{name}:{tag}", label_id) if name in signature.tagged else label_id

    labels: Sequence[Label] = signature.labels
    return SignatureTables(
        arity=np.array([label.arity for label in labels], np.int64),
        neighbourhood_depth=np.array(
            [-1 if label.neighbourhood_depth is None else label.neighbourhood_depth for label in labels], np.int64
        ),
        opaque=np.array([label.name in signature.opaque for label in labels], np.bool_),
        next_tag=next_tag,
        tag_child=np.array([signature.tag_child.get(label.name, 0) for label in labels], np.int64),
        shown_id=shown_id,
        hidden=np.array([signature.hidden], np.int64),
    )


# A neighbourhood as numbers, in preorder from the node being rewritten: an id below `len(signature.shown)` shows
# a node for the first time; `len(signature.shown) + k` says "the k-th node shown, once more".
NeighbourhoodTokens: TypeAlias = tuple[int, ...]

# A replacement as numbers, in preorder: an id below `len(signature.labels)` makes a node with that label;
# `len(signature.labels) + k` points to the k-th node of the neighbourhood. The empty tuple says "leave it".
ReplacementTokens: TypeAlias = tuple[int, ...]

LEAVE: ReplacementTokens = ()


class Neighbourhood:
    """One node of a neighbourhood, with what may be seen below it.

    The same node is the same object wherever it is reached, so ``a is b`` is true where two children
    are one shared sub-graph.

    Attributes:
        label: as shown: a label, ``label:tag`` or ``?`` for a node whose label is out of sight.
        kind: the label alone, ``?`` where hidden.
        children: empty where they are out of sight.
        index: position among the distinct nodes of the neighbourhood, in preorder.
        address: path of child positions from the root by which it is first reached.

    >>> signature = Signature((Label("zero", 0), Label("drop", 1, neighbourhood_depth=0)))
    >>> root = read_neighbourhood((1, 2), signature)
    >>> root, root[0].kind, root[0].index, root[0].address
    ((drop ?), '?', 1, (0,))
    """

    __slots__ = ("address", "children", "index", "kind", "label")

    def __init__(self, index: int, address: tuple[int, ...]) -> None:
        self.label = self.kind = "?"
        self.children: tuple[Neighbourhood, ...] = ()
        self.index = index
        self.address = address

    def __getitem__(self, position: int) -> "Neighbourhood":
        return self.children[position]

    def __repr__(self) -> str:
        inner = "".join(f" {child!r}" for child in self.children)
        return f"({self.label}{inner})" if inner else self.label

    @property
    def tag(self) -> str:
        """The part of the label behind the colon: ``"3"`` for ``positive:3``; empty without a tag."""
        return self.label.partition(":")[2]


# What a rule returns: a node of its neighbourhood (copied by pointer), a label without children, or
# `(label, child, ...)`. `Any` because mypy has no recursive alias across modules yet.
Replacement: TypeAlias = Neighbourhood | str | tuple[Any, ...]


def read_neighbourhood(tokens: Sequence[int], signature: Signature) -> Neighbourhood:
    """The neighbourhood that the tokens encode, as a graph of `Neighbourhood` nodes: its root.

    Args:
        tokens: ids of `Signature.shown`; an id of at least ``len(signature.shown)`` repeats a node, see
            `NeighbourhoodTokens`.
        signature: that of the machine that wrote them.

    Raises:
        GraphError: the first token is a constructor, which no rule rewrites.

    >>> signature = Signature((Label("zero", 0), Label("next", 1), Label("plus", 2, neighbourhood_depth=1)))
    >>> root = read_neighbourhood((2, 1, 3, 0), signature)
    >>> root, root[0].kind, root[0][0].label
    ((plus (next ?) zero), 'next', '?')
    """
    shown, hidden = signature.shown, signature.hidden
    depth_limit = shown[tokens[0]].neighbourhood_depth
    if depth_limit is None:
        raise GraphError(f"{shown[tokens[0]].name!r} is a constructor and has no neighbourhood: nothing rewrites it.")
    nodes: list[Neighbourhood] = []
    position = 0

    def read(address: tuple[int, ...], depth: int) -> Neighbourhood:
        nonlocal position
        token = tokens[position]
        position += 1
        if token > hidden:
            node = nodes[token - hidden - 1]
            # A node first met out of sight shows its label when it is met again within sight.
            if depth > depth_limit or node.label != "?":
                return node
            token = tokens[position]
            position += 1
        else:
            node = Neighbourhood(len(nodes), address)
            nodes.append(node)
            if token == hidden:
                return node
        node.label, node.kind, arity, opaque, _ = shown[token]
        below = depth_limit + 1 if depth and opaque else depth + 1
        node.children = tuple([read((*address, child), below) for child in range(arity)])
        return node

    return read((), 0)


def neighbourhood_nodes(root: Neighbourhood) -> list[Neighbourhood]:
    """The distinct nodes of a neighbourhood, at the position of their `index`.

    >>> signature = Signature((Label("zero", 0), Label("next", 1), Label("plus", 2, neighbourhood_depth=1)))
    >>> neighbourhood_nodes(read_neighbourhood((2, 1, 3, 0), signature))
    [(plus (next ?) zero), (next ?), ?, zero]
    """
    found: dict[int, Neighbourhood] = {}
    stack = [root]
    while stack:
        node = stack.pop()
        if node.index not in found:
            found[node.index] = node
            stack.extend(node.children)
    return [found[i] for i in range(len(found))]


def encode_replacement(replacement: Replacement | None, signature: Signature) -> ReplacementTokens:
    """What a rule returned, as tokens; None becomes `LEAVE`.

    Args:
        replacement: a node of the neighbourhood, a label, or a tuple ``(label, child, ...)`` of such.
        signature: gives the ids of the labels.

    Raises:
        GraphError: a label is unknown, or has another number of children than its arity.

    >>> signature = Signature((Label("zero", 0), Label("next", 1), Label("plus", 2, neighbourhood_depth=1)))
    >>> a, b = read_neighbourhood((2, 1, 3, 0), signature).children
    >>> encode_replacement(("next", ("plus", a[0], b)), signature)
    (1, 2, 5, 6)
    """
    if replacement is None:
        return LEAVE
    tokens: list[int] = []

    def write(part: Replacement) -> None:
        if isinstance(part, Neighbourhood):
            tokens.append(len(signature.labels) + part.index)
            return
        name, *children = (part,) if isinstance(part, str) else part
        label_id = signature.id_of.get(name)
        if label_id is None:
            raise GraphError(f"the replacement uses the label {name!r}, which the signature does not declare.")
        if len(children) != signature.labels[label_id].arity:
            raise GraphError(
                f"the replacement gives {name!r} {len(children)} children, "
                f"its arity is {signature.labels[label_id].arity}."
            )
        tokens.append(label_id)
        for child in children:
            write(child)

    write(replacement)
    return tuple(tokens)
