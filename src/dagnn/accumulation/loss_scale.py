"""The share and the scale with which each loss of a window begins its backward pass, and what 16 bits cannot hold."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from dagnn.accumulation.stepping import Finalizer
from dagnn.accumulation.sums import Sums

Pass = tuple[list[Tensor], list[Tensor], bool]  # where it begins, with which gradients, whether it is the last
_MAX_SEEDS = 256  # ragged windows have seeds of their own
LOW_PRECISION = frozenset((torch.float16, torch.bfloat16))
_FLOAT16 = (torch.float16, torch.complex32)
_MAX_WAYS = 4  # known by their number of operations; windows of graphs that all differ would look into each
Way = int | tuple[type, ...]  # see LossScale.way
_operations_made: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]  # by this thread


def _last_operations(loss: Tensor) -> tuple[type, ...]:
    """The operations that made ``loss``, four at most, from the last one on."""
    first = loss.grad_fn
    try:
        second = first.next_functions[0][0]  # type: ignore[union-attr]
        third = second.next_functions[0][0]  # type: ignore[union-attr]
        return type(first), type(second), type(third), type(third.next_functions[0][0])  # type: ignore[union-attr]
    except (AttributeError, IndexError):
        return (type(first),)  # a shorter graph: that of a parameter itself, or of nothing


class LossScale:
    """Scales the losses of one window, and keeps what must not be put into them.

    A share ``w / N`` cannot go into 16 bits: bfloat16 would round it by up to 0.4 %, and in float16 gradients of
    2^-15 vanish when 1,024 micro-batches divide them beforehand. So where 16 bits are on the way, the backward pass
    starts from 1 (from a power of two with a loss scaler), and the sums of 32 bits or more take the rest of the factor.
    """

    def __init__(self, sums: Sums, finalizer: Finalizer | None, *, may_rescale: bool) -> None:
        self._sums = sums
        self._finalizer = finalizer  # asked for its scale once, in the first backward pass: one loss scale per window
        self._begun = False
        self._scale = 1.0
        self._may_rescale = may_rescale and sums.rescalable
        self._low: bool | None = True if sums.narrow_parameters else None  # None until a loss was looked into
        self._ways: set[Way] = set()  # of the losses that were
        self._made = _operations_made()  # up to the last loss
        self._residual = 1.0
        self._seeds = {} if finalizer is None else finalizer.seeds

    def way(self, loss: Tensor) -> Way:
        """What distinguishes ways to compute ``loss``: how many operations a micro-batch has.

        Casts, as of autocast, count too. Where that number always differs, by the last operations. To be asked once for
        each micro-batch. It does not look at ``loss.grad_fn``, which took 4 us of each.
        """
        made = _operations_made()
        number, self._made = made - self._made, made
        return number if number in self._ways or len(self._ways) < _MAX_WAYS else _last_operations(loss)

    def passes(self, losses: Sequence[Tensor], coefficients: Sequence[float], way: Way = ()) -> Iterable[Pass]:
        """The backward passes: one, but for several 16-bit losses with different shares.

        The gradients are ``coefficient * scale``, up to the factor that ``leftover`` still holds. They are given and
        not multiplied onto the loss, which would be one more operation in both directions. ``way``: of the one loss.
        """
        self._begin()
        roots = [loss.sum() if loss.ndim else loss for loss in losses]
        # Where nothing is multiplied, as in a window of one micro-batch, nothing can be lost: no graph is walked.
        whole = self._scale == self._residual == 1.0 and all(c == 1.0 for c in coefficients)
        if whole or not (self._may_rescale and (self._low or self._is_low(losses, way))):
            factor = self._scale / self._residual
            return ((roots, [self._seed(root, c * factor) for root, c in zip(roots, coefficients, strict=True)], True),)
        return self._low_passes(roots, coefficients)

    def _begin(self) -> None:
        if not self._begun:
            self._begun, self._scale = True, 1.0 if self._finalizer is None else self._finalizer.scale()

    def seed(self, loss: Tensor, coefficient: float, way: Way) -> Tensor | None:
        """What the one pass of a 0-dimensional ``loss`` begins with; None where ``passes`` must decide."""
        self._begin()
        if loss.dtype.is_complex:
            return None
        whole = coefficient == self._scale == self._residual == 1.0
        if not whole and (self._low is not False or loss.dtype in LOW_PRECISION or way not in self._ways):
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
    def of_scaler(self) -> float:
        """The loss scale of the window: 1 without a scaler."""
        self._begin()
        return self._scale

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

    def _is_low(self, losses: Sequence[Tensor], way: Way) -> bool:
        for loss in losses:
            if loss.dtype in LOW_PRECISION:
                return True
        for loss in losses:
            # Once in a window for each way in which losses are made: some micro-batches may run under autocast only.
            if not self._low and (found := way or _last_operations(loss)) not in self._ways:
                self._ways.add(found)
                # A loss scaler guards what float16 layers send back; without one, only the graph shows them.
                self._low = self._scale == 1.0 and _holds_float16(loss)
        return bool(self._low)

    def _rescale(self, residual: float) -> None:
        if residual != self._residual:
            self._sums.scale_(self._residual / residual)
            self._residual = residual

    def _seed(self, root: Tensor, value: float) -> Tensor:
        """The number as a tensor like the loss; most micro-batches of a window share one, and most windows too."""
        key = (value, root.dtype, root.device)
        seed = self._seeds.get(key)
        if seed is None:
            if len(self._seeds) >= _MAX_SEEDS:
                self._seeds.clear()
            seed = self._seeds[key] = torch.full((), value, dtype=root.dtype, device=root.device)
        return seed


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
        if casts and any(getattr(p, "dtype", None) in _FLOAT16 for p in getattr(node, "_input_metadata", ())):
            return True
        for parent, _ in node.next_functions:
            if parent not in seen:
                seen.add(parent)
                nodes.append(parent)
    return False
