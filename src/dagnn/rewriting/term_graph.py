"""The term graph, and the loop that rewrites it: innermost-first, until nothing is left to rewrite.

Nodes are hash-consed in arrays, so that equal sub-graphs are one node. The loop knows no rule and no label: it looks
every neighbourhood up in a memo of replacements and stops where one is missing, so the rewriter, an exact engine or a
network, is queried once per distinct neighbourhood. numba compiles both.
Legend: `t`, `u`, `v` are node numbers, `w` is a neighbourhood number.
"""

from typing import NamedTuple, TypeVar

import numpy as np

from dagnn.numba_jit import jitted
from dagnn.rewriting.system import MAX_ARITY

NO_NODE = -1
# A replacement has at most this many tokens; the store asks to be grown before fewer nodes are free.
MAX_REPLACEMENT = 128
NODES_PER_STEP = MAX_REPLACEMENT + 32

MAX_NEIGHBOURHOOD = 128  # tokens: 21 nodes within sight, each written at most twice, and 64 hidden ones

DONE, MISSING, STORE_FULL, MEMO_FULL, STACK_FULL, OUT_OF_STEPS = range(6)

UNKNOWN = -1

Arrays = TypeVar("Arrays", bound=tuple[np.ndarray, ...])


def _filled(bigger: Arrays, arrays: Arrays) -> Arrays:
    """`bigger`, each array beginning with what is in the smaller one."""
    for new, old in zip(bigger, arrays, strict=True):
        new[: len(old)] = old
    return bigger


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


def grown_store(store: Store) -> Store:
    """A store of twice the capacity with the same nodes under the same numbers."""
    bigger = _filled(new_store(2 * len(store.label)), store)
    bigger.slots.fill(NO_NODE)
    _rehash_store(bigger)
    return bigger


@jitted
def _hash_node(label, a, b, c, d):  # type: ignore[no-untyped-def]
    h = np.uint64(label) * np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ np.uint64(a + 1)) * np.uint64(0xFF51AFD7ED558CCD)
    h = (h ^ (h >> np.uint64(29)) ^ np.uint64(b + 1)) * np.uint64(0xC4CEB9FE1A85EC53)
    h = (h ^ (h >> np.uint64(31)) ^ np.uint64(c + 1)) * np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(30)) ^ np.uint64(d + 1)) * np.uint64(0xFF51AFD7ED558CCD)
    return h ^ (h >> np.uint64(32))


@jitted
def _rehash_store(store):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(store.slots) - 1)
    for t in range(store.size[0]):
        c = store.child[t]
        slot = _hash_node(store.label[t], c[0], c[1], c[2], c[3]) & mask
        while store.slots[slot] != NO_NODE:
            slot = (slot + np.uint64(1)) & mask
        store.slots[slot] = t


@jitted
def make_node(store, tables, label, a, b, c, d):  # type: ignore[no-untyped-def]
    """The node with this label and these children: the existing one, or a new one."""
    mask = np.uint64(len(store.slots) - 1)
    slot = _hash_node(label, a, b, c, d) & mask
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
    telling = child[t, tables.tag_child[label]]
    store.tag[t] = tables.next_tag[label, store.tag[telling] if telling != NO_NODE else 0]
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


class Memo(NamedTuple):
    """Neighbourhoods by number, and what replaces them.

    Attributes:
        tokens: int16, all neighbourhoods joined; neighbourhood `w` is ``tokens[offset[w] : offset[w + 1]]``.
        offset: int64 ``[capacity + 1]``.
        slots: int32 hash table of neighbourhood numbers.
        times: int64 ``[capacity]``, how often each neighbourhood was rewritten.
        nodes: int64 ``[capacity]``, distinct nodes of each neighbourhood.
        replacement: int16, all replacements joined.
        start, stop: int64 ``[capacity]``, the replacement's place; `UNKNOWN` start where it is missing.
        size: int64 ``[2]``: neighbourhoods, and replacement tokens in use.
    """

    tokens: np.ndarray
    offset: np.ndarray
    slots: np.ndarray
    times: np.ndarray
    nodes: np.ndarray
    replacement: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    size: np.ndarray


