"""One expression answered by a network: its steps, its confidence in each, and where it left the engine's path."""

import math
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from dagnn.curriculum.accuracy import STEP_BUDGET, engine_replacement, model_of, opened_run, trained_neighbourhoods
from dagnn.curriculum.engine import RuleEngine, from_term, neighbourhood_text, replacement_text, to_term
from dagnn.curriculum.exact.answer import resolve
from dagnn.curriculum.exact.evaluate import is_well_rounded, place, well_conditioned_value
from dagnn.curriculum.expression import Expr, to_binary, to_text, walk
from dagnn.curriculum.levels import level_of, level_spec
from dagnn.curriculum.parsing import from_infix, parse
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.smaller_steps import FinerSteps, Proposer
from dagnn.curriculum.verdict import is_worked_out, judge
from dagnn.errors import ConfigError, ExpressionError
from dagnn.rewriting import (
    LEAVE,
    NeighbourhoodTokens,
    ReplacementTokens,
    RewritingMachine,
    Step,
    Steps,
    neighbourhood_nodes,
    read_neighbourhood,
)
from dagnn.rewriting.dataset import read_neighbourhoods
from dagnn.training.processes import torch_threads

LARGEST_BUDGET = 10_000_000
SECONDS = 60.0
# A network that was right at every neighbourhood of its training may still be sure of nonsense elsewhere: of 1,062 odd
# expressions it got 64 wrong, ten of them at a confidence of 0.99.
DOUBTFUL_CONFIDENCE = 0.5
_ROUNDING = "rounded"
# Of a sub-expression that is written out; the input of level 4 at depth 8 is shorter.
_SHOWN_TOKENS = 1_000


class SolvedStep(NamedTuple):
    """One rewrite step of a network.

    Attributes:
        number: among all steps, those that left a neighbourhood as it was counted too.
        before, after: text of the sub-expression that was rewritten, and of what it became; a number whose digits are
            being worked on is written ``#23``.
        confidence: the probability that the network gave to this replacement, the product over its nodes; at most 0.5
            for a neighbourhood that its training never showed, and where ten decimals may not give three digits.
    """

    number: int
    before: str
    after: str
    confidence: float

    def __str__(self) -> str:
        return f"{self.before} -> {self.after}" if self.after != self.before else f"{self.before} is left as it is"


class Departure(NamedTuple):
    """Where a network first did something else than the exact engine.

    Attributes:
        step: what the network did.
        expected: text of what the engine puts there; that of ``step.before`` where it leaves it as it is.
    """

    step: SolvedStep
    expected: str

    def __str__(self) -> str:
        expected = "leaves it" if self.expected == self.step.before else f"has {self.expected}"
        return f"at step {self.step.number}: {self.step}, where the engine {expected}"


