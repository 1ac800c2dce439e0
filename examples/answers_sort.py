"""Learns to sort from texts and the same letters in order: a network of comparators, whose comparator is not known.

The data flow is given: odd-even transposition, neighbours through one cell in as many rounds as there are letters.
Which letter comes first is not.
"""

import random

from dagnn.answers import Cell, Operation, learn

LETTERS = "stream"  # in an order that only the answers show


def flow(run, text):
    letters = list(text)
    for first in range(len(letters)):
        for i in range(first % 2, len(letters) - 1, 2):
            letters[i : i + 2] = run.cell("compare", *letters[i : i + 2])
    return letters


OPERATION = Operation(
    name="sort",
    alphabets={"letter": "".join(sorted(LETTERS))},
    cells={"compare": Cell(("letter", "letter"), ("letter", "letter"))},
    inputs=("letter",),
    output="letter",
    flow=flow,
)


def question(rng, length):
    return ("".join(rng.choice(LETTERS) for _ in range(length)),)


def exact(text):
    """The judge: Python's own sort."""
    return "".join(sorted(text, key=LETTERS.index))


JUDGE = ("question", "exact")

if __name__ == "__main__":
    rng = random.Random(0)
    short = [question(rng, rng.randint(1, 4)) for _ in range(1000)]
    learned = learn(OPERATION, [(asked, exact(*asked)) for asked in short])
    print(learned.certificate())
    long = [question(rng, 200) for _ in range(100)]
    right = sum(answer == exact(*asked) for asked, answer in zip(long, learned.answers(long), strict=True))
    print(f"{right} of 100 texts of 200 letters are in order")
