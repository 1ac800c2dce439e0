"""Updates by optimizers that compute the loss themselves, several times per step: LBFGS, SAM."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from dagnn.accumulation.state import RandomState
from dagnn.accumulation.stepping import Finalizer, Stepped, losses_are_finite
from dagnn.accumulation.sums import clip_factor, total_norm
from dagnn.accumulation.window import Window
from dagnn.errors import AccumulationError, ConfigError


class _WindowClosure:
    """A closure over a whole window, with the same random numbers at every call.

    The first evaluation happens before the step (SAM expects its gradient to exist); the first call returns it again
    if nothing has changed since (LBFGS).
    """

    def __init__(self, parameters: Sequence[nn.Parameter], max_norm: float | None, run: Callable[[], Window]) -> None:
        self._parameters = parameters
        self._max_norm = max_norm
        self._run = run
        self._random = RandomState.now()
        self.first = self._evaluate()
        self._random_after = RandomState.now()
        self._seen: list[tuple[int, int]] | None = self._identity()

    def __call__(self) -> float:
        if self._seen is not None and self._seen == self._identity():
            self._seen = None
            return self.first[0].totals.loss
        self._seen = None
        self._random.restore()
        window, norm = self._evaluate()
        self._random_after.restore()
        if not norm < float("inf") or not losses_are_finite(window.totals.losses):
            raise AccumulationError(
                f"the gradient or the loss became inf or nan inside one optimizer step (gradient norm {norm:g}, loss "
                f"{window.totals.loss:g}), which was undone: lower the learning rate, or give LBFGS "
                "line_search_fn='strong_wolfe'."
            )
        return window.totals.loss

    def _evaluate(self) -> tuple[Window, float]:
        with torch.enable_grad():  # optimizers step under no_grad
            window = self._run()
        window.finish_gradients()
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = total_norm(gradients)
        if self._max_norm is not None and norm < float("inf"):
            for gradient in gradients:
                gradient.mul_(clip_factor(norm, self._max_norm))
        return window, norm

    def _identity(self) -> list[tuple[int, int]]:
        return [(id(p.grad), p._version) for p in self._parameters]


def step_with_closure(finalizer: Finalizer, run: Callable[[], Window]) -> tuple[Window, Stepped]:
    """Step the one optimizer of ``finalizer``; ``run`` makes a settled window at the parameters of the moment.

    Returns:
        the window of the first evaluation, at the parameters before the step, and what happened.

    Raises:
        ConfigError: there are several optimizers or a loss scaler, which a closure cannot serve.
        AccumulationError: the gradient stopped being finite after the first evaluation.
    """
    if len(finalizer.optimizers) > 1 or finalizer.scaler is not None:
        raise ConfigError(
            f"an update by closure needs one optimizer and no scaler, got {len(finalizer.optimizers)} optimizers and "
            f"scaler={'None' if finalizer.scaler is None else 'a GradScaler'}."
        )
    (optimizer,) = finalizer.optimizers
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    lr = finalizer.lr
    closure = _WindowClosure(parameters, finalizer.max_norm, run)
    window, norm = closure.first
    if window.totals.empty:
        return window, Stepped(float("nan"), lr, "empty")
    losses = window.totals.losses
    if not norm < float("inf") or not losses_are_finite(losses):
        gradients = [(f"parameter {i}", p.grad) for i, p in enumerate(parameters) if p.grad is not None]
        finalizer.refuse_nonfinite(gradients, losses)
        return window, Stepped(norm, lr, "non-finite")
    before = [parameter.detach().clone() for parameter in parameters]
    try:
        optimizer.step(closure)
    except BaseException:
        # Half a step (SAM at its perturbed weights) is no step, whoever swallows the error.
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
        if finalizer.needs_closure:
            optimizer.state.clear()  # LBFGS cannot go on from a history that ends inside a step
        raise
    finalizer.after_step()
    return window, Stepped(norm, lr, None)
