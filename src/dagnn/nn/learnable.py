"""The gradient contract of every module in `dagnn.nn`: clear, step, measure, clip and count.

`Learnable` is the contract as a protocol, `LearnableModule` the mixin that implements it. The functions at the end are
for parameters that PyTorch's own tools compute from others (``torch.nn.utils.parametrize``, ``prune``,
``weight_norm``). Their attribute stays, but it is no parameter any more: ``parametrize`` computes it whenever it is
read, and the older tools leave in it what they computed before the last forward pass.

Checks of what users give to modules come last: each raises an error that says what was expected.
"""

import math
from collections.abc import Iterable, Iterator
from numbers import Integral
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.kernels.autograd import fused_step


@runtime_checkable
class Learnable(Protocol):
    """The protocol of anything that is called, accumulates gradients, and takes plain gradient steps.

    `LearnableModule` implements it and documents each method.

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
    mode ``loss.backward()`` accumulates as always in PyTorch; only the methods of `DagNN` that
    take gradients by hand (such as `DagNN.accumulate_edge_grad`) do nothing.

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
        _gradient_step(self.parameters(), _checked_lr(lr))

    def backward_and_step(self, loss: Tensor, lr: float) -> None:
        """A fused step: ``loss.backward()`` and `step` in one pass, with no chance to clip in between.

        A compiled sweep (`DagSweep`) updates its weight matrices as it computes their gradients, at the end of the
        backward pass; several sweeps do so at once. All other parameters of this module step together afterwards.
        Parameters of other modules get their gradients and do not move. The result is that of the two calls up to
        rounding, unless something reads or changes ``.grad`` during the pass: the gradients of these matrices are not
        in it yet. In practice it is no faster, and sweeps keep their saved tensors until the end of the pass (12 of
        them took 1.4 times the memory).

        Args:
            loss: a tensor with one element, computed with this module.
            lr: learning rate, finite and at least 0.

        Raises:
            ConfigError: ``lr`` is negative, infinite or NaN.
            Exception: any error of ``loss.backward()``. No parameter has moved then.
        """
        lr = _checked_lr(lr)
        parameters = list(self.parameters())
        with fused_step(parameters, lr) as fused:
            loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            moved = fused.finish()
            _gradient_step((p for p in parameters if id(p) not in moved), lr)

    @torch.no_grad()
    def gradient_norm(self) -> float:
        """L2 norm over all accumulated gradients, as one long vector; 0.0 when there are none.

        Squares are summed in float64, so float16 gradients of 60,000 do not overflow and
        float32 gradients of 1e-30 do not vanish.
        """
        return _norm(_gradient_values(self))

    @torch.no_grad()
    def has_gradients(self) -> bool:
        """Whether some accumulated gradient has an entry other than 0; NaN counts.

        Gradients that ``zero_grad(set_to_none=False)`` has filled with zeros count as cleared.
        """
        return any(bool(values.any()) for values in _gradient_values(self))

    @torch.no_grad()
    def clip_gradients(self, max_norm: float) -> float:
        """Scale all gradients so that their norm is ``max_norm``, if it is above; the norm before.

        If the norm is infinite or NaN, no scale would keep the direction: the gradients stay as they
        are, and the caller sees the norm.

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
    return float(lr)  # a tensor of one element becomes a number


def _gradient_step(parameters: Iterable[Tensor], lr: float) -> None:
    """``p -= lr * p.grad`` for every parameter with a gradient, dense ones in one call."""
    moving = [(p, grad) for p in parameters if (grad := p.grad) is not None]
    dense: list[tuple[Tensor, Tensor]] = [pair for pair in moving if pair[1].layout is torch.strided]
    if dense:
        torch._foreach_add_([p for p, _ in dense], [grad for _, grad in dense], alpha=-lr)
    for p, grad in moving:
        if grad.layout is not torch.strided:
            p.add_(grad, alpha=-lr)