@dataclass(frozen=True)
class Solution:
    """What a network made of one expression.

    Attributes:
        answer: text; empty when the network came to no end.
        right: what the exact engine says.
        reason: why, in words; for an input that has no answer, why not.
        seconds: the network's, loading not counted.
        steps: rewrite steps, those that left a neighbourhood as it was counted too.
        has_answer: whether the engine knows an answer at all.
        finished: whether ``answer`` has the form of an answer; False for an expression that was left half-way.
        engine_fails: how the engine's own steps fail at it too; empty where they reach the answer, and where nobody
            ran them, because the network's answer is right or there is none.
        least_certain: the step of the least confidence; None without steps.
        unseen: different neighbourhoods that it met and its training never showed, those left out that it worked out
            by steps that were all shown; None where nobody knows.
        worked_out: different facts about digits that it worked out by smaller steps.
        doubt: why ten decimals may not give three digits; empty where they do, and where there is nothing to round.
        departure: where the network first left the engine's path; None where it never did.
        trace: the steps that changed something and the one of the departure; empty unless they were asked for.
    """

    answer: str
    right: bool
    reason: str
    seconds: float
    steps: int
    has_answer: bool = True
    finished: bool = True
    engine_fails: str = ""
    least_certain: SolvedStep | None = None
    unseen: int | None = None
    worked_out: int = 0
    doubt: str = ""
    departure: Departure | None = None
    trace: tuple[SolvedStep, ...] = ()

    @property
    def verdict(self) -> str:
        """The engine's word on one line."""
        if not self.has_answer:
            return f"the engine has no answer: {self.reason}"
        too = f"; the engine's own steps {self.engine_fails}" if self.engine_fails else ""
        if not self.answer:
            return f"stopped, {self.reason}{too}"
        if self.right:
            return f"right, {self.reason}"
        return f"wrong, {self.reason}{too}" if self.finished else f"no answer was reached ({self.reason}){too}"

    @property
    def confidence(self) -> float:
        """In the answer: that of the least certain step, 1 without steps.

        0 where no answer was reached, 0.5 at most where the engine has none: the steps drop what has no value, as the
        derivative of (sqrt -6) does.
        """
        if not self.answer or not (self.right or self.finished):
            return 0.0
        least = 1.0 if self.least_certain is None else self.least_certain.confidence
        return least if self.has_answer else min(least, DOUBTFUL_CONFIDENCE)

    @property
    def _shown_answer(self) -> str:
        if self.answer and self.has_answer and (self.right or self.finished):
            return self.answer
        return f"none, the network ended with {self.answer}" if self.answer else "none"

    @property
    def lines(self) -> list[str]:
        """What ``dagnn solve`` prints."""
        width = len(str(self.trace[-1].number)) if self.trace else 0
        shown = [f"{step.number:{width}d}  {_rounded_down(step.confidence)}  {step}" for step in self.trace]
        shown += [f"answer      {self._shown_answer}", f"verdict     {self.verdict}"]
        if self.departure is not None:
            shown.append(f"departs     {self.departure}")
        if self.least_certain is not None:
            least = self.least_certain
            steps = f"{_rounded_down(least.confidence)} or more, least at step {least.number}: {least}"
            if self.confidence != least.confidence:
                why = "the engine has no answer" if self.confidence else "no answer was reached"
                steps = f"{_rounded_down(self.confidence)}, as {why}; in its steps {steps}"
            shown.append(f"confidence  {steps}")
        if self.unseen:
            shown.append(f"unseen      {self.unseen:,} of its neighbourhoods, never shown in training")
        if self.worked_out:
            facts = "a fact" if self.worked_out == 1 else f"{self.worked_out:,} facts"
            shown.append(f"worked out  {facts} about digits, by smaller steps of the network")
        if self.doubt:
            shown.append(f"doubt       ten decimals may not give three digits: {self.doubt}")
        return [*shown, f"seconds     {self.seconds:.3f} for {self.steps:,} step{'' if self.steps == 1 else 's'}"]


def _rounded_down(confidence: float) -> str:
    """With four digits: rounded up, "1.0000 or more" would be no statement about a probability."""
    return f"{math.floor(confidence * 10_000) / 10_000:.4f}"


def solve(
    run: str | Path, text: str, *, budget: int = STEP_BUDGET, seconds: float = SECONDS, trace: bool = False
) -> Solution:
    """The network's answer to one expression, and the engine's verdict.

    Args:
        run: a run directory, or one of its checkpoints.
        text: the expression, in Polish or infix notation; a function such as ``(sin 3)`` alone is level 4 and is
            answered with three digits.
        budget: rewrite steps, after which the network is stopped.
        seconds: time, after which it is stopped.
        trace: keep every step that changes something.

    Raises:
        ConfigError: a budget is out of range.
        ExpressionError: the text is no expression, or one that the rewriting system cannot write.
        RunError, CheckpointError: there is no run, or no whole checkpoint.
    """
    if not 1 <= budget <= LARGEST_BUDGET:
        raise ConfigError(f"budget must be a number of steps from 1 to {LARGEST_BUDGET:,}, got {budget}.")
    if not seconds > 0:
        raise ConfigError(f"seconds must be above 0, got {seconds}.")
    expression = _read(text)
    model, trained = network_of(run)
    return solve_with(model, expression, trained=trained, finer=True, budget=budget, seconds=seconds, trace=trace)


