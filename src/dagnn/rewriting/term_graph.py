"""The term graph: hash-consed nodes in arrays, so that equal sub-graphs are one node.

Compiled with Numba; nothing here knows any label. Legend: `t`, `u`, `v` are node numbers.
"""

from typing import NamedTuple

import numpy as np

from dagnn.graph.cached import jitted
from dagnn.rewriting.system import MAX_ARITY, SignatureTables

NO_NODE = -1
# A replacement has at most this many tokens; the store asks to be grown before fewer nodes are free.
MAX_REPLACEMENT = 128
NODES_PER_STEP = MAX_REPLACEMENT + 32


class Store(NamedTuple):
    """Nodes by number.

    Attributes:
        label: int32 ``[capacity]``.
        child: int32 ``[capacity, 4]``, `NO_NODE` where there is none.
        tag: int32 ``[capacity]``, the tree automaton's state (see `Signature.tags`).
        normal_form: int32 ``[capacity]``, `NO_NODE` until known.
        slots: int32 hash table of node numbers, at least twice the capacity, a power of two.
        size: int64 ``[1]``, nodes in use.
    """

    label: np.ndarray
    child: np.ndarray
    tag: np.ndarray
    normal_form: np.ndarray
    slots: np.ndarray
    size: np.ndarray


def new_store(capacity: int) -> Store:
    """An empty store; `capacity` is a power of two."""
    return Store(
        np.empty(capacity, np.int32),
        np.full((capacity, MAX_ARITY), NO_NODE, np.int32),
        np.zeros(capacity, np.int32),
        np.full(capacity, NO_NODE, np.int32),
        np.full(2 * capacity, NO_NODE, np.int32),
        np.zeros(1, np.int64),
    )


def grown(store: Store) -> Store:
    """A store of twice the capacity with the same nodes under the same numbers."""
    used = int(store.size[0])
    bigger = new_store(2 * len(store.label))
    for old, new in zip(store[:4], bigger[:4], strict=True):
        new[:used] = old[:used]
    bigger.size[0] = used
    _rehash(bigger)
    return bigger


@jitted
def _hash(label, a, b, c, d):  # type: ignore[no-untyped-def]
    h = np.uint64(label) * np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ np.uint64(a + 1)) * np.uint64(0xFF51AFD7ED558CCD)
    h = (h ^ (h >> np.uint64(29)) ^ np.uint64(b + 1)) * np.uint64(0xC4CEB9FE1A85EC53)
    h = (h ^ (h >> np.uint64(31)) ^ np.uint64(c + 1)) * np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(30)) ^ np.uint64(d + 1)) * np.uint64(0xFF51AFD7ED558CCD)
    return h ^ (h >> np.uint64(32))


@jitted
def _rehash(store):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(store.slots) - 1)
    for t in range(store.size[0]):
        c = store.child[t]
        slot = _hash(store.label[t], c[0], c[1], c[2], c[3]) & mask
        while store.slots[slot] != NO_NODE:
            slot = (slot + np.uint64(1)) & mask
        store.slots[slot] = t


@jitted
def make_node(store, tables, label, a, b, c, d):  # type: ignore[no-untyped-def]
    """The node with this label and these children: the existing one, or a new one."""
    mask = np.uint64(len(store.slots) - 1)
    slot = _hash(label, a, b, c, d) & mask
    child = store.child
    while True:
        t = store.slots[slot]
        if t == NO_NODE:
            break
        if store.label[t] == label and child[t, 0] == a and child[t, 1] == b and child[t, 2] == c and child[t, 3] == d:
            return t
        slot = (slot + np.uint64(1)) & mask
    t = store.size[0]
    store.size[0] = t + 1
    store.slots[slot] = t
    store.label[t] = label
    child[t, 0] = a
    child[t, 1] = b
    child[t, 2] = c
    child[t, 3] = d
    store.tag[t] = tables.next_tag[label, store.tag[a] if a != NO_NODE else 0]
    store.normal_form[t] = NO_NODE
    return np.int32(t)


@jitted
def build(store, tables, tokens, start, stop, pointers, scratch):  # type: ignore[no-untyped-def]
    """The node that preorder tokens describe: labels, then `number of labels + k` for ``pointers[k]``.

    Reads the tokens backwards, so that every node's children are built before it.
    """
    num_labels = len(tables.arity)
    top = 0
    kids = np.full(MAX_ARITY, NO_NODE, np.int32)
    for i in range(stop - 1, start - 1, -1):
        token = tokens[i]
        if token >= num_labels:
            scratch[top] = pointers[token - num_labels]
            top += 1
        else:
            kids[:] = NO_NODE
            for k in range(tables.arity[token]):
                top -= 1
                kids[k] = scratch[top]
            scratch[top] = make_node(store, tables, token, kids[0], kids[1], kids[2], kids[3])
            top += 1
    return scratch[0]


@jitted
def unfold(store, tables, root, out):  # type: ignore[no-untyped-def]
    """Writes the labels of the tree below `root` in preorder; the number written, or -1 where `out` is too short."""
    stack = np.empty(len(out) + MAX_ARITY, np.int32)
    stack[0] = root
    top = 1
    count = 0
    while top > 0:
        top -= 1
        t = stack[top]
        if count == len(out) or top + MAX_ARITY >= len(stack):
            return -1
        label = store.label[t]
        out[count] = label
        count += 1
        for k in range(tables.arity[label] - 1, -1, -1):
            stack[top] = store.child[t, k]
            top += 1
    return count


class Tables(NamedTuple):
    """`SignatureTables` in the form that compiled functions take."""

    arity: np.ndarray
    neighbourhood_depth: np.ndarray
    opaque: np.ndarray
    next_tag: np.ndarray
    shown_id: np.ndarray
    hidden: np.ndarray


def compiled_tables(tables: SignatureTables, num_shown: int) -> Tables:
    """The tables with the id of the hidden sign ``?`` beside them."""
    return Tables(
        tables.arity,
        tables.neighbourhood_depth,
        tables.opaque,
        tables.next_tag,
        tables.shown_id,
        np.array([num_shown - 1], np.int64),
    )