def _gradient_values(module: nn.Module) -> list[Tensor]:
    """The accumulated gradients; of sparse ones, the stored values.

    A sparse gradient is first replaced by its coalesced form: a symbol seen twice is stored twice,
    and the norm of the parts is not the norm of their sum.
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
    """The L2 norm of all values as one vector; 0.0 for none."""
    if not values:
        return 0.0
    # Summed in float32, the norm of 5 million standard normal float32 values was off by 1e-5; this
    # form costs 4.2 ms for them instead of 0.5-1.2 (1 thread).
    norms = torch._foreach_norm(values, 2, dtype=torch.float64)
    if all(norm.is_cpu for norm in norms):
        parts = torch.stack(norms).tolist()
        total = math.hypot(*parts)
        return total if math.isfinite(total) else sum(parts)  # hypot(inf, nan) is inf, the sum is nan
    device = norms[0].device
    return float(torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms])))


def value_of(module: nn.Module, name: str) -> Tensor:
    """The current value of the parameter ``name``: whole if it is sharded, computed if it is computed from others."""
    parameter = module._parameters.get(name)
    if parameter is not None:
        whole: Tensor = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        return whole
    for hook in _hooks(module, name):
        if isinstance(hook, SpectralNorm):
            # Without a power iteration, which would change the module: this function only reads.
            computed: Tensor = hook.compute_weight(module, do_power_iteration=False)
            return computed
        hook(module, ())
    value: Tensor = getattr(module, name)
    return value


def before_call(module: nn.Module, *inputs: Any) -> None:
    """Run the forward pre-hooks of ``module``, as a call with ``inputs`` would.

    ``torch.nn.utils.prune`` and the older ``weight_norm`` and ``spectral_norm`` compute weights in such hooks. Code
    that reads the weights without a call must run this first, or it reads those of the last call.
    """
    with_kwargs = module._forward_pre_hooks_with_kwargs
    for number, hook in list(module._forward_pre_hooks.items()):
        if number in with_kwargs:
            hook(module, inputs, {})
        else:
            hook(module, inputs)


def check_own(module: nn.Module, names: tuple[str, ...], what: str) -> None:
    """Raise ConfigError unless ``names`` are plain parameters of the module, which ``what`` needs."""
    if hasattr(module, "reshard") and what != "reset_parameters":
        raise ConfigError(
            f"{what} needs the parameters whole, but fully_shard has taken them apart: do it before that."
        )
    for name in names:
        if module._parameters.get(name) is not None:
            continue
        source, undo = "another parameter", "make it a parameter of its own"
        hooks = _hooks(module, name)
        if parametrize.is_parametrized(module, name):
            kind = type(module.parametrizations[name][0]).__name__  # type: ignore[index]
            source, undo = f"torch.nn.utils.parametrize ({kind})", f"parametrize.remove_parametrizations(net, {name!r})"
        elif hooks:
            kind = type(hooks[0]).__name__
            tool = {"WeightNorm": "remove_weight_norm", "SpectralNorm": "remove_spectral_norm"}.get(
                kind, "prune.remove"
            )
            source, undo = f"a hook of torch.nn.utils ({kind})", f"{tool}(net, {name!r})"
        raise ConfigError(
            f"{what} needs {name} as a parameter of its own, but it is computed by {source}: call {undo} first, or do "
            "it before you put that in place. Nothing has changed."
        )


def _hooks(module: nn.Module, name: str) -> list[Any]:
    """The forward pre-hooks that compute ``name``."""
    return [
        hook
        for hook in module._forward_pre_hooks.values()
        if name in (getattr(hook, "name", None), getattr(hook, "_tensor_name", None))
    ]


def check_size(argument: str, value: object, least: int = 1) -> int:
    """``value`` as an int, if it is a whole number of at least ``least``, of Python or NumPy; else a ConfigError."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{argument} must be a whole number of at least {least}, got {value!r}.")
    return int(value)


def check_dag(dag: object) -> None:
    """Raise DtypeError unless ``dag`` is a `Dag`; a `DagBatch` is refused, as it would be read as one large graph."""
    if not isinstance(dag, Dag):
        raise DtypeError(
            f"dag must be a Dag, got {type(dag).__name__}: build one with Dag(edges) or Dag.from_networkx(graph), "
            "or take batch[i]."
        )


def check_tensor(argument: str, x: object) -> None:
    """Raise DtypeError unless ``x`` is a tensor."""
    if not isinstance(x, Tensor):
        raise DtypeError(f"{argument} must be a tensor, got a {type(x).__name__}: convert it with torch.as_tensor.")


def check_dtype(argument: str, x: Tensor, like: torch.dtype) -> None:
    """Raise DtypeError unless ``x`` is dense and of the dtype ``like``; under autocast any floating dtype passes."""
    if x.layout is not torch.strided:
        raise DtypeError(
            f"{argument} must be dense, got a tensor with the layout {x.layout}: convert it with {argument}.to_dense()."
        )
    if x.dtype != like and not (x.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
        raise DtypeError(
            f"{argument} must be {like}, the dtype of the parameters, got {x.dtype}: "
            f"convert it with {argument}.to({like}), or the module with .to(...)."
        )


def check_rows(argument: str, x: Tensor, rows: int, width: int, like: torch.dtype) -> None:
    """Raise a GraphError unless ``x`` is ``[rows, width]``, a DtypeError unless it has the dtype ``like``."""
    check_tensor(argument, x)
    check_dtype(argument, x, like)
    if x.shape != (rows, width):
        raise GraphError(
            f"{argument} must have the shape [num_nodes, features] = [{rows}, {width}], got {list(x.shape)}."
        )


def check_operator(operator: Tensor | None, operators: int | None) -> None:
    """Raise for an ``operator`` that is missing or unwanted, a ConfigError, or out of range, a GraphError."""
    if (operator is None) != (operators is None):
        given = "no operator" if operator is None else f"operator {list(operator.shape)}"
        raise ConfigError(f"operator must be given if and only if operators is, got operators={operators} and {given}.")
    # Under torch.compile and torch.export the values are unknown, and `DagSweep` checks the operators of its graph.
    if operator is not None and len(operator) and not torch.compiler.is_compiling():
        check_operators(int(operator.min()), int(operator.max()), operators)


def check_operators(lowest: int, highest: int, operators: int | None) -> None:
    """Raise GraphError unless operators are in ``0 .. operators - 1``."""
    assert operators is not None
    if lowest < 0 or highest >= operators:
        given = lowest if lowest < 0 else highest
        raise GraphError(
            f"a node has operator {given}, but operators={operators} allows operators 0 .. {operators - 1}: "
            "raise operators, or map unknown operators to a reserved one."
        )
