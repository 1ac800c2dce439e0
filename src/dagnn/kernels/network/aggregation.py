"""Nodes that are no plain sums, compiled: a response, means, products, maxima, minima; forward, and backward to edges.

A message is the weight of an edge times the value of its source. A plain sum passes its own gradient to every message,
so there the sources pull from the row of their target. The gradients of other messages differ from edge to edge: a
node computes them when its turn comes in the backward pass, from the messages, which are computed again, and leaves
them in one row for each edge. Its sources then pull from those rows as if they were targets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]
from numpy.typing import NDArray

from dagnn.kernels.emit.writer import CodeWriter, Value
from dagnn.kernels.network import Shape

PLAIN = 0
"""The code of a node that sums with a response of 1; other codes follow in the order of `Shape.aggregations`."""
SCALED = "scaled"
"""A sum or a mean, times the response: one number times a sum, whose gradient is the same for all edges."""
BY_EDGE = ("product", "max", "min", "maxabs")
"""Aggregations with a gradient for each message."""


@dataclass(frozen=True)
class Aggregated:
    """The nodes of a network that are no plain sums.

    Attributes:
        names: how they may aggregate: `SCALED` and `BY_EDGE`, or empty where all nodes are plain sums.
        kinds: uint8 ``[num_nodes]``, `PLAIN`, or 1 + the place in ``names``.
        scales: float64 ``[num_nodes]``, the factor of the aggregate: the response, for a mean by its number of edges.
        edge_rows: int32 ``[num_nodes]``, the first of a node's rows for its edges, in their order; -1 for none.
        num_rows: rows of gradients: one for every node, then those of edges.
    """

    names: tuple[str, ...]
    kinds: NDArray[np.uint8]
    scales: NDArray[np.float64]
    edge_rows: NDArray[np.int32]
    num_rows: int


def aggregated(
    aggregation: Sequence[str], response: NDArray[np.float64], degree: NDArray[np.int64], is_input: NDArray[np.bool_]
) -> Aggregated:
    """The nodes that are no plain sums; all arguments ``[num_nodes]``."""
    count = len(degree)
    kinds, edge_rows = np.zeros(count, dtype=np.uint8), np.full(count, -1, dtype=np.int32)
    if set(aggregation) <= {"sum"} and (response == 1).all():
        return Aggregated((), kinds, response, edge_rows, count)
    given = np.array(aggregation, dtype=str)
    is_product, is_mean = given == "product", given == "mean"
    used = ~is_input & ((degree > 0) | is_product)  # all others of nothing are 0, as its sum is
    is_plain = ~used | ((given == "sum") & (response == 1))
    # All of them where there is one: an evolving population would compile anew for every set that occurs.
    names = () if is_plain.all() else (SCALED, *BY_EDGE)
    kinds[~is_plain] = 1
    for code, name in enumerate(BY_EDGE, start=2):
        kinds[~is_plain & (given == name)] = code
    rows = np.where(kinds > 1, degree, 0)
    first = count + np.cumsum(rows) - rows
    edge_rows[kinds > 1] = first[kinds > 1]
    scales = np.where(is_mean, response / np.maximum(degree, 1), response)
    return Aggregated(names, kinds, scales, edge_rows, count + int(rows.sum()))


def by_aggregation(code: CodeWriter, shape: Shape, node: Value, case: Callable[[str | None], None]) -> None:
    """``case(name)`` for how a node aggregates; ``case(None)`` for a plain sum."""
    code.switch(code.byte_at(code.field("kinds"), node), shape.aggregations, case, partial(case, None))


def scale_of(code: CodeWriter, node: Value) -> Value:
    """The factor of a node's aggregate, in every lane."""
    scale = code.load(code.at(code.field("scales"), node, 8), ir.DoubleType())
    return code.splat(scale if code.double else code.build.fptrunc(scale, code.number))


