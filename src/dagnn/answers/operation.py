"""An operation as a data flow of cells: which cells exist, what runs on their wires, how they are connected."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dagnn.answers.run import Cell, Layout, Run, Symbols, Wire
from dagnn.errors import ConfigError, DataError


def lengths_of(question: Sequence[str]) -> tuple[int, ...]:
    """The length of every part of a question; DataError where one is no text."""
    if isinstance(question, str) or not all(isinstance(part, str) for part in question):
        raise DataError(f"a question is a tuple of texts, such as ('12', '5'), got {question!r}.")
    return tuple(map(len, question))


Flow = Callable[..., Sequence[Wire] | Wire | tuple[Sequence[Wire] | Wire, ...]]


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
        flow: ``flow(run, *parts)`` with a row of `Wire` per part, from the first symbol of the text to the last;
            returns the wires of the answer in the same order, in a row or a list. ``run.cell(name, *wires)`` is a tuple
            of wires, ``run.constant(alphabet, symbol)`` a wire; `Run.chain` passes a carry on, `Run.choose` branches.
        padding: symbol that may stand before an answer any number of times without changing it.
        separator: what stands between the parts of an answer of several parts; the flow returns a tuple of them.
        refuses: why a question has no answer, or None; division by zero.

    Raises:
        ConfigError: an alphabet that is unknown, empty or repeats a symbol, or a cell without inputs or outputs.

    >>> def flow(run, text):
    ...     return run.cell("other", text)[0]
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
    separator: str | None = None
    refuses: Callable[..., str | None] | None = None

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
        if self.separator is not None and (len(self.separator) != 1 or self.separator in self.alphabets[self.output]):
            raise ConfigError(
                f"operation {self.name!r}: separator {self.separator!r}, expected a symbol that {self.output!r} lacks."
            )
        if self.padding is not None and self.padding not in self.alphabets[self.output]:
            raise ConfigError(f"operation {self.name!r}: padding {self.padding!r} is no symbol of {self.output!r}.")

    @cached_property
    def layout(self) -> Layout:
        """Where the inputs of every cell are in one table."""
        return Layout(self.name, self.alphabets, self.cells, self.hidden)

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

    def check(self, question: Sequence[str]) -> None:
        """Refuses a question with another number of parts, an empty part, or without an answer.

        Raises:
            DataError: one of these.
        """
        if len(question) != len(self.inputs) or not all(question):
            raise DataError(
                f"{self.name!r} got the question {tuple(question)!r}, expected {len(self.inputs)} parts of at least "
                f"one symbol."
            )
        why = self.refuses(*question) if self.refuses is not None else None
        if why is not None:
            raise DataError(f"{self.name!r} has no answer to {tuple(question)!r}: {why}.")

    def encode_questions(self, questions: Sequence[tuple[str, ...]]) -> list[Symbols]:
        """Questions of equal lengths as int32 ``[length of the part, questions]`` per part.

        Raises:
            DataError: a question that `check` refuses, or a symbol that its alphabet lacks.
        """
        for question in questions:
            self.check(question)
        return [
            np.ascontiguousarray(self.encode([question[i] for question in questions], alphabet).T)
            for i, alphabet in enumerate(self.inputs)
        ]

    def run(self, run: Run, parts: Sequence[Symbols]) -> list[Symbols]:
        """The flow on encoded questions: ``[length, questions]`` per part of the answer.

        Raises:
            ConfigError: the flow connects wires that do not fit.
        """
        result = self.flow(run, *(run.part(alphabet, part) for alphabet, part in zip(self.inputs, parts, strict=True)))
        answers = []
        for part in result if isinstance(result, tuple) else (result,):
            wires = [part] if isinstance(part, Wire) else list(part)
            for wire in wires:
                run.check(wire)
                if wire.alphabet != self.output:
                    raise ConfigError(
                        f"the flow of {self.name!r} answers with {wire.alphabet!r}, expected {self.output!r}."
                    )
            answers.append(np.concatenate([run.symbols(wire) for wire in wires]))
        if len(answers) > 1 and self.separator is None:
            raise ConfigError(f"the flow of {self.name!r} answers in {len(answers)} parts: declare a separator.")
        return answers

    def padded(self, answer: str, lengths: Sequence[int]) -> str:
        """An answer with as much padding as the flow gives, without separators.

        Raises:
            DataError: another number of parts or of symbols.
        """
        parts = answer.split(self.separator) if self.separator is not None else [answer]
        if len(parts) == len(lengths) and self.padding is not None:
            parts = [part.rjust(length, self.padding) for part, length in zip(parts, lengths, strict=True)]
        if [len(part) for part in parts] != list(lengths):
            expected = f" {self.separator} ".join(map(str, lengths))
            raise DataError(
                f"{self.name!r}: the answer {answer!r} has {len(answer)} symbols, the data flow gives {expected}."
            )
        return "".join(parts)

    def text(self, parts: Sequence[str]) -> str:
        """The parts of an answer as one text, without padding."""
        if self.padding is not None:
            parts = [part[:-1].lstrip(self.padding) + part[-1:] for part in parts]
        return (self.separator or "").join(parts)

    def canonical(self, answer: str) -> str:
        """An answer as `Learned.answers` writes it, without padding."""
        return self.text(answer.split(self.separator) if self.separator is not None else [answer])
