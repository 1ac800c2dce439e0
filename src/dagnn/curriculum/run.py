"""The main job: collects the neighbourhoods of all levels, trains a GraphRewriter on them, mends and evaluates it."""

import functools
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dagnn.accumulation.random_states import seed_everything
from dagnn.curriculum.accuracy import (
    ask,
    description_of,
    engine_replacement,
    evaluate,
    model_of,
    opened_run,
    samples_of,
)
from dagnn.curriculum.certificate import LEVELS as CERTIFIED
from dagnn.curriculum.certificate import certify, closure_of
from dagnn.curriculum.config import CurriculumConfig
from dagnn.curriculum.evaluation_file import Evaluation
from dagnn.curriculum.levels import LEVELS
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.rules.algebra import COMMUTATIVE
from dagnn.curriculum.traces import collect_neighbourhoods, with_more, with_shared_integrals
from dagnn.errors import CheckpointError, ConfigError, RunError
from dagnn.files import replace_file
from dagnn.rewriting import GraphRewriter, NeighbourhoodTokens, RewritingMachine
from dagnn.rewriting.dataset import (
    Cost,
    Mistake,
    NeighbourhoodBatch,
    NeighbourhoodLoader,
    NeighbourhoodSet,
    is_held_out,
    read_neighbourhoods,
    write_neighbourhoods,
)
from dagnn.rewriting.network import replacement_objective
from dagnn.training.counters import Clock, StagePromotion
from dagnn.training.evaluation import Meter
from dagnn.training.lr_finder import LrCurve
from dagnn.training.processes import Processes, torch_threads
from dagnn.training.run.checkpoints import Checkpoint
from dagnn.training.run.directory import RunDirectory, open_checkpoints, open_run
from dagnn.training.run.tensors import model_tensors
from dagnn.training.trainer import Trainer

# Of each batch, in the progressive order: half from the newest level, half from all earlier ones.
_NEWEST_SHARE = 0.5
# An expression takes tens to thousands of right steps. While more neighbourhoods than this are wrong, none comes out
# right, and a network that knows so little may never stop writing.
_WRONG_NEIGHBOURHOODS_AT_MOST = 0.03
# The longest right path of a drawn expression takes 14,000 steps; a network that knows little takes all it is given.
_STEP_BUDGET = 20_000

CERTIFICATE_FILE = "certificate.json"
# What is still wrong at the end takes about fifty more steps, after thousands.
_MENDING_STEPS, _STEPS_BETWEEN_CHECKS, _RATE = 150, 50, 2e-4
_OF_ALL, _OF_WRONG = 448, 64  # neighbourhoods of a batch
_EXPRESSIONS = 2_000  # drawn in search of some that show what is still wrong: `dagnn certify` draws more


def train(
    config: CurriculumConfig,
    *,
    resume: bool = False,
    step: int | None = None,
    reschedule: str | None = None,
    note: Callable[[str], object] = print,
) -> Evaluation:
    """Trains the curriculum in ``config.run_directory`` and evaluates the result on the test split.

    Args:
        config: every setting.
        resume: go on with the run that is there, from its newest whole checkpoint, or that of `step`.
        reschedule: "keep" or "stretch", where a resume changes ``max_steps`` under a cosine.
        note: called with a line about what is being done.

    Under torch.distributed every process calls it. They share each batch and each evaluation; the first one traces,
    writes and judges, and all of them get the result.

    Raises:
        TrainingInterrupted: by a signal; everything is saved.
        RunError: the directory is in use, holds another run, or cannot be written; or there is none to begin with.
        CheckpointError: the run to begin with has no whole checkpoint of such a network.
        ConfigError: that network is of another size or backbone; or a setting does not fit another.
    """
    processes = Processes()
    if config.warm_start and not resume:
        _first_network(config)  # refused before a directory is made and neighbourhoods are traced
    with open_run(config, resume, processes) as run:
        collected = _neighbourhoods(run, config, processes, note)
        trainer = make_trainer(run, config, collected)
        if resume:
            trainer.resume(step, reschedule=reschedule)
        before = trainer.step
        if trainer.fit().step == before and resume:
            note(f"no step was left: the run ended at step {before:,}; --max-steps with more goes on")
            judged = processes.by_first(lambda: _judged_before(run, config, before))
            if judged is not None:
                return judged
        if certified := _certified_levels(config):
            loader = trainer.loader
            assert isinstance(loader, NeighbourhoodLoader)
            processes.by_first(lambda: certify_and_mend(run, config, loader, certified, note))
        note(f"asking {config.test_samples} test expressions of each level")
        return processes.by_first(lambda: _judged(run, config))


