"""The rules: what each finds in the events of a training loop, why it matters, and what to write instead."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from dagnn.errors import warn
from dagnn.lint.running import explore
from dagnn.lint.source import Source, others, read_source, roots
from dagnn.lint.values import WINDOW, Event, Term, Trace


class Rule(NamedTuple):
    """A rule of the linter.

    Attributes:
        summary: what it finds, in a few words.
        why: what goes wrong.
        fix: what to write instead.

    >>> RULES["not-zeroed"].summary
    'gradients are never zeroed'
    """

    summary: str
    why: str
    fix: str


RULES = {
    "not-zeroed": Rule(
        "gradients are never zeroed",
        "backward() adds to .grad, so every step also takes the gradients of all steps before it.",
        "call optimizer.zero_grad() once after every optimizer.step().",
    ),
    "zeroed-too-often": Rule(
        "gradients are zeroed before the step that should use them",
        "the step gets the gradient of the last micro-batch only, or none: the others are computed and thrown away.",
        "call optimizer.zero_grad() after optimizer.step(), not in every micro-batch.",
    ),
    "not-scaled": Rule(
        "losses of a window are added, not averaged",
        "the gradient is as many times too large as the window has micro-batches: another learning rate, and clipping "
        "acts where it should not.",
        "divide each mean loss by the number of micro-batches, or weight it: (loss * len(micro) / items).backward().",
    ),
    "scaled-twice": Rule(
        "losses are divided twice by the number of micro-batches",
        "the gradient is as many times too small as the window has micro-batches.",
        "divide in one place only. Accelerate's backward() divides by itself inside accelerator.accumulate().",
    ),
    "extra-step": Rule(
        "the optimizer steps at every micro-batch",
        "each step takes a part of the window's gradient, and what earlier steps took counts again.",
        "step once, after the last micro-batch of each window: if (i + 1) % K == 0.",
    ),
    "schedule-per-micro-batch": Rule(
        "the schedule moves at every micro-batch",
        "the learning rate runs through its schedule as many times too fast as the window has micro-batches.",
        "call scheduler.step() once per optimizer.step().",
    ),
    "clip-per-micro-batch": Rule(
        "gradients are clipped at every micro-batch",
        "clipping acts on incomplete sums: early micro-batches count less, and the norm is not that of the window.",
        "clip once, between the last backward() of the window and optimizer.step().",
    ),
    "clip-before-unscale": Rule(
        "gradients are clipped before they are unscaled",
        "the norm is that of gradients times the loss scale, such as 65536, so nearly every step is clipped.",
        "call scaler.unscale_(optimizer) before the clipping.",
    ),
    "lost-remainder": Rule(
        "the last micro-batches of an epoch never get a step of their own",
        "an epoch that is no multiple of the window leaves gradients: they are thrown away, or come on top of the next "
        "epoch's first window.",
        "also step after the last micro-batch of the epoch: if (i + 1) % K == 0 or i + 1 == len(loader).",
    ),
    "mean-of-means": Rule(
        "means over unequal numbers of tokens are averaged with equal weights",
        "each loss is a mean over those labels that are not ignored, and their number differs: tokens of short "
        "micro-batches count more. 9 tokens of loss 1 and 1 of loss 11 have the mean 2, their means average to 6.",
        "sum the losses and divide by the tokens of the whole window, or use dagnn.GradientAccumulator with "
        "weight=dagnn.weights.tokens(ignore_index).",
    ),
}


@dataclass(frozen=True, order=True)
class Finding:
    """One finding.

    Attributes:
        path: the file, as it was given.
        cell: of a notebook, its number from 1; 0 in a Python file.
        line, column: from 1; in a notebook the line in the cell.
        rule: the key in ``RULES``.
        end_line: the last line of the statement.

    >>> print(Finding("train.py", 0, 12, 9, "not-zeroed", 12))
    train.py:12:9: not-zeroed: gradients are never zeroed
    """

    path: str
    cell: int
    line: int
    column: int
    rule: str
    end_line: int

    @property
    def place(self) -> str:
        """``"train.py:12:9"``, or ``"train.ipynb:cell 3:12:9"``."""
        cell = f":cell {self.cell}" if self.cell else ""
        return f"{self.path}{cell}:{self.line}:{self.column}"

    def __str__(self) -> str:
        return f"{self.place}: {self.rule}: {RULES[self.rule].summary}"


def lint_source(text: str, path: str = "<text>") -> list[Finding]:
    """The findings in one Python source or notebook, in the order of their lines; the code never runs.

    Args:
        text: the source.
        path: its name for the findings; a name that ends in ``.ipynb`` makes it a notebook.

    Raises:
        DataError: the source cannot be parsed; the message has path and line.

    Warns of code that is too long to follow.

    >>> [finding.rule for finding in lint_source('''
    ... optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ... for inputs, targets in loader:
    ...     criterion(model(inputs), targets).backward()
    ...     optimizer.step()
    ... ''')]
    ['not-zeroed']
    """
    source = read_source(path, text)
    found: list[Finding] = []
    for rule, node in _verdicts(_traces(source)):
        first = getattr(node, "lineno", 1)
        last = getattr(node, "end_lineno", first) or first
        if source.ignores(first, last, rule):
            continue
        (cell, line), (_, end) = source.place(first), source.place(last)
        found.append(Finding(path, cell or 0, line, getattr(node, "col_offset", 0) + 1, rule, end))
    return sorted(set(found))


def _traces(source: Source) -> list[Trace]:
    if not source.runs_backward(source.tree):
        return []
    seen: set[int] = set()
    traces: list[Trace] = []
    for root in roots(source):
        traces += explore(source, root, seen)
    while rest := others(source, seen):
        traces += explore(source, rest[0], seen)
        seen.add(id(rest[0].function))
    if any(trace.gave_up for trace in traces):
        warn(f"{source.path}: some of its code is too long to follow, so nothing is known about the loops in it.")
    return [trace for trace in traces if not trace.gave_up]


def _verdicts(traces: Sequence[Trace]) -> Iterable[tuple[str, ast.AST]]:
    """What holds in every trace in which the code at fault runs."""
    found: Counter[tuple[str, int]] = Counter()
    nodes: dict[int, ast.AST] = {}
    runs: Counter[int] = Counter()
    for trace in traces:
        here = {id(event.node): event.node for event in trace.events}
        nodes |= here
        runs.update(here.keys())
        found.update({(rule, id(node)) for rule, node in _judge(trace)})
    for (rule, node), count in found.items():
        if count == runs[node] or rule == "clip-before-unscale":
            yield rule, nodes[node]


class _Window(NamedTuple):
    """The events from one step to the next."""

    before: list[Event]
    steps: list[Event]

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.before if event.kind == kind]

    @property
    def micro_batches(self) -> list[int]:
        return list(dict.fromkeys(event.micro_batch for event in self.of("backward")))


def _judge(trace: Trace) -> list[tuple[str, ast.AST]]:
    if trace.escaped:
        return []
    windows = _windows(trace.events)
    if not windows:
        return []
    found: list[tuple[str, ast.AST]] = []
    found += _clip_before_unscale(windows)
    one = len({frozenset(_kind_of_target(step) for step in window.steps) for window in windows}) == 1
    surely = all(_is_sure(window) for window in windows)
    if not one or not surely:
        return found + (_not_zeroed(trace, windows) if surely and not _zeroes_after_step(trace) else [])
    length = _length(windows)
    extra = _extra_step(trace, windows)
    found += extra or _not_zeroed(trace, windows)
    found += _zeroed_before_step(trace, windows)
    if length < 2:
        return found
    full = [window for window in windows if len(window.micro_batches) == length]
    found += _zeroed_too_often(trace, full) + _repeated("clip", "clip-per-micro-batch", full)
    found += _repeated("schedule", "schedule-per-micro-batch", full) + _lost_remainder(trace, length)
    return found + _scale(trace, full, length)


def _windows(events: Sequence[Event]) -> list[_Window]:
    """Windows with a backward pass. Steps with no backward pass between them are one."""
    windows: list[_Window] = []
    before: list[Event] = []
    steps: list[Event] = []
    after: list[Event] = []  # what follows the steps, up to the next backward pass
    for event in events:
        if event.kind == "step":
            steps.append(event)
        elif not steps:
            before.append(event)
        elif event.kind == "backward":
            windows.append(_Window(before, steps))
            before, steps, after = [*after, event], [], []
        else:
            after.append(event)
    if steps:
        windows.append(_Window(before, steps))
    return [window for window in windows if window.of("backward")]


def _kind_of_target(step: Event) -> str:
    """The optimizer, or one that the same code made again."""
    return re.sub(r"#\d+", "", step.target)


def _is_sure(window: _Window) -> bool:
    """Whether the step follows from the backward pass, without a condition that only running would tell."""
    around = window.of("backward")[-1].guards
    return all(step.guards <= around for step in window.steps)


def _length(windows: Sequence[_Window]) -> int:
    """How many micro-batches most windows have."""
    return Counter(len(window.micro_batches) for window in windows).most_common(1)[0][0]


def _zeroes_after_step(trace: Trace) -> bool:
    stepped = False
    for event in trace.events:
        stepped |= event.kind == "step"
        if stepped and event.kind == "zero":
            return True
    return False


def _not_zeroed(trace: Trace, windows: Sequence[_Window]) -> list[tuple[str, ast.AST]]:
    later = [now for before, now in pairwise(windows) if before.steps[0].target == now.steps[0].target]
    if trace.alone or not later:
        return []
    without = [window for window in later if not window.of("zero")]
    if len(without) <= 0.6 * len(later):
        return []
    return [("not-zeroed", step.node) for step in without[0].steps[:1]]


def _zeroed_before_step(trace: Trace, windows: Sequence[_Window]) -> list[tuple[str, ast.AST]]:
    """Zeroing between the last backward pass and the step."""
    found = []
    for window in windows:
        last = max(i for i, event in enumerate(window.before) if event.kind == "backward")
        found += [event.node for event in window.before[last:] if event.kind == "zero"]
    if trace.touched or len(found) < len(windows):
        return []
    return [("zeroed-too-often", node) for node in found[:1]]


def _zeroed_too_often(trace: Trace, full: Sequence[_Window]) -> list[tuple[str, ast.AST]]:
    found = []
    for window in full:
        places = [i for i, event in enumerate(window.before) if event.kind == "backward"]
        between = window.before[places[0] : places[-1]]
        found += [event.node for event in between if event.kind == "zero"][:1]
    return [("zeroed-too-often", found[0])] if found and not trace.touched and len(found) == len(full) else []


def _extra_step(trace: Trace, windows: Sequence[_Window]) -> list[tuple[str, ast.AST]]:
    """Steps in every micro-batch of a loop that zeroes, or divides, as if they were in every window."""
    if _length(windows) != 1 or trace.alone or not all(step.inside for w in windows for step in w.steps):
        return []
    step = windows[0].steps[0].node
    lengths, since = [], 0
    zeroes = [event for window in windows for event in window.of("zero")]
    for window in windows[1:]:
        since += 1
        if window.of("zero"):
            lengths.append(since)
            since = 0
    in_windows = 2 * sum(n > 1 for n in lengths) > len(lengths) > 1
    if in_windows and 2 * sum(zero.inside for zero in zeroes) > len(zeroes):
        return [("extra-step", step)]
    divided = all(
        _times_divided(term, WINDOW) == 1
        for window in windows
        for event in window.of("backward")
        for term in event.terms
    )
    if trace.named_windows and divided and not trace.touched and not trace.windows_by_library:
        return [("extra-step", step)]
    return []


def _repeated(kind: str, rule: str, full: Sequence[_Window]) -> list[tuple[str, ast.AST]]:
    """What happens in several micro-batches of every window."""
    found = []
    for window in full:
        backward = window.of("backward")
        events = [e for e in (*window.before, *window.steps) if e.kind == kind and e.guards <= backward[-1].guards]
        if len({event.micro_batch for event in events if event.inside}) >= max(2, len(window.micro_batches) - 1):
            found.append(events[0].node)
    # What comes after a step counts in the next window, so the first one may lack it.
    return [(rule, found[0])] if found and len(found) >= len(full) - 1 else []


def _clip_before_unscale(windows: Sequence[_Window]) -> list[tuple[str, ast.AST]]:
    for window in windows:
        scaled = any(event.scaler for event in window.of("backward")) and all(step.scaler for step in window.steps)
        last = max(i for i, event in enumerate(window.before) if event.kind == "backward")
        for event in window.before[last:]:
            if event.kind == "unscale":
                break
            if event.kind == "clip" and scaled and not any(e.kind == "unscale" for e in window.before[:last]):
                return [("clip-before-unscale", event.node)]
    return []


def _lost_remainder(trace: Trace, length: int) -> list[tuple[str, ast.AST]]:
    unknown = trace.assumed_counter or trace.unsure_guard or trace.windows_by_library or trace.alone
    steps = [event for event in trace.events if event.kind == "step"]
    if unknown or not all(step.inside for step in steps):
        return []
    divided = any(_times_divided(t, length) >= 1 or t.exact for e in trace.events for t in e.terms)
    pending: set[int] = set()
    waiting = False  # micro-batches are left over from the epoch before
    stepped: ast.AST | None = None
    for event in trace.events:
        if event.kind == "backward":
            pending.add(event.micro_batch)
        elif event.kind == "step":
            if waiting and len(pending) != length and divided and not trace.touched:
                return [("lost-remainder", event.node)]
            pending, waiting, stepped = set(), False, event.node
        elif event.kind == "zero" and waiting and pending and stepped is not None:
            return [("lost-remainder", stepped)]
        elif event.kind == "epoch" and pending and stepped is not None:
            waiting = True
    return []


def _scale(trace: Trace, full: Sequence[_Window], length: int) -> list[tuple[str, ast.AST]]:
    if trace.touched or (not trace.named_windows and not all(step.inside for w in full for step in w.steps)):
        return []
    backward = [event for window in full for event in window.of("backward")]
    node = backward[0].node
    terms = [term for event in backward for term in event.terms]
    times = [_times_divided(term, length) for term in terms]
    if all(n == 0 for n in times) and any(t.exact for t in terms) and not any(t.summed for t in terms):
        return [] if trace.windows_by_library else [("not-scaled", node)]
    by_node: dict[int, list[int]] = {}
    for event in backward:
        counts = by_node.setdefault(id(event.node), [])
        counts += [_times_divided(t, length) if t.exact and not t.summed else -1 for t in event.terms]
    if any(set(counts) == {1} for counts in by_node.values()):
        for event in backward:
            if set(by_node[id(event.node)]) == {0} and not trace.windows_by_library:
                return [("not-scaled", event.node)]
    exact = all(term.exact for term in terms)
    if exact and times and all(n >= 2 for n in times):
        return [("scaled-twice", node)]
    if exact and all(n == 1 for n in times) and any(term.tokens for term in terms):
        return [("mean-of-means", node)]
    return []


def _times_divided(term: Term, length: int) -> int:
    """How often ``term`` was divided by the number of micro-batches; -1 if another division may be by it."""
    times = sum(abs(factor * length - 1) < 1e-9 for factor in term.factors)
    rest = [f for f in term.factors if abs(f * length - 1) >= 1e-9]
    return -1 if any(0 < f < 1 and abs(round(1 / f) - 1 / f) < 1e-9 for f in rest) else times


__all__ = ["RULES", "Finding", "Rule", "lint_source"]
