"""Exact gradient accumulation for any PyTorch model: the accumulated gradient is that of the full batch."""

from dagnn.accumulation import weights as weights
from dagnn.accumulation.accumulator import GradientAccumulator
from dagnn.accumulation.check import Report, Watched, check_equivalence, check_loop, watch
from dagnn.accumulation.stepping import Update
from dagnn.accumulation.whole_batch import AccumulatedLoss, accumulate
from dagnn.accumulation.window import Window
from dagnn.errors import AccumulationWarning

__all__ = [
    "AccumulatedLoss",
    "AccumulationWarning",
    "GradientAccumulator",
    "Report",
    "Update",
    "Watched",
    "Window",
    "accumulate",
    "check_equivalence",
    "check_loop",
    "watch",
]
