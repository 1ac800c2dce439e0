"""Learns a finite-state transducer from texts and what became of them: quoted letters become capitals.

Inside quotes `a` becomes `A`, unless a backslash stands before it; a backslash also keeps a quote from being the end.
How many states there are at most is given, and that one cell goes from the first symbol to the last. What the states
mean, and what the cell does, is not.
"""

import random
import re

from dagnn.answers import Cell, Operation, learn


def flow(run, text):
    return run.chain("step", text, carry=run.constant("state", "0"), forward=True)[0]


OPERATION = Operation(
    name="capitals in quotes",
    alphabets={"read": "ab'\\", "write": "abAB'\\", "state": "01234"},
    cells={"step": Cell(("read", "state"), ("write", "state"))},
    inputs=("read",),
    output="write",
    flow=flow,
)


def question(rng, length):
    return ("".join(rng.choice("ab'\\") for _ in range(length)),)


def exact(text):
    """The judge: a regular expression for quoted parts, one for what is in them."""
    capital = re.compile(r"\\.|[ab]", re.DOTALL)
    quoted = re.compile(r"'(?:\\.|[^'\\])*(?:'|\\?$)")
    return quoted.sub(lambda part: capital.sub(lambda m: m[0].upper() if m[0] in "ab" else m[0], part[0]), text)


JUDGE = ("question", "exact")

if __name__ == "__main__":
    rng = random.Random(0)
    short = [question(rng, rng.randint(1, 6)) for _ in range(2000)]
    learned = learn(OPERATION, [(asked, exact(*asked)) for asked in short])
    print(learned.certificate())
    long = [question(rng, 1000) for _ in range(100)]
    right = sum(answer == exact(*asked) for asked, answer in zip(long, learned.answers(long), strict=True))
    print(f"{right} of 100 texts of 1,000 symbols are right")
