"""One pass of a data flow over a batch of questions: wires, and the cells that a table of facts computes on them.

Legend: `P` positions, `B` questions of the batch. A symbol below zero is unknown: ``-1 - entry`` names the entry of the
table, ``row * ports + port``, that has to be known first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagnn.errors import ConfigError
from dagnn.numba_jit import jitted

Symbols = NDArray[Any]  # int32, or uint8 where nothing is unknown


@dataclass(frozen=True)
class Cell:
    """What a cell reads and writes: names of alphabets. What it computes is not declared; it is learned."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Layout:
    """One table for all cells: a row for each input of each cell, in mixed radix.

    Entry ``row * ports + port`` is one output of one input.
    """

    def __init__(
        self, name: str, alphabets: Mapping[str, str], cells: Mapping[str, Cell], hidden: frozenset[str]
    ) -> None:
        self.name, self.alphabets, self.cells, self.hidden = name, alphabets, cells, hidden
        self.ports = max(len(cell.outputs) for cell in cells.values())
        self.first: dict[str, int] = {}
        self.radices: dict[str, tuple[int, ...]] = {}
        self.outputs: dict[str, tuple[int, ...]] = {}
        self.cell_of: list[str] = []
        for cell_name, cell in cells.items():
            self.first[cell_name] = len(self.cell_of)
            self.radices[cell_name] = tuple(len(alphabets[a]) for a in cell.inputs)
            self.outputs[cell_name] = tuple(len(alphabets[a]) for a in cell.outputs)
            self.cell_of += [cell_name] * prod(self.radices[cell_name])
        self.rows = len(self.cell_of)

    def empty(self) -> Symbols:
        """A table in which nothing is known: int32 ``[rows, ports]``, -1 at every output that a cell has."""
        table = np.zeros((self.rows, self.ports), np.int32)
        for name, first in self.first.items():
            table[first : first + prod(self.radices[name]), : len(self.outputs[name])] = -1
        return table

    def row(self, name: str, inputs: Sequence[int]) -> int:
        """Row of one input of one cell."""
        return self.first[name] + int(np.ravel_multi_index(tuple(inputs), self.radices[name]))

    def inputs(self, row: int) -> tuple[int, ...]:
        """The symbols that a row is about."""
        name = self.cell_of[row]
        return tuple(int(i) for i in np.unravel_index(row - self.first[name], self.radices[name]))

    def text(self, row: int) -> str:
        """A row as a user would write it: ``add(7, 5, 0)``."""
        name = self.cell_of[row]
        alphabets = self.cells[name].inputs
        shown = [self.alphabets[a][i] for a, i in zip(alphabets, self.inputs(row), strict=True)]
        return f"{name}({', '.join(shown)})"


class Wire:
    """Symbols of one alphabet for all questions of a batch, on one wire or on several in a row.

    Wires in a row have a length, and are taken apart and joined as a list: ``wires[-1]``, ``wires[1:]``,
    ``wires + others``. Only a `Run` makes wires, and only for itself. A flow passes wires on and must not look into
    them: which cells run may depend on lengths only.

    Raises:
        ConfigError: always. ``run.cell`` and ``run.constant`` give wires; the certificate rests on their checks.
    """

    __slots__ = ("_alphabet", "_run", "_symbols")
    _alphabet: str
    _run: "Run"
    _symbols: Symbols  # [P, B]

    def __init__(self, *_: object, **__: object) -> None:
        raise ConfigError("a flow cannot make a wire itself: take those it is given, run.cell or run.constant.")

    @property
    def alphabet(self) -> str:
        """Name of the alphabet."""
        return self._alphabet

    def __len__(self) -> int:
        return len(self._symbols)

    def __getitem__(self, place: int | slice) -> "Wire":
        symbols = self._symbols[place]
        return _wire(self._run, self._alphabet, symbols if isinstance(place, slice) else symbols[None])

    def __iter__(self) -> Iterator["Wire"]:
        return (self[place] for place in range(len(self)))

    def __add__(self, other: "Wire") -> "Wire":
        return self._run.join([self, other])

    def __mul__(self, times: int) -> "Wire":
        return _wire(self._run, self._alphabet, np.repeat(self._symbols, times, axis=0))


def _wire(run: "Run", alphabet: str, symbols: Symbols) -> Wire:
    wire = object.__new__(Wire)
    wire._run, wire._alphabet, wire._symbols = run, alphabet, symbols
    return wire


