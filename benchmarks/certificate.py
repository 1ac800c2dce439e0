"""Every wrong fact is found by the certificate, with an expression that shows it; certified networks are right.

    python -m benchmarks.certificate RUN [--levels 1 2 3] [--faults 200] [--expressions 2000] [--seed N]

Faults: at a neighbourhood that a drawn expression leads to, the network's answer is changed, one at a time; a fault
counts as found when the certificate no longer holds, and as shown when it names an expression that leads there.
Expressions: of levels 1, 2, 3, 5 and 7, with repeated and shared parts; the exact engine judges the answers.
"""

import argparse
import random
import sys
from collections.abc import Sequence

from dagnn.curriculum.accuracy import engine_replacement, model_of, opened_run
from dagnn.curriculum.certificate import (
    Certificate,
    Network,
    certify,
    closure_of,
    drawn_expression,
    expressions_for,
)
from dagnn.curriculum.draw import Draws, part_of
from dagnn.curriculum.engine import RuleEngine, from_term, normal_form, to_term
from dagnn.curriculum.exact.answer import answer
from dagnn.curriculum.expression import Expr, to_text
from dagnn.curriculum.generator import make_sample
from dagnn.curriculum.levels import level_of
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.verdict import judge
from dagnn.errors import ExpressionError
from dagnn.rewriting import LEAVE, NeighbourhoodTokens, ReplacementTokens, RewritingMachine
from dagnn.rewriting.machine import Rewriter
from dagnn.rewriting.network import Proposal

# Expressions of the search begin at 0: those that faults are taken from are others.
_ELSEWHERE = 1_000_000
_BUDGET = 200_000


class WithFault:
    """A network that knows everything that the engine knows, but for one neighbourhood."""

    def __init__(self, at: NeighbourhoodTokens, written: ReplacementTokens) -> None:
        self.at, self.written = at, written

    def propose(self, neighbourhoods: Sequence[NeighbourhoodTokens]) -> list[Proposal]:
        # After a wrong step it may meet what no rule knows.
        return [
            Proposal(self.written if each == self.at else engine_replacement(each) or LEAVE, 1.0)
            for each in neighbourhoods
        ]

    def leads(
        self, neighbourhoods: Sequence[NeighbourhoodTokens], replacements: Sequence[ReplacementTokens]
    ) -> list[float]:
        return [-1.0 if each == self.at else 1.0 for each in neighbourhoods]


def wrong_fact(right: ReplacementTokens, draw: random.Random) -> ReplacementTokens:
    """The replacement with one label changed for another of as many children; something new where it has none."""
    labels = SIGNATURE.labels
    places = [i for i, token in enumerate(right) if token < len(labels)]
    if not places:
        return (SIGNATURE.id_of["end"],)
    place = draw.choice(places)
    arity = labels[right[place]].arity
    others = [i for i, label in enumerate(labels) if label.arity == arity and i != right[place]]
    return (*right[:place], draw.choice(others), *right[place + 1 :])


def neighbourhoods_that_occur(level: int, count: int) -> list[NeighbourhoodTokens]:
    """What drawn expressions with a value lead the engine to, so many of them."""
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    index = _ELSEWHERE
    while machine.num_neighbourhoods < 3 * count:
        expression = drawn_expression(level, index)
        index += 1
        if has_value(expression) and is_solved(expression):
            machine.run([to_term(expression)[0]], budget=_BUDGET)
    return [machine.neighbourhood(number) for number in range(machine.num_neighbourhoods)]


def has_value(expression: Expr) -> bool:
    """Whether the exact engine has an answer."""
    try:
        answer(expression)
    except ExpressionError:
        return False
    return True


def is_solved(expression: Expr) -> bool:
    """Whether the rules bring it to its answer: they leave equations above the second degree as they are."""
    try:
        return judge(level_of(expression), expression, normal_form(expression)).right
    except ExpressionError:
        return False


def faults_found(level: int, count: int, *, seed: int = 0) -> tuple[int, int]:
    """Of so many injected faults, how many the certificate finds, and how many it shows by an expression."""
    draw = random.Random(f"{seed} {level}")
    occurring = neighbourhoods_that_occur(level, count)
    at = draw.sample(occurring, count)
    closure = closure_of(level)
    found = sum(each in closure for each in at)
    shown = expressions_for(level, at)
    for each in at[:3]:  # the whole certificate, which asks all that the closure has
        network: Network = WithFault(each, wrong_fact(closure[each], draw))
        certificate: Certificate = certify(network, level)
        assert (certificate.wrong, certificate.holds) == (1, False)
    return found, len(shown)


def shared_expression(level: int, index: int) -> Expr:
    """An expression with repeated and shared parts."""
    if level != 7:
        return drawn_expression(level, _ELSEWHERE + index)
    draws = Draws(f"certificate 7 {index}")
    _, equation, symbol = make_sample(7, seed=11, index=index).input  # type: ignore[misc]
    _, left, right = equation
    shared = part_of(draws, left)
    operator = draws.choice(("+", "-"))
    return ("solve", ("=", (operator, left, shared), (operator, right, shared)), symbol)


def wrong_answers(rewriter: Rewriter, level: int, count: int) -> list[str]:
    """Texts of the expressions, of so many, that a network answers wrongly."""
    machine = RewritingMachine(SIGNATURE, rewriter)
    wrong: list[str] = []
    index = asked = 0
    while asked < count:
        chunk: list[Expr] = []
        while len(chunk) < min(250, count - asked):
            expression = shared_expression(level, index)
            index += 1
            if has_value(expression):
                chunk.append(expression)
        terms = [to_term(expression) for expression in chunk]
        results = machine.run([term for term, _ in terms], budget=_BUDGET)
        machine.clear_graph()
        for expression, result, (_, names) in zip(chunk, results, terms, strict=True):
            given = None if result.tokens is None else from_term(result.tokens, names)
            if not judge(level, expression, given).right:
                wrong.append(to_text(expression))
        asked += len(chunk)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--faults", type=int, default=200, help="in all")
    parser.add_argument("--expressions", type=int, default=2_000, help="of each level")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    ok = True
    each = -(-given.faults // len(given.levels))
    for level in given.levels:
        found, shown = faults_found(level, each, seed=given.seed)
        print(f"level {level}: {found} of {each} faults found, {shown} shown by an expression", flush=True)
        ok &= found == shown == each
    model = model_of(opened_run(given.run)[2])
    for level in given.levels:
        certificate = certify(model, level)
        print(*certificate.lines, sep="\n", flush=True)
        ok &= certificate.holds
    for level in (1, 2, 3, 5, 7):
        wrong = wrong_answers(model, level, given.expressions)
        print(f"level {level}: {len(wrong)} of {given.expressions:,} wrong {wrong[:3]}", flush=True)
        ok &= not wrong
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
