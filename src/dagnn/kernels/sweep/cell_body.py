"""What a pass does for one node, wherever its values lie: those of a formula, with loops over slots and edges."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from dagnn.kernels.emit.expressions import NODE, REDUCTIONS, Expr
from dagnn.kernels.emit.formula import ancestors
from dagnn.kernels.emit.functions import OPERATIONS, Registers
from dagnn.kernels.emit.writer import Value
from dagnn.kernels.sweep.cell_plan import Place

Sinks = Sequence[tuple[Expr, Place]]
Sum = tuple[Expr, Expr, Expr | None]
# Read where they are used, also in a loop: nothing writes over them, and a register that holds them costs more.
_READ_IN_PLACE = ("feature", "vector", "number")


class Body:
    """Values of a formula for one node. Abstract: where they lie and what a loop is, a subclass says.

    There is one for packs of rows in machine code (`dagnn.kernels.sweep.cell_code`), and one for C
    (`dagnn.export.c_sweep`).

    Args:
        code: where instructions go. It has ``halves``: which vectors make up what is computed at a time.
        there: where to read what is in memory.
        known: halves of values in registers.
    """

    def __init__(
        self, code: Any, there: Mapping[Expr, Place], known: Mapping[tuple[Expr, int], Value] | None = None
    ) -> None:
        self._code, self._there = code, there
        self._halves = [
            Registers(
                code, {one: value for (one, k), value in (known or {}).items() if k == half}, partial(self._read, half)
            )
            for half in code.halves
        ]

    def value(self, one: Expr, half: int) -> Value:
        """Half of the value, in a register."""
        return self._halves[half].value(one)

    def added(self, one: Expr, total: Value, half: int) -> Value:
        return self._halves[half].added(one, total)

    def block(self, level: int, wanted: Sequence[Expr], sinks: Sinks) -> None:
        """Makes `value` of the wanted expressions known or computable, and writes the sinks of this level and below.

        In phases: what can be computed now, then a loop over the level below, whose sums the next phase computes with.
        Values of the level below are computed in each loop that needs them; the last loop writes them down.
        """
        ends = [*wanted, *(expr for expr, _ in sinks)]
        needed = ancestors(ends, lambda one: one in self._there or one.level < level)
        phase: dict[Expr, int] = {}
        for one in needed:
            before = 0 if one in self._there else max((phase.get(arg, 0) for arg in one.args), default=0)
            phase[one] = before + (one.op in REDUCTIONS and one.level == level and one not in self._there)
        sums = self._sums(level, needed, ends, phase)
        below, here = ([sink for sink in sinks if (sink[1].level > level) == is_below] for is_below in (True, False))
        last = max([phase[one] - 1 for one, _, _ in sums] + [phase[expr] for expr, _ in below], default=-1)
        end, rest = max([last + 1, *(phase[expr] for expr, _ in here)]), list(here)
        for now in range(end + 1):
            of_loop = [one for one in sums if phase[one[0]] == now + 1]
            to_write = below if now == last else []
            inside = [term for _, term, _ in of_loop] + [expr for expr, _ in to_write]
            inside = ancestors(inside, lambda one: one in self._there or one.level <= level)
            self._load([start for _, _, start in of_loop if start is not None])
            self._load([one for one in inside if one.level <= level])
            # In a loop, what a further loop does not need is computed after it: a register that waits costs more.
            due = [
                sink
                for sink in rest
                if now == end or sink[0] in self._halves[0].known or (level == NODE and phase[sink[0]] <= now)
            ]
            rest = [sink for sink in rest if not any(sink is one for one in due)]
            places = {at for _, at in due}
            self._load(one for one in needed if self._there.get(one) in places)  # before it is written over
            self._write(due)
            if of_loop or to_write:
                self._loop(level + 1, of_loop, to_write)

    def _sums(self, level: int, needed: Sequence[Expr], ends: Sequence[Expr], phase: Mapping[Expr, int]) -> list[Sum]:
        """Sums and maxima over the level below: the result, what it is over, and what a sum starts from.

        That is what it is added to, if nothing else needs the sum.
        """
        users: dict[Expr, list[Expr]] = {}
        for one in needed:
            for arg in () if one in self._there else one.args:
                users.setdefault(arg, []).append(one)
        result: list[Sum] = []
        for one in needed:
            if one.op in REDUCTIONS and one.level == level and one not in self._there:
                result.append((one, one.args[0], None))
                user = users.get(one, [])
                if one.op == "over" and one not in set(ends) and [(u.op, u.level) for u in user] == [("add", level)]:
                    other = user[0].args[user[0].args[0] is one]
                    if phase.get(other, 0) < phase[one] and user[0] not in {first for first, _, _ in result}:
                        result[-1] = (user[0], one.args[0], other)
        return result

    def _loop(self, level: int, sums: Sequence[Sum], sinks: Sinks) -> None:
        code = self._code
        outside = [dict(half.known) for half in self._halves]
        totals = [code.places() for _ in sums]
        for (one, _, start), places in zip(sums, totals, strict=True):
            for half, place in enumerate(places):
                first = code.constant(float("-inf") if one.op == "largest" else 0)
                code.build.store(first if start is None else self.value(start, half), place)
        with self._each(level, [term for _, term, _ in sums]):
            self.block(level, [term for _, term, _ in sums], sinks)
            for half in code.halves:
                for (one, term, _), places in zip(sums, totals, strict=True):
                    total = code.build.load(places[half])
                    if one.op == "largest":
                        total = OPERATIONS["maximum"](code, self.value(term, half), total)
                    else:
                        total = self.added(term, total, half)
                    code.build.store(total, places[half])
        for half, registers in enumerate(self._halves):
            registers.known = outside[half]
            for (one, _, _), places in zip(sums, totals, strict=True):
                value = code.build.load(places[half])
                if one.op == "largest":  # of nothing it is 0: a slot below one in use has no edge perhaps
                    value = code.build.select(self._has_edges(), value, code.constant(0))
                registers.known[one] = value

    def _load(self, values: Iterable[Expr]) -> None:
        values = [one for one in values if one.op not in _READ_IN_PLACE]
        for half in self._code.halves:
            for one in values:
                self.value(one, half)

    # ---- what a subclass has ----

    def _each(self, level: int, terms: Sequence[Expr]) -> AbstractContextManager[None]:
        """Code for every slot of the node, or for every edge into the slot at hand, that computes the terms."""
        raise NotImplementedError

    def _has_edges(self) -> Value:
        """Whether any edge goes into the slot at hand."""
        raise NotImplementedError

    def _read(self, half: int, one: Expr) -> Value | None:
        """Half of a value that lies in memory; None for one that has to be computed."""
        raise NotImplementedError

    def _write(self, sinks: Sinks) -> None:
        """Code that writes values down."""
        raise NotImplementedError
