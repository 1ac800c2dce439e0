"""What happens to a loss before its backward pass: checks, its share of the window, and the loss scale."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from dagnn.accumulation.shares import SINGLE, Reduction
from dagnn.accumulation.sums import Sums
from dagnn.errors import AccumulationError, AccumulationWarning, ConfigError, warn

Pass = tuple[list[Tensor], list[Tensor], bool]  # where it begins, with which gradients, whether it is the last
LOW_PRECISION = frozenset((torch.float16, torch.bfloat16))


def check_loss(name: str, loss: Any, reduction: Reduction) -> None:
    """Raise unless ``loss`` is a tensor of the shape that ``reduction`` says."""
    if reduction not in get_args(Reduction):
        raise ConfigError(f"reduction must be 'mean', 'sum', 'none' or 'undivided', got {reduction!r}.")
    if not isinstance(loss, Tensor):
        raise ConfigError(
            f"{_called(name)} must be a tensor, got {type(loss).__name__}: pass the loss itself, not loss.item()."
        )
    if loss.ndim and reduction != "none":
        if loss.numel() == 1:
            raise AccumulationError(
                f"{_called(name)} must be 0-dimensional, got the shape {list(loss.shape)}: pass loss.squeeze(), or "
                "reduction='none' if it holds one loss per item."
            )
        raise AccumulationError(
            f"{_called(name)} must be one number for reduction={reduction!r}, got the shape {list(loss.shape)}: pass "
            "its mean, or reduction='none' with one loss per item."
        )


def refuse_detached(name: str, parameters: Sequence[Tensor]) -> None:
    """Raise for a loss that has no graph to go back through to any of ``parameters``."""
    check_trainable(parameters)
    raise AccumulationError(
        f"{_called(name)} does not depend on a parameter that requires a gradient: was it computed under "
        "torch.no_grad() or detached? Use window.drop() for a micro-batch without a loss."
    )


def refuse_nonfinite(losses: Sequence[Tensor], micro: int) -> None:
    """Raise for a loss that eager updates cannot leave out."""
    if not all(bool(torch.isfinite(loss).all()) for loss in losses):
        values = ", ".join(str(float(reported_loss(loss))) for loss in losses)
        raise AccumulationError(
            f"the loss is not finite ({values} in micro-batch {micro}), and with eager updates nothing can be left "
            "out: look for inf or nan in the model's outputs, or do without eager."
        )


def refuse_uncounted(loss: Tensor, micro: int) -> None:
    """Raise for a loss that counts nothing and would yet reach the gradients, where every pass must run."""
    if not bool(torch.isfinite(loss).all()):
        raise AccumulationError(
            f"micro-batch {micro} has the weight 0 and a loss that is not finite ({float(reported_loss(loss))}), and "
            "fully_shard needs its backward pass: use a sum loss with reduction='sum', which is 0 there."
        )


def reported_loss(loss: Tensor) -> Tensor:
    """``loss`` as one number without a graph; losses per item are summed in float32 at least."""
    detached = loss.detach()
    return detached.sum(dtype=torch.promote_types(loss.dtype, torch.float32)) if loss.ndim else detached


def check_trainable(parameters: Sequence[Tensor]) -> None:
    """Raise when none of ``parameters`` requires a gradient."""
    if not any(parameter.requires_grad for parameter in parameters):
        raise AccumulationError(
            f"there is nothing to train: none of {len(parameters)} parameters requires a gradient. Call "
            "requires_grad_(True) on those that should learn, before the window."
        )


def warn_if_divided(loss: Tensor, micro_batches: int, reduction: Reduction) -> None:
    """Warn about ``loss / micro_batches``, the division of a hand-written loop, which would be done twice."""
    node = loss.grad_fn
    if reduction != "mean" or micro_batches < 2 or node is None:
        return
    kind = type(node).__name__
    if kind not in ("DivBackward0", "MulBackward0"):
        return
    other = getattr(node, "_saved_other", None)
    if not isinstance(other, Tensor) or other.ndim or other.requires_grad:
        return
    divisor = float(other) if kind == "DivBackward0" else 1.0 / float(other) if float(other) else 0.0
    before = node.next_functions[0][0]
    # A sum divided by a number is a mean written by hand, whose number happens to be that of the micro-batches.
    if abs(divisor - micro_batches) < 1e-9 and before is not None and "Sum" not in type(before).__name__:
        warn(
            f"the loss was divided by {micro_batches}, the number of micro-batches in the window, before backward, "
            "which divides by the window's weight itself: pass the plain mean loss, or the gradient is "
            f"{micro_batches} times too small.",
            AccumulationWarning,
        )


def _called(name: str) -> str:
    return "loss" if name == SINGLE else f"loss {name!r}"


def _holds_float16(loss: Tensor) -> bool:
    """True if the graph of ``loss`` sends a float16 gradient anywhere, as float16 autocast does.

    What is float16 between parameters of 32 bits was cast on the way, or is inside a function of the user's own: only
    there the dtype is looked at, which takes most of the time.
    """
    nodes, seen = [loss.grad_fn], {loss.grad_fn}
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        kind = type(node).__name__
        if kind == "AccumulateGrad":
            continue
        casts = kind == "ToCopyBackward0" or not kind[-1].isdigit()  # PyTorch's own nodes are numbered
        if casts and any(getattr(p, "dtype", None) == torch.float16 for p in getattr(node, "_input_metadata", ())):
            return True
        for parent, _ in node.next_functions:
            if parent not in seen:
                seen.add(parent)
                nodes.append(parent)
    return False


class LossScale:
    """Scales the losses of one window, and keeps what must not be put into them.

    A share ``w / N`` cannot go into 16 bits: bfloat16 would round it by up to 0.4 %, and in float16 gradients of
    2^-15 vanish when 1,024 micro-batches divide them beforehand. So where 16 bits are on the way, the backward pass
    starts from 1 (from a power of two with a loss scaler), and the sums of 32 bits or more take the rest of the factor.
    """

    def __init__(self, sums: Sums, read_scale: Callable[[], float] | None, *, may_rescale: bool) -> None:
        self._sums = sums
        self._read_scale = read_scale  # called once, in the first backward pass: one loss scale per window
        self._begun = False
        self._scale = 1.0
        self._may_rescale = may_rescale and sums.rescalable
        self._low: bool | None = True if sums.narrow_parameters else None  # None until a loss was looked into
        self._residual = 1.0
        self._seeds: dict[tuple[float, torch.dtype, torch.device], Tensor] = {}

    def passes(self, losses: Sequence[Tensor], coefficients: Sequence[float]) -> Iterable[Pass]:
        """The backward passes: one, but for several 16-bit losses with different shares.

        The gradients are ``coefficient * scale``, up to the factor that ``leftover`` still holds. They are given and
        not multiplied onto the loss, which would be one more operation in both directions.
        """
        self._begin()
        roots = [loss.sum() if loss.ndim else loss for loss in losses]
        # Where nothing is multiplied, as in a window of one micro-batch, nothing can be lost: no graph is walked.
        whole = self._scale == self._residual == 1.0 and all(c == 1.0 for c in coefficients)
        if whole or not (self._may_rescale and (self._low or self._is_low(losses))):
            factor = self._scale / self._residual
            return ((roots, [self._seed(root, c * factor) for root, c in zip(roots, coefficients, strict=True)], True),)
        return self._low_passes(roots, coefficients)

    def _begin(self) -> None:
        if not self._begun:
            self._begun, self._scale = True, 1.0 if self._read_scale is None else self._read_scale()

    def seed(self, loss: Tensor, coefficient: float) -> Tensor | None:
        """What the one pass of a 0-dimensional ``loss`` begins with; None where ``passes`` must decide."""
        self._begin()
        whole = coefficient == self._scale == self._residual == 1.0
        if not whole and (self._low is not False or loss.dtype in LOW_PRECISION):
            return None
        return self._seed(loss, coefficient * (self._scale / self._residual))

    def _low_passes(self, roots: Sequence[Tensor], coefficients: Sequence[float]) -> Iterator[Pass]:
        top = max(coefficients)
        groups: dict[float, list[tuple[Tensor, float]]] = {}
        for root, coefficient in zip(roots, coefficients, strict=True):
            exact = root.dtype not in LOW_PRECISION or math.frexp(coefficient / top)[0] == 0.5
            groups.setdefault(top if exact else coefficient, []).append((root, coefficient))
        for number, (unit, members) in enumerate(groups.items(), start=1):
            start = 1.0 if self._scale == 1.0 else math.ldexp(1.0, math.frexp(unit * self._scale)[1] - 1)
            self._rescale(unit * self._scale / start)
            seeds = [self._seed(root, coefficient / unit * start) for root, coefficient in members]
            yield [root for root, _ in members], seeds, number == len(groups)

    @property
    def leftover(self) -> float:
        """What the sums of this process must still be multiplied by, before the sum over processes."""
        return self._residual / self._scale

    def state(self) -> dict[str, float] | None:
        """What a half-done window must save of it; None before the first backward pass."""
        return {"scale": self._scale, "residual": self._residual} if self._begun else None

    def load_state(self, state: Mapping[str, float] | None) -> None:
        """Inverse of ``state``."""
        if state is not None:
            self._begun, self._scale, self._residual = True, state["scale"], state["residual"]

    def _is_low(self, losses: Sequence[Tensor]) -> bool:
        for loss in losses:
            if loss.dtype in LOW_PRECISION:
                return True
        if self._low is None:
            # A loss scaler guards what float16 layers send back; without one, only the graph shows that there are any.
            self._low = self._scale == 1.0 and any(map(_holds_float16, losses))
        return self._low

    def _rescale(self, residual: float) -> None:
        if residual != self._residual:
            self._sums.scale_(self._residual / residual)
            self._residual = residual

    def _seed(self, root: Tensor, value: float) -> Tensor:
        """The number as a tensor like the loss; most micro-batches of a window share one."""
        key = (value, root.dtype, root.device)
        seed = self._seeds.get(key)
        if seed is None:
            seed = self._seeds[key] = torch.full((), value, dtype=root.dtype, device=root.device)
        return seed
