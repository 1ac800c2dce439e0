"""The exact engine against mpmath and SymPy on random expressions: no wrong answer, no hang, no crash.

    python scripts/check_mathematics.py --level 4 --count 200000 --seed 0
    python scripts/check_mathematics.py --level language --count 200000

Without ``--level``, all seven and the whole language. The oracle shares no code with the engine: it evaluates
expressions itself in mpmath and in fractions, differentiates by dual numbers, integrates by quadrature, and asks SymPy
for the real roots of equations. ``--first`` begins at another index, so a run can be shared among machines. Prints
counts and every counterexample; exit code 1 if there is one.
"""

import argparse
import random
import signal
import sys
import time
from collections import Counter

import mpmath
import sympy
from mathematics_oracle import (
    CHECKS,
    FUNCTIONS,
    Undefined,
    Unknown,
    check_digits,
    check_roots,
    compare_slopes,
    near,
    real,
    real_roots,
    settled,
)

from dagnn.curriculum import answer, judge, make_sample, to_text
from dagnn.errors import ExpressionError

DIGITS = 40
mp = mpmath.mp


class TooLong(Exception):
    """The time of one expression is up."""


def checked_sample(level, seed, index):
    """A drawn sample: its answer, the engine's, and the judge's word on both and on a wrong one."""
    sample = make_sample(level, seed=seed, index=index)
    problems = [CHECKS[level](sample.input, sample.answer)]
    ours = answer(sample.input, level)
    if ours != sample.answer:
        problems.append(CHECKS[level](sample.input, ours))
    verdict = judge(level, sample.input, sample.answer)
    if not verdict.right:
        problems.append(f"the judge rejects it: {verdict.reason}")
    wrong = ("roots", 123457, 123458) if level == 7 else ("+", sample.answer, "x") if level > 4 else 123457
    if judge(level, sample.input, wrong).right:
        problems.append(f"the judge takes {to_text(wrong)}")
    return sample.input, ours, next(filter(None, problems), None)


def random_expression(draw, depth, symbols):
    if depth == 0 or draw.random() < 0.15:
        kind = draw.random()
        if symbols and kind < 0.4:
            return draw.choice(symbols)
        if kind < 0.5:
            return draw.choice(("e", "pi", "0.5", "-1.25", "0.001"))
        return draw.choice((draw.randint(-9, 9), draw.randint(-9, 9), draw.randint(-99, 99), 0, 1, 2, -1))
    kind = draw.random()
    if kind < 0.28:
        return (draw.choice(FUNCTIONS), random_expression(draw, depth - 1, symbols))
    if kind < 0.38:
        return (
            "^",
            random_expression(draw, depth - 1, symbols),
            draw.choice((2, 3, -1, -2, 0, ("/", 1, 2), ("/", -1, 3))),
        )
    if kind < 0.42:
        return ("^", random_expression(draw, depth - 1, symbols), random_expression(draw, depth - 1, symbols))
    if kind < 0.46:
        return ("-", random_expression(draw, depth - 1, symbols))
    return (
        draw.choice("+-*/"),
        random_expression(draw, depth - 1, symbols),
        random_expression(draw, draw.randint(0, depth - 1), symbols),
    )


def random_problem(draw):
    """Of the whole language: what the levels do not draw."""
    kind, depth = draw.randrange(10), draw.randint(1, 4)
    if kind < 2:
        return random_expression(draw, depth, [])
    if kind < 4:
        return ("approx", extreme(draw, depth))
    if kind < 5:
        return ("subst", random_expression(draw, depth, ["x"]), "x", random_expression(draw, 1, []))
    if kind < 6:
        return ("derive", random_expression(draw, depth, ["x", "x", "y"]), "x")
    if kind < 8:
        bounds = [draw.choice((draw.randint(-4, 4), "pi", ("/", "pi", 2), "e", ("sqrt", 2), 0, 1)) for _ in range(2)]
        return ("integrate", integrand(draw), "x", *bounds)
    if kind < 9:
        return ("integrate", integrand(draw), "x")
    rational = [rational_function(draw, draw.randint(1, 3)) for _ in range(2)]
    return ("solve", ("=", *rational), "x")


def integrand(draw):
    """Often of a form that has an antiderivative, with a zero or a pole somewhere."""
    a, b, n = (
        draw.choice((1, 2, -1, 3)),
        draw.randint(-4, 4),
        draw.choice((-3, -2, -1, 1, 2, ("/", 1, 2), ("/", -1, 2))),
    )
    linear = ("+", ("*", a, "x"), b)
    inner = draw.choice((linear, ("+", ("^", "x", 2), b), ("+", ("sin", "x"), b), ("+", ("exp", "x"), b), ("cos", "x")))
    forms = [
        (draw.choice(FUNCTIONS), linear),
        ("^", linear, n),
        ("/", ("*", draw.choice((1, 2)), "x"), ("+", ("^", "x", 2), b)),
        ("/", ("cos", "x"), ("^", ("+", ("sin", "x"), b), draw.choice((1, 2, 3)))),
        ("/", ("exp", "x"), ("+", ("exp", "x"), b)),
        ("*", "x", (draw.choice(("exp", "sin", "cos", "log")), "x")),
        ("/", ("log", "x"), "x"),
        ("/", 1, inner),
        ("/", inner, inner),
        ("+", ("/", 1, "x"), linear),
        ("^", draw.choice((2, "e", -2, 3)), "x"),
        random_expression(draw, 2, ["x"]),
    ]
    return draw.choice(forms)