class Run:
    """Looks cells up in a table, for a batch of questions of equal lengths.

    Args:
        layout: of the cells.
        table: ``[rows, ports]``, as `Layout.empty` gives it: int32; uint8 if nothing is unknown.
        batch: questions.
        entries, values: what each question assumes of the table where it is unknown, int32 ``[batch, guesses]``; an
            entry below zero is none.
        note: note in `used` which rows each question needs: bool ``[batch, rows]``.
    """

    def __init__(
        self,
        layout: Layout,
        table: Symbols,
        batch: int,
        *,
        entries: NDArray[np.int32] | None = None,
        values: NDArray[np.int32] | None = None,
        note: bool = False,
    ) -> None:
        none = np.zeros((batch, 0), np.int32)
        self._layout, self._batch = layout, batch
        self._table = np.ascontiguousarray(table.T)  # a port after the other
        self._entries, self._values = (none, none) if entries is None or values is None else (entries, values)
        self.used = np.zeros((batch if note else 0, self._layout.rows), np.bool_)

    def part(self, alphabet: str, symbols: Symbols) -> Wire:
        """Not for flows: wires that carry a part of the questions, ``[P, batch]``."""
        return _wire(self, alphabet, np.ascontiguousarray(symbols, self._table.dtype))

    def symbols(self, wire: Wire) -> Symbols:
        """Not for flows: what a wire of this run carries, ``[P, batch]``."""
        self.check(wire)
        return wire._symbols

    def constant(self, alphabet: str, symbol: str, length: int = 1) -> Wire:
        """Wires that carry the same symbol in every question."""
        symbols = self._layout.alphabets.get(alphabet, "")
        if alphabet in self._layout.hidden and symbol != symbols[:1]:
            # Hidden symbols have no names yet; the certificate's closure begins with the first alone.
            raise ConfigError(
                f"constant {symbol!r} of the hidden alphabet {alphabet!r}: only {symbols[:1]!r} can be one."
            )
        if len(symbol) != 1 or symbol not in symbols:
            raise ConfigError(f"constant {symbol!r} is no symbol of alphabet {alphabet!r}, which has {symbols!r}.")
        return _wire(self, alphabet, np.full((length, self._batch), symbols.index(symbol), self._table.dtype))

    def check(self, wire: object) -> None:
        """Refuses what is not a wire of this run.

        Raises:
            ConfigError: no `Wire`, or one that another run has made.
        """
        if not isinstance(wire, Wire) or wire._run is not self:
            what = "a wire of another run" if isinstance(wire, Wire) else repr(wire)
            raise ConfigError(
                f"the flow of {self._layout.name!r} used {what}, expected a wire of this run: take those it is "
                f"given, run.cell or run.constant."
            )

    def join(self, wires: Sequence[Wire]) -> Wire:
        """Wires one after the other, as one row.

        Raises:
            ConfigError: none, or wires of several alphabets or of another run.
        """
        for wire in wires:
            self.check(wire)
        alphabets = {wire.alphabet for wire in wires}
        if len(alphabets) != 1:
            raise ConfigError(
                f"the flow of {self._layout.name!r} joined wires of the alphabets {sorted(alphabets)}, expected one."
            )
        return _wire(self, wires[0].alphabet, np.concatenate([wire._symbols for wire in wires]))

    def choose(self, bit: Wire, first: Wire, second: Wire) -> Wire:
        """``first`` where the bit is the first symbol of its alphabet, otherwise ``second``: a branch of the flow.

        Raises:
            ConfigError: wires of different alphabets or lengths, of another run, or more than one bit.
        """
        for wire in (bit, first, second):
            self.check(wire)
        if len(bit) != 1 or len(first) != len(second) or first.alphabet != second.alphabet:
            raise ConfigError(
                f"the flow of {self._layout.name!r} chooses by {len(bit)} bits between {len(first)} wires of "
                f"{first.alphabet!r} and {len(second)} of {second.alphabet!r}: give one bit and equal wires."
            )
        chosen = np.where(bit._symbols == 0, first._symbols, second._symbols)
        if self._table.dtype == np.int32:
            chosen = np.where(bit._symbols < 0, bit._symbols, chosen)
        return _wire(self, first.alphabet, chosen)

    def cell(self, name: str, *wires: Wire) -> tuple[Wire, ...]:
        """What a cell writes, one wire per output. Of rows: at every position; one wire goes with all of a row.

        Raises:
            ConfigError: an unknown cell, wires of another run, of other alphabets than the cell reads or of different
                lengths. The certificate rests on this.
        """
        cell, inputs = self._connected(name, wires)
        outputs, _ = self._look_up(name, inputs, None)
        return tuple(_wire(self, a, output) for a, output in zip(cell.outputs, outputs, strict=True))

    def chain(self, name: str, *rows: Wire, carry: Wire, forward: bool = False) -> tuple[Wire, ...]:
        """A cell at every position of rows, from the last to the first, each passing its last output to the next as
        that one's last input.

        Args:
            rows: wires in rows, of equal lengths.
            carry: what the first cell reads as its last input.
            forward: from the first position to the last.

        Returns:
            One row per output but the last, and the last cell's last output.

        Raises:
            ConfigError: as `cell`.
        """
        cell, inputs = self._connected(name, (*rows, carry))
        if not rows:
            raise ConfigError(f"cell {name!r} in a chain needs a row besides the carry.")
        if len(carry) != 1 or cell.inputs[-1] != cell.outputs[-1]:
            raise ConfigError(
                f"cell {name!r} cannot be a chain: one carry of the same alphabet must come in and go out last, got "
                f"{len(carry)} wires, {cell.inputs[-1]!r} and {cell.outputs[-1]!r}."
            )
        outputs, last = self._look_up(name, inputs[:-1], carry._symbols[0], forward)
        wires = [_wire(self, a, output) for a, output in zip(cell.outputs[:-1], outputs, strict=False)]
        return (*wires, _wire(self, cell.outputs[-1], last[None]))

    def _connected(self, name: str, wires: Sequence[Wire]) -> tuple[Any, list[Symbols]]:
        cell = self._layout.cells.get(name)
        if cell is None:
            raise ConfigError(f"no cell {name!r} in {self._layout.name!r}: it has {sorted(self._layout.cells)}.")
        for wire in wires:
            self.check(wire)
        if tuple(wire.alphabet for wire in wires) != cell.inputs:
            raise ConfigError(
                f"cell {name!r} reads {cell.inputs}, but the flow connects {tuple(wire.alphabet for wire in wires)}."
            )
        lengths = {len(wire) for wire in wires} - {1}
        if len(lengths) > 1:
            raise ConfigError(f"cell {name!r} got rows of {sorted(lengths)} wires: give rows of one length.")
        return cell, [wire._symbols for wire in wires]

    def _look_up(
        self, name: str, inputs: list[Symbols], carry: Symbols | None, forward: bool = True
    ) -> tuple[Symbols, Symbols]:
        layout = self._layout
        radices = np.array(layout.radices[name], np.int64)
        positions, ports = max(map(len, inputs)), len(layout.outputs[name])
        stacked = np.empty((len(inputs), positions, self._batch), self._table.dtype)
        for i, symbols in enumerate(inputs):
            stacked[i] = symbols
        out = np.empty((ports, positions, self._batch), self._table.dtype)
        chained = carry is not None
        last = carry.copy() if carry is not None else np.zeros(self._batch, self._table.dtype)
        if self._table.dtype == np.int32:
            _with_unknowns(
                stacked, last, chained, forward, self._table[:ports], self._layout.ports, layout.first[name], radices,
                self._entries, self._values, out, self.used,
            )  # fmt: skip
        else:
            _known(stacked, last, chained, forward, self._table[:ports], layout.first[name], radices, out)
        return out, last


