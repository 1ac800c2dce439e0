"""The gradient contract of every module in `dagnn.nn`: clear, step, measure, clip, count; reparametrised or not."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm

from dagnn.errors import ConfigError
from dagnn.kernels.autograd import fused_step


def value_of(module: nn.Module, name: str) -> Tensor:
    """The parameter called ``name``, whole, or what it is computed to be with the numbers of now."""
    parameter = module._parameters.get(name)
    if parameter is not None:
        whole: Tensor = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        return whole
    for hook in _hooks(module, name):
        if isinstance(hook, SpectralNorm):
            computed: Tensor = hook.compute_weight(module, do_power_iteration=False)  # reading changes nothing
            return computed
        hook(module, ())
    value: Tensor = getattr(module, name)
    return value


def before_call(module: nn.Module, *inputs: Any) -> None:
    """What a call of ``module`` would run before anything else.

    ``torch.nn.utils.prune``, and the older ``weight_norm`` and ``spectral_norm``, compute its weights there: who reads
    them without a call would read those of the last one.
    """
    with_kwargs = module._forward_pre_hooks_with_kwargs
    for number, hook in list(module._forward_pre_hooks.items()):
        if number in with_kwargs:
            hook(module, inputs, {})
        else:
            hook(module, inputs)


def check_own(module: nn.Module, names: tuple[str, ...], what: str) -> None:
    """Raise ConfigError unless these are parameters of the module's own; ``what`` cannot be done otherwise."""
    if hasattr(module, "reshard") and what != "reset_parameters":
        raise ConfigError(
            f"{what} needs the parameters whole, but fully_shard has taken them apart: do it before that."
        )
    for name in names:
        if module._parameters.get(name) is not None:
            continue
        how, undo = "another parameter", "make it a parameter of its own"
        hooks = _hooks(module, name)
        if parametrize.is_parametrized(module, name):
            kind = type(module.parametrizations[name][0]).__name__  # type: ignore[index]
            how, undo = f"torch.nn.utils.parametrize ({kind})", f"parametrize.remove_parametrizations(net, {name!r})"
        elif hooks:
            kind = type(hooks[0]).__name__
            tool = {"WeightNorm": "remove_weight_norm", "SpectralNorm": "remove_spectral_norm"}.get(
                kind, "prune.remove"
            )
            how, undo = f"a hook of torch.nn.utils ({kind})", f"{tool}(net, {name!r})"
        raise ConfigError(
            f"{what} needs {name} as a parameter of its own, but it is computed by {how}: call {undo} first, or do it "
            "before you put that in place. Nothing has changed."
        )


def _hooks(module: nn.Module, name: str) -> list[Any]:
    """What computes ``name`` before every forward pass."""
    return [
        hook
        for hook in module._forward_pre_hooks.values()
        if name in (getattr(hook, "name", None), getattr(hook, "_tensor_name", None))
    ]


