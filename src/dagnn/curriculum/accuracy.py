"""Evaluates a trained network on new expressions: the exact engine judges every answer."""

import time
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dagnn.curriculum.config import CurriculumConfig
from dagnn.curriculum.engine import RuleEngine, from_term, to_term
from dagnn.curriculum.evaluation_file import Evaluation, Example, KindCount, LevelResult, NeighbourhoodCounts
from dagnn.curriculum.expression import FUNCTIONS, Expr, shortened, to_text
from dagnn.curriculum.generator import Sample, make_sample
from dagnn.curriculum.levels import level_spec
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.smaller_steps import FinerSteps
from dagnn.curriculum.traces import KINDS, kind_of
from dagnn.curriculum.verdict import judge
from dagnn.errors import CheckpointError, ConfigError
from dagnn.rewriting import GraphRewriter
from dagnn.rewriting.dataset import Cost, NeighbourhoodSet, is_held_out, mistakes_of, read_neighbourhoods
from dagnn.rewriting.features import NeighbourhoodFeatures, NeighbourhoodGraphs
from dagnn.rewriting.machine import RewritingMachine, Rewritten
from dagnn.rewriting.system import NeighbourhoodTokens, ReplacementTokens, Signature
from dagnn.training.processes import torch_threads
from dagnn.training.run.checkpoint_commands import run_and_checkpoint
from dagnn.training.run.checkpoints import Checkpoint
from dagnn.training.run.directory import RunDirectory
from dagnn.training.run.tensors import load_weights

# The longest right path of 600 expressions of level 4 took 14,000 steps, and 45,000 at depth 8.
STEP_BUDGET = 200_000
_ROUNDS = 600
# A few expressions find fewer neighbourhoods that others have asked for before: one of level 4 alone takes 1,500
# rounds, and 2,300 at depth 8.
_ROUNDS_OF_FEW = 3_000
# Expressions that go on side by side: every round asks the network for all neighbourhoods that any of them waits for.
_CHUNK = 500


# What may be rewritten and yet stand in an answer: operators that keep their operands, and a number's own labels.
_ANSWER_LABELS = {"+", "-", "*", "/", "^", *FUNCTIONS, "negative", "d0"}


