"""What one rewrite step sees (a window) and what it answers (a replacement)."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from dagnn.errors import GraphError
from dagnn.graph.rewriting.signature import Signature

# A window as numbers, in preorder from the node being rewritten: an id below `len(signature.shown)` shows
# a node for the first time; `len(signature.shown) + k` says "the k-th node shown, once more".
WindowTokens: TypeAlias = tuple[int, ...]

# A replacement as numbers, in preorder: an id below `len(signature.labels)` makes a node with that label;
# `len(signature.labels) + k` points to the k-th node of the window. The empty tuple says "leave it".
ReplacementTokens: TypeAlias = tuple[int, ...]

LEAVE: ReplacementTokens = ()


class Window:
    """One node of a window, with what may be seen below it.

    The same node is the same object wherever it is reached, so `a is b` asks whether two children
    are one shared sub-graph.

    Attributes:
        label: as shown: a label, ``label:tag`` or ``?`` for a node whose label is out of sight.
        kind: the label alone, ``?`` where hidden.
        children: empty where they are out of sight.
        index: position among the distinct nodes of the window, in preorder.
        address: path of child positions from the root by which it is first reached.
    """

    __slots__ = ("address", "children", "index", "kind", "label")

    def __init__(self, index: int, address: tuple[int, ...]) -> None:
        self.label = self.kind = "?"
        self.children: tuple[Window, ...] = ()
        self.index = index
        self.address = address

    def __getitem__(self, position: int) -> "Window":
        return self.children[position]

    def __repr__(self) -> str:
        inner = "".join(f" {child!r}" for child in self.children)
        return f"({self.label}{inner})" if inner else self.label

    @property
    def tag(self) -> str:
        """What the label hides, in a word: ``"3"`` for ``positive:3``; empty without a tag."""
        return self.label.partition(":")[2]


# What a rule answers: a node of its window (copied by pointer), a label without children, or
# `(label, child, ...)`. `Any` because mypy has no recursive alias across modules yet.
Replacement: TypeAlias = Window | str | tuple[Any, ...]


def read_window(tokens: Sequence[int], signature: Signature) -> Window:
    """The window that the tokens encode, as a graph of `Window` nodes; the result is its root."""
    shown, hidden = signature.shown, signature.hidden
    depth_limit = shown[tokens[0]].window_depth
    if depth_limit is None:
        raise GraphError(f"{shown[tokens[0]].name!r} is a constructor and has no window: nothing rewrites it.")
    nodes: list[Window] = []
    position = 0

    def read(address: tuple[int, ...], depth: int) -> Window:
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
            node = Window(len(nodes), address)
            nodes.append(node)
            if token == hidden:
                return node
        node.label, node.kind, arity, opaque, _ = shown[token]
        below = depth_limit + 1 if depth and opaque else depth + 1
        node.children = tuple([read((*address, child), below) for child in range(arity)])
        return node

    return read((), 0)


def window_nodes(root: Window) -> list[Window]:
    """The distinct nodes of a window by `index`."""
    found: dict[int, Window] = {}
    stack = [root]
    while stack:
        node = stack.pop()
        if node.index not in found:
            found[node.index] = node
            stack.extend(node.children)
    return [found[i] for i in range(len(found))]


def encode_replacement(replacement: Replacement | None, signature: Signature) -> ReplacementTokens:
    """A rule's answer as tokens; None becomes `LEAVE`.

    Raises:
        GraphError: a label is unknown, or has another number of children than its arity.
    """
    if replacement is None:
        return LEAVE
    tokens: list[int] = []

    def write(part: Replacement) -> None:
        if isinstance(part, Window):
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