def search_lr(config: CurriculumConfig, *, note: Callable[[str], object] = print) -> LrCurve:
    """Losses of this configuration's network at rising rates, see `find_lr`; nothing is kept. Errors as of `train`."""
    if config.warm_start:
        _first_network(config)
    with tempfile.TemporaryDirectory() as folder, RunDirectory.create(Path(folder) / "run", config) as run:
        return make_trainer(run, config, _neighbourhoods(run, config, Processes(), note)).find_lr()


def make_trainer(run: RunDirectory, config: CurriculumConfig, collected: NeighbourhoodSet) -> Trainer:
    """The trainer of a curriculum run, ready for `resume` or `fit`."""
    # The network's first weights are drawn here, before the trainer seeds its own draws.
    seed_everything(config.seed)
    share = config.curriculum.held_out_windows
    model = GraphRewriter.from_neighbourhoods(
        SIGNATURE,
        [each for each in collected.neighbourhoods if not is_held_out(each, share)],
        width=config.model.width,
        blocks=config.model.blocks,
        slot_width=config.model.slot_width,
        num_slots=config.model.num_slots,
        backbone="graph" if config.model.backbone == "graph" else "features",
        graph_dim=config.model.graph_dim,
        whole_graphs=config.loss.objective == "ged",
    )
    if config.warm_start and not open_checkpoints(run, config).steps():
        model.warm_start(_first_network(config))
    processes = Processes()
    loader = neighbourhood_loader(collected, model, config, processes)
    loss = config.loss
    objective = replacement_objective(loss.objective, alpha=loss.alpha, beta=loss.beta, gamma=loss.gamma)

    def batch_loss(network: nn.Module, batch: NeighbourhoodBatch) -> Tensor:
        assert isinstance(network, GraphRewriter)
        return objective(network, batch.rows, batch.targets)

    def evaluate_network(network: nn.Module, step: int) -> Mapping[str, Any]:
        assert isinstance(network, GraphRewriter)
        return _progress_of(network, loader, config, promotion, step, processes)

    promotion = config.curriculum.promotion()
    return Trainer(
        model,
        batch_loss,
        loader,
        config,
        run=run,
        evaluate=evaluate_network,
        promotion=promotion,
        on_promotion=loader.open_stages,
        description=description_of(model),
    )


def neighbourhood_loader(
    collected: NeighbourhoodSet, model: GraphRewriter, config: CurriculumConfig, processes: Processes
) -> NeighbourhoodLoader:
    """The batches of a curriculum run: levels are the stages, with their weights from the configuration."""
    curriculum = config.curriculum
    return NeighbourhoodLoader(
        collected,
        model,
        batch_size=config.micro_batch_size,
        seed=config.seed,
        stage_weights={level: curriculum.weight_of(level) for level in LEVELS},
        newest_share=_NEWEST_SHARE if curriculum.order == "progressive" else None,
        held_out=curriculum.held_out_windows,
        unordered=COMMUTATIVE if config.loss.alignment == "searched" else (),
        rank=processes.rank,
        num_ranks=processes.size,
    )


def _first_network(config: CurriculumConfig) -> GraphRewriter:
    """The network of ``config.warm_start``, which must be set; errors as of `opened_run`.

    A ConfigError says what differs where the network is not as ``config.model`` says.
    """
    checkpoint = opened_run(config.warm_start)[2]
    try:
        network = model_of(checkpoint)
    except CheckpointError as error:
        raise CheckpointError(f"warm_start = {config.warm_start}: {error}") from error
    there: dict[str, str | int] = {
        "backbone": "features" if network.graphs is None else "graph",
        "width": network.width,
        "blocks": len(network.blocks),
        "slot_width": network.slot_width,
    }
    # Without graphs it has no meaning. Slots may be more or fewer, and a head of whole graphs may be new.
    if network.graphs is not None:
        there["graph_dim"] = network.graph_dim
    different = {name: value for name, value in there.items() if value != getattr(config.model, name)}
    if different:
        differences = ", ".join(
            f"model.{name} is {value} there, {getattr(config.model, name)} here" for name, value in different.items()
        )
        flags = " ".join(f"--model.{name.replace('_', '-')} {value}" for name, value in different.items())
        raise ConfigError(
            f"warm_start = {config.warm_start}: its network does not fit: {differences}. "
            f"Add {flags}, or leave warm_start out."
        )
    return network


def _certified_levels(config: CurriculumConfig) -> list[int]:
    """The levels whose certificate the run ends with.

    None where neighbourhoods are kept from training, or where a network may exchange operands: it is then not expected
    to write what the engine writes.
    """
    return [level for level in config.curriculum.levels if level in CERTIFIED] if _certifies(config) else []


def _certifies(config: CurriculumConfig) -> bool:
    curriculum = config.curriculum
    return curriculum.certify and not curriculum.held_out_windows and config.loss.alignment != "searched"


