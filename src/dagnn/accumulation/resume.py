"""Saving a window that is half done, and going on with it."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dagnn.accumulation.gradients import GradientSums
from dagnn.accumulation.loss_scale import LossScale
from dagnn.accumulation.shares import Shares
from dagnn.accumulation.sums import Sums
from dagnn.errors import AccumulationError, ConfigError


def window_state(sums: Sums, shares: Shares, loss_scale: LossScale | None, done: int, num_run: int) -> dict[str, Any]:
    """Everything that a window holds after ``done`` micro-batches: sums as copies, the rest as plain values."""
    if not isinstance(sums, GradientSums):
        raise AccumulationError("a window with eager updates cannot be saved half done: save at its boundary.")
    return {
        "done": done,
        "num_run": num_run,
        "sums": [None if held is None else held.detach().clone() for held in sums.held],
        "shares": shares.state(),
        "scale": None if loss_scale is None else loss_scale.state(),
    }


def restore_window(state: Mapping[str, Any], sums: Sums, shares: Shares, micro_batches: int) -> bool:
    """Put ``state`` back into a fresh window; True if it had a loss scale.

    Raises:
        ConfigError: the window at hand is not the one that was saved.
    """
    saved: list[Tensor | None] = state["sums"]
    if not isinstance(sums, GradientSums) or len(saved) != len(sums.parameters) or state["done"] > micro_batches:
        raise ConfigError(
            f"the saved window had {len(saved)} parameters and {state['done']} micro-batches done, but this one has "
            f"{len(sums.parameters)} parameters and {micro_batches} micro-batches: start the loader at the first "
            "micro-batch of the saved window, with the same model."
        )
    for parameter, held in zip(sums.parameters, saved, strict=True):
        if held is not None and held.shape != parameter.shape:
            raise ConfigError(
                f"a saved gradient has the shape {list(held.shape)}, its parameter {list(parameter.shape)}: the state "
                "is of another model."
            )
    sums.held = [None if h is None else h.to(p.device) for h, p in zip(saved, sums.parameters, strict=True)]
    shares.load_state(state["shares"])
    return state["scale"] is not None
