"""Everything that makes an accumulated gradient differ from the full batch, in plain words, and what to change."""

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """Names of the causes. The first group lies in the loop, the second in the model or its loss."""

    NOT_ZEROED = "not zeroed"
    ZEROED_TOO_OFTEN = "zeroed too often"
    NOT_SCALED = "not scaled"
    SCALED_TWICE = "scaled twice"
    SUM_LOSS = "sum loss"
    WRONG_SCALE = "wrong scale"
    MEAN_OF_MEANS = "mean of means"
    WRONG_DENOMINATOR = "wrong denominator"
    OTHER_LOSS = "another loss"
    MISSING_BACKWARD = "missing backward"
    EXTRA_STEP = "early or extra step"
    MISSING_STEP = "missing step"
    LOST_REMAINDER = "lost remainder"
    SHORT_WINDOW = "short last window scaled by K"
    CLIP_PER_MICRO_BATCH = "clip per micro-batch"
    TAIL_NOT_CLIPPED = "short last window not clipped"
    CLIP_BEFORE_UNSCALE = "clip before unscale"
    NOT_UNSCALED = "not unscaled"
    SCHEDULE_PER_MICRO_BATCH = "schedule per micro-batch"
    UNUSED_PARAMETER = "unused parameter"
    IMAGINARY = "imaginary part lost"
    LOW_PRECISION = "low precision"

    BATCH_NORM = "BatchNorm"
    DROPOUT = "dropout"
    COUPLED = "batch-coupled loss"
    BUFFER = "in-place buffer"
    RECOMPUTATION = "recomputed with other random numbers"


class Cause(NamedTuple):
    """One cause that was found."""

    kind: Kind
    explanation: str  # what happens, with the numbers that were measured
    change: str  # what to write instead
    line: str | None = None  # "file.py:12: the source line", where it could be found


_CHANGES = {
    Kind.NOT_ZEROED: "call optimizer.zero_grad() once after every optimizer.step().",
    Kind.ZEROED_TOO_OFTEN: "call optimizer.zero_grad() after optimizer.step(), not in every micro-batch.",
    Kind.NOT_SCALED: "divide each mean loss: (loss * len(micro) / items_in_window).backward().",
    Kind.SCALED_TWICE: "divide by the number of micro-batches in one place only.",
    Kind.SUM_LOSS: "use a mean loss times its share, or divide the sum by the items of the whole window.",
    Kind.WRONG_SCALE: "multiply each mean loss by len(micro) / items_in_window, and by nothing else.",
    Kind.MEAN_OF_MEANS: "weight each micro-batch by its size: (loss * len(micro) / items_in_window).backward().",
    Kind.WRONG_DENOMINATOR: "weight each micro-batch by what its loss divides by (valid tokens, class weights), over "
    "the total of the window.",
    Kind.OTHER_LOSS: "let the loop compute the loss that loss_fn computes, or give the check the loss of the loop.",
    Kind.MISSING_BACKWARD: "call backward() on the loss of every micro-batch; losses may be added, but not detached.",
    Kind.EXTRA_STEP: "step once, after the last micro-batch of each window: if (i + 1) % K == 0.",
    Kind.MISSING_STEP: "step after every K micro-batches: if (i + 1) % K == 0.",
    Kind.LOST_REMAINDER: "also step after the last micro-batch of the epoch: if (i + 1) % K == 0 or i + 1 == total.",
    Kind.SHORT_WINDOW: "divide by the size of the window at hand; the last one may be shorter than K.",
    Kind.CLIP_PER_MICRO_BATCH: "clip once, between the last backward of the window and optimizer.step().",
    Kind.TAIL_NOT_CLIPPED: "clip before every optimizer.step(), that of a short last window included.",
    Kind.CLIP_BEFORE_UNSCALE: "call scaler.unscale_(optimizer) once per window, before the clipping.",
    Kind.NOT_UNSCALED: "step with scaler.step(optimizer), and call scaler.unscale_(optimizer) at most once before it.",
    Kind.SCHEDULE_PER_MICRO_BATCH: "call scheduler.step(), or set the learning rate, once per optimizer.step().",
    Kind.UNUSED_PARAMETER: "let these parameters take part: no detach() or no_grad() around them.",
    Kind.IMAGINARY: "keep the gradient of a complex parameter complex: no .real and no cast on its way to .grad.",
    Kind.LOW_PRECISION: "sum gradients in float32: keep master weights in float32, or accumulate_dtype='auto' of "
    "dagnn.GradientAccumulator.",
    Kind.BATCH_NORM: "use GroupNorm or LayerNorm, or put these layers in eval mode.",
    Kind.DROPOUT: "nothing, if that is acceptable: the masks differ, not the expected gradient. To compare exactly, "
    "put the model in eval mode.",
    Kind.COUPLED: "use dagnn.accumulate(..., coupled=True), which keeps the representations of the whole window.",
    Kind.RECOMPUTATION: "recompute with the same random numbers: torch.utils.checkpoint with preserve_rng_state=True.",
    Kind.BUFFER: "do not let a forward pass read what an earlier one wrote: update the buffer once per window.",
}


def coupled() -> Cause:
    """The cause when no weights make the gradient of the whole from the gradients of the parts."""
    text = "no weights make the gradient of the whole from those of its parts: the loss of an item depends on others."
    return cause(Kind.COUPLED, text)


def cause(kind: Kind, explanation: str, line: str | None = None) -> Cause:
    """A cause with the standard advice for its kind."""
    return Cause(kind, explanation, _CHANGES[kind], line)