def certify_and_mend(
    run: RunDirectory,
    config: CurriculumConfig,
    loader: NeighbourhoodLoader,
    levels: Sequence[int],
    note: Callable[[str], object],
) -> None:
    """Mends the run's network where it is wrong, and writes the certificates of these levels into `CERTIFICATE_FILE`.

    A network that was mended is kept as a checkpoint of its own, of a later step: a resume goes on from there.

    Args:
        run, config: a run whose training has ended.
        loader: of its neighbourhoods.
        levels: that the closures in them are of.
        note: called with a line about what is being done, and with the lines of the certificates.
    """
    store = open_checkpoints(run, config)
    checkpoint = store.latest()
    assert checkpoint is not None
    model = model_of(checkpoint)
    clock = Clock(checkpoint.clock["seconds"], checkpoint.clock["cpu_seconds"])
    with clock.running(), torch_threads(config.threads):
        steps = mend(model, loader, levels, seed=config.seed, note=note)
    if steps:
        note(f"mended the network in {steps} more steps")
        step, tensors = checkpoint.step + steps, model_tensors(model)
        groups = {name: tensors if name in ("model", "ema") else kept for name, kept in checkpoint.tensors.items()}
        state = {**checkpoint.state, "counters": {**checkpoint.state["counters"], "step": step}}
        store.save(Checkpoint(run.run_id, step, None, groups, state, clock.to_json()))
    found = [certify(model, level, expressions=_EXPRESSIONS, note=note) for level in levels]
    replace_file(run.path / CERTIFICATE_FILE, json.dumps([each.summary() for each in found], indent=1).encode())
    for line in (line for each in found for line in each.lines):
        note(line)


@torch.enable_grad()
def mend(
    model: GraphRewriter,
    loader: NeighbourhoodLoader,
    levels: Sequence[int],
    *,
    seed: int,
    note: Callable[[str], object] = lambda line: None,
) -> int:
    """Trains a network that is wrong at neighbourhoods of these levels until it is not; returns the steps made.

    A batch has some neighbourhoods that were wrong and many of all stages, so that nothing else is forgotten. The
    network stays as it was, and 0 is returned, where more are wrong in the end than at first.

    Args:
        model: in eval mode, as which it comes back.
        loader: whose neighbourhoods are trained on.
        levels: that have to be right.
        seed: of the batches.
        note: called with a line about what is wrong.
    """
    everything = tuple(LEVELS)
    wrong = loader.wrong_neighbourhoods(model, levels)
    if not wrong:
        return 0
    note(f"the network is wrong at {len(wrong):,} neighbourhoods of the levels {', '.join(map(str, levels))}")
    wrong_at_first = len(loader.wrong_neighbourhoods(model, everything))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    draws = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), _RATE)
    items, hard = loader.neighbourhoods_of(everything), loader.items_of(wrong)
    for step in range(1, _MENDING_STEPS + 1):
        parts = ((items, _OF_ALL), (hard, _OF_WRONG))
        chosen = torch.cat([pool[torch.randint(len(pool), (count,), generator=draws)] for pool, count in parts])
        model.zero_grad()
        model.loss(loader.rows[chosen], loader.targets[chosen]).backward()  # type: ignore[no-untyped-call]
        model.clip_gradients(1.0)
        optimizer.step()
        if step % _STEPS_BETWEEN_CHECKS == 0:
            with torch.no_grad():
                wrong = loader.wrong_neighbourhoods(model, everything)
            if not wrong:
                return step
            hard = torch.cat([hard, loader.items_of(wrong)])
    if len(wrong) > wrong_at_first:
        model.load_state_dict(before)
        return 0
    return _MENDING_STEPS


def _judged(run: RunDirectory, config: CurriculumConfig) -> Evaluation:
    found = evaluate(run.path, expressions=config.test_samples)
    found.write(run.path)
    return found


def _judged_before(run: RunDirectory, config: CurriculumConfig, step: int) -> Evaluation | None:
    """The evaluation that the run holds, if it is of this step and has as many expressions."""
    try:
        found = Evaluation.read(run.path)
    except RunError:
        return None
    if found is None or found.step != step:
        return None
    return found if all(each.expressions == config.test_samples for each in found.levels.values()) else None


def _neighbourhoods(
    run: RunDirectory, config: CurriculumConfig, processes: Processes, note: Callable[[str], object]
) -> NeighbourhoodSet:
    """The neighbourhoods of the run: those that it has, or all traced now by the first process."""
    traced: list[NeighbourhoodSet] = []
    processes.by_first(lambda: traced.append(_traced(run, config, note)))
    if traced:
        return traced[0]
    kept = read_neighbourhoods(run.path, SIGNATURE)
    if kept is None:
        raise RunError(f"{run.path} has no neighbourhoods: all processes must see the directory of the run.")
    return kept[0]


