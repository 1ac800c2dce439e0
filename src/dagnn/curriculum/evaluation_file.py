"""evaluation.json: what an evaluation found, level by level, with examples and errors.

    {"levels": {"1": {"accuracy": 0.998, "expressions": 500, "samples_seen": 60000, "samples_per_second": 4100.0,
                      "examples": [{"input": "(+ 2 3)", "answer": "5", "expected": "5", "right": true, "reason": "",
                                    "engine_misses": false}],
                      "errors": {"+": {"other value": 1}}, "engine_misses": 0}},
     "windows": {"asked": 12987, "unseen": 1371, "unseen_right": 1369,
                 "held_out": {"symbolic": {"right": 7413, "total": 7419, "finer": 7413, "calibration_error": 0.0011}},
                 "calibration_error": 0.0011},
     "cpu_seconds": 301.5, "wall_seconds": 290.1, "parameters": 2371200, "step": 3000}

``windows`` counts the distinct neighbourhoods that the network was asked about, those of them that training never
showed it, and how many of the latter it rewrote as the exact engine does; ``held_out`` those that an experiment kept
from training, by kind, ``finer`` how many of them are right where facts about digits may take smaller steps, as in
`dagnn solve`, and ``calibration_error`` how far confidences are from the share of right ones then. ``errors`` counts
the wrong answers by the operator of their expression (`operator_of`), then by reason; ``engine_misses`` those of them
that the engine's own steps do not answer right either, whose reasons end with ``ENGINE_TOO``.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dagnn.errors import RunError
from dagnn.files import replace_file

FILE_NAME = "evaluation.json"
SHOWN, SHOWN_WRONG = 5, 2
# Behind the reason of a wrong answer where the engine's own steps give no right one either.
ENGINE_TOO = " (engine's steps too)"

Number = TypeVar("Number", int, float)

_WRAPPERS = {"derive", "integrate", "solve", "approx", "subst", "="}
_HEADS = re.compile(r"\(\s*([^\s()]+)\s*")


@dataclass(frozen=True)
class Example:
    """One expression and what the network made of it.

    Attributes:
        input, answer, expected: text of the expression, of the network's answer (empty: none), and of the engine's.
        right: what the engine says about the answer.
        reason: why it is not right, in a word or two; empty when it is.
        engine_misses: whether it is not right and the engine's own steps, in the network's place, do not answer it
            right either: ten decimals are too few, or the budget of steps is.
    """

    input: str
    answer: str
    expected: str
    right: bool
    reason: str = ""
    engine_misses: bool = False

    @property
    def error(self) -> str:
        """The reason, with a mark where the engine's own steps miss it too; empty for a right answer."""
        return "" if self.right else (self.reason or "wrong") + ENGINE_TOO * self.engine_misses


@dataclass(frozen=True)
class LevelResult:
    """Accuracy on one level, and how it was reached.

    Attributes:
        accuracy: part of the expressions that were answered right, 0 .. 1.
        expressions: how many were asked.
        samples_seen: expressions that training has learned from; None where it is not known.
        samples_per_second: expressions answered per second of this evaluation; None where it is not known.
        examples: a few, right and wrong ones.
        errors: operator of the expression -> `Example.error` -> wrong answers.
        engine_misses: wrong answers to what the engine's own steps do not answer right either.
    """

    accuracy: float
    expressions: int
    samples_seen: int | None = 0
    samples_per_second: float | None = 0.0
    examples: tuple[Example, ...] = ()
    errors: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    engine_misses: int = 0

    @property
    def wrong(self) -> int:
        """Wrong answers; 0 where ``errors`` is not known."""
        return sum(sum(reasons.values()) for reasons in self.errors.values())

    @classmethod
    def of(cls, examples: Iterable[Example], *, samples_seen: int, seconds: float) -> "LevelResult":
        """The result of all the examples of a level, of which it keeps a few.

        Args:
            examples: everything that was asked.
            samples_seen: expressions that training has learned from.
            seconds: how long answering took.
        """
        asked = list(examples)
        errors: dict[str, Counter[str]] = {}
        for example in asked:
            if not example.right:
                errors.setdefault(operator_of(example.input), Counter())[example.error] += 1
        right = sum(example.right for example in asked)
        return cls(
            accuracy=right / len(asked) if asked else 0.0,
            expressions=len(asked),
            samples_seen=samples_seen,
            samples_per_second=len(asked) / seconds if seconds > 0 else 0.0,
            examples=_shown(asked),
            errors={operator: dict(sorted(reasons.items())) for operator, reasons in sorted(errors.items())},
            engine_misses=sum(example.engine_misses for example in asked),
        )


class KindCount(NamedTuple):
    """Neighbourhoods of one kind: those that the network rewrote as the exact engine does, and all of them.

    Attributes:
        finer: those right where it may work out facts about digits by smaller steps, see `FinerSteps`.
        calibration_error: as of `NeighbourhoodCounts`.
    """

    right: int
    total: int
    finer: int
    calibration_error: float | None = None


