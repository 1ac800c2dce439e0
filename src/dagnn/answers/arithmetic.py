"""Arithmetic on whole numbers as operations: data flows of school methods, their cells unknown."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dagnn.answers.facts import Pair
from dagnn.answers.operation import Operation
from dagnn.answers.run import Cell, Run, Wire

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