def new_memo(capacity: int) -> Memo:
    """An empty memo; `capacity` is a power of two."""
    return Memo(
        np.empty(24 * capacity, np.int16),
        np.zeros(capacity + 1, np.int64),
        np.full(2 * capacity, NO_NODE, np.int32),
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.int64),
        np.empty(16 * capacity, np.int16),
        np.full(capacity, UNKNOWN, np.int64),
        np.zeros(capacity, np.int64),
        np.zeros(2, np.int64),
    )


def grown_memo(memo: Memo) -> Memo:
    """A memo of twice the capacity with the same neighbourhoods under the same numbers."""
    bigger = _filled(new_memo(2 * len(memo.times)), memo)
    bigger.slots.fill(NO_NODE)
    _rehash_memo(bigger)
    return bigger


class Stack(NamedTuple):
    """What is being rewritten: frames, innermost last.

    Attributes:
        term: int32, each frame's current node.
        chain_start: int64, where the frame's part of `chain` begins.
        chain: int32, the nodes that were rewritten on the way to `term`: all get its normal form.
        top: int64 ``[2]``: frames and chain entries in use.
    """

    term: np.ndarray
    chain_start: np.ndarray
    chain: np.ndarray
    top: np.ndarray


def new_stack(capacity: int) -> Stack:
    """An empty stack."""
    return Stack(
        np.empty(capacity, np.int32),
        np.empty(capacity, np.int64),
        np.empty(4 * capacity, np.int32),
        np.zeros(2, np.int64),
    )


def grown_stack(stack: Stack) -> Stack:
    """A stack of twice the capacity with the same frames."""
    return _filled(new_stack(2 * len(stack.term)), stack)


class Log(NamedTuple):
    """Steps in the order they were taken; of length 0 where nobody wants them.

    Attributes:
        neighbourhood, before, after: int32 ``[capacity]``.
        size: int64 ``[1]``.
    """

    neighbourhood: np.ndarray
    before: np.ndarray
    after: np.ndarray
    size: np.ndarray


def new_log(capacity: int) -> Log:
    """An empty log."""
    return Log(
        np.empty(capacity, np.int32), np.empty(capacity, np.int32), np.empty(capacity, np.int32), np.zeros(1, np.int64)
    )


@jitted
def _hash_tokens(tokens, start, stop):  # type: ignore[no-untyped-def]
    h = np.uint64(stop - start)
    for i in range(start, stop):
        h = (h ^ np.uint64(tokens[i])) * np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(29)
    return h ^ (h >> np.uint64(32))


@jitted
def _rehash_memo(memo):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(memo.slots) - 1)
    for w in range(memo.size[0]):
        slot = _hash_tokens(memo.tokens, memo.offset[w], memo.offset[w + 1]) & mask
        while memo.slots[slot] != NO_NODE:
            slot = (slot + np.uint64(1)) & mask
        memo.slots[slot] = w


@jitted
def _write_neighbourhood(store, tables, u, tokens, start, nodes, work):  # type: ignore[no-untyped-def]
    """Appends the neighbourhood of node `u` to `tokens`; returns (end of tokens, number of distinct nodes)."""
    limit = tables.neighbourhood_depth[store.label[u]]
    num_shown = tables.hidden[0] + 1
    labelled = work[2]
    end = start
    distinct = 0
    work[0, 0] = u
    work[1, 0] = 0
    top = 1
    while top > 0:
        top -= 1
        t = work[0, top]
        depth = work[1, top]
        place = -1
        for i in range(distinct):
            if nodes[i] == t:
                place = i
                break
        if place >= 0:
            tokens[end] = num_shown + place
            end += 1
            if depth > limit or labelled[place]:
                continue
        else:
            place = distinct
            nodes[place] = t
            labelled[place] = 0
            distinct += 1
            if depth > limit:
                tokens[end] = tables.hidden[0]
                end += 1
                continue
        labelled[place] = 1
        label = store.label[t]
        tokens[end] = tables.shown_id[label, store.tag[t]]
        end += 1
        below = limit + 1 if depth > 0 and tables.opaque[label] else depth + 1
        for k in range(tables.arity[label] - 1, -1, -1):
            work[0, top] = store.child[t, k]
            work[1, top] = below
            top += 1
    return end, distinct


