"""Parameters that PyTorch's own tools compute from others: ``torch.nn.utils.parametrize``, ``prune``, ``weight_norm``.

The attribute stays where it was, but it is no parameter any more. ``parametrize`` computes it whenever it is read; the
older tools leave in its place what they computed before the last forward pass.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm

from dagnn.errors import ConfigError


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
