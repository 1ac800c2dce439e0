"""Rewrites term graphs to normal form; queries a `Rewriter` once for every distinct neighbourhood."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, overload

import numpy as np

from dagnn.errors import GraphError
from dagnn.rewriting import term_graph
from dagnn.rewriting.system import LEAVE, NeighbourhoodTokens, ReplacementTokens, Signature

LabelTokens = Sequence[int]

_MAX_FRAMES = 1 << 20
# Steps between two looks at the clock: a few milliseconds.
_STEPS_AT_ONCE = 20_000


class Rewriter(Protocol):
    """Whatever knows the replacements: an exact engine, a `RuleRewriter` or a trained `GraphRewriter`.

    >>> class LeaveAll:
    ...     def rewrite(self, neighbourhoods):
    ...         return [() for _ in neighbourhoods]
    >>> rewriter: Rewriter = LeaveAll()
    """

    def rewrite(self, neighbourhoods: Sequence[NeighbourhoodTokens]) -> Sequence[ReplacementTokens]:
        """One replacement for each neighbourhood; the empty tuple leaves it as it is."""
        ...


@dataclass(frozen=True)
class Rewritten:
    """How rewriting one term ended.

    Attributes:
        tokens: preorder label ids of the normal form; None when the term did not reach one.
        steps: rewrite steps taken, memoised sub-graphs not counted again.
        stopped: empty, or why there is no normal form.

    >>> Rewritten([1, 1, 0], steps=3).stopped
    ''
    """

    tokens: list[int] | None
    steps: int
    stopped: str = ""


@dataclass(frozen=True)
class Step:
    """One rewrite step.

    Attributes:
        neighbourhood: what the step saw, as tokens.
        replacement: what it put there, as tokens.
        before, after: the sub-term that was rewritten and the one in its place, as preorder label ids.

    >>> Step(neighbourhood=(1, 2), replacement=(3,), before=[1, 0], after=[0]).after
    [0]
    """

    neighbourhood: NeighbourhoodTokens
    replacement: ReplacementTokens
    before: list[int]
    after: list[int]


@dataclass
class _Job:
    """A term on its way to a normal form."""

    root: int
    steps: int = 0
    saved: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    result: Rewritten | None = None
    waits_for: int = field(default=-1)


@dataclass(frozen=True)
class _Limits:
    """What a run may use: steps of each term, and a moment of `time.monotonic` (None: any time)."""

    budget: int
    seconds: float | None
    deadline: float

    @classmethod
    def of(cls, budget: int, seconds: float | None) -> "_Limits":
        return cls(budget, seconds, math.inf if seconds is None else time.monotonic() + seconds)

    @property
    def out_of_time(self) -> bool:
        return self.seconds is not None and time.monotonic() >= self.deadline

    @property
    def time_message(self) -> str:
        return f"no normal form within {self.seconds} seconds"


class RewritingMachine:
    """Rewrites terms of a signature to normal form, innermost first, and keeps every replacement in a memo.

    Args:
        signature: labels, arities and neighbourhood depths.
        rewriter: gives the replacements that the memo does not hold.
        eager: query the rewriter at once for each missing neighbourhood (right where one costs no more than its share
            of many); otherwise all terms advance as far as they can, and one query has all that they wait for.
        max_nodes: the graph is emptied between calls once it holds more nodes (the memo stays), and a term that
            needs four times as many is given up; a node takes about 40 bytes.

    >>> from dagnn.rewriting import Label, encode_replacement, read_neighbourhood
    >>> signature = Signature((Label("zero", 0), Label("next", 1), Label("plus", 2, neighbourhood_depth=1)))
    >>> def rule(tokens):
    ...     a, b = read_neighbourhood(tokens, signature).children
    ...     return encode_replacement(b if a.kind == "zero" else ("next", ("plus", a[0], b)), signature)
    >>> machine = RewritingMachine(signature, RuleRewriter(rule), eager=True)
    >>> machine.run([[2, 1, 1, 0, 1, 0]])  # (plus (next (next zero)) (next zero))
    [Rewritten(tokens=[1, 1, 1, 0], steps=3, stopped='')]
    """

    def __init__(
        self, signature: Signature, rewriter: Rewriter, *, eager: bool = False, max_nodes: int = 1 << 21
    ) -> None:
        self.signature = signature
        self._rewriter = rewriter
        self._eager = eager
        self._max_nodes = max_nodes
        self._tables = signature.tables
        self._arity: list[int] = signature.tables.arity.tolist()
        self._store = term_graph.new_store(1 << 14)
        self._memo = term_graph.new_memo(1 << 12)
        self._stack = term_graph.new_stack(1 << 10)
        self._no_log = term_graph.new_log(0)

    # ---- rewriting -------------------------------------------------------------------------------------------------

    def run(
        self, terms: Sequence[LabelTokens], *, budget: int = 200_000, rounds: int = 1_000, seconds: float | None = None
    ) -> list[Rewritten]:
        """Rewrites every term to its normal form.

        Args:
            terms: preorder label ids.
            budget: rewrite steps for each term.
            rounds: the most queries of the rewriter when not eager.
            seconds: for all terms together; those that are not done by then are given up.

        Returns:
            One result a term, in their order; `Rewritten.stopped` says why a term has no normal form.

        Raises:
            GraphError: a term is not one tree of the signature's labels, or a replacement is no tree.
        """
        if self._store.size[0] > self._max_nodes:
            self.clear_graph()
        limits = _Limits.of(budget, seconds)
        jobs = [_Job(self._build(term)) for term in terms]
        waiting = jobs
        for _ in range(rounds):
            for job in waiting:
                self._advance(job, limits, self._no_log)
            waiting = [job for job in waiting if job.result is None]
            if not waiting:
                break
            self._learn(sorted({job.waits_for for job in waiting}))
        for job in waiting:
            job.result = Rewritten(None, job.steps, f"no normal form after {rounds} rounds of questions")
        return [job.result for job in jobs if job.result is not None]

    def absorb(self, terms: Sequence[LabelTokens], *, budget: int = 200_000) -> int:
        """Rewrites all terms only to count their neighbourhoods; returns the steps taken.

        The terms share one stack and their normal forms are not written out, which saves most of what `run` costs for
        a short term.

        Args:
            terms: preorder label ids.
            budget: rewrite steps for each term, on average.

        Raises:
            GraphError: the terms together need more than ``budget * len(terms)`` steps.
        """
        if not terms:
            return 0
        if self._store.size[0] > self._max_nodes:
            self.clear_graph()
        roots = np.array([self._build(term) for term in terms], np.int32)
        job = _Job(root=int(roots[0]), saved=(roots, np.zeros(len(roots), np.int64), roots[:0]))
        limits = _Limits.of(budget * len(terms), None)
        while job.result is None:
            self._advance(job, limits, self._no_log)
            if job.result is None:
                self._learn([job.waits_for])
        if job.result.tokens is None:
            raise GraphError(f"{len(terms)} terms together: {job.result.stopped}.")
        return job.steps

    def trace(
        self, term: LabelTokens, *, budget: int = 200_000, max_tokens: int = 4096
    ) -> tuple[Rewritten, list[Step]]:
        """Rewrites one term from scratch and returns every step that changed something, in order.

        `before` and `after` are empty where a sub-term is longer than `max_tokens`.
        """
        result, steps = self.recorded(term, budget=budget, max_tokens=max_tokens)
        return result, [steps[i] for i in range(len(steps)) if steps.changed(i)]

    def recorded(
        self, term: LabelTokens, *, budget: int = 200_000, seconds: float | None = None, max_tokens: int = 4096
    ) -> tuple[Rewritten, "Steps"]:
        """Rewrites one term from scratch and returns all steps, those too that left their neighbourhood as it was.

        Args:
            term: preorder label ids.
            budget: rewrite steps.
            seconds: the time after which the term is given up.
            max_tokens: `Step.before` and `Step.after` are empty where a sub-term is longer.
        """
        self.clear_graph()
        log = term_graph.new_log(budget)
        limits = _Limits.of(budget, seconds)
        job = _Job(self._build(term))
        while job.result is None:
            self._advance(job, limits, log)
            if job.result is None:
                self._learn([job.waits_for])
        return job.result, Steps(self, log, max_tokens)

    def clear_graph(self) -> None:
        """Forgets all nodes; neighbourhoods, their replacements and counts stay."""
        self._store.slots.fill(term_graph.NO_NODE)
        self._store.size[0] = 0

    # ---- the memo --------------------------------------------------------------------------------------------------

    @property
    def num_neighbourhoods(self) -> int:
        """Distinct neighbourhoods met so far."""
        return int(self._memo.size[0])

    @property
    def counts(self) -> np.ndarray:
        """How often each neighbourhood was rewritten: int64 ``[num_neighbourhoods]``, a copy."""
        counts: np.ndarray = self._memo.times[: self.num_neighbourhoods].copy()
        return counts

    def neighbourhood(self, number: int) -> NeighbourhoodTokens:
        """The neighbourhood with this number, in the order they were met."""
        first, last = self._memo.offset[number], self._memo.offset[number + 1]
        return tuple(self._memo.tokens[first:last].tolist())

    def replacement(self, number: int) -> ReplacementTokens | None:
        """What replaces it; None before the rewriter was queried for it."""
        first, last = self._memo.start[number], self._memo.stop[number]
        return None if first == term_graph.UNKNOWN else tuple(self._memo.replacement[first:last].tolist())

    # ---- helpers ---------------------------------------------------------------------------------------------------

    def _build(self, term: LabelTokens) -> int:
        self._check_tree(term, "the term")
        tokens = np.asarray(term, np.int64)
        while self._store.size[0] + len(tokens) + term_graph.NODES_PER_STEP > len(self._store.label):
            self._store = term_graph.grown_store(self._store)
        scratch = np.empty(len(tokens) + 1, np.int32)
        return int(term_graph.build(self._store, self._tables, tokens, 0, len(tokens), scratch[:0], scratch))

    def _check_tree(self, tokens: Sequence[int], what: str, *, num_pointers: int = 0) -> None:
        """Refuses tokens that do not spell exactly one tree: the compiled loops would run past their arrays."""
        arity = self._arity
        missing = 1
        for at, token in enumerate(tokens):
            if not 0 <= token < len(arity) + num_pointers:
                pointers = f" or a pointer below {len(arity) + num_pointers}" if num_pointers else ""
                raise GraphError(f"token {at} of {what} is {token}, expected a label id below {len(arity)}{pointers}.")
            if missing == 0:
                raise GraphError(f"{what} ends before token {at}: it must be one tree in preorder.")
            missing += (arity[token] if token < len(arity) else 0) - 1
        if missing:
            raise GraphError(f"{what} lacks {missing} more sub-trees: it must be one tree in preorder.")

    def unfold(self, root: int, max_tokens: int) -> list[int] | None:
        """The term below a node; None where it is longer."""
        out = np.empty(max_tokens, np.int64)
        count = term_graph.unfold(self._store, self._tables, root, out)
        return None if count < 0 else list(out[:count].tolist())

    def _advance(self, job: _Job, limits: _Limits, log: term_graph.Log) -> None:
        """Runs one job until it is done, or, when not eager, until it waits for a replacement."""
        if limits.out_of_time:
            job.result = Rewritten(None, job.steps, limits.time_message)
            return
        self._load(job)
        while True:
            left = min(limits.budget - job.steps, _STEPS_AT_ONCE)
            status, neighbourhood, steps = term_graph.rewrite_loop(
                self._store, self._tables, self._memo, self._stack, log, left
            )
            job.steps += int(steps)
            if status == term_graph.DONE:
                tokens = self.unfold(int(self._store.normal_form[job.root]), 1 << 14)
                stopped = "" if tokens is not None else "the normal form is too large to write out"
                job.result = Rewritten(tokens, job.steps, stopped)
                return
            if status == term_graph.MISSING:
                if not self._eager:
                    job.waits_for = int(neighbourhood)
                    self._save(job)
                    return
                self._learn([int(neighbourhood)])
            elif status == term_graph.OUT_OF_STEPS and job.steps < limits.budget and not limits.out_of_time:
                pass
            elif status == term_graph.STORE_FULL and len(self._store.label) < 4 * self._max_nodes:
                self._store = term_graph.grown_store(self._store)
            elif status == term_graph.MEMO_FULL:
                self._memo = term_graph.grown_memo(self._memo)
            elif status == term_graph.STACK_FULL and len(self._stack.term) < _MAX_FRAMES:
                self._stack = term_graph.grown_stack(self._stack)
            else:
                why = "the graph grew without end"
                if status == term_graph.OUT_OF_STEPS:
                    why = f"no normal form within {limits.budget} steps"
                    if job.steps < limits.budget:
                        why = limits.time_message
                job.result = Rewritten(None, job.steps, why)
                return

    def _load(self, job: _Job) -> None:
        stack = self._stack
        if job.saved is None:
            stack.term[0], stack.chain_start[0] = job.root, 0
            stack.top[:] = (1, 0)
            return
        term, chain_start, chain = job.saved
        while len(stack.term) < len(term) + 2 or len(stack.chain) < len(chain) + 2:
            self._stack = stack = term_graph.grown_stack(stack)
        stack.term[: len(term)], stack.chain_start[: len(term)], stack.chain[: len(chain)] = term, chain_start, chain
        stack.top[:] = (len(term), len(chain))

    def _save(self, job: _Job) -> None:
        frames, chained = self._stack.top
        job.saved = (
            self._stack.term[:frames].copy(),
            self._stack.chain_start[:frames].copy(),
            self._stack.chain[:chained].copy(),
        )

    def _learn(self, numbers: list[int]) -> None:
        """Queries the rewriter for the neighbourhoods with these numbers and stores the replacements."""
        unknown = [w for w in numbers if self._memo.start[w] == term_graph.UNKNOWN]
        for w, tokens in zip(unknown, self._rewriter.rewrite([self.neighbourhood(w) for w in unknown]), strict=True):
            if tokens:
                self._check_tree(tokens, "the replacement", num_pointers=int(self._memo.nodes[w]))
            if len(tokens) > term_graph.MAX_REPLACEMENT:
                raise GraphError(
                    f"the replacement has {len(tokens)} tokens, the most is {term_graph.MAX_REPLACEMENT}: "
                    "take two steps."
                )
            first = int(self._memo.size[1])
            while first + len(tokens) > len(self._memo.replacement):
                self._memo = term_graph.grown_memo(self._memo)
            self._memo.replacement[first : first + len(tokens)] = tokens
            self._memo.start[w], self._memo.stop[w] = first, first + len(tokens)
            self._memo.size[1] = first + len(tokens)


class Steps(Sequence[Step]):
    """The steps of `RewritingMachine.recorded`; each is written out on access, which needs the machine's graph.

    They are valid until the graph is cleared: by `clear_graph`, `trace`, `recorded`, or a `run` on a full graph.

    >>> from dagnn.rewriting import Label
    >>> signature = Signature((Label("zero", 0), Label("drop", 1, neighbourhood_depth=0)))
    >>> machine = RewritingMachine(signature, RuleRewriter(lambda tokens: (3,)))  # (drop E) is E
    >>> _, steps = machine.recorded([1, 0])
    >>> len(steps), steps[0].before, steps[0].after
    (1, [1, 0], [0])
    """

    def __init__(self, machine: RewritingMachine, log: term_graph.Log, max_tokens: int) -> None:
        self._machine = machine
        self._log = log
        self._max_tokens = max_tokens

    def __len__(self) -> int:
        return int(self._log.size[0])

    @overload
    def __getitem__(self, number: int) -> Step: ...
    @overload
    def __getitem__(self, number: slice) -> list[Step]: ...
    def __getitem__(self, number: int | slice) -> Step | list[Step]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        i = range(len(self))[number]
        w = int(self._log.neighbourhood[i])
        before, after = (
            self._machine.unfold(int(node[i]), self._max_tokens) or [] for node in (self._log.before, self._log.after)
        )
        return Step(self._machine.neighbourhood(w), self._machine.replacement(w) or LEAVE, before, after)

    def neighbourhood(self, number: int) -> NeighbourhoodTokens:
        """What a step looked at, without its sub-terms."""
        return self._machine.neighbourhood(int(self._log.neighbourhood[number]))

    def changed(self, number: int) -> bool:
        """Whether a step put something else there."""
        return bool(self._log.before[number] != self._log.after[number])


class RuleRewriter:
    """A `Rewriter` from a function of one neighbourhood.

    >>> RuleRewriter(lambda neighbourhood: ()).rewrite([(2, 1, 3, 0)])  # leaves everything as it is
    [()]
    """

    def __init__(self, rule: Callable[[NeighbourhoodTokens], ReplacementTokens]) -> None:
        self._rule = rule

    def rewrite(self, neighbourhoods: Sequence[NeighbourhoodTokens]) -> list[ReplacementTokens]:
        return [self._rule(neighbourhood) for neighbourhood in neighbourhoods]
