"""A run ends with certificates: what they ask about is trained on, and a network still wrong there is mended."""

import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from dagnn.curriculum.accuracy import model_of
from dagnn.curriculum.certificate import certify, closure_of
from dagnn.curriculum.config import CurriculumConfig
from dagnn.curriculum.draw import Draws, part_of
from dagnn.curriculum.engine import RuleEngine, to_term
from dagnn.curriculum.expression import Expr
from dagnn.curriculum.generator import has_held_out_part, make_sample
from dagnn.curriculum.levels import LEVELS
from dagnn.curriculum.rules import SIGNATURE
from dagnn.files import replace_file
from dagnn.rewriting import LEAVE, GraphRewriter, NeighbourhoodTokens, ReplacementTokens, RewritingMachine
from dagnn.rewriting.dataset import NeighbourhoodLoader, NeighbourhoodSet
from dagnn.training.counters import Clock
from dagnn.training.processes import torch_threads
from dagnn.training.run.checkpoints import Checkpoint
from dagnn.training.run.directory import RunDirectory, open_checkpoints
from dagnn.training.run.tensors import model_tensors

CERTIFICATE_FILE = "certificate.json"
# What is still wrong after thousands of steps takes about fifty.
_STEPS, _STEPS_BETWEEN_CHECKS, _RATE = 150, 50, 2e-4
_CHUNK = 500  # expressions traced before the shared graph is cleared
_OF_ALL, _OF_WRONG = 448, 64  # neighbourhoods of a batch
_SHARED_INTEGRALS = 20_000  # 6 CPU seconds
_EXPRESSIONS = 2_000  # drawn in search of some that show what is still wrong: `dagnn certify` draws more


def with_closures(collected: NeighbourhoodSet, levels: Sequence[int]) -> NeighbourhoodSet:
    """The set with all that inputs of these levels can lead to.

    What no trace met counts once, at the lowest of the levels that has it.
    """
    return _with_more(collected, {level: closure_of(level) for level in sorted(levels)})


def with_shared_integrals(collected: NeighbourhoodSet, *, seed: int, preset: str) -> NeighbourhoodSet:
    """The set with what integrals lead to whose integrand is an operation on a training sample's and a part of it.

    Level 6 has no list of all neighbourhoods, and its samples hardly ever hold the same twice: a network that was right
    at all that they lead to had 50 of 300 such integrals wrong. What no trace met counts once.
    """
    machine = RewritingMachine(SIGNATURE, RuleEngine(), eager=True)
    for first in range(0, _SHARED_INTEGRALS, _CHUNK):
        drawn = (
            _shared_integral(seed, preset, index) for index in range(first, min(first + _CHUNK, _SHARED_INTEGRALS))
        )
        machine.clear_graph()
        machine.absorb([to_term(expression)[0] for expression in drawn if not has_held_out_part(expression)])
    numbers = range(machine.num_neighbourhoods)
    return _with_more(collected, {6: {machine.neighbourhood(w): machine.replacement(w) or LEAVE for w in numbers}})


def _shared_integral(seed: int, preset: str, index: int) -> Expr:
    draws = Draws(f"shared 6 {seed} {preset} {index}")
    sample = make_sample(6, seed=seed, index=index, preset=preset).input
    assert isinstance(sample, tuple)
    whole, *rest = sample[1:]
    operator, part = draws.choice(("+", "+", "-", "-", "*", "/")), part_of(draws, whole)
    return ("integrate", (operator, whole, part) if draws.chance(0.5) else (operator, part, whole), *rest)


def _with_more(
    collected: NeighbourhoodSet, found: Mapping[int, Mapping[NeighbourhoodTokens, ReplacementTokens]]
) -> NeighbourhoodSet:
    """The set with what was found at each level, which counts once where it is new."""
    replacement_of = dict(zip(collected.neighbourhoods, collected.replacements, strict=True))
    counts = dict(zip(collected.neighbourhoods, collected.counts, strict=True))
    for level, more in found.items():
        once = np.array([stage == level for stage in collected.stages], np.int64)
        for neighbourhood, replacement in more.items():
            replacement_of.setdefault(neighbourhood, replacement)
            counts.setdefault(neighbourhood, once)
    neighbourhoods = sorted(replacement_of)
    return NeighbourhoodSet(
        neighbourhoods,
        [replacement_of[each] for each in neighbourhoods],
        np.stack([counts[each] for each in neighbourhoods]),
        collected.stages,
    )


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
    for step in range(1, _STEPS + 1):
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
    return _STEPS
