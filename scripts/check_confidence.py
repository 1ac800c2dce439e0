"""Asks a trained network expressions that the levels do not draw, and looks for wrong answers that it is sure of.

    python scripts/check_confidence.py [RUN] [--count 1000] [--seed 0]

The expressions are of the whole language: several and other symbols, decimals, constants, many operands, negative and
symbolic exponents, operators within operators. The exact engine judges. Prints how many were right, wrong and without
an end at every confidence, and each wrong answer at 0.99 or more. Exit code 1 when there is one.
"""

import argparse
import random
import sys
from collections import Counter

from dagnn.curriculum import to_text
from dagnn.curriculum.accuracy import model_of, opened_run, trained_neighbourhoods
from dagnn.curriculum.expression import FUNCTIONS, Expr, check
from dagnn.curriculum.levels import level_of
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.solving import solve_with
from dagnn.errors import ExpressionError
from dagnn.rewriting.dataset import read_neighbourhoods

SURE = 0.99
_SYMBOLS = ("x", "y", "t", "alpha", "speed", "q")


class Draw:
    """Random expressions, one call each."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def any(self) -> Expr:
        kind = self.random.choice((self.arithmetic, self.value, self.derivative, self.integral, self.equation))
        return kind()

    def number(self) -> Expr:
        pick = self.random.random()
        if pick < 0.6:
            return self.random.randint(-12, 12)
        if pick < 0.7:
            return self.random.choice((0, 1, -1, 100, -1000, 12345))
        if pick < 0.85:
            return ("/", self.random.randint(-12, 12), self.random.randint(1, 9))
        return f"{self.random.randint(-30, 30) / self.random.choice((10, 100))!s}"

    def term(self, depth: int, symbols: tuple[str, ...], functions: bool) -> Expr:
        pick = self.random.random()
        if depth == 0 or pick < 0.1:
            if symbols and self.random.random() < 0.6:
                return self.random.choice(symbols)
            return self.random.choice(("e", "pi")) if functions and self.random.random() < 0.2 else self.number()
        if functions and pick < 0.35:
            return (self.random.choice(FUNCTIONS), self.term(depth - 1, symbols, functions))
        if pick < 0.5:
            exponent = self.random.choice((-3, -2, -1, 0, 1, 2, 3, 5, ("/", 1, 2)))
            if symbols and self.random.random() < 0.15:
                exponent = self.random.choice(symbols)
            return ("^", self.term(depth - 1, symbols, functions), exponent)
        if pick < 0.55:
            return ("-", self.term(depth - 1, symbols, functions))
        count = self.random.choice((2, 2, 2, 2, 3, 4))
        first = self.term(depth - 1, symbols, functions)
        rest = [
            first if self.random.random() < 0.15 else self.term(depth - 1, symbols, functions) for _ in range(count - 1)
        ]
        return (self.random.choice("+-*/"), first, *rest)

    def arithmetic(self) -> Expr:
        symbols = tuple(self.random.sample(_SYMBOLS, self.random.choice((0, 1, 1, 2, 3))))
        expr = self.term(self.random.choice((1, 2, 2, 3)), symbols, functions=False)
        for symbol in symbols:
            expr = ("subst", expr, symbol, self.number())
        return expr

    def value(self) -> Expr:
        expr = self.term(self.random.choice((1, 2, 2, 3)), (), functions=True)
        return ("approx", expr) if self.random.random() < 0.5 else expr

    def derivative(self) -> Expr:
        symbols = tuple(self.random.sample(_SYMBOLS, self.random.choice((1, 1, 2, 3))))
        expr = ("derive", self.term(self.random.choice((1, 2, 2, 3)), symbols, functions=True), symbols[0])
        if self.random.random() < 0.15:
            expr = ("derive", expr, symbols[-1])
        if self.random.random() < 0.15:
            expr = ("subst", expr, symbols[0], self.number())
        return expr

    def integral(self) -> Expr:
        symbols = tuple(self.random.sample(_SYMBOLS, self.random.choice((1, 1, 1, 2))))
        expr: Expr = self.term(self.random.choice((1, 1, 2)), symbols, functions=self.random.random() < 0.6)
        if self.random.random() < 0.5:
            return ("integrate", expr, symbols[0])
        bounds = [self.number(), self.random.choice((self.number(), "pi", "e", ("/", "pi", 2)))]
        return ("integrate", expr, symbols[0], *bounds)

    def equation(self) -> Expr:
        symbols = tuple(self.random.sample(_SYMBOLS, self.random.choice((1, 1, 1, 2))))
        left = self.term(self.random.choice((1, 2, 2)), symbols, functions=self.random.random() < 0.2)
        right = self.term(self.random.choice((0, 0, 1)), symbols, functions=False)
        return ("solve", ("=", left, right), symbols[0])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", default="runs/curriculum")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)

    directory, config, checkpoint = opened_run(given.run)
    traced = read_neighbourhoods(directory.path, SIGNATURE)
    if traced is None:
        print(f"{given.run} has no neighbourhoods of this version: train it again.", file=sys.stderr)
        return 2
    trained = trained_neighbourhoods(traced[0], config.curriculum.held_out_windows, checkpoint)
    model, draw = model_of(checkpoint), Draw(given.seed)
    outcomes: Counter[tuple[str, str]] = Counter()
    sure_and_wrong = 0
    while sum(outcomes.values()) < given.count:
        expression = draw.any()
        try:
            check(expression)
            found = solve_with(model, expression, trained=trained, finer=True, budget=20_000, seconds=10.0)
        except ExpressionError:
            continue  # no expression, or one that the rewriting system cannot write
        confidence = found.confidence
        band = "0.99 or more" if confidence >= SURE else "0.5 .. 0.99" if confidence > 0.5 else "0.5 or less"
        if found.right:
            outcome = "right"
        elif not found.answer or not found.finished:
            outcome = "no end"
        else:
            outcome = "wrong" if found.has_answer else "an answer where the engine has none"
        outcomes[band, outcome] += 1
        if outcome.startswith(("wrong", "an answer")) and confidence >= SURE:
            sure_and_wrong += 1
            print(f"level {level_of(expression)} {to_text(expression)} -> {found.answer}: {found.verdict}", flush=True)
    for (band, outcome), count in sorted(outcomes.items()):
        print(f"confidence {band:13}  {outcome:36} {count:6,}")
    print(f"{sure_and_wrong} wrong at a confidence of {SURE} or more")
    return 1 if sure_and_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
