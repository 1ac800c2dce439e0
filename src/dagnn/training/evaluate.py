"""Asks a trained network fresh expressions; the exact engine judges every answer."""

import time
from dataclasses import dataclass
from pathlib import Path

from dagnn.curriculum import Sample, judge, level_of, make_sample, parse, to_text
from dagnn.curriculum.engine import RuleEngine
from dagnn.curriculum.expression import FUNCTIONS, Expr
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.terms import from_term, to_term
from dagnn.errors import CheckpointError, ConfigError, ExpressionError
from dagnn.graph.rewriting.machine import RewritingMachine, Rewritten
from dagnn.graph.rewriting.signature import Signature
from dagnn.graph.rewriting.window import ReplacementTokens, WindowTokens
from dagnn.nn import GraphRewriter
from dagnn.nn.rewriter_features import WindowFeatures
from dagnn.training.checkpoint import Checkpoint
from dagnn.training.checkpoint_store import CheckpointStore
from dagnn.training.config import TrainingConfig
from dagnn.training.evaluation import Evaluation, Example, LevelResult, WindowCounts
from dagnn.training.resume import find_run
from dagnn.training.run_directory import RunDirectory
from dagnn.training.tensor_state import load_weights
from dagnn.training.threads import torch_threads
from dagnn.training.window_file import Cost, read_windows

# The longest right path of 10,000 level-4 expressions took 11,000 steps.
STEP_BUDGET = 30_000
_ROUNDS = 600
# Expressions that go on side by side: every round asks the network for all windows that any of them waits for.
_CHUNK = 500


# What may be rewritten and yet stand in an answer: operators that keep their operands, and a number's own labels.
_ANSWER_LABELS = {"+", "-", "*", "/", "^", *FUNCTIONS, "negative", "d0"}


@dataclass(frozen=True)
class Solution:
    """What a network made of one expression.

    Attributes:
        answer: text; empty when the network came to no end.
        right: what the exact engine says.
        reason: why, in words; for an input that has no answer, why not.
        seconds: the network's, loading not counted.
        steps: rewrite steps.
        has_answer: whether the engine knows an answer at all.
    """

    answer: str
    right: bool
    reason: str
    seconds: float
    steps: int
    has_answer: bool = True

    @property
    def verdict(self) -> str:
        """The engine's word on one line."""
        if not self.has_answer:
            return f"there is no answer: {self.reason}"
        return f"right, {self.reason}" if self.right else f"wrong, {self.reason}"


def evaluate(run: str | Path, *, expressions: int = 500, split: str = "test", seed: int | None = None) -> Evaluation:
    """Accuracy of a run's network on fresh expressions of each of its levels.

    Args:
        run: a run directory, or one of its checkpoints.
        expressions: how many of each level.
        split: "test" or "validation"; "train" asks what the network was trained on.
        seed: of the expressions; None is the run's own, whose first training expressions split "train" then asks.

    Raises:
        RunError, CheckpointError: there is no run, or no whole checkpoint.
        ConfigError: `expressions` is below 1, or the split is unknown.
    """
    if expressions < 1:
        raise ConfigError(f"expressions must be at least 1, got {expressions}.")
    directory, config, checkpoint = _opened(run)
    model = model_of(checkpoint)
    machine = RewritingMachine(SIGNATURE, model)
    results = {}
    seed = config.seed if seed is None else seed
    opened = _open_levels(checkpoint, config)
    for level in config.curriculum.levels:
        examples, seconds = ask(machine, samples_of(level, expressions, config, split=split, seed=seed))
        seen = config.curriculum.samples_of(level) if level in opened else 0
        results[level] = LevelResult.of(examples, samples_seen=seen, seconds=seconds)
    traced = read_windows(directory.path)
    cost = traced[1] if traced else Cost(0.0, 0.0)
    return Evaluation(
        results,
        cpu_seconds=checkpoint.clock["cpu_seconds"] + cost.cpu_seconds,
        wall_seconds=checkpoint.clock["seconds"] + cost.seconds,
        parameters=model.num_parameters(),
        step=checkpoint.step,
        windows=_window_counts(machine, set(traced[0].windows)) if traced else None,
    )


def solve(run: str | Path, text: str) -> Solution:
    """The network's answer to one expression, and the engine's verdict.

    Args:
        run: a run directory, or one of its checkpoints.
        text: the expression; a function such as ``(sin 3)`` alone is level 4 and is answered with three digits.

    Raises:
        ExpressionError: the text is no expression, or one that the rewriting system cannot write.
        RunError, CheckpointError: there is no run, or no whole checkpoint.
    """
    expression = parse(text)
    _, _, checkpoint = _opened(run)
    model = model_of(checkpoint)
    level = level_of(expression)
    term, names = to_term(expression, level)
    start = time.perf_counter()
    result = RewritingMachine(SIGNATURE, model).run([term], budget=STEP_BUDGET, rounds=10 * _ROUNDS)[0]
    seconds = time.perf_counter() - start
    answer, text = _answer(result, names)
    try:
        verdict = judge(level, expression, answer)
    except ExpressionError as error:
        return Solution(text, False, str(error), seconds, result.steps, has_answer=False)
    reason = verdict.reason if result.tokens is not None else result.stopped
    return Solution(text, verdict.right, reason, seconds, result.steps)