def write_aggregate(
    code: CodeWriter, name: str, node: Value, vectors: int, messages_of: Callable[[Value], list[Value]]
) -> list[Value]:
    """The product, maximum, minimum ... of a node's messages; ``messages_of`` an edge gives as many ``vectors``."""
    build = code.build
    start, stop = _edges(code, node)
    if name == "product":
        products = _variables(code, vectors, 1.0)
        with code.loop(start, stop) as edge:
            for place, message in zip(products, messages_of(edge), strict=True):
                build.store(build.fmul(build.load(place), message), place)
        return [build.load(place) for place in products]
    highest = _variables(code, vectors, float("-inf")) if name != "min" else []
    lowest = _variables(code, vectors, float("inf")) if name != "max" else []
    with code.loop(start, stop) as edge:
        found = messages_of(edge)
        for places, order in ((highest, ">"), (lowest, "<")):
            for place, message in zip(places, found if places else [], strict=True):
                before = build.load(place)
                # A NaN wins, and nothing wins over it.
                is_nan = build.fcmp_unordered("uno", message, message)
                wins = build.or_(build.fcmp_ordered(order, message, before), is_nan)
                build.store(build.select(wins, message, before), place)
    if name != "maxabs":
        return [build.load(place) for place in highest or lowest]
    result = []
    for high, low in zip(map(build.load, highest), map(build.load, lowest), strict=True):
        result.append(build.select(build.fcmp_ordered(">=", high, build.fneg(low)), high, low))
    return result


def write_edge_rows(
    code: CodeWriter, shape: Shape, name: str, base: Value, deltas: Value, node: Value, gradient: list[Value]
) -> None:
    """The gradients of a node's messages, into its rows for edges.

    Args:
        base: where the values of the tile are.
        deltas: where rows of gradients are.
        gradient: of the node's aggregate: one value per vector.
    """
    build = code.build
    start, stop = _edges(code, node)
    first_row = code.index_at(code.field("edge_rows"), node)

    def row_of(edge: Value) -> list[Value]:
        return shape.row(code, deltas, build.add(first_row, build.sub(edge, start)))

    if name == "product":
        # Each edge gets the product of all messages before it, then that of all behind it: no division, so zeros,
        # overflow and underflow do no harm.
        before = _variables(code, shape.vectors, 1.0)
        with code.loop(start, stop) as edge:
            found = messages(code, shape, base, edge)
            for place, message, address in zip(before, found, row_of(edge), strict=True):
                code.store_vector(build.load(place), address)
                build.store(build.fmul(build.load(place), message), place)
        behind = _variables(code, shape.vectors, 0.0)
        for place, value in zip(behind, gradient, strict=True):
            build.store(value, place)
        with code.loop(code.i64(0), build.sub(stop, start)) as count:
            edge = build.sub(build.sub(stop, code.i64(1)), count)
            found = messages(code, shape, base, edge)
            for place, message, address in zip(behind, found, row_of(edge), strict=True):
                code.store_vector(build.fmul(build.load(place), code.load_vector(address)), address)
                build.store(build.fmul(build.load(place), message), place)
        return
    extreme = write_aggregate(code, name, node, shape.vectors, partial(messages, code, shape, base))
    winners = _variables(code, shape.vectors, 0.0)
    with code.loop(start, stop) as edge:
        for place, message, best in zip(winners, messages(code, shape, base, edge), extreme, strict=True):
            wins = build.fcmp_ordered("==", message, best)
            more = build.fadd(build.load(place), code.constant(1))
            build.store(build.select(wins, more, build.load(place)), place)
    # Winners share evenly. Where a NaN has won there are none, and 0 / 0 passes the NaN on, as PyTorch does.
    counts = [build.load(place) for place in winners]
    with code.loop(start, stop) as edge:
        found = messages(code, shape, base, edge)
        for message, best, count, given, address in zip(found, extreme, counts, gradient, row_of(edge), strict=True):
            wins = build.fcmp_ordered("==", message, best)
            code.store_vector(build.fdiv(build.select(wins, given, code.constant(0)), count), address)


def _edges(code: CodeWriter, node: Value) -> tuple[Value, Value]:
    offsets = code.field("in_offsets")
    return code.offset_at(offsets, node), code.offset_at(offsets, code.build.add(node, code.i64(1)))


def messages(code: CodeWriter, shape: Shape, base: Value, edge: Value) -> list[Value]:
    """The weight of an edge times the row of its source; both passes must get the same bits, for winners are equal."""
    weight = code.splat(code.load(code.at(code.field("weight"), edge, shape.size), code.number))
    source = code.index_at(code.field("in_sources"), edge)
    return [code.build.fmul(weight, code.load_vector(address)) for address in shape.row(code, base, source)]


def _variables(code: CodeWriter, count: int, value: float) -> list[Value]:
    places = [code.variable(code.vector) for _ in range(count)]
    for place in places:
        code.build.store(code.constant(value), place)
    return places