def _traced(run: RunDirectory, config: CurriculumConfig, note: Callable[[str], object]) -> NeighbourhoodSet:
    kept = read_neighbourhoods(run.path, SIGNATURE)
    if kept is not None:
        return kept[0]
    samples = {level: config.curriculum.samples_of(level) for level in config.curriculum.levels}
    processes = min(_cores(), 8) if sum(samples.values()) > 20_000 else 1
    note(f"tracing {sum(samples.values()):,} expressions of the levels {', '.join(map(str, samples))}")
    start, cpu_start = time.perf_counter(), _cpu_seconds()
    collected = collect_neighbourhoods(samples, seed=config.seed, preset=config.curriculum.preset, processes=processes)
    if _certifies(config):
        collected = with_more(collected, {level: closure_of(level) for level in _certified_levels(config)})
        if 6 in config.curriculum.levels:
            collected = with_shared_integrals(collected, seed=config.seed, preset=config.curriculum.preset)
    cost = Cost(time.perf_counter() - start, _cpu_seconds() - cpu_start)
    write_neighbourhoods(run.path, collected, cost, SIGNATURE)
    note(f"{len(collected):,} distinct neighbourhoods in {cost.seconds:.0f} s")
    return collected


def _cores() -> int:
    """Cores that this process may use: a container may own 2 of 64."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended (Windows counts those as none)."""
    return sum(os.times()[:4])


def _progress_of(
    model: GraphRewriter,
    loader: NeighbourhoodLoader,
    config: CurriculumConfig,
    promotion: StagePromotion,
    step: int,
    processes: Processes,
) -> dict[str, Any]:
    """Share of the open levels' neighbourhoods that are wrong, and accuracy by level on new validation expressions.

    Wrong neighbourhoods are drawn more often from then on: of 82,000, three to seven stayed wrong to the end without
    that. While too many are wrong no expression is answered: there is no accuracy by level, and ``accuracy``,
    which ranks checkpoints, is 0. Every process checks all neighbourhoods, which is cheap and gives all of them the
    same decision, and answers its share of the expressions.
    """
    levels = promotion.active
    wrong_neighbourhoods = loader.wrong_neighbourhoods(model, levels)
    wrong = len(wrong_neighbourhoods) / max(1, len(loader.neighbourhoods_of(levels)))
    finished = config.early_stopping.when_right and not wrong and levels == promotion.stages
    if wrong > _WRONG_NEIGHBOURHOODS_AT_MOST:
        return {"windows_wrong": wrong, "accuracy": Meter.of([0.0])}
    machine = RewritingMachine(SIGNATURE, model)
    accuracy = {}
    for level in levels:
        samples = samples_of(level, config.eval_samples, config, split="validation", seed=config.seed)
        examples, _ = ask(machine, samples[processes.rank :: processes.size], budget=_STEP_BUDGET)
        accuracy[level] = Meter.of(float(example.right) for example in examples)
    met = _mistakes_of(model, config, levels, step) if config.curriculum.own_runs and not finished else []
    mistakes = [*({each.neighbourhood: each for each in (*wrong_neighbourhoods, *met)}).values()]
    learned = {"mistakes": len(mistakes), "mistakes_new": 0 if finished else loader.learn_from(mistakes)}
    # Every level asks as many expressions, so that the mean over all of them is the mean of the levels' means.
    return {
        "windows_wrong": wrong,
        "accuracy": functools.reduce(Meter.merged, accuracy.values()),
        **{f"accuracy/{level}": value for level, value in accuracy.items()},
        **learned,
        **({"finished": True} if finished else {}),
    }


def _mistakes_of(model: GraphRewriter, config: CurriculumConfig, levels: tuple[int, ...], step: int) -> list[Mistake]:
    """Neighbourhoods that the network gets wrong when it answers training expressions that were not traced.

    Off the right path it meets neighbourhoods that no trace holds. Every process has the same weights, so all of them
    find the same ones.
    """
    found: dict[NeighbourhoodTokens, Mistake] = {}
    count = config.curriculum.own_runs
    for level in levels:
        machine = RewritingMachine(SIGNATURE, model)
        first = config.curriculum.samples_of(level) + step * count
        samples = samples_of(level, count, config, split="train", seed=config.seed, first=first)
        ask(machine, samples, budget=_STEP_BUDGET)
        for number in range(machine.num_neighbourhoods):
            neighbourhood = machine.neighbourhood(number)
            right = engine_replacement(neighbourhood)
            if right is not None and right != machine.replacement(number):
                found.setdefault(neighbourhood, Mistake(level, neighbourhood, right))
    return list(found.values())