@runtime_checkable
class Learnable(Protocol):
    """Anything that is called, accumulates gradients, and takes plain gradient steps.

    >>> from dagnn.nn import Embedding
    >>> isinstance(Embedding(10, 4), Learnable), isinstance(nn.Linear(2, 2), Learnable)
    (True, False)
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...
    def zero_grad(self, set_to_none: bool = True) -> None: ...
    def step(self, lr: float) -> None: ...
    def gradient_norm(self) -> float: ...
    def has_gradients(self) -> bool: ...
    def clip_gradients(self, max_norm: float) -> float: ...
    def num_parameters(self) -> int: ...
    def train(self, mode: bool = True) -> Self: ...
    def is_training(self) -> bool: ...


class LearnableModule(nn.Module):
    """An ``nn.Module`` with the gradient contract. Derive from it instead of ``nn.Module``.

    ``zero_grad(set_to_none=True)`` and ``train(mode=True)`` are PyTorch's own, unchanged. In eval
    mode ``loss.backward()`` accumulates as always in PyTorch; only calls that feed gradients by
    hand (see `DagNN.accumulate_edge_grad`) do nothing.

    >>> class Scale(LearnableModule):
    ...     def __init__(self) -> None:
    ...         super().__init__()
    ...         self.factor = nn.Parameter(torch.tensor([3.0, 4.0]))
    ...
    ...     def forward(self, x: Tensor) -> Tensor:
    ...         return self.factor * x
    >>> model = Scale()
    >>> model(torch.tensor([3.0, 4.0])).sum().backward()
    >>> model.clip_gradients(1.0), round(model.gradient_norm(), 6)
    (5.0, 1.0)
    >>> model.step(lr=1.0)
    >>> model.factor.tolist()
    [2.4000000953674316, 3.200000047683716]
    """

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Plain gradient descent on what is accumulated: ``p -= lr * p.grad``.

        Gradients stay until `zero_grad`. Parameters without a gradient do not move.

        Args:
            lr: learning rate, finite and at least 0.

        Raises:
            ConfigError: ``lr`` is negative, infinite or NaN.
        """
        _descend(self.parameters(), _checked_lr(lr))

    def backward_and_step(self, loss: Tensor, lr: float) -> None:
        """``loss.backward()`` and `step` in one, without a moment to clip in between.

        A compiled sweep (`DagSweep`) moves its weight matrices as it computes their gradients, at the end of the
        backward pass, and several sweeps do so at once; all other parameters of this module step together afterwards.
        Parameters of other modules get their gradients and stay. The result is that of the two calls up to rounding,
        unless something reads or changes ``.grad`` during the pass, where these matrices' part is not in it yet. No
        faster in practice; sweeps keep what they saved until the end of the pass (12 of them took 1.4 times the
        memory).

        Args:
            loss: one number, of a graph that this module took part in.
            lr: learning rate, finite and at least 0.

        Raises:
            ConfigError: ``lr`` is negative, infinite or NaN.
            Exception: whatever ``loss.backward()`` raises. Nothing has moved then.
        """
        lr = _checked_lr(lr)
        parameters = list(self.parameters())
        with fused_step(parameters, lr) as fused:
            loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            moved = fused.finish()
            _descend((p for p in parameters if id(p) not in moved), lr)

    @torch.no_grad()
    def gradient_norm(self) -> float:
        """L2 norm over all accumulated gradients, as one long vector; 0.0 when there are none.

        Squares are summed in float64, so float16 gradients of 60,000 do not overflow and
        float32 gradients of 1e-30 do not vanish.
        """
        return _norm(_gradient_values(self))

    @torch.no_grad()
    def has_gradients(self) -> bool:
        """Is anything accumulated: is some gradient other than zero (NaN counts)?

        Gradients that ``zero_grad(set_to_none=False)`` filled with zeros are cleared gradients.
        """
        return any(bool(values.any()) for values in _gradient_values(self))

    @torch.no_grad()
    def clip_gradients(self, max_norm: float) -> float:
        """Scale all gradients so that their norm is ``max_norm``, if it is above; the norm before.

        A norm that is infinite or NaN has no direction to keep: the gradients are left as they
        are, and the returned norm tells.

        Args:
            max_norm: at least 0; ``inf`` only measures.

        Raises:
            ConfigError: ``max_norm`` is negative or NaN.
        """
        if not max_norm >= 0:
            raise ConfigError(f"max_norm must be at least 0, got {max_norm!r}: give the largest norm to allow.")

        values = _gradient_values(self)
        norm = _norm(values)
        if math.isfinite(norm) and norm > max_norm:
            # Not norm + 1e-6 as in torch.nn.utils.clip_grad_norm_: norm > max_norm >= 0 is never zero.
            torch._foreach_mul_(values, max_norm / norm)
        return norm

    def num_parameters(self) -> int:
        """Trainable scalars; a parameter used in two places counts once."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)

    def is_training(self) -> bool:
        """True in training mode, False after ``eval()`` or ``train(False)``."""
        return self.training


def _checked_lr(lr: float) -> float:
    if not (math.isfinite(lr) and lr >= 0):
        raise ConfigError(f"lr must be a finite number of at least 0, got {lr!r}: give a positive learning rate.")
    return float(lr)  # of one element, if it was a tensor


def _descend(parameters: Iterable[Tensor], lr: float) -> None:
    moving = [(p, grad) for p in parameters if (grad := p.grad) is not None]
    dense: list[tuple[Tensor, Tensor]] = [pair for pair in moving if pair[1].layout is torch.strided]
    if dense:
        torch._foreach_add_([p for p, _ in dense], [grad for _, grad in dense], alpha=-lr)
    for p, grad in moving:
        if grad.layout is not torch.strided:
            p.add_(grad, alpha=-lr)


def _gradient_values(module: nn.Module) -> list[Tensor]:
    """The accumulated gradients, dense ones as they are, sparse ones as their stored values.

    A sparse gradient is coalesced in place first: a symbol seen twice is stored twice, and the
    norm of the parts is not the norm of their sum.
    """
    values = []
    for p in module.parameters():
        grad = p.grad
        if grad is None or grad.numel() == 0:
            continue
        if grad.layout is torch.sparse_coo:
            p.grad = grad = grad.coalesce()
            grad = grad.values()
        values.append(grad)
    return values


def _norm(values: list[Tensor]) -> float:
    """The L2 norm of all of them together; 0.0 for none."""
    if not values:
        return 0.0
    # Summed in float32, the norm of 5 million standard normal float32 values was off by 1e-5; this
    # form costs 4.2 ms for them instead of 0.5-1.2 (1 thread).
    norms = torch._foreach_norm(values, 2, dtype=torch.float64)
    if all(norm.is_cpu for norm in norms):
        parts = torch.stack(norms).tolist()
        total = math.hypot(*parts)
        return total if math.isfinite(total) else sum(parts)  # hypot says inf to nan beside inf
    device = norms[0].device
    return float(torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms])))
