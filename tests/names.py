"""Names of nodes in disguise: random graphs whose names are equal to each other in Python, but of other types.

    python tests/names.py SEED     the digest of the parameter layouts of many graphs, declared as SEED says

Everything that decides the graphs comes from ``random``, so every process and hash seed makes the same ones.
"""

import enum
import hashlib
import random
import sys
from collections import namedtuple
from typing import Any

import numpy as np

from dagnn.graph import Dag
from dagnn.nn.dag_nn.file import record_of
from dagnn.nn.dag_nn.parameters import ParameterLayout

Pair = namedtuple("Pair", ["first", "second"])


class Gene(str):
    def __str__(self) -> str:
        return "a gene"

    __repr__ = __str__


def plain_name(rng: random.Random, depth: int = 2) -> Any:
    """A name in its one form."""
    kind = rng.choice(["int", "int", "str", "str", "float", "bytes", "tuple", "frozenset"][: None if depth else 6])
    if kind == "int":
        return rng.choice([0, 1, 2, 9, 10, 11, -3, 2**40])
    if kind == "str":
        return rng.choice(["", "a", "b", "B", "10", "9", "TP53", "é"])
    if kind == "float":
        return rng.choice([0.5, -0.5, 10.25, 9.75, float("inf")])
    if kind == "bytes":
        return rng.choice([b"", b"a", b"TP53"])
    members = [plain_name(rng, depth - 1) for _ in range(rng.randrange(4))]
    return tuple(members) if kind == "tuple" else frozenset(members)


def disguised(name: Any, rng: random.Random) -> Any:
    """Something equal to ``name``, of any type."""
    if isinstance(name, int):
        ways = [int, float, np.float64, np.int64, lambda value: enum.IntEnum("Number", {"ONE": value}).ONE]
        if abs(name) < 100:
            ways += [np.int8, np.int32, np.float16]
        if name in (0, 1):
            ways += [bool, np.bool_, lambda value: value or -0.0]
    elif isinstance(name, str):
        ways = [str, np.str_, Gene]
    elif isinstance(name, float):
        ways = [float, np.float64, np.float32]
    elif isinstance(name, bytes):
        ways = [bytes, np.bytes_]
    elif isinstance(name, frozenset):
        members = list(name)
        rng.shuffle(members)
        ways = [lambda _: frozenset(disguised(member, rng) for member in members)]
    else:
        members = [disguised(member, rng) for member in name]
        ways = [lambda _: tuple(members)] + ([lambda _: Pair(*members)] if len(members) == 2 else [])
    return rng.choice(ways)(name)


def named_graph(seed: int) -> tuple[list[Any], list[tuple[int, int]]]:
    """Names in their one form, and the edges of a Dag between them by index, at least one."""
    rng = random.Random(seed)
    names = list(dict.fromkeys(plain_name(rng) for _ in range(rng.randrange(3, 12))))
    while len(names) < 2:
        names = list(dict.fromkeys([*names, plain_name(rng)]))
    pairs = [(u, v) for v in range(len(names)) for u in range(v) if rng.random() < 0.5]
    return names, pairs or [(0, 1)]


def declared(names: list[Any], edges: list[tuple[int, int]], rng: random.Random, *, renumber: bool) -> Dag:
    """The graph with its names in disguise and its edges in any order; with ``renumber``, its nodes too."""
    order = list(range(len(names)))
    if renumber:
        rng.shuffle(order)
    pairs = [(disguised(names[u], rng), disguised(names[v], rng)) for u, v in edges]
    rng.shuffle(pairs)
    has_numbers = any(isinstance(name, int | float) for name in names)
    if not has_numbers:  # a float end of an edge is a mistake where no name is a number
        assert not any(isinstance(end, int | float) for pair in pairs for end in pair)
    inputs = [disguised(names[v], rng) for v in range(len(names)) if v not in {target for _, target in edges}]
    return Dag(pairs, names=[disguised(names[node], rng) for node in order], inputs=inputs)


def digest(seed: int, count: int = 150) -> str:
    """Of the names of all slots of many graphs, and of what a state dict would say of them."""
    rng, text = random.Random(seed), list[str]()
    for number in range(count):
        layout = ParameterLayout(declared(*named_graph(number), rng, renumber=True), True)
        for u, v in layout.edge_names():
            text.append(f"{spelled(u)} -> {spelled(v)}")
        text += map(spelled, layout.bias_names())
        text.append(str(record_of(layout, 0).tolist()))  # what a state dict says of it
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def spelled(name: Any) -> str:
    """A text of a name that says its types; that of a frozenset in order."""
    if isinstance(name, tuple | frozenset):
        members = list(map(spelled, name))
        return f"{type(name).__name__}({sorted(members) if isinstance(name, frozenset) else members})"
    return repr(name)


if __name__ == "__main__":
    print(digest(int(sys.argv[1])))