@jitted
def _find_neighbourhood(memo, end, num_nodes):  # type: ignore[no-untyped-def]
    """The number of the neighbourhood written behind the last one: an old one, or itself made permanent."""
    w = memo.size[0]
    start = memo.offset[w]
    length = end - start
    mask = np.uint64(len(memo.slots) - 1)
    slot = _hash_tokens(memo.tokens, start, end) & mask
    while True:
        known = memo.slots[slot]
        if known == NO_NODE:
            break
        first = memo.offset[known]
        if memo.offset[known + 1] - first == length:
            same = True
            for i in range(length):
                if memo.tokens[first + i] != memo.tokens[start + i]:
                    same = False
                    break
            if same:
                return np.int64(known)
        slot = (slot + np.uint64(1)) & mask
    memo.slots[slot] = w
    memo.offset[w + 1] = end
    memo.times[w] = 0
    memo.nodes[w] = num_nodes
    memo.start[w] = UNKNOWN
    memo.size[0] = w + 1
    return w


@jitted
def rewrite_loop(store, tables, memo, stack, log, budget):  # type: ignore[no-untyped-def]
    """Rewrites what the stack holds until it is empty or something is missing.

    Returns:
        (status, neighbourhood number for `MISSING`, steps taken in this call). Everything is left as it stands, so the
        call may be repeated once the missing replacement is there or the full array was grown.
    """
    nodes = np.empty(MAX_NEIGHBOURHOOD, np.int32)
    work = np.empty((3, MAX_NEIGHBOURHOOD + 4), np.int64)
    scratch = np.empty(NODES_PER_STEP, np.int32)
    steps = 0
    while stack.top[0] > 0:
        frame = stack.top[0] - 1
        t = stack.term[frame]
        known = store.normal_form[t]
        if known != NO_NODE:
            first = stack.chain_start[frame]
            for i in range(first, stack.top[1]):
                store.normal_form[stack.chain[i]] = known
            stack.top[0] = frame
            stack.top[1] = first
            continue
        if store.size[0] + NODES_PER_STEP > len(store.label):
            return STORE_FULL, UNKNOWN, steps
        if frame + 2 > len(stack.term) or stack.top[1] + 2 > len(stack.chain):
            return STACK_FULL, UNKNOWN, steps

        label = store.label[t]
        arity = tables.arity[label]
        ready = True
        changed = False
        for k in range(arity):
            c = store.child[t, k]
            n = store.normal_form[c]
            if n == NO_NODE:
                stack.term[frame + 1] = c
                stack.chain_start[frame + 1] = stack.top[1]
                stack.top[0] = frame + 2
                ready = False
                break
            changed = changed or n != c
        if not ready:
            continue
        u = t
        if changed:
            c0 = store.normal_form[store.child[t, 0]]
            c1 = store.normal_form[store.child[t, 1]] if arity > 1 else NO_NODE
            c2 = store.normal_form[store.child[t, 2]] if arity > 2 else NO_NODE
            c3 = store.normal_form[store.child[t, 3]] if arity > 3 else NO_NODE
            u = make_node(store, tables, label, c0, c1, c2, c3)
            stack.chain[stack.top[1]] = t
            stack.top[1] += 1
            stack.term[frame] = u
            if store.normal_form[u] != NO_NODE:
                continue
        if tables.neighbourhood_depth[label] < 0:
            store.normal_form[u] = u
            continue

        if steps >= budget:
            return OUT_OF_STEPS, UNKNOWN, steps
        start = memo.offset[memo.size[0]]
        if memo.size[0] + 2 > len(memo.times) or start + MAX_NEIGHBOURHOOD > len(memo.tokens):
            return MEMO_FULL, UNKNOWN, steps
        end, num_nodes = _write_neighbourhood(store, tables, u, memo.tokens, start, nodes, work)
        w = _find_neighbourhood(memo, end, num_nodes)
        if memo.start[w] == UNKNOWN:
            return MISSING, w, steps
        steps += 1
        memo.times[w] += 1
        if memo.start[w] == memo.stop[w]:
            v = u
            store.normal_form[u] = u
        else:
            v = build(store, tables, memo.replacement, memo.start[w], memo.stop[w], nodes, scratch)
            stack.chain[stack.top[1]] = u
            stack.top[1] += 1
            stack.term[frame] = v
        if log.size[0] < len(log.neighbourhood):
            log.neighbourhood[log.size[0]] = w
            log.before[log.size[0]] = u
            log.after[log.size[0]] = v
            log.size[0] += 1
    return DONE, UNKNOWN, steps