def network_of(run: str | Path) -> tuple["Proposer", Container[NeighbourhoodTokens] | None]:
    """A run's network, and the neighbourhoods of its training where they are known; errors as of `solve`."""
    directory, config, checkpoint = opened_run(run)
    traced = read_neighbourhoods(directory.path, SIGNATURE)
    held_out = config.curriculum.held_out_windows
    return model_of(checkpoint), None if traced is None else trained_neighbourhoods(traced[0], held_out, checkpoint)


def _read(text: str) -> Expr:
    """The expression of a Polish or an infix text; what is neither is refused as the one that it looks like."""
    try:
        return parse(text)
    except ExpressionError as no_polish:
        try:
            return from_infix(text)
        except ExpressionError as no_infix:
            raise (no_polish if text.lstrip().startswith("(") else no_infix) from None


def solve_with(
    model: Proposer,
    expression: Expr,
    *,
    trained: Container[NeighbourhoodTokens] | None = None,
    finer: bool = False,
    budget: int = STEP_BUDGET,
    seconds: float = SECONDS,
    trace: bool = False,
) -> Solution:
    """As `solve`, with a network at hand, and the neighbourhoods that it was trained on where they are known.

    ``finer``: it works out facts about digits that it is not sure of by smaller steps, see `FinerSteps`.
    """
    level = level_of(expression)
    term, names = to_term(expression, level)
    doubt = _doubt(expression, level)
    rewriter = _Remembering(model, trained, finer=finer, doubts_digits=bool(doubt))
    RewritingMachine(SIGNATURE, RuleEngine(), eager=True).run([to_term(0)[0]])  # what is compiled at first use, now is
    start = time.perf_counter()
    with torch_threads(1):
        machine = RewritingMachine(SIGNATURE, rewriter)
        result, steps = machine.recorded(term, budget=budget, seconds=seconds, max_tokens=_SHOWN_TOKENS)
    spent = time.perf_counter() - start

    def described(number: int) -> SolvedStep:
        step = steps[number]
        return SolvedStep(number + 1, *_texts(step, names), rewriter.confidence_of[step.neighbourhood])

    departed = _first_departure(steps)
    least = min(range(len(steps)), key=lambda i: rewriter.confidence_of[steps.neighbourhood(i)], default=None)
    solution = Solution(
        answer="",
        right=False,
        reason=result.stopped.replace("normal form", "answer"),
        seconds=spent,
        steps=result.steps,
        least_certain=None if least is None else described(least),
        unseen=None if trained is None else len(rewriter.unseen),
        worked_out=len(rewriter.worked_out),
        doubt=doubt,
        departure=None if departed is None else Departure(described(departed), _engine_text(steps[departed], names)),
        trace=tuple(described(i) for i in range(len(steps)) if trace and (steps.changed(i) or i == departed)),
    )
    answer = None if result.tokens is None else from_term(result.tokens, names)
    text = "" if answer is None else to_text(answer)
    try:
        verdict = judge(level, expression, answer)
    except ExpressionError as error:
        finished = answer is not None and is_worked_out(answer, level)
        return replace(solution, answer=text, reason=str(error), has_answer=False, finished=finished)
    return replace(
        solution,
        answer=text,
        right=verdict.right,
        finished=answer is not None and is_worked_out(answer, level),
        reason=solution.reason or verdict.reason,
        engine_fails="" if verdict.right else _engine_failure(level, expression, text, seconds),
    )


def _doubt(expression: Expr, level: int) -> str:
    """Why three digits may not come out of ten decimals, in words; the levels draw nothing of the kind."""
    rounded = [expression] if level_spec(level).numeric else []
    rounded += [item[1] for item in walk(expression) if isinstance(item, tuple) and item[0] == "approx"]
    try:
        for item in rounded:
            value = well_conditioned_value(resolve(to_binary(item)))
            if not is_well_rounded(value):
                return "its digits are near a rounding tie, or it is out of the range 0.01 .. 9999."
    except ExpressionError as error:
        return str(error)
    except (OverflowError, RecursionError):
        return "too large."
    return ""


