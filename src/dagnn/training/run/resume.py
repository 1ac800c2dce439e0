"""Resuming: the state that decides how a training goes on, and the settings that a resume may change."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from dagnn.accumulation.random_states import rng_state, seed_everything, set_rng_state
from dagnn.errors import CheckpointError, ConfigError, DagnnError, RunError, warn
from dagnn.training.averages import WeightAverage
from dagnn.training.config import Config, TrainingConfig
from dagnn.training.counters import Counters, StagePromotion
from dagnn.training.loader import BatchLoader
from dagnn.training.run.checkpoints import Checkpoint, json_bytes
from dagnn.training.run.tensors import (
    check_optimizer,
    check_tensors,
    flags_of,
    load_flags,
    load_model,
    load_optimizer,
    model_tensors,
    names_of_groups,
    optimizer_state,
)
from dagnn.training.run.values import check_kept, json_value, packed, unpacked
from dagnn.training.settings import flatten, refuse

if TYPE_CHECKING:
    from dagnn.training.processes import Processes


# These change where or when something is kept or shown, and no number of the training.
_FREE = {
    "threads",
    "run_directory",
    "profile_steps",
    "checkpoint.save_every",
    "checkpoint.keep_last",
    "checkpoint.keep_best",
}
# Schedules whose learning rate at a step does not depend on how many steps there will be.
_ENDLESS = ("constant", "step", "exponential", "warmup", "plateau")
RESCHEDULE = ("keep", "stretch")


def find_run(path: str | Path) -> tuple[Path, int | None]:
    """The run directory, and the step when ``path`` is one of its checkpoints (None: the newest).

    >>> find_run("runs/a/checkpoints/step-00000500")
    (PosixPath('runs/a'), 500)
    >>> find_run("runs/a")
    (PosixPath('runs/a'), None)
    """
    path = Path(path)
    match = re.fullmatch(r"step-(\d{8,})", path.name)
    if match and path.parent.name == "checkpoints":
        return path.parent.parent, int(match[1])
    return path, None


def resumed_config(stored: Config, given: Mapping[str, Any], *, reschedule: str | None = None) -> Config:
    """The run's own configuration with the settings given at the resume.

    A resume may change where and how often things are kept, ``threads`` (they alter neither data nor formulas), and
    ``max_steps``. Under a cosine, whose learning rates depend on ``max_steps``, it needs ``reschedule``.

    Args:
        stored: of the run.
        given: dotted key -> value.
        reschedule: "keep" goes on along the run's curve, and at its final learning rate after its end; "stretch" goes
            over to the curve that spans the new ``max_steps``. It has no effect where ``max_steps`` stays.

    Raises:
        ConfigError: a setting would change the training itself, so it would not be a resume.
    """
    if reschedule is not None and reschedule not in RESCHEDULE:
        raise ConfigError(f"reschedule = {reschedule}: allowed is one of {', '.join(RESCHEDULE)}.")
    wanted = stored.changed(given)
    free, problems = set(_FREE), []
    if stored.schedule.name in _ENDLESS:
        free.add("max_steps")
    elif wanted.max_steps != stored.max_steps:
        free |= {"max_steps", "schedule.steps"}
        if reschedule is None:
            problems.append(
                f"max_steps = {wanted.max_steps}: the run has {stored.max_steps}, and its learning rates follow a "
                f"{stored.schedule.name} that ends at step {stored.schedule_steps}: say --reschedule keep to stay on "
                "that curve, or --reschedule stretch to go over to the one that ends at the new max_steps."
            )
        else:
            steps = stored.schedule_steps if reschedule == "keep" else 0
            wanted = wanted.changed({"schedule.steps": steps})
    problems += [
        f"{key} = {theirs}: the run has {mine}, and a resumed run keeps it: leave it out, or begin a new run."
        for key, (mine, theirs) in stored.differences(wanted).items()
        if key not in free
    ]
    refuse(problems)
    return wanted


def same_training(stored: Config, wanted: Config, *, reschedule: str | None = None) -> Config:
    """What `resumed_config` makes of a whole configuration; raises ConfigError where it does."""
    given = flatten(wanted)
    # Users who resume a run that was rescheduled before need not know where its curve ends.
    if wanted.schedule.steps == 0:
        given["schedule.steps"] = stored.schedule.steps
    return resumed_config(stored, given, reschedule=reschedule)


def changes(
    stored: TrainingConfig, wanted: TrainingConfig, reschedule: str | None, num_before: int, processes: "Processes"
) -> list[tuple[str, dict[str, Any]]]:
    """Rows of metrics.jsonl (kind and values) about what a resume changes; warns where the bits of the training will.

    Args:
        stored, wanted: of the run, and from `same_training`.
        reschedule: as given there.
        num_before: how many processes trained before.
        processes: those of now.
    """
    rows: list[tuple[str, dict[str, Any]]] = []
    if reschedule is not None and wanted.max_steps != stored.max_steps:
        steps = {"max_steps_before": stored.max_steps, "max_steps": wanted.max_steps}
        rows.append(("reschedule", {"reschedule": reschedule, **steps}))
    if num_before != processes.size:
        rows.append(("processes", {"processes_before": num_before, "processes": processes.size}))
        if processes.is_first:
            warn(
                f"the number of processes was {num_before} and is {processes.size}: the training goes on with the same "
                "batches and other random numbers; it equals one that kept the number to rounding, not to the bit."
            )
    return rows


@dataclass(frozen=True)
class Resumable:
    """The stateful parts of one training. Random generators belong to it too; being global, they are not listed."""

    model: nn.Module
    optimizer: Optimizer
    average: WeightAverage | None
    loader: BatchLoader[Any]
    promotion: StagePromotion | None
    begun: list[list[str]] = field(default_factory=list)

    def begin(self) -> None:
        """Record the groups of the optimizer when a training begins: a resume starts from them, not from later ones.

        RunError where the optimizer has a parameter that is not the model's.
        """
        self.begun[:] = names_of_groups(self.optimizer, self.model)

    def tensors(self) -> dict[str, Mapping[str, Any]]:
        """Tensors by group and name, and extra state; not copies."""
        groups: dict[str, Mapping[str, Any]] = {
            "model": model_tensors(self.model),
            "optimizer": optimizer_state(self.optimizer, self.model)[0],
        }
        return groups if self.average is None else {**groups, "ema": self.average.saved()}

    def check(self, counters: Counters, description: Any) -> None:
        """Raise RunError where a checkpoint of this moment could not be kept, naming what cannot; writes nothing."""
        for group, entries in self.tensors().items():
            check_kept(entries, f"the {group}'s")
        state = self.state(counters, description, [rng_state()])
        for part, value in state.items():
            try:
                json_bytes(value)
            except ValueError as error:
                raise RunError(f"the checkpoint's {part} is no JSON: {error}.") from error

    def state(self, counters: Counters, description: Any, rng_of_rank: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """All the rest as JSON values; ``rng_of_rank`` are the generators of every process (`rng_state`)."""
        first, *others = rng_of_rank
        return {
            "counters": counters.to_json(),
            "data": packed(self.loader.state_dict(), "the state of the loader"),
            "promotion": None if self.promotion is None else self.promotion.state_dict(),
            "optimizer": optimizer_state(self.optimizer, self.model, self.begun or None)[1],
            "flags": flags_of(self.model),
            "rng": first,
            "description": json_value(description, "the description"),
            **({"rng_of_other_ranks": others} if others else {}),
        }

    def restore(
        self, checkpoint: Checkpoint, announce_stages: Callable[[], None], *, rank: int = 0, seed: int = 0
    ) -> Counters:
        """Put the state of a checkpoint back.

        Args:
            checkpoint: of a training by any number of processes.
            announce_stages: called between the promotion and the loader, whose state may depend on the stages.
            rank: this process, whose generators are put back.
            seed: of the training: a process that it did not have yet draws from this, its rank and the step.

        Raises:
            CheckpointError: it is of another model, optimizer, curriculum or data.
        """
        try:
            counters = self._restore(checkpoint.tensors, checkpoint.state, announce_stages)
            # Last, because loading the other parts may draw random numbers.
            generators = _generators_of(checkpoint)
            if rank < len(generators):
                set_rng_state(generators[rank])
            else:
                seed_everything(seed + checkpoint.step, rank)
            return counters
        except DagnnError:
            raise
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint of step {checkpoint.step} has another form: {error!r}.") from error

    def _restore(
        self, tensors: Mapping[str, Mapping[str, Any]], state: Mapping[str, Any], announce_stages: Callable[[], None]
    ) -> Counters:
        if (self.average is None) != ("ema" not in tensors) or (self.promotion is None) != (state["promotion"] is None):
            raise CheckpointError(
                "the checkpoint is of a training with other parts (averaged weights, promotion): "
                "use the run's own configuration."
            )
        # What can be compared is compared first, so that a refusal leaves everything as it was.
        counters = Counters.from_json(state["counters"])
        own = model_tensors(self.model)
        check_tensors(tensors["model"], own, "model")
        if self.average is not None:
            averaged = self.average.names_alike() | {name for name in tensors["ema"] if name in own}
            check_tensors(tensors["ema"], {name: own[name] for name in averaged}, "model")
        check_optimizer(self.optimizer, self.model, state["optimizer"])
        if self.promotion is not None:
            self.promotion.load_state_dict(state["promotion"])
        announce_stages()  # which may give the optimizer further groups
        load_optimizer(self.optimizer, self.model, tensors["optimizer"], state["optimizer"])
        self.begun[:] = state["optimizer"].get("begun", state["optimizer"]["names"])
        load_model(self.model, tensors["model"])
        if self.average is not None:
            self.average.load(tensors["ema"])
        if "flags" in state:  # an older checkpoint has none
            load_flags(self.model, state["flags"])
        self.loader.load_state_dict(unpacked(state["data"]))
        return counters


def num_ranks_of(checkpoint: Checkpoint) -> int:
    """How many processes were training when it was saved."""
    return len(_generators_of(checkpoint))


def _generators_of(checkpoint: Checkpoint) -> list[Mapping[str, Any]]:
    return [checkpoint.state["rng"], *checkpoint.state.get("rng_of_other_ranks", [])]
