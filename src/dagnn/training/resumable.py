"""Everything that decides how a training goes on, in one place: taken into a checkpoint, and put back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dagnn.errors import CheckpointError, DagnnError
from dagnn.training.checkpoint import Checkpoint
from dagnn.training.counters import Counters
from dagnn.training.ema import WeightAverage
from dagnn.training.promotion import LevelPromotion
from dagnn.training.rng import seed_everything, set_rng_state
from dagnn.training.source import BatchSource
from dagnn.training.tensor_state import check_tensors, load_model, load_optimizer, model_tensors, optimizer_state


@dataclass(frozen=True)
class Resumable:
    """The stateful parts of one training. Random generators belong to it too; being global, they are not listed."""

    model: nn.Module
    optimizer: Optimizer
    average: WeightAverage | None
    source: BatchSource[Any]
    promotion: LevelPromotion | None

    def tensors(self) -> dict[str, Mapping[str, Tensor]]:
        """Tensors by group and name, not copies."""
        groups: dict[str, Mapping[str, Tensor]] = {
            "model": model_tensors(self.model),
            "optimizer": optimizer_state(self.optimizer, self.model)[0],
        }
        return groups if self.average is None else {**groups, "ema": self.average.state_dict()}

    def state(self, counters: Counters, description: Any, rng_of_rank: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """All the rest as JSON values; ``rng_of_rank`` are the generators of every process (`rng_state`)."""
        first, *others = rng_of_rank
        return {
            "counters": counters.to_json(),
            "data": self.source.state_dict(),
            "promotion": None if self.promotion is None else self.promotion.state_dict(),
            "optimizer": optimizer_state(self.optimizer, self.model)[1],
            "rng": first,
            "description": description,
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
        tensors: Mapping[str, Mapping[str, Tensor]],
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
        check_tensors(tensors["model"], model_tensors(self.model), "model")
        if self.average is not None:
            check_tensors(tensors["ema"], self.average.state_dict(), "model")
        load_optimizer(self.optimizer, self.model, tensors["optimizer"], state["optimizer"])
        load_model(self.model, tensors["model"])
        if self.average is not None:
            self.average.load_state_dict(tensors["ema"])
        if self.promotion is not None:
            self.promotion.load_state_dict(state["promotion"])
        announce_levels()
        self.source.load_state_dict(state["data"])
        return counters


def num_ranks_of(checkpoint: Checkpoint) -> int:
    """How many processes were training when it was saved."""
    return len(_generators_of(checkpoint))


def _generators_of(checkpoint: Checkpoint) -> list[Mapping[str, Any]]:
    return [checkpoint.state["rng"], *checkpoint.state.get("rng_of_other_ranks", [])]