def rational_function(draw, depth):
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(("x", "x", draw.randint(-6, 6), ("/", draw.randint(-5, 5), draw.randint(1, 4))))
    if draw.random() < 0.12:
        return ("^", rational_function(draw, depth - 1), draw.choice((2, -1, 3)))
    return (draw.choice("+-**/"), rational_function(draw, depth - 1), rational_function(draw, depth - 1))


def extreme(draw, depth):
    """Values of any size, and sums that cancel."""
    if depth == 0:
        return draw.choice((1, 2, 3, ("^", 10, draw.randint(-80, 80)), draw.randint(-200, 200), "pi", "e"))
    kind = draw.randrange(6)
    if kind == 0:
        big = ("^", 10, draw.randint(1, 90))
        return ("-", ("+", big, extreme(draw, depth - 1)), big)
    if kind == 1:
        return (draw.choice(FUNCTIONS), extreme(draw, depth - 1))
    if kind == 2:
        return ("-", 1, ("cos", ("exp", -draw.randint(1, 100))))
    if kind == 3:
        return ("exp", draw.randint(-700, 700))
    return (draw.choice("+-*/"), extreme(draw, depth - 1), extreme(draw, depth - 1))


def checked_problem(seed, index):
    draw = random.Random(f"{seed}-{index}")
    expr = random_problem(draw)
    try:
        ours = answer(expr)
    except ExpressionError:
        return expr, None, refused_wrongly(expr)
    head = expr[0] if isinstance(expr, tuple) else ""
    if head == "approx":
        return expr, ours, check_approximation(expr[1], ours)
    if head == "solve":
        return expr, ours, check_roots(expr, ours)
    if head == "derive":
        return expr, ours, compare_slopes(expr[1], ours, "x")
    if head == "integrate" and len(expr) == 3:
        return expr, ours, compare_slopes(ours, expr[1], "x")
    try:
        value = real(expr, {})
    except Undefined as error:
        return expr, ours, f"has no real value: {error}"
    with mp.workdps(DIGITS):
        if near(value, real(ours, {}), 10):
            return expr, ours, None
    # tan(pi) is 0 with any digits, and in 40 of them more than 0.001 ^ 94.
    value = settled(expr)
    return expr, ours, None if near(value, settled(ours), 10) else f"should be {mp.nstr(value, 15)}"


def check_approximation(expr, given):
    try:
        return check_digits(expr, given)
    except Undefined as error:
        return f"has no real value: {error}"
    except Unknown:
        if given == 0:
            raise
        return None


def is_between_roundings(value):
    """Is this in the middle between two numbers of 3 digits, as log(sqrt(exp 281)) is? No number of digits tells."""
    with mp.workdps(60):
        units = abs(value) * mp.mpf(10) ** (2 - mp.floor(mp.log10(abs(value))))
        return abs(units - mp.floor(units) - mp.mpf("0.5")) < mp.mpf(10) ** -40


def refused_wrongly(expr):
    """Refusals are right but for digits that exist and roots that SymPy finds."""
    if isinstance(expr, tuple) and expr[0] == "approx":
        try:
            value = settled(expr[1])
        except Undefined:
            return None
        if not 1e-300 < abs(value) < 1e300 or is_between_roundings(value):
            return None
        return f"has the value {mp.nstr(value, 8)}"
    if isinstance(expr, tuple) and expr[0] == "solve":
        try:
            roots = real_roots(*expr[1][1:], expr[2])
        except (Undefined, sympy.PolynomialError, ZeroDivisionError):
            return None
        return f"has the roots {roots}" if roots and roots != ["irrational"] else None
    return None


def run(level, count, seed, first, seconds):
    """Counts and counterexamples."""
    counts, wrong = Counter(), []

    def ring(signum, frame):
        raise TooLong

    signal.signal(signal.SIGALRM, ring)
    for index in range(first, first + count):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            if level == "language":
                expr, ours, problem = checked_problem(seed, index)
            else:
                expr, ours, problem = checked_sample(level, seed, index)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if problem:
                wrong.append(
                    f"{level} {index}: {to_text(expr)} -> {to_text(ours) if ours is not None else 'refused'}: {problem}"
                )
            counts["wrong" if problem else "refused" if ours is None else "right"] += 1
        except (Unknown, OverflowError, mpmath.libmp.NoConvergence):
            counts["unknown"] += 1
        except TooLong:
            counts["too long"] += 1
            wrong.append(f"{level} {index}: more than {seconds} seconds")
        except Exception as error:  # a crash is what is looked for
            wrong.append(f"{level} {index}: {type(error).__name__}: {error}")
            counts["crashed"] += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return counts, wrong


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", default="all", choices=["all", "language", *map(str, CHECKS)])
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="index of the first expression")
    parser.add_argument("--seconds", type=float, default=20.0, help="for one expression, the oracle's time included")
    options = parser.parse_args(arguments)
    mp.dps = DIGITS
    bad = 0
    for level in [*CHECKS, "language"] if options.level == "all" else [options.level]:
        start = time.perf_counter()
        known = level if level == "language" else int(level)
        counts, wrong = run(known, options.count, options.seed, options.first, options.seconds)
        said = ", ".join(f"{number:,} {name}" for name, number in counts.most_common())
        print(f"level {level}: {said}; {time.perf_counter() - start:.0f} s", flush=True)
        for line in wrong:
            print(f"  {line}")
        bad += len(wrong)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
