"""Updates that begin during the window, exact where the optimizer allows it, to save memory.

Neither form can be undone, so neither can clip by the global norm, skip a window or rescale it. ``check_eager`` refuses
options that would need that.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dagnn.accumulation.sums import AccumulateDtype, Sums, has_16_bits, run_backward, total_norm, wide_dtype
from dagnn.errors import AccumulationError, ConfigError

Eager = Literal["momentum", "last"] | None


class _HookedSums(Sums):
    """A backward pass whose gradients are consumed one parameter at a time, as soon as each is complete."""

    final = True

    def __init__(self, parameters: Sequence[nn.Parameter], optimizers: Sequence[Optimizer]) -> None:
        self.parameters = list(parameters)
        self.narrow_parameters = any(has_16_bits(p.dtype) for p in self.parameters)
        self.rescalable = not self.narrow_parameters
        self._unit = 1.0  # what a gradient is multiplied by when it is consumed
        self._running = False
        self._groups: dict[int, tuple[Optimizer, dict[str, Any]]] = {
            id(p): (optimizer, group)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for p in group["params"]
        }
        self._handles = [
            p.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
            for p in self.parameters
        ]

    def backward(
        self, losses: Sequence[Tensor], *, gradients: Sequence[Tensor] | None = None, retain_graph: bool = False
    ) -> None:
        self._attach()
        self._running = True
        try:
            run_backward(losses, gradients, retain_graph=retain_graph)
        finally:
            self._running = False
            self._detach()

    def scale_(self, factor: float) -> None:
        self._unit /= factor

    def narrow(self) -> None:
        pass

    def state(self) -> list[Tensor | None]:
        raise AccumulationError(
            f"a window with eager updates cannot be saved half done, with {sum(self.has_sum())} of "
            f"{len(self.parameters)} parameters begun: save at its boundary."
        )

    def load_state(self, state: Sequence[Tensor | None]) -> None:
        raise ConfigError(
            f"a window of {len(state)} saved sums cannot go on with eager updates: load it into an accumulator without "
            "eager."
        )

    def begin_trial(self) -> None:
        raise AssertionError("refused at construction")

    def end_trial(self, *, keep: bool) -> bool:
        raise AssertionError("refused at construction")

    def _on_gradient(self, parameter: Tensor) -> None:
        if self._running:
            self._take(parameter)

    def _release(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        for handle in self._handles:
            handle.remove()

    @abstractmethod
    def _take(self, parameter: Tensor) -> None: ...

    @abstractmethod
    def _attach(self) -> None: ...

    @abstractmethod
    def _detach(self) -> None: ...


@final
class MomentumSums(_HookedSums):
    """SGD with momentum, whose momentum buffer takes the gradients at once: no gradient is ever held in full.

    The buffer becomes ``momentum * buffer + (1 - dampening) * gradient`` for the gradient of the whole window, because
    that is linear: scale once, then add each micro-batch.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], optimizers: Sequence[Optimizer]) -> None:
        super().__init__(parameters, optimizers)
        self._begun: dict[int, tuple[Tensor, float]] = {}  # id(parameter) -> buffer, factor of gradients

    def begin_micro_batch(self, *, is_last: bool) -> None:
        pass

    @torch.no_grad()
    def _take(self, parameter: Tensor) -> None:
        if id(parameter) not in self._begun:
            self._begun[id(parameter)] = self._begin(parameter)
        buffer, factor = self._begun[id(parameter)]
        assert parameter.grad is not None
        buffer.add_(parameter.grad, alpha=factor * self._unit)
        parameter.grad = None

    def _begin(self, parameter: Tensor) -> tuple[Tensor, float]:
        optimizer, group = self._groups[id(parameter)]
        state = optimizer.state[parameter]
        sign = -1.0 if group["maximize"] else 1.0
        if state.get("momentum_buffer") is None:
            # As torch.optim.SGD: the first buffer is the gradient itself, without dampening.
            state["momentum_buffer"] = torch.zeros_like(parameter)
            factor = 1.0
        else:
            state["momentum_buffer"].mul_(group["momentum"])
            factor = 1.0 - group["dampening"]
        if group["weight_decay"]:
            state["momentum_buffer"].add_(parameter, alpha=factor * group["weight_decay"])
        return state["momentum_buffer"], factor * sign

    def _attach(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None  # a gradient of another loss must not be consumed

    def _detach(self) -> None:
        pass

    def expose(self) -> None:
        pass

    def has_sum(self) -> list[bool]:
        return [id(parameter) in self._begun for parameter in self.parameters]

    @property
    def update_begun(self) -> bool:
        return bool(self._begun)

    def norm(self, sum_parts: Callable[[float], float]) -> tuple[bool, float]:
        finite = total_norm([buffer for buffer, _ in self._begun.values()]) < float("inf")
        return finite, float("nan")  # the gradient by itself exists nowhere

    def named(self, names: dict[int, str]) -> list[tuple[str, Tensor]]:
        return [(names.get(key, "a parameter"), buffer) for key, (buffer, _) in self._begun.items()]

    @torch.no_grad()
    def apply(self, optimizers: Sequence[Optimizer]) -> None:
        for parameter in self.parameters:
            if id(parameter) in self._begun:
                parameter.add_(self._begun[id(parameter)][0], alpha=-float(self._groups[id(parameter)][1]["lr"]))
        for optimizer in optimizers:
            optimizer.step()  # finds no gradient; hooks and schedulers see that a step was made

    def clear(self) -> None:
        self._begun = {}
        self._release()


@final
class LastBackwardSums(_HookedSums):
    """Any optimizer, stepped parameter by parameter during the backward pass of the last micro-batch.

    Each gradient is freed as soon as it is used. With one micro-batch per window gradients never exist in full; with
    more, the peak is before the last backward pass, so it saves little.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], optimizers: Sequence[Optimizer]) -> None:
        super().__init__(parameters, optimizers)
        self._held: list[Tensor | None] = [None] * len(self.parameters)
        self._is_last = False
        self._stepped: set[int] = set()
        self._squares = 0.0

    def begin_micro_batch(self, *, is_last: bool) -> None:
        self._is_last = is_last

    def scale_(self, factor: float) -> None:
        super().scale_(factor)
        if factor != 1.0:
            for gradient in self._held:
                if gradient is not None:
                    gradient.mul_(factor)

    def backward(
        self, losses: Sequence[Tensor], *, gradients: Sequence[Tensor] | None = None, retain_graph: bool = False
    ) -> None:
        if self._stepped:
            raise AccumulationError(
                f"a second backward in the last micro-batch, but {len(self._stepped)} parameters were updated during "
                "the first: pass all losses in one call, window.backward({'main': ..., 'aux': ...})."
            )
        super().backward(losses, gradients=gradients, retain_graph=retain_graph)

    def _take(self, parameter: Tensor) -> None:
        if self._is_last:
            self._step(parameter)

    def _step(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        if id(parameter) in self._stepped:
            raise AccumulationError(
                f"a parameter of the shape {list(parameter.shape)} got its gradient in two parts (reentrant "
                "checkpointing does that) and was updated after the first: use checkpoint(..., use_reentrant=False), "
                "or do without eager='last'."
            )
        if self._unit != 1.0:
            parameter.grad.mul_(self._unit)
        norm = total_norm([parameter.grad])
        if not norm < float("inf"):
            raise AccumulationError(
                f"a gradient is not finite (norm {norm:g}), and {len(self._stepped)} other parameters were updated "
                "already: go back to a checkpoint. Look for inf or nan in the loss, or do without eager='last'."
            )
        self._squares += norm * norm
        optimizer, group = self._groups[id(parameter)]
        # The same optimizer and state, with one parameter. Options are read each time: a schedule may have moved them.
        single = copy(optimizer)
        single.state = optimizer.state
        single.param_groups = [{**group, "params": [parameter]}]
        single.step()
        self._stepped.add(id(parameter))
        parameter.grad = None

    def _attach(self) -> None:
        for parameter, gradient in zip(self.parameters, self._held, strict=True):
            parameter.grad = gradient
        self._held = [None] * len(self.parameters)  # the hook frees each as it is used

    def _detach(self) -> None:
        self._held = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None

    def expose(self) -> None:
        self._attach()  # parameters that the last micro-batch did not use

    def has_sum(self) -> list[bool]:
        return [p.grad is not None or id(p) in self._stepped for p in self.parameters]

    @property
    def update_begun(self) -> bool:
        return bool(self._stepped)

    def norm(self, sum_parts: Callable[[float], float]) -> tuple[bool, float]:
        rest = total_norm([p.grad for p in self.parameters if p.grad is not None])
        return rest < float("inf"), float((self._squares + rest * rest) ** 0.5)

    def named(self, names: dict[int, str]) -> list[tuple[str, Tensor]]:
        return [(names.get(id(p), "a parameter"), p.grad) for p in self.parameters if p.grad is not None]

    def apply(self, optimizers: Sequence[Optimizer]) -> None:
        for optimizer in optimizers:
            optimizer.step()

    def clear(self) -> None:
        self._held = [None] * len(self.parameters)
        self._release()


def check_eager(
    eager: Any,
    optimizers: Sequence[Optimizer],
    *,
    max_norm: float | None,
    has_scaler: bool,
    on_nonfinite: str,
    world_size: int,
    accumulate_dtype: AccumulateDtype,
) -> None:
    """Raise ConfigError where the eager form ``eager`` would not be exact."""
    if eager is None:
        return
    if eager == "each":
        names = " and ".join(sorted({type(optimizer).__name__ for optimizer in optimizers}))
        raise ConfigError(
            f"eager='each' would step {names} after every micro-batch, which is not the step of the sum: use "
            "eager='last', or eager='momentum' with SGD."
        )
    if eager not in ("momentum", "last"):
        raise ConfigError(f"eager must be None, 'momentum' or 'last', got {eager!r}.")
    reasons = {
        "max_norm": max_norm is not None,
        "scaler": has_scaler,
        f"on_nonfinite={on_nonfinite!r}": on_nonfinite != "raise",
        "several processes": world_size > 1,
    }
    found = [name for name, applies in reasons.items() if applies]
    if found:
        raise ConfigError(
            f"eager={eager!r} updates before the whole gradient is known, so it cannot be used with "
            f"{', '.join(found)}: leave that out (on_nonfinite='raise' is possible), or eager."
        )
    dtypes = {p.dtype for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    if accumulate_dtype is not None and any(wide_dtype(dtype, accumulate_dtype) for dtype in dtypes):
        raise ConfigError(
            f"eager={eager!r} adds gradients in the dtype of their parameters, where 16 bits lose small ones: keep the "
            "parameters in float32, do without eager, or accept it with accumulate_dtype=None."
        )
    if eager == "momentum":
        for optimizer in optimizers:
            groups = optimizer.param_groups
            if type(optimizer) is not torch.optim.SGD or any(not g["momentum"] or g["nesterov"] for g in groups):
                raise ConfigError(
                    "eager='momentum' needs torch.optim.SGD with momentum and without nesterov, the one optimizer "
                    f"whose state is linear in the gradient; got {type(optimizer).__name__}."
                )
