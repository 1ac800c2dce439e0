"""Everything that decides how a training goes on, in one place: taken into a checkpoint, and put back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer

from dagnn.errors import CheckpointError, DagnnError, RunError
from dagnn.training.checkpoint import Checkpoint, json_bytes
from dagnn.training.counters import Counters
from dagnn.training.ema import WeightAverage
from dagnn.training.plain_values import json_value, packed, unpacked
from dagnn.training.promotion import LevelPromotion
from dagnn.training.rng import rng_state, seed_everything, set_rng_state
from dagnn.training.source import BatchSource
from dagnn.training.tensor_file import check_kept
from dagnn.training.tensor_state import (
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


@dataclass(frozen=True)
class Resumable:
    """The stateful parts of one training. Random generators belong to it too; being global, they are not listed."""

    model: nn.Module
    optimizer: Optimizer
    average: WeightAverage | None
    source: BatchSource[Any]
    promotion: LevelPromotion | None
    begun: list[list[str]] = field(default_factory=list)

    def begin(self) -> None:
        """Note the optimizer's groups as they are when a training begins: a resume finds them so, whatever came since.

        Raises:
            RunError: the optimizer has a parameter that is not the model's.
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
            "data": packed(self.source.state_dict(), "the state of the source"),
            "promotion": None if self.promotion is None else self.promotion.state_dict(),
            "optimizer": optimizer_state(self.optimizer, self.model, self.begun or None)[1],
            "flags": flags_of(self.model),
            "rng": first,
            "description": json_value(description, "the description"),
            **({"rng_of_other_ranks": others} if others else {}),
        }

    def restore(
        self, checkpoint: Checkpoint, announce_levels: Callable[[], None], *, rank: int = 0, seed: int = 0
    ) -> Counters:
        """Put everything back.

        Args:
            checkpoint: of a training by any number of processes.
            announce_levels: called between the promotion and the source, whose state may depend on the levels.
            rank: this process, whose generators are put back.
            seed: of the training: a process that it did not have yet draws from this, its rank and the step.

        Raises:
            CheckpointError: it is of another model, optimizer, curriculum or data.
        """
        try:
            counters = self._restore(checkpoint.tensors, checkpoint.state, announce_levels)
            # Last: whatever the others have drawn does not count.
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
        self,
        tensors: Mapping[str, Mapping[str, Any]],
        state: Mapping[str, Any],
        announce_levels: Callable[[], None],
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
        announce_levels()  # which may give the optimizer further groups
        load_optimizer(self.optimizer, self.model, tensors["optimizer"], state["optimizer"])
        self.begun[:] = state["optimizer"].get("begun", state["optimizer"]["names"])
        load_model(self.model, tensors["model"])
        if self.average is not None:
            self.average.load(tensors["ema"])
        if "flags" in state:  # an older checkpoint has none
            load_flags(self.model, state["flags"])
        self.source.load_state_dict(unpacked(state["data"]))
        return counters


def num_ranks_of(checkpoint: Checkpoint) -> int:
    """How many processes were training when it was saved."""
    return len(_generators_of(checkpoint))


def _generators_of(checkpoint: Checkpoint) -> list[Mapping[str, Any]]:
    return [checkpoint.state["rng"], *checkpoint.state.get("rng_of_other_ranks", [])]
