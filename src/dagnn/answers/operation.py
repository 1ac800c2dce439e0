"""An operation as a data flow of cells: which cells exist, what runs on their wires, how they are connected.

Behind `Operation` come those of arithmetic on whole numbers: data flows of school methods, their cells unknown.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dagnn.answers.run import Cell, Layout, Run, Symbols, Wire
from dagnn.errors import ConfigError, DataError

Pair = tuple[tuple[str, ...], str]
"""A question and its answer."""


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


# ---- arithmetic ----

ALPHABETS = {"digit": "0123456789", "bit": "01"}
_TIMES = Cell(("digit", "digit"), ("digit", "digit"))
_CARRYING = Cell(("digit", "digit", "bit"), ("digit", "bit"))


@dataclass(frozen=True)
class Arithmetic:
    """An operation with what tests and training need: the exact answer, and questions.

    Attributes:
        operation: data flow and cells.
        exact: the answer text to two numbers of some lengths, as the flow should give it, with padding.
        given: operations whose cells it begins with.
        factors: random questions have common factors; of independent numbers 61 % have none.
    """

    operation: Operation
    exact: Callable[[str, str], str]
    given: tuple[str, ...] = ()
    factors: bool = False

    def question(self, rng: random.Random, digits: tuple[int, int]) -> tuple[str, str]:
        """Two numbers of that many digits; leading zeros happen, a divisor of zero does not. Half of the pairs have a
        common factor of random length if ``factors``."""
        a, b = (rng.randrange(10**count) for count in digits)
        if self.factors and rng.random() < 0.5:
            factor = rng.randrange(10 ** rng.randint(1, min(digits))) + 1
            a, b = a - a % factor, b - b % factor
        question = (_decimal(a, digits[0]), _decimal(b, digits[1]))
        if self.operation.refuses is not None and self.operation.refuses(*question):
            return self.question(rng, digits)
        return question

    def pairs(self, count: int, *, longest: int = 4, seed: int = 0, wrong: float = 0.0) -> list[Pair]:
        """Questions of 1 to ``longest`` digits with their answers; a share ``wrong`` has one symbol of the
        answer changed.

        >>> ARITHMETIC["+"].pairs(1, longest=1)
        [(('0', '4'), '04')]
        """
        rng = random.Random(int(seed))
        pairs: list[Pair] = []
        for _ in range(count):
            question = self.question(rng, (rng.randint(1, longest), rng.randint(1, longest)))
            answer = self.exact(*question)
            if rng.random() < wrong:
                place = rng.choice([i for i, symbol in enumerate(answer) if symbol.isdigit()])
                other = rng.choice([symbol for symbol in "0123456789" if symbol != answer[place]])
                answer = answer[:place] + other + answer[place + 1 :]
            pairs.append((question, answer))
        return pairs


def _padded(run: Run, number: Wire, length: int) -> Wire:
    return run.constant("digit", "0", length - len(number)) + number if length > len(number) else number


def _sum(run: Run, a: Wire, b: Wire, name: str = "add") -> Wire:
    """Digits from the last to the first through one cell that passes a bit on; one digit more than the longer."""
    length = max(len(a), len(b)) + 1
    return run.chain(name, _padded(run, a, length), _padded(run, b, length), carry=run.constant("bit", "0"))[0]


def _difference(run: Run, a: Wire, b: Wire) -> Wire:
    return _sum(run, a, b, "subtract")


def _product(run: Run, a: Wire, b: Wire) -> Wire:
    """One row per digit of b: ones and tens of its products with all of a, added to what the rows before gave."""
    total: Wire | None = None
    done: list[Wire] = []
    for y in list(b)[::-1]:
        ones, tens = run.cell("times", a, y)
        # Of one digit there is nothing to add; of more the row ends without a carry.
        row = tens + ones if len(a) == 1 else _sum(run, ones[:-1], tens)[1:] + ones[-1]
        total = row if total is None else _sum(run, total, row)[1:]
        done.append(total[-1])
        total = total[:-1]
    assert total is not None
    return run.join([total, *done[::-1]])


def _quotient(run: Run, a: Wire, b: Wire) -> tuple[Wire, Wire]:
    """School division: a digit of a comes down, b goes off the rest up to nine times while nothing is borrowed."""
    rest = run.constant("digit", "0", len(b))
    quotient = []
    for i, digit in enumerate(a):
        rest = rest[1:] + digit if i == 0 else rest[-len(b) :] + digit
        divisor, count = _padded(run, b, len(rest)), run.constant("digit", "0")
        for times in "123456789":
            less, borrowed = run.chain("subtract", rest, divisor, carry=run.constant("bit", "0"))
            rest = run.choose(borrowed, less, rest)
            count = run.choose(borrowed, run.constant("digit", times), count)
        quotient.append(count)
    return run.join(quotient), rest[-len(b) :]


def _gcd(run: Run, a: Wire, b: Wire) -> Wire:
    """Euclid's algorithm in binary (Stein 1967): common factors two out, then halve what is even, or subtract the
    smaller of two odd numbers from the larger and halve that, as often as numbers of such lengths can need."""
    length = max(len(a), len(b))
    a, b = _padded(run, a, length), _padded(run, b, length)
    bit, zero, one, five = (run.constant(*symbol) for symbol in (("bit", "0"), *(("digit", d) for d in "015")))
    halvings = length * 10 // 3 + 1  # a number of so many digits has no more bits

    def half(number: Wire) -> tuple[Wire, Wire]:
        """Five times the number without its last digit, and a bit for even."""
        ones, tens = run.cell("times", number, five)
        halved = run.cell("add", tens, zero + ones[:-1], bit)[0] if len(number) > 1 else tens
        return halved, run.cell("subtract", ones[-1], one, bit)[1]

    twos = []
    for _ in range(halvings):
        (half_a, even_a), (half_b, even_b) = half(a), half(b)
        twos.append(run.choose(even_a, even_a, even_b))
        a, b = run.choose(twos[-1], a, half_a), run.choose(twos[-1], b, half_b)
    for _ in range(2 * halvings):
        even, even_b = (half(number[-1:])[1] for number in (a, b))
        smaller = run.chain("subtract", a, b, carry=bit)[1]
        swap = run.choose(even, run.choose(even_b, smaller, even_b), bit)
        a, b, even = run.choose(swap, a, b), run.choose(swap, b, a), run.choose(swap, even, even_b)
        a = half(run.choose(even, run.chain("subtract", a, b, carry=bit)[0], a))[0]
    b = run.chain("subtract", b, a, carry=bit)[0]  # a is 0 by now
    for two in twos[::-1]:
        b = run.choose(two, b, run.chain("add", b, b, carry=bit)[0])
    return b


def _decimal(value: int, length: int) -> str:
    return str(value % 10**length).rjust(length, "0")


def _of_longest(a: str, b: str) -> int:
    return max(len(a), len(b)) + 1


def _operation(
    name: str, cells: dict[str, Cell], flow: Callable[..., Any], padding: str | None, **more: Any
) -> Operation:
    return Operation(name, ALPHABETS, cells, ("digit", "digit"), "digit", flow, padding, **more)


def _zero_divisor(_: str, b: str) -> str | None:
    return None if b.strip("0") else "the divisor is zero"


ARITHMETIC = {
    "+": Arithmetic(
        _operation("+", {"add": _CARRYING}, _sum, "0"), lambda a, b: _decimal(int(a) + int(b), _of_longest(a, b))
    ),
    # Below zero in ten's complement: 3 - 5 = 98, as the cells of one more digit give it; so zeros in front count.
    "-": Arithmetic(
        _operation("-", {"subtract": _CARRYING}, _difference, None),
        lambda a, b: _decimal(int(a) - int(b), _of_longest(a, b)),
    ),
    "*": Arithmetic(
        _operation("*", {"times": _TIMES, "add": _CARRYING}, _product, "0"),
        lambda a, b: _decimal(int(a) * int(b), len(a) + len(b)),
    ),
    "/": Arithmetic(
        _operation("/", {"subtract": _CARRYING}, _quotient, "0", separator="r", refuses=_zero_divisor),
        lambda a, b: f"{_decimal(int(a) // int(b), len(a))}r{_decimal(int(a) % int(b), len(b))}",
    ),
    "gcd": Arithmetic(
        _operation("gcd", {"subtract": _CARRYING, "times": _TIMES, "add": _CARRYING}, _gcd, "0"),
        lambda a, b: _decimal(math.gcd(int(a), int(b)), max(len(a), len(b))),
        given=("/", "*"),
        factors=True,
    ),
}
