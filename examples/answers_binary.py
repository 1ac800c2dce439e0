"""Learns to add from sums alone, in numbers whose digits are `n` and `y`: a cell of two symbols and a carry.

The data flow is given: from the last digit to the first, with something that is passed on. What the cell does is not.
"""

import random

from dagnn.answers import Cell, Operation, learn


def flow(run, a, b):
    length = max(len(a), len(b)) + 1
    a, b = (run.constant("digit", "n", length - len(x)) + x for x in (a, b))
    return run.chain("add", a, b, carry=run.constant("carry", "0"))[0]


OPERATION = Operation(
    name="binary +",
    alphabets={"digit": "ny", "carry": "01"},
    cells={"add": Cell(("digit", "digit", "carry"), ("digit", "carry"))},
    inputs=("digit", "digit"),
    output="digit",
    flow=flow,
    padding="n",
)


def question(rng, length):
    return tuple("".join(rng.choice("ny") for _ in range(length)) for _ in "ab")


def exact(a, b):
    """The judge: Python's own numbers."""
    total = sum(int(x.replace("n", "0").replace("y", "1"), 2) for x in (a, b))
    return f"{total:b}".replace("0", "n").replace("1", "y")


JUDGE = ("question", "exact")

if __name__ == "__main__":
    rng = random.Random(0)
    short = [question(rng, rng.randint(1, 4)) for _ in range(400)]
    learned = learn(OPERATION, [(asked, exact(*asked)) for asked in short])
    print(learned.certificate())
    long = [question(rng, 1000) for _ in range(100)]
    right = sum(answer == exact(*asked) for asked, answer in zip(long, learned.answers(long), strict=True))
    print(f"{right} of 100 sums of 1,000 digits are right")
