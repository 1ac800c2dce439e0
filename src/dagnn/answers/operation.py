"""An operation as a data flow of cells: which cells exist, what runs on their wires, how they are connected."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from dagnn.errors import ConfigError, DataError

Symbols = NDArray[np.int32]


class Wire:
    """Symbols of one alphabet on one wire, for all questions of a batch. Only a `Run` makes wires, and only for itself.

    A flow passes wires on and must not look into them: which cells run may depend on lengths only.

    Raises:
        ConfigError: always. ``run.cell`` and ``run.constant`` give wires; the certificate rests on their checks.
    """

    __slots__ = ("_alphabet", "_run", "_symbols")
    _alphabet: str
    _run: "Run"
    _symbols: Symbols  # int32 [batch] or [1]; the length of the alphabet means unknown

    def __init__(self, *_: object, **__: object) -> None:
        raise ConfigError("a flow cannot make a wire itself: take those it is given, run.cell or run.constant.")

    @property
    def alphabet(self) -> str:
        """Name of the alphabet."""
        return self._alphabet


def _wire(run: "Run", alphabet: str, symbols: Symbols) -> Wire:
    wire = object.__new__(Wire)
    wire._run, wire._alphabet, wire._symbols = run, alphabet, symbols
    return wire


def lengths_of(question: Sequence[str]) -> tuple[int, ...]:
    """The length of every part of a question.

    Raises:
        DataError: a part is no text.
    """
    if isinstance(question, str) or not all(isinstance(part, str) for part in question):
        raise DataError(f"a question is a tuple of texts, such as ('12', '5'), got {question!r}.")
    return tuple(map(len, question))


@dataclass(frozen=True)
class Cell:
    """What a cell reads and writes: names of alphabets. What it computes is not declared; it is learned."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


Flow = Callable[..., Sequence[Wire]]