@dataclass(frozen=True)
class NeighbourhoodCounts:
    """Distinct neighbourhoods that a network was asked about.

    Attributes:
        asked: all of them.
        unseen: those that are not in the training set.
        unseen_right: those of the unseen that it rewrote as the exact engine does.
        held_out: of the neighbourhoods that were kept from training (``curriculum.held_out_windows``), by kind.
        calibration_error: the expected calibration error of the confidences in these, by smaller steps where there are
            some (15 bins; Guo et al., "On Calibration of Modern Neural Networks", ICML 2017); None without any.
    """

    asked: int
    unseen: int
    unseen_right: int
    held_out: Mapping[str, KindCount] = field(default_factory=dict)
    calibration_error: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "held_out": {kind: count._asdict() for kind, count in self.held_out.items()}}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "NeighbourhoodCounts":
        """What `to_json` gave; where nothing was held out, ``held_out`` may be missing."""
        held_out = {
            str(kind): KindCount(
                int(count["right"]),
                int(count["total"]),
                int(count.get("finer", count["right"])),
                count.get("calibration_error"),
            )
            for kind, count in values.get("held_out", {}).items()
        }
        numbers = {key: int(values[key]) for key in ("asked", "unseen", "unseen_right")}
        return cls(**numbers, held_out=held_out, calibration_error=values.get("calibration_error"))


@dataclass(frozen=True)
class Evaluation:
    """The results of all levels, and what the training cost that led to them.

    Attributes:
        levels: level -> its result.
        cpu_seconds, wall_seconds: of training, traces included; None where it is not known.
        parameters: trainable numbers of the network; None where it is not known.
        step: optimizer steps made.
        neighbourhoods: what it was asked about; None where it is not known.
        evaluated: whether it is a judgement of this step; else ``levels`` are what training found on the way.
    """

    levels: Mapping[int, LevelResult]
    cpu_seconds: float | None
    wall_seconds: float | None
    parameters: int | None
    step: int
    neighbourhoods: NeighbourhoodCounts | None = None
    evaluated: bool = True

    def summary(self) -> dict[str, Any]:
        """What ``--json`` prints: accuracy and number of expressions by level, and the cost; JSON values.

        Where it is not evaluated yet it says so, and what is not known is null.
        """
        unknown = {} if self.evaluated else {"samples_seen": None, "samples_per_second": None}
        levels = {
            str(level): {"accuracy": result.accuracy, "expressions": result.expressions, **unknown}
            for level, result in sorted(self.levels.items())
        }
        return {"levels": levels} | self._cost() | ({} if self.evaluated else {"evaluated": False})

    def write(self, directory: str | Path) -> Path:
        """Writes evaluation.json into a run's directory, in one step, and returns its path. Raises RunError."""
        path = Path(directory) / FILE_NAME
        levels = {str(level): asdict(result) for level, result in sorted(self.levels.items())}
        neighbourhoods = None if self.neighbourhoods is None else self.neighbourhoods.to_json()
        content = {"levels": levels, "windows": neighbourhoods} | self._cost()
        try:
            replace_file(path, (json.dumps(content, indent=1) + "\n").encode())
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror or error}.") from error
        return path

    @classmethod
    def read(cls, directory: str | Path) -> "Evaluation | None":
        """The evaluation in a run's directory; None when there is none yet.

        RunError where evaluation.json cannot be read, or is not what `write` writes.
        """
        path = Path(directory) / FILE_NAME
        try:
            content = json.loads(path.read_bytes())
            levels = {int(level): _level_result(values) for level, values in content["levels"].items()}
            counts = content["windows"]
            neighbourhoods = None if counts is None else NeighbourhoodCounts.from_json(counts)
            return cls(
                levels,
                cpu_seconds=_optional(float, content["cpu_seconds"]),
                wall_seconds=_optional(float, content["wall_seconds"]),
                parameters=_optional(int, content["parameters"]),
                step=int(content["step"]),
                neighbourhoods=neighbourhoods,
            )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunError(f"cannot read {path}: {error.strerror or error}.") from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise RunError(f"{path} is damaged ({error}): evaluate the run again.") from error

    def _cost(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("cpu_seconds", "wall_seconds", "parameters", "step")}


def operator_of(expression: str) -> str:
    """The first operator of an expression, and below a task that of what the task is about.

    >>> [operator_of(text) for text in ("(+ (* 2 3) 4)", "(derive (^ x 2) x)", "(solve (= (+ x 1) 2) x)", "5")]
    ['+', 'derive ^', 'solve = +', '5']
    """
    heads: list[str] = []
    position = 0
    while match := _HEADS.match(expression, position):
        heads.append(match[1])
        position = match.end()
        if match[1] not in _WRAPPERS:
            break
    return " ".join(heads) or expression.strip()


def _shown(examples: list[Example]) -> tuple[Example, ...]:
    """A few examples: the first wrong ones and the first right ones, as many wrong as there is room for."""
    right = [example for example in examples if example.right]
    wrong = [example for example in examples if not example.right]
    num_wrong = min(len(wrong), max(SHOWN_WRONG, SHOWN - len(right)))
    return (*right[: SHOWN - num_wrong], *wrong[:num_wrong])


def _level_result(values: Mapping[str, Any]) -> LevelResult:
    """Each value in its own type: a file may say anything, and an older one nothing of ``engine_misses``."""
    examples = tuple(
        Example(
            **{name: str(each[name]) for name in ("input", "answer", "expected", "reason")},
            right=bool(each["right"]),
            engine_misses=bool(each.get("engine_misses", False)),
        )
        for each in values["examples"]
    )
    errors = {
        str(operator): {str(reason): int(count) for reason, count in reasons.items()}
        for operator, reasons in values["errors"].items()
    }
    return LevelResult(
        accuracy=float(values["accuracy"]),
        expressions=int(values["expressions"]),
        samples_seen=int(values["samples_seen"]),
        samples_per_second=float(values["samples_per_second"]),
        examples=examples,
        errors=errors,
        engine_misses=int(values.get("engine_misses", 0)),
    )


def _optional(kind: Callable[[Any], Number], value: Any) -> Number | None:
    return None if value is None else kind(value)
