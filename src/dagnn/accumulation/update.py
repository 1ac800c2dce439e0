"""What one optimizer update was."""

from collections.abc import Mapping
from typing import NamedTuple


class Update(NamedTuple):
    """The result of one window.

    ``loss`` and ``grad_norm`` are those of the full batch: they do not depend on how it was cut, nor on the number of
    processes.
    """

    step: int  # optimizer updates made so far, this one included; a skipped window does not count
    loss: float  # mean over all items of the window, or undivided sum; all losses added; nan when it was empty
    weight: float  # what the sum over all processes was divided by; of the first denominator if there are several
    grad_norm: float  # L2 norm over all gradients before clipping; nan when the window was empty
    lr: float  # of the first parameter group, as used by this update
    skipped: str | None  # None when parameters were updated, else "empty" or "non-finite"
    micro_batches: int  # that ran, over all processes
    losses: Mapping[str, float]  # every named loss by itself