def _engine_failure(level: int, expression: Expr, answer: str, seconds: float) -> str:
    """How the engine's own steps fail too, given the network's answer; empty where they do not, as nearly always."""
    term, names = to_term(expression, level)
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    result, _ = machine.recorded(term, budget=STEP_BUDGET, seconds=seconds)
    if result.tokens is None:
        return "come to no end either"
    end = from_term(result.tokens, names)
    if judge(level, expression, end).right:
        return ""
    if to_text(end) == answer:
        return "end there too"
    return f"give {place(end)}, not right either" if is_worked_out(end) else "reach no answer either"


class _Remembering:
    """A network as a `Rewriter` that keeps its confidence in every neighbourhood."""

    def __init__(
        self, model: Proposer, trained: Container[NeighbourhoodTokens] | None, *, finer: bool, doubts_digits: bool
    ) -> None:
        self._steps = FinerSteps(model, trained)
        self._judge = self._steps.judge if finer else self._steps.guess
        self._doubted = _ROUNDING if doubts_digits else None
        self.confidence_of: dict[NeighbourhoodTokens, float] = {}
        self.unseen: set[NeighbourhoodTokens] = set()
        self.worked_out: set[NeighbourhoodTokens] = set()

    def rewrite(self, neighbourhoods: Sequence[NeighbourhoodTokens]) -> list[ReplacementTokens]:
        judged = self._judge(neighbourhoods)
        for neighbourhood, each in zip(neighbourhoods, judged, strict=True):
            confidence = each.proposal.confidence
            if each.unseen:
                self.unseen.add(neighbourhood)
            if each.worked_out:
                self.worked_out.add(neighbourhood)
            if each.unseen or SIGNATURE.shown[neighbourhood[0]].kind == self._doubted:
                confidence = min(confidence, DOUBTFUL_CONFIDENCE)
            self.confidence_of[neighbourhood] = confidence
        return [each.proposal.replacement for each in judged]


def _first_departure(steps: Steps) -> int | None:
    """The first step whose replacement is not the engine's."""
    agreed: set[NeighbourhoodTokens] = set()
    for number in range(len(steps)):
        neighbourhood = steps.neighbourhood(number)
        if neighbourhood not in agreed:
            right, written = engine_replacement(neighbourhood), steps[number].replacement
            if right != written and (
                right is None or _written_out(right, neighbourhood) != _written_out(written, neighbourhood)
            ):
                return number
            agreed.add(neighbourhood)
    return None


def _written_out(replacement: ReplacementTokens, neighbourhood: NeighbourhoodTokens) -> list[int]:
    """A replacement with labels in the place of nodes that are in full sight: it puts the same there."""
    nodes, out = neighbourhood_nodes(read_neighbourhood(neighbourhood, SIGNATURE)), list[int]()
    pending = [*reversed(replacement)]
    while pending:
        token = pending.pop()
        place = token - len(SIGNATURE.labels)
        label = SIGNATURE.id_of.get(nodes[place].kind) if place >= 0 else None
        if label is None or len(nodes[place].children) != SIGNATURE.labels[label].arity:
            out.append(token)
        else:
            out.append(label)
            pending += (len(SIGNATURE.labels) + child.index for child in reversed(nodes[place].children))
    return out


def _engine_text(step: Step, names: dict[str, str]) -> str:
    """What the engine makes of the sub-expression of a step."""
    right = engine_replacement(step.neighbourhood) or LEAVE
    if not step.before or right == LEAVE:
        return _texts(Step(step.neighbourhood, right, step.before, step.before if right == LEAVE else []), names)[1]
    # Its operands are in normal form, so the first thing that changes is the whole.
    _, steps = RewritingMachine(SIGNATURE, RuleEngine(), eager=True).trace(step.before, max_tokens=_SHOWN_TOKENS)
    return _texts(steps[0], names)[1]


def _texts(step: Step, names: dict[str, str]) -> tuple[str, str]:
    """Before and after as text; its neighbourhood and its replacement where they are too long to write out."""
    if step.before and step.after:
        before, after = (to_text(from_term(tokens, names, numerals=True)) for tokens in (step.before, step.after))
        return before, after
    before = neighbourhood_text(step.neighbourhood)
    return before, before if step.replacement == LEAVE else replacement_text(step.neighbourhood, step.replacement)