def samples_of(level: int, count: int, config: TrainingConfig, *, split: str, seed: int) -> list[Sample]:
    """The first samples of a level's stream, at the run's preset."""
    preset = config.curriculum.preset
    return [make_sample(level, seed=seed, index=index, split=split, preset=preset) for index in range(count)]


def ask(machine: RewritingMachine, samples: list[Sample]) -> tuple[list[Example], float]:
    """The answer to every sample with the engine's verdict, and the seconds that answering took."""
    examples: list[Example] = []
    seconds = 0.0
    for first in range(0, len(samples), _CHUNK):
        chunk = samples[first : first + _CHUNK]
        terms = [to_term(sample.input, sample.level) for sample in chunk]
        start = time.perf_counter()
        # Late rounds ask for a few windows only; on those a second thread costs more than it does.
        with torch_threads(1):
            results = machine.run([term for term, _ in terms], budget=STEP_BUDGET, rounds=_ROUNDS)
        seconds += time.perf_counter() - start
        machine.clear_graph()
        examples += [
            _example(sample, result, names) for sample, result, (_, names) in zip(chunk, results, terms, strict=True)
        ]
    return examples, seconds


def model_of(checkpoint: Checkpoint) -> GraphRewriter:
    """The network of a checkpoint, with its averaged weights where there are any, in eval mode.

    Raises:
        CheckpointError: the checkpoint is of another network or another rewriting system.
    """
    described = checkpoint.state.get("description") or {}
    try:
        if described["labels"] != labels_of(SIGNATURE):
            raise CheckpointError(
                f"the checkpoint of step {checkpoint.step} was trained on another set of rewrite rules: "
                "train a new run with this version."
            )
        features = WindowFeatures(SIGNATURE, described["features"])
        model = GraphRewriter(features, **described["size"])
    except (KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"the checkpoint of step {checkpoint.step} holds no GraphRewriter: {error!r}.") from error
    load_weights(model, checkpoint.tensors)
    return model.eval()


def labels_of(signature: Signature) -> list[list[str | int | None]]:
    """What a network's numbers mean: name, arity and window depth of every label, as JSON values."""
    return [[label.name, label.arity, label.window_depth] for label in signature.labels]


def description_of(model: GraphRewriter) -> dict[str, object]:
    """What `model_of` needs to build the network again, as JSON values."""
    return {
        "labels": labels_of(model.signature),
        "features": model.features.known,
        "size": {
            "width": model.width,
            "blocks": len(model.blocks),
            "slot_width": model.slot_width,
            "num_slots": model.num_slots,
        },
    }


def _opened(path: str | Path) -> tuple[RunDirectory, TrainingConfig, Checkpoint]:
    directory, step = find_run(path)
    run = RunDirectory.read(directory)
    store = CheckpointStore(run.checkpoints_path, run.run_id)
    checkpoint = store.latest() if step is None else store.load(step)
    if checkpoint is None:
        raise CheckpointError(
            f"{run.checkpoints_path} holds no checkpoint yet: let the run train until its first save."
        )
    return run, run.config(), checkpoint


def _open_levels(checkpoint: Checkpoint, config: TrainingConfig) -> tuple[int, ...]:
    """The levels that training had begun with when the checkpoint was written."""
    promotion = checkpoint.state.get("promotion")
    return config.curriculum.levels if promotion is None else tuple(promotion["levels"][: promotion["open"]])


def _window_counts(machine: RewritingMachine, trained: set[WindowTokens]) -> WindowCounts:
    asked = {machine.window(w): machine.replacement(w) for w in range(machine.num_windows)}
    unseen = [window for window in asked if window not in trained]
    return WindowCounts(len(asked), len(unseen), sum(asked[window] == _of_engine(window) for window in unseen))


def _of_engine(window: WindowTokens) -> ReplacementTokens | None:
    """The engine's replacement; None for a window that only a network off the engine's path can meet."""
    try:
        return RuleEngine().rewrite([window])[0]
    except (ValueError, IndexError, KeyError, AssertionError):
        return None


def _answer(result: Rewritten, names: dict[str, str]) -> tuple[Expr | None, str]:
    if result.tokens is None:
        return None, ""
    answer = from_term(result.tokens, names)
    return answer, to_text(answer)


def _example(sample: Sample, result: Rewritten, names: dict[str, str]) -> Example:
    answer, text = _answer(result, names)
    verdict = judge(sample.level, sample.input, answer)
    reason = "" if verdict.right else _kind_of_error(sample, result, answer)
    return Example(to_text(sample.input), text, to_text(sample.answer), verdict.right, reason)


def _kind_of_error(sample: Sample, result: Rewritten, answer: Expr | None) -> str:
    """In a word or two, for the table of errors."""
    if result.tokens is None:
        return "no end"
    shown = {SIGNATURE.labels[token].name for token in result.tokens}
    if any(SIGNATURE.labels[SIGNATURE.id_of[name]].window_depth is not None for name in shown - _ANSWER_LABELS):
        return "stuck half-way"
    if isinstance(answer, tuple) != isinstance(sample.answer, tuple):
        return "other form"
    return "other value"
