"""A run ends with certificates: what they ask about is trained on, and a network still wrong there is mended."""

import json
from collections.abc import Callable, Sequence

import numpy as np
import torch

from dagnn.curriculum.accuracy import model_of
from dagnn.curriculum.certificate import certify, closure_of
from dagnn.curriculum.config import CurriculumConfig
from dagnn.curriculum.levels import LEVELS
from dagnn.files import replace_file
from dagnn.rewriting import GraphRewriter
from dagnn.rewriting.dataset import NeighbourhoodLoader, NeighbourhoodSet
from dagnn.training.counters import Clock
from dagnn.training.processes import torch_threads
from dagnn.training.run.checkpoints import Checkpoint
from dagnn.training.run.directory import RunDirectory, open_checkpoints
from dagnn.training.run.tensors import model_tensors

CERTIFICATE_FILE = "certificate.json"
# What is still wrong after thousands of steps takes about fifty.
_STEPS, _STEPS_BETWEEN_CHECKS, _RATE = 150, 50, 2e-4
_OF_ALL, _OF_WRONG = 448, 64  # neighbourhoods of a batch
_EXPRESSIONS = 2_000  # drawn in search of some that show what is still wrong: `dagnn certify` draws more


def with_closures(collected: NeighbourhoodSet, levels: Sequence[int]) -> NeighbourhoodSet:
    """The set with all that inputs of these levels can lead to.

    What no trace met counts once, at the lowest of the levels that has it.
    """
    replacement_of = dict(zip(collected.neighbourhoods, collected.replacements, strict=True))
    counts = dict(zip(collected.neighbourhoods, collected.counts, strict=True))
    for level in sorted(levels):
        once = np.array([stage == level for stage in collected.stages], np.int64)
        for neighbourhood, replacement in closure_of(level).items():
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