@jitted
def _known(
    inputs: Symbols, carry: Symbols, chained: bool, forward: bool, table: Symbols, first: int,
    radices: NDArray[np.int64], out: Symbols,
) -> None:  # fmt: skip
    """`_with_unknowns` where every symbol is known: indices of a whole batch first, which the compiler vectorizes."""
    number, positions, batch = inputs.shape
    ports = out.shape[0]
    index = np.empty(batch, np.int32)
    for step in range(positions):
        p = step if forward else positions - 1 - step
        for b in range(batch):
            index[b] = inputs[0, p, b]
        for i in range(1, number):
            radix = np.int32(radices[i])
            for b in range(batch):
                index[b] = index[b] * radix + inputs[i, p, b]
        if chained:
            radix = np.int32(radices[number])
            for b in range(batch):
                index[b] = index[b] * radix + carry[b]
        for port in range(ports):
            for b in range(batch):
                out[port, p, b] = table[port, first + index[b]]
        if chained:
            carry[:] = out[ports - 1, p]


@jitted
def _with_unknowns(
    inputs: Symbols, carry: Symbols, chained: bool, forward: bool, table: Symbols, stride: int, first: int,
    radices: NDArray[np.int64], entries: NDArray[np.int32], values: NDArray[np.int32], out: Symbols,
    used: NDArray[np.bool_],
) -> None:  # fmt: skip
    """A cell at every position: an unknown input, or an entry that neither table nor guess knows, goes on as its name.

    Args:
        inputs: ``[inputs, P, B]``, without the carry. carry: ``[B]``, read and written if ``chained``.
        table: ``[ports, rows]``. stride: ports of the whole table, by which entries are numbered.
        out: ``[ports, P, B]``, written. used: ``[B, rows]``, written; empty: not wanted.
    """
    number, positions, batch = inputs.shape
    ports = out.shape[0]
    for step in range(positions):
        p = step if forward else positions - 1 - step
        for b in range(batch):
            row, cause = 0, 0
            for i in range(number):
                symbol = inputs[i, p, b]
                if symbol < 0:
                    cause = symbol
                    break
                row = row * radices[i] + symbol
            if chained and cause == 0:
                if carry[b] < 0:
                    cause = carry[b]
                row = row * radices[number] + carry[b]
            if cause == 0 and len(used):
                used[b, first + row] = True
            for port in range(ports):
                symbol = cause
                if cause == 0:
                    symbol = table[port, first + row]
                    if symbol < 0:
                        entry = (first + row) * stride + port
                        symbol = -1 - entry
                        for guess in range(entries.shape[1]):
                            if entries[b, guess] == entry:
                                symbol = values[b, guess]
                out[port, p, b] = symbol
            if chained:
                carry[b] = out[ports - 1, p, b]