@dataclass(frozen=True)
class Operation:
    """An operation on texts of any length: its data flow is given, its cells are not.

    Args:
        name: of the operation.
        alphabets: name -> its symbols, one character each. Symbols of an alphabet that neither questions nor answers
            show are hidden: only their number counts, and they are numbered in the order in which they are needed.
        cells: name -> `Cell`.
        inputs: alphabet of each part of a question.
        output: alphabet of the answer.
        flow: ``flow(run, *parts)`` with a list of `Wire` per part, from the first symbol of the text to the
            last; returns
            the wires of the answer in the same order. ``run.cell(name, *wires)`` is a tuple of wires, and
            ``run.constant(alphabet, symbol)`` a wire.
        padding: symbol that may stand before an answer any number of times without changing it.

    Raises:
        ConfigError: an alphabet that is unknown, empty or repeats a symbol, or a cell without inputs or outputs.

    >>> def flow(run, text):
    ...     return [run.cell("other", symbol)[0] for symbol in text]
    >>> Operation("not", {"bit": "01"}, {"other": Cell(("bit",), ("bit",))}, ("bit",), "bit", flow).name
    'not'
    """

    name: str
    alphabets: Mapping[str, str]
    cells: Mapping[str, Cell]
    inputs: tuple[str, ...]
    output: str
    flow: Flow
    padding: str | None = None

    def __post_init__(self) -> None:
        for alphabet, symbols in self.alphabets.items():
            if not symbols or len(set(symbols)) != len(symbols):
                raise ConfigError(
                    f"operation {self.name!r}: alphabet {alphabet!r} is {symbols!r}, expected at least one "
                    f"symbol, each once."
                )
        used = {*self.inputs, self.output}
        for name, cell in self.cells.items():
            if not cell.inputs or not cell.outputs:
                raise ConfigError(f"operation {self.name!r}: cell {name!r} needs at least one input and one output.")
            used |= {*cell.inputs, *cell.outputs}
        if unknown := sorted(used - set(self.alphabets)):
            raise ConfigError(
                f"operation {self.name!r} uses alphabet {unknown[0]!r}, which is not among "
                f"{sorted(self.alphabets)}: declare it."
            )
        if self.padding is not None and self.padding not in self.alphabets[self.output]:
            raise ConfigError(f"operation {self.name!r}: padding {self.padding!r} is no symbol of {self.output!r}.")

    @cached_property
    def layout(self) -> "Layout":
        """Where the inputs of every cell are in one table."""
        return Layout(self)

    @property
    def hidden(self) -> frozenset[str]:
        """Alphabets that neither questions nor answers show."""
        return frozenset(self.alphabets) - {*self.inputs, self.output}

    def encode(self, texts: Sequence[str], alphabet: str) -> Symbols:
        """Texts of one length as int32 ``[number of texts, length]``.

        Raises:
            DataError: a symbol that the alphabet does not have.
        """
        number = {symbol: i for i, symbol in enumerate(self.alphabets[alphabet])}
        try:
            rows = [[number[symbol] for symbol in text] for text in texts]
        except KeyError as error:
            raise DataError(
                f"{self.name!r} got the symbol {error.args[0]!r}; alphabet {alphabet!r} has "
                f"{self.alphabets[alphabet]!r}."
            ) from None
        return np.array(rows, dtype=np.int32).reshape(len(texts), -1)

    def answers(self, run: "Run", questions: Sequence[tuple[str, ...]]) -> Symbols:
        """The flow on questions of equal lengths: int32 ``[questions, length of the answer]``.

        Raises:
            DataError: a question with another number of parts, an empty part, or a symbol that its alphabet lacks.
            ConfigError: the flow connects wires that do not fit.
        """
        parts = []
        for question in questions:
            if len(question) != len(self.inputs) or not all(question):
                raise DataError(
                    f"{self.name!r} got the question {question!r}, expected {len(self.inputs)} parts of at "
                    f"least one symbol."
                )
        for i, alphabet in enumerate(self.inputs):
            symbols = self.encode([question[i] for question in questions], alphabet)
            parts.append([_wire(run, alphabet, column) for column in np.ascontiguousarray(symbols.T)])
        wires = self.flow(run, *parts)
        for place, wire in enumerate(wires):
            run.check(wire)
            if wire.alphabet != self.output:
                raise ConfigError(
                    f"the flow of {self.name!r} answers with {wire.alphabet!r} at place {place}, expected "
                    f"{self.output!r}."
                )
        columns = [np.broadcast_to(wire._symbols, (len(questions),)) for wire in wires]
        return np.stack(columns, 1) if columns else np.zeros((len(questions), 0), np.int32)


class Layout:
    """One table for all cells: a row for each input of each cell, in mixed radix.

    Every alphabet has one symbol more than declared, *unknown*: a row with an unknown input stays unknown, so
    what is not
    known spreads through a flow by the look-ups alone.
    """

    def __init__(self, operation: Operation) -> None:
        sizes = {name: len(symbols) for name, symbols in operation.alphabets.items()}
        self.operation = operation
        self.ports = max(len(cell.outputs) for cell in operation.cells.values())
        self.first: dict[str, int] = {}
        self.radices: dict[str, tuple[int, ...]] = {}
        self.cell_of: list[str] = []
        rows = 0
        for name, cell in operation.cells.items():
            self.first[name] = rows
            self.radices[name] = tuple(sizes[alphabet] + 1 for alphabet in cell.inputs)
            rows += prod(self.radices[name])
            self.cell_of += [name] * prod(self.radices[name])
        self.rows = rows
        self.unknown = {
            name: np.array([sizes[alphabet] for alphabet in cell.outputs], np.int32)
            for name, cell in operation.cells.items()
        }

    def empty(self) -> Symbols:
        """A table in which nothing is known: int32 ``[rows, ports]``."""
        table = np.zeros((self.rows, self.ports), np.int32)
        for name, first in self.first.items():
            unknown = self.unknown[name]
            table[first : first + prod(self.radices[name]), : len(unknown)] = unknown
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
        alphabets = self.operation.cells[name].inputs
        shown = [
            self.operation.alphabets[a][i] if i < len(self.operation.alphabets[a]) else "?"
            for a, i in zip(alphabets, self.inputs(row), strict=True)
        ]
        return f"{name}({', '.join(shown)})"


