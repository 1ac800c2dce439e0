"""Arithmetic on whole numbers as operations: data flows of school methods, their cells unknown."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dagnn.answers.facts import Pair
from dagnn.answers.operation import Cell, Operation, Run, Wire

ALPHABETS = {"digit": "0123456789", "bit": "01"}
_CARRYING = Cell(("digit", "digit", "bit"), ("digit", "bit"))


@dataclass(frozen=True)
class Arithmetic:
    """An operation with what tests and training need: the exact answer, and questions.

    Attributes:
        operation: data flow and cells.
        exact: the answer text to two numbers of some lengths, as the flow should give it.
    """

    operation: Operation
    exact: Callable[[str, str], str]

    def question(self, rng: random.Random, digits: tuple[int, int]) -> tuple[str, str]:
        """Two numbers of that many digits; leading zeros happen."""
        a, b = ("".join(rng.choice("0123456789") for _ in range(count)) for count in digits)
        return a, b

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
                place = rng.randrange(len(answer))
                other = rng.choice([symbol for symbol in "0123456789" if symbol != answer[place]])
                answer = answer[:place] + other + answer[place + 1 :]
            pairs.append((question, answer))
        return pairs


def _ripple(run: Run, name: str, a: Sequence[Wire], b: Sequence[Wire]) -> list[Wire]:
    """Digits from the last to the first through one cell that passes a bit on; the last bit ends as a digit."""
    zero, bit = run.constant("digit", "0"), run.constant("bit", "0")
    result = []
    for i in range(max(len(a), len(b)) + 1):
        x = a[-1 - i] if i < len(a) else zero
        y = b[-1 - i] if i < len(b) else zero
        digit, bit = run.cell(name, x, y, bit)
        result.append(digit)
    return result[::-1]


def _sum(run: Run, a: Sequence[Wire], b: Sequence[Wire]) -> list[Wire]:
    return _ripple(run, "add", a, b)


def _difference(run: Run, a: Sequence[Wire], b: Sequence[Wire]) -> list[Wire]:
    return _ripple(run, "subtract", a, b)


def _product(run: Run, a: Sequence[Wire], b: Sequence[Wire]) -> list[Wire]:
    """One row per digit of b: ones and tens of its products with all of a, added to what the rows before gave."""
    total: list[Wire] = []
    done: list[Wire] = []
    for y in b[::-1]:
        products = [run.cell("times", x, y) for x in a]
        ones, tens = [p[0] for p in products], [p[1] for p in products]
        # Of one digit there is nothing to add; of more the row ends without a carry.
        row = [tens[0], ones[0]] if len(a) == 1 else [*_ripple(run, "add", ones[:-1], tens)[1:], ones[-1]]
        total = _ripple(run, "add", total, row)[1:] if total else row
        done.append(total.pop())
    return [*total, *done[::-1]]


def _decimal(value: int, length: int) -> str:
    return str(value % 10**length).rjust(length, "0")


def _of_longest(a: str, b: str) -> int:
    return max(len(a), len(b)) + 1


def _operation(
    name: str, cells: dict[str, Cell], flow: Callable[..., Sequence[Wire]], padding: str | None
) -> Operation:
    return Operation(name, ALPHABETS, cells, ("digit", "digit"), "digit", flow, padding)


ARITHMETIC = {
    "+": Arithmetic(
        _operation("+", {"add": _CARRYING}, _sum, "0"),
        lambda a, b: _decimal(int(a) + int(b), _of_longest(a, b)),
    ),
    # Below zero in ten's complement: 3 - 5 = 98, as the cells of one more digit give it; so zeros in front count.
    "-": Arithmetic(
        _operation("-", {"subtract": _CARRYING}, _difference, None),
        lambda a, b: _decimal(int(a) - int(b), _of_longest(a, b)),
    ),
    "*": Arithmetic(
        _operation("*", {"times": Cell(("digit", "digit"), ("digit", "digit")), "add": _CARRYING}, _product, "0"),
        lambda a, b: _decimal(int(a) * int(b), len(a) + len(b)),
    ),
}
