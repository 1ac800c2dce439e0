"""BatchNorm layers inside a window: warned about, or their running statistics moved once by all of its items."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from dagnn.accumulation.ranks import Ranks
from dagnn.errors import AccumulationWarning, ConfigError, warn

BatchNormMode = Literal["warn", "defer", "ignore"]
_Moments = tuple[float, Tensor, Tensor]  # items, mean [features], sum of squared deviations [features]


class BatchNorms:
    """The BatchNorm layers of a model while a window runs."""

    def __init__(self, models: Iterable[nn.Module], mode: BatchNormMode) -> None:
        if mode not in ("warn", "defer", "ignore"):
            raise ConfigError(
                "batch_norm must be 'warn', 'defer' (running statistics move once per window) or 'ignore' (neither), "
                f"got {mode!r}."
            )
        self._mode = mode
        self._layers = [
            (f"model[{number}].{name}" if number else name, module)  # several models may have the same names
            for number, model in enumerate(models)
            for name, module in model.named_modules()
            if isinstance(module, _BatchNorm)
        ]
        self._warned = False
        self._handles: list[RemovableHandle] = []
        self._moments: dict[str, list[_Moments]] = {}
        self._before: dict[str, int] = {}  # moments that were there before the current micro-batch
        self._recomputing = False

    def open_window(self, micro_batches: int) -> None:
        """Warn once when a window has several micro-batches; start to collect statistics if they are deferred."""
        training = [(name, layer) for name, layer in self._layers if layer.training]
        if not training or self._mode == "ignore":
            return
        if micro_batches > 1 and not self._warned:
            self._warned = True
            names = ", ".join(name or type(layer).__name__ for name, layer in training[:5])
            more = f" and {len(training) - 5} more" if len(training) > 5 else ""
            warn(
                f"BatchNorm layers in training mode ({names}{more}) normalise each micro-batch by itself, so the "
                "gradient is not that of the full batch: use GroupNorm or LayerNorm, put them in eval mode, or "
                "accept it with batch_norm='ignore' ('defer' repairs the running statistics, not the gradient).",
                AccumulationWarning,
            )
        if self._mode == "defer":
            self._moments = {}
            for name, layer in training:
                if layer.track_running_stats and layer.running_mean is not None:
                    self._handles += self._collect(name, layer)

    def begin_micro_batch(self) -> None:
        """Called before each micro-batch."""
        if self._handles:
            self._before = {name: len(moments) for name, moments in self._moments.items()}

    def drop_micro_batch(self) -> None:
        """Forget what the current micro-batch added."""
        for name, moments in self._moments.items():
            del moments[self._before.get(name, 0) :]

    def state(self) -> dict[str, list[_Moments]]:
        """What the micro-batches of the window so far have added."""
        return {name: list(moments) for name, moments in self._moments.items()} if self._handles else {}

    def load_state(self, state: Mapping[str, Sequence[_Moments]]) -> None:
        """Inverse of ``state``, in a window that has just opened."""
        if self._handles:
            self._moments = {name: list(moments) for name, moments in state.items()}

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """A context for a repeated forward pass, whose items were counted before."""
        self._recomputing = True
        try:
            yield
        finally:
            self._recomputing = False

    def close_window(self, ranks: Ranks | None) -> None:
        """Move the running statistics by all items of the window; without ``ranks`` forget them."""
        for handle in self._handles:
            handle.remove()
        collecting, self._handles = bool(self._handles), []
        if ranks is None or not collecting:
            return
        everywhere = ranks.gather(self._moments)
        for name, layer in self._layers:
            parts = [moments for moments_of in everywhere for moments in moments_of.get(name, [])]
            if parts := [moments for moments in parts if _is_finite(moments)]:
                _move(layer, _pool(parts))
        self._moments = {}

    def _collect(self, name: str, layer: _BatchNorm) -> list[RemovableHandle]:
        def before(module: Any, inputs: tuple[Tensor, ...]) -> None:
            if module.training:
                # A pass that checkpointing repeats runs inside the backward pass, and its items were counted.
                if not self._recomputing and torch._C._current_graph_task_id() == -1:
                    self._moments.setdefault(name, []).append(_moments(inputs[0].detach()))
                module.track_running_stats = False  # in training mode: normalise by the batch, leave the buffers

        def after(module: Any, inputs: Any, output: Any) -> None:
            module.track_running_stats = True

        return [layer.register_forward_pre_hook(before), layer.register_forward_hook(after, always_call=True)]


def _moments(inputs: Tensor) -> _Moments:
    wide = inputs.to(torch.promote_types(inputs.dtype, torch.float32)).transpose(0, 1).flatten(1)
    mean = wide.mean(dim=1)
    return float(wide.shape[1]), mean.cpu(), (wide - mean[:, None]).square().sum(dim=1).cpu()


def _is_finite(moments: _Moments) -> bool:
    """False for a micro-batch with inf or nan, which would stay in the running statistics for ever."""
    return bool(torch.isfinite(moments[1]).all() and torch.isfinite(moments[2]).all())


def _pool(parts: list[_Moments]) -> _Moments:
    """Moments of all parts together. Source: Chan, Golub and LeVeque, "Updating formulae ...", 1979."""
    count, mean, squares = parts[0]
    for n, part_mean, part_squares in parts[1:]:
        delta, total = part_mean - mean, count + n
        squares = squares + part_squares + delta.square() * (count * n / total)
        mean = mean + delta * (n / total)
        count = total
    return count, mean, squares


@torch.no_grad()
def _move(layer: _BatchNorm, moments: _Moments) -> None:
    count, mean, squares = moments
    assert layer.running_mean is not None and layer.running_var is not None and layer.num_batches_tracked is not None
    layer.num_batches_tracked += 1
    momentum = 1.0 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
    variance = squares / max(count - 1.0, 1.0)
    layer.running_mean.lerp_(mean.to(layer.running_mean), momentum)
    layer.running_var.lerp_(variance.to(layer.running_var), momentum)
