"""The tables and the plot of the curriculum comparison, from the results of its contestants."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.curriculum_expressions import LEVELS

OURS = "C"
NAMES = {
    "A": "Transformer, answers",
    "A2": "Transformer, scratchpad",
    "A3": "Transformer, neighbourhoods",
    "B": "TreeLSTM, tree decoder",
    "C": "ours",
    "C2": "ours, graph backbone",
    "C3": "ours, GedLoss",
}
# The claim is about these. The others are variants of ours, reported beside it.
RIVALS = ("A", "A2", "A3", "B")
MARKS = (0.90, 0.99)


@dataclass(frozen=True)
class Result:
    """One contestant with one seed.

    Attributes:
        contestant: a key of `NAMES`.
        cpu_minutes: the budget; ``cpu_seconds`` is what training took, the drawing of expressions or traces included.
        expressions: training expressions per level; None: as many as `dagnn train` traces.
        examples: what the steps were made of: expressions, scratchpad steps or neighbourhoods, repeats counted.
        answers_per_second: at test, per CPU second, over all questions.
        asked: test expressions of each question.
        accuracy: question -> part that the exact engine calls right.
        curve: (CPU seconds, level -> accuracy on validation expressions).
        windows: asked, unseen and unseen_right of the neighbourhoods that the test expressions needed; ours only.
        settings: as text.
        machine: processor and load, as text.
    """

    contestant: str
    seed: int
    cpu_minutes: float
    cpu_seconds: float
    parameters: int
    steps: int
    examples: int
    answers_per_second: float
    asked: int
    accuracy: Mapping[str, float]
    curve: Sequence[tuple[float, Mapping[int, float]]] = ()
    windows: Mapping[str, int] | None = None
    expressions: int | None = None
    settings: str = ""
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON values; `from_json` reads them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What `to_json` wrote, through JSON, where all keys are text."""
        curve = [(at, {int(level): part for level, part in found.items()}) for at, found in values["curve"]]
        return cls(**{**values, "curve": curve})

    def minutes_to(self, mark: float, levels: Sequence[int] = LEVELS) -> float | None:
        """CPU minutes until these levels were at this accuracy together; None: never."""
        for seconds, accuracy in self.curve:
            if all(accuracy.get(level, 0.0) >= mark for level in levels):
                return seconds / 60
        return None


def comparison(results: Sequence[Result]) -> str:
    """All tables in Markdown."""
    names = contestants(results)
    head = ["", *(f"{NAMES[name]} ({name})" for name in names)]
    questions = list(dict.fromkeys(question for result in results for question in result.accuracy))
    accuracy = [[question, *_marked([_parts(of(results, name), question) for name in names])] for question in questions]
    facts = [
        [label, *(_spread([value(result) for result in of(results, name)], form) for name in names)]
        for label, value, form in _FACTS
    ]
    times = [
        [
            f"{label}, CPU min to {100 * MARKS[0]:.0f} % / {100 * MARKS[1]:.0f} %",
            *(" / ".join(_minutes(of(results, name), mark, levels) for mark in MARKS) for name in names),
        ]
        for label, levels in [("all levels", LEVELS), *((f"level {level}", (level,)) for level in LEVELS)]
    ]
    parts = ["Accuracy in %, mean and range over the seeds; the best in bold.", "", markdown(head, accuracy)]
    parts += ["", markdown(head, facts), "", markdown(head, times)]
    unseen = _unseen(of(results, OURS))
    return "\n".join([*parts, *(["", unseen] if unseen else [])])


def curve_table(results: Sequence[Result]) -> str:
    """Our accuracy against the number of training expressions, in Markdown."""
    sizes = sorted({result.expressions or 0 for result in results})
    head = ["expressions per level", *(f"level {level}" for level in LEVELS)]
    rows = [
        [
            f"{size:,}",
            *(_shown(_parts([r for r in results if r.expressions == size], f"level {level}")) for level in LEVELS),
        ]
        for size in sizes
    ]
    return markdown(head, rows)


def curve_plot(results: Sequence[Result], path: Path) -> None:
    """The same as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sizes = sorted({result.expressions or 0 for result in results})
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for level in LEVELS:
        means = [
            100 * statistics.mean(_parts([r for r in results if r.expressions == size], f"level {level}"))
            for size in sizes
        ]
        axes.plot(sizes, means, marker="o", label=f"level {level}")
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_xlabel("training expressions per level")
    axes.set_ylabel("right answers, %")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def lost(results: Sequence[Result]) -> list[str]:
    """Where a rival is better than ours, in words."""
    ours = of(results, OURS)
    if not ours:
        return []
    found = []
    for question in ours[0].accuracy:
        mine = statistics.mean(_parts(ours, question))
        for name in RIVALS:
            theirs = _parts(of(results, name), question)
            if theirs and statistics.mean(theirs) > mine:
                found.append(
                    f"{question}: {NAMES[name]} {100 * statistics.mean(theirs):.2f} %, ours {100 * mine:.2f} %"
                )
    return found


def contestants(results: Sequence[Result]) -> list[str]:
    """Those that have results, in the order of `NAMES`."""
    return [name for name in NAMES if of(results, name)]


def of(results: Sequence[Result], name: str) -> list[Result]:
    """One contestant's results."""
    return [result for result in results if result.contestant == name]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_FACTS = (
    ("seeds", lambda result: float(result.seed), "count"),
    ("parameters", lambda result: float(result.parameters), "{:,.0f}"),
    ("CPU minutes of training", lambda result: result.cpu_seconds / 60, "{:.2f}"),
    ("training examples/s", lambda result: result.examples / result.cpu_seconds, "{:,.0f}"),
    ("answers/s", lambda result: result.answers_per_second, "{:,.1f}"),
)


def _parts(results: Sequence[Result], question: str) -> list[float]:
    return [result.accuracy[question] for result in results if question in result.accuracy]


def _shown(parts: Sequence[float]) -> str:
    if not parts:
        return ""
    mean = f"{100 * statistics.mean(parts):.2f}"
    return mean if len(parts) == 1 else f"{mean} ({100 * min(parts):.1f} .. {100 * max(parts):.1f})"


def _marked(columns: Sequence[Sequence[float]]) -> list[str]:
    best = max((statistics.mean(parts) for parts in columns if parts), default=0.0)
    return [f"**{_shown(parts)}**" if parts and statistics.mean(parts) == best else _shown(parts) for parts in columns]


def _spread(values: Sequence[float], form: str) -> str:
    if form == "count":
        return str(len(values))
    mean = form.format(statistics.mean(values))
    if len(values) == 1 or min(values) == max(values):
        return mean
    return f"{mean} ({form.format(min(values))} .. {form.format(max(values))})"


def _minutes(results: Sequence[Result], mark: float, levels: Sequence[int]) -> str:
    found = [result.minutes_to(mark, levels) for result in results]
    reached = [minutes for minutes in found if minutes is not None]
    if not reached:
        return "never"
    mean = f"{statistics.mean(reached):.1f}"
    return mean if len(reached) == len(found) else f"{mean} ({len(reached)} of {len(found)})"


def _unseen(results: Sequence[Result]) -> str:
    counts = [result.windows for result in results if result.windows]
    if not counts:
        return ""
    asked, unseen, right = (sum(each[key] for each in counts) for key in ("asked", "unseen", "unseen_right"))
    share = f"{100 * right / unseen:.2f} %" if unseen else "none"
    return (
        f"The test expressions of the levels queried {asked:,} distinct neighbourhoods of ours ({len(counts)} seeds "
        f"together); {unseen:,} were never seen in training, and {share} of these were rewritten right."
    )