def evaluate(
    run: str | Path,
    *,
    expressions: int = 500,
    split: str = "test",
    seed: int | None = None,
    depth: int | None = None,
    digits: int | None = None,
    finer: bool = False,
) -> Evaluation:
    """Accuracy of a run's network on fresh expressions of each of its levels.

    Args:
        run: a run directory, or one of its checkpoints.
        expressions: how many of each level.
        split: "test" or "validation"; "train" asks what the network was trained on.
        seed: of the expressions; None is the run's own, whose first training expressions split "train" then asks.
        depth: of the expressions, in the place of the levels' own: asks the levels that have one.
        digits: of their whole numbers, likewise (see `make_sample`).
        finer: facts about digits that the network is not sure of are worked out by smaller steps, see `FinerSteps`.

    Raises:
        RunError, CheckpointError: there is no run, or no whole checkpoint.
        ConfigError: `expressions` is below 1, the split is unknown, a depth or a number of digits is out of range, or
            no level of the run has them.
    """
    if expressions < 1:
        raise ConfigError(f"expressions must be at least 1, got {expressions}.")
    directory, config, checkpoint = opened_run(run)
    model = model_of(checkpoint)
    traced = read_neighbourhoods(directory.path, SIGNATURE)
    share = config.curriculum.held_out_windows
    trained = None if traced is None else trained_neighbourhoods(traced[0], share, checkpoint)
    machine = RewritingMachine(SIGNATURE, FinerSteps(model, trained) if finer else model)
    results = {}
    seed = config.seed if seed is None else seed
    opened = _open_levels(checkpoint, config)
    rounds = max(_ROUNDS, min(_ROUNDS_OF_FEW, _ROUNDS * _CHUNK // expressions))
    for level in _able_levels(config.curriculum.levels, depth, digits):
        samples = samples_of(level, expressions, config, split=split, seed=seed, depth=depth, digits=digits)
        examples, seconds = ask(machine, samples, rounds=rounds)
        examples = with_engine_misses(examples, samples)
        seen = config.curriculum.samples_of(level) if level in opened else 0
        results[level] = LevelResult.of(examples, samples_seen=seen, seconds=seconds)
    counts = None
    if traced is not None and trained is not None:
        held_out, error = _held_out_counts(model, traced[0], share, trained)
        counts = replace(_neighbourhood_counts(machine, trained), held_out=held_out, calibration_error=error)
    cost = traced[1] if traced else Cost(0.0, 0.0)
    return Evaluation(
        results,
        cpu_seconds=checkpoint.clock["cpu_seconds"] + cost.cpu_seconds,
        wall_seconds=checkpoint.clock["seconds"] + cost.seconds,
        parameters=model.num_parameters(),
        step=checkpoint.step,
        neighbourhoods=counts,
    )


def samples_of(
    level: int,
    count: int,
    config: CurriculumConfig,
    *,
    split: str,
    seed: int,
    depth: int | None = None,
    digits: int | None = None,
    first: int = 0,
) -> list[Sample]:
    """Samples `first`, `first` + 1, ... of a level's stream, at the run's preset."""
    preset = config.curriculum.preset
    return [
        make_sample(level, seed=seed, index=index, split=split, preset=preset, depth=depth, digits=digits)
        for index in range(first, first + count)
    ]


def ask(
    machine: RewritingMachine, samples: list[Sample], *, budget: int = STEP_BUDGET, rounds: int = _ROUNDS
) -> tuple[list[Example], float]:
    """The answer to every sample with the engine's verdict, and the seconds that answering took.

    Args:
        machine: whose rewriter is asked.
        samples: of any levels.
        budget: rewrite steps for each.
        rounds: how often the network is asked for all the neighbourhoods that any of them waits for.
    """
    examples: list[Example] = []
    seconds = 0.0
    for first in range(0, len(samples), _CHUNK):
        chunk = samples[first : first + _CHUNK]
        terms = [to_term(sample.input, sample.level) for sample in chunk]
        start = time.perf_counter()
        # Late rounds ask for a few neighbourhoods only; on those a second thread costs more than it does.
        with torch_threads(1):
            results = machine.run([term for term, _ in terms], budget=budget, rounds=rounds)
        seconds += time.perf_counter() - start
        machine.clear_graph()
        examples += [
            _example(sample, result, names) for sample, result, (_, names) in zip(chunk, results, terms, strict=True)
        ]
    return examples, seconds


def with_engine_misses(examples: list[Example], samples: list[Sample], *, budget: int = STEP_BUDGET) -> list[Example]:
    """The examples, one for each sample; marked where the engine's steps, in the network's place, are no better.

    They are taken only where the network's answer is wrong, with the budget that the network had.
    """
    wrong = [number for number, example in enumerate(examples) if not example.right]
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    found, _ = ask(machine, [samples[number] for number in wrong], budget=budget)
    marked = list(examples)
    for number, by_engine in zip(wrong, found, strict=True):
        marked[number] = replace(examples[number], engine_misses=not by_engine.right)
    return marked


def model_of(checkpoint: Checkpoint) -> GraphRewriter:
    """The network of a checkpoint in eval mode, with averaged weights if it has some; CheckpointError for another."""
    described = checkpoint.state.get("description") or {}
    try:
        if described["labels"] != labels_of(SIGNATURE):
            raise CheckpointError(
                f"the checkpoint of step {checkpoint.step} was trained on another set of rewrite rules "
                f"({_label_difference(described['labels'])}): train a new run with this version."
            )
        features = NeighbourhoodFeatures(SIGNATURE, described["features"])
        graphs = NeighbourhoodGraphs(SIGNATURE, described["symbols"]) if described.get("symbols") is not None else None
        model = GraphRewriter(features, graphs=graphs, **described["size"])
    except (KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"the checkpoint of step {checkpoint.step} holds no GraphRewriter: {error!r}.") from error
    load_weights(model, checkpoint.tensors)
    return model.eval()


def trained_neighbourhoods(
    traced: NeighbourhoodSet, held_out: float, checkpoint: Checkpoint
) -> set[NeighbourhoodTokens]:
    """What a network was trained on: the traced neighbourhoods that are not held out, and its mistakes in own runs."""
    trained = {neighbourhood for neighbourhood in traced.neighbourhoods if not is_held_out(neighbourhood, held_out)}
    return trained | {each.neighbourhood for each in mistakes_of(checkpoint.state["data"])}


def labels_of(signature: Signature) -> list[list[str | int | None]]:
    """What a network's numbers mean: name, arity and neighbourhood depth of every label, as JSON values."""
    return [[label.name, label.arity, label.neighbourhood_depth] for label in signature.labels]


def _label_difference(labels: Sequence[Sequence[object]]) -> str:
    """The first label that a checkpoint has otherwise than this version, or how many both have."""
    own = labels_of(SIGNATURE)
    for number, pair in enumerate(zip(labels, own, strict=False)):
        if pair[0] != pair[1]:
            there, here = (shortened("/".join(map(str, label))) for label in pair)
            return f"label {number} is {there} there, {here} here"
    return f"{len(labels)} labels there, {len(own)} here"


def description_of(model: GraphRewriter) -> dict[str, object]:
    """What `model_of` needs to build the network again, as JSON values."""
    return {
        "labels": labels_of(model.signature),
        "features": model.features.known,
        "symbols": None if model.graphs is None else model.graphs.known,
        "size": {
            "width": model.width,
            "blocks": len(model.blocks),
            "slot_width": model.slot_width,
            "num_slots": model.num_slots,
            "graph_dim": model.graph_dim,
            "whole_graphs": model.whole_graphs,
        },
    }


def opened_run(path: str | Path) -> tuple[RunDirectory, CurriculumConfig, Checkpoint]:
    """A run, its configuration, and its newest whole checkpoint or the one that the path names.

    RunError or CheckpointError where there is no run or no whole checkpoint.
    """
    run, checkpoint = run_and_checkpoint(path)
    return run, run.config(CurriculumConfig), checkpoint


def _able_levels(levels: tuple[int, ...], depth: int | None, digits: int | None) -> list[int]:
    """Those of the levels whose depth, or number of digits, can be set, where one is given."""
    specs = [level_spec(level) for level in levels]
    able = [spec.number for spec in specs if (depth is None or spec.has_depth) and (digits is None or spec.has_digits)]
    if not able:
        asked = " and ".join(name for name, value in (("depth", depth), ("digits", digits)) if value is not None)
        raise ConfigError(f"none of the run's levels {', '.join(map(str, levels))} has {asked} to set: leave it out.")
    return able


def _open_levels(checkpoint: Checkpoint, config: CurriculumConfig) -> tuple[int, ...]:
    """The levels that training had begun with when the checkpoint was written."""
    promotion = checkpoint.state.get("promotion")
    return config.curriculum.levels if promotion is None else tuple(promotion["levels"][: promotion["open"]])


def _neighbourhood_counts(machine: RewritingMachine, trained: set[NeighbourhoodTokens]) -> NeighbourhoodCounts:
    asked = {machine.neighbourhood(w): machine.replacement(w) for w in range(machine.num_neighbourhoods)}
    unseen = [neighbourhood for neighbourhood in asked if neighbourhood not in trained]
    return NeighbourhoodCounts(
        len(asked),
        len(unseen),
        sum(asked[neighbourhood] == engine_replacement(neighbourhood) for neighbourhood in unseen),
    )


def _held_out_counts(
    model: GraphRewriter, traced: NeighbourhoodSet, share: float, trained: Container[NeighbourhoodTokens]
) -> tuple[dict[str, KindCount], float | None]:
    """By kind, how many of the neighbourhoods that were kept from training the network rewrites as the engine does.

    And the calibration error of its confidences in them.
    """
    pairs = zip(traced.neighbourhoods, traced.replacements, strict=True)
    wanted_of = {each: replacement for each, replacement in pairs if is_held_out(each, share)}
    if not wanted_of:
        return {}, None
    asked, wanted = list(wanted_of), list(wanted_of.values())
    finer = FinerSteps(model, trained).propose(asked)
    guessed = np.array([guess == right for guess, right in zip(model.rewrite(asked), wanted, strict=True)])
    right = np.array([proposal.replacement == right for proposal, right in zip(finer, wanted, strict=True)])
    confidence = np.array([proposal.confidence for proposal in finer])
    kinds = np.array([kind_of(neighbourhood) for neighbourhood in asked])
    counts = {
        kind: KindCount(
            int(guessed[own].sum()),
            int(own.sum()),
            int(right[own].sum()),
            _calibration_error(confidence[own], right[own]),
        )
        for kind in KINDS
        if (own := kinds == kind).any()
    }
    return counts, _calibration_error(confidence, right)


def _calibration_error(confidence: NDArray[np.float64], right: NDArray[np.bool_], bins: int = 15) -> float:
    """The mean distance of the share of right ones from the mean confidence, over bins of equal width.

    >>> _calibration_error(np.array([0.9, 0.9, 0.9, 0.9, 0.1]), np.array([True, True, True, False, False]))
    0.14
    """
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    off = np.bincount(place, confidence - right, minlength=bins)
    return round(float(np.abs(off).sum() / len(right)), 6)


def engine_replacement(neighbourhood: NeighbourhoodTokens) -> ReplacementTokens | None:
    """The engine's replacement; None for a neighbourhood that only a network off the engine's path can meet."""
    try:
        return RuleEngine().rewrite([neighbourhood])[0]
    except (ValueError, IndexError, KeyError, AssertionError):
        return None


def _example(sample: Sample, result: Rewritten, names: dict[str, str]) -> Example:
    answer = None if result.tokens is None else from_term(result.tokens, names)
    text = "" if answer is None else to_text(answer)
    verdict = judge(sample.level, sample.input, answer)
    reason = "" if verdict.right else _kind_of_error(sample, result, answer)
    return Example(to_text(sample.input), text, to_text(sample.answer), verdict.right, reason)


def _kind_of_error(sample: Sample, result: Rewritten, answer: Expr | None) -> str:
    """In a word or two, for the table of errors."""
    if result.tokens is None:
        return "no end"
    shown = {SIGNATURE.labels[token].name for token in result.tokens}
    if any(SIGNATURE.labels[SIGNATURE.id_of[name]].neighbourhood_depth is not None for name in shown - _ANSWER_LABELS):
        return "stuck half-way"
    if isinstance(answer, tuple) != isinstance(sample.answer, tuple):
        return "other form"
    return "other value"