class Run:
    """One pass of a flow over a batch: looks cells up in a table, and notes what was needed first.

    Args:
        operation: whose cells run.
        table: int32 ``[rows, ports]``, as `Layout.empty` gives it.
        row, value: a guess per question: row ``row[i]`` has the outputs ``value[i]`` in question i. int ``[batch]`` and
            ``[batch, ports]``.
        note: note each question's first unknown row in `missing`, and all rows in `used`.
    """

    def __init__(
        self,
        operation: Operation,
        table: Symbols,
        *,
        row: NDArray[np.int64] | None = None,
        value: Symbols | None = None,
        note: bool = False,
    ) -> None:
        self._operation, self._layout = operation, operation.layout
        self._columns = [np.ascontiguousarray(table[:, port]) for port in range(table.shape[1])]
        self._row, self._value, self._note = row, value, note
        self.missing: NDArray[np.int64] | None = None
        self.used: list[NDArray[np.int64]] = []

    def constant(self, alphabet: str, symbol: str) -> Wire:
        """A wire that carries the same symbol in every question."""
        symbols = self._operation.alphabets.get(alphabet, "")
        if alphabet in self._operation.hidden and symbol != symbols[:1]:
            # Hidden symbols have no names yet; the certificate's closure begins with the first alone.
            raise ConfigError(
                f"constant {symbol!r} of the hidden alphabet {alphabet!r}: only {symbols[:1]!r} can be one."
            )
        if len(symbol) != 1 or symbol not in symbols:
            raise ConfigError(f"constant {symbol!r} is no symbol of alphabet {alphabet!r}, which has {symbols!r}.")
        return _wire(self, alphabet, np.full((1,), symbols.index(symbol), np.int32))

    def check(self, wire: object) -> None:
        """Refuses what is not a wire of this run.

        Raises:
            ConfigError: no `Wire`, or one that another run has made.
        """
        if not isinstance(wire, Wire) or wire._run is not self:
            what = "a wire of another run" if isinstance(wire, Wire) else repr(wire)
            raise ConfigError(
                f"the flow of {self._operation.name!r} used {what}, expected a wire of this run: take those it is "
                f"given, run.cell or run.constant."
            )

    def cell(self, name: str, *wires: Wire) -> tuple[Wire, ...]:
        """What a cell writes, one wire per output.

        Raises:
            ConfigError: an unknown cell, or wires of another run or of other alphabets than the cell reads. The
                certificate rests on this.
        """
        cell = self._operation.cells.get(name)
        if cell is None:
            raise ConfigError(f"no cell {name!r} in {self._operation.name!r}: it has {sorted(self._operation.cells)}.")
        for wire in wires:
            self.check(wire)
        if tuple(wire.alphabet for wire in wires) != cell.inputs:
            raise ConfigError(
                f"cell {name!r} reads {cell.inputs}, but the flow connects {tuple(wire.alphabet for wire in wires)}."
            )
        index: NDArray[np.int32] = wires[0]._symbols
        for wire, radix in zip(wires[1:], self._layout.radices[name][1:], strict=True):
            index = index * np.int32(radix) + wire._symbols
        index = index + np.int32(self._layout.first[name])
        outputs = [column.take(index) for column in self._columns[: len(cell.outputs)]]
        if self._row is not None and self._value is not None:
            hit = index == self._row
            outputs = [np.where(hit, self._value[:, port], output) for port, output in enumerate(outputs)]
        if self._note:
            self._write_down(name, wires, index, outputs[0])
        return tuple(_wire(self, a, output) for a, output in zip(cell.outputs, outputs, strict=True))

    def _write_down(self, name: str, wires: Sequence[Wire], index: NDArray[np.int32], output: Symbols) -> None:
        known = np.ones(index.shape, bool)
        for wire, radix in zip(wires, self._layout.radices[name], strict=True):
            known = known & (wire._symbols < radix - 1)
        self.used.append(np.where(known, index, -1))
        first = np.where(known & (output == self._layout.unknown[name][0]), index, -1)
        if self.missing is None:
            self.missing = first.astype(np.int64)
        else:
            self.missing = np.where(self.missing < 0, first, self.missing)
