"""Results in float32, or narrower, judged by the error that rounding must make, never by what one processor made.

`assert_rounded` evaluates the same computation in float64: once plainly, and a few times with every operation off by as
much as the narrow dtype may put it off. How far those move says what any processor must lose: much where sums cancel,
little where they do not. No tolerance is chosen by looking at a result.
"""

import os
from collections.abc import Callable, Sequence
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

SAMPLES = 3
"""Evaluations with errors drawn at random: the largest of them counts."""
MARGIN = 6.0
"""How much larger an error may be than the largest of the samples: what is compared is the largest of few numbers."""
FLOOR = 2.0
"""Units in the last place of a tensor's largest number that are always allowed: rounding it, and a function's last."""
# What moves numbers or chooses among them rounds nothing.
_EXACT = {
    "_to_copy", "abs", "amax", "amin", "arange", "cat", "clamp", "clone", "copy_", "empty", "empty_like", "expand",
    "fill_", "flip", "full", "full_like", "gather", "index", "index_put", "index_select", "max", "min", "neg",
    "new_zeros", "ones", "ones_like", "relu", "repeat", "scalar_tensor", "scatter", "select_scatter",
    "slice_backward", "sort", "stack", "threshold_backward", "topk", "unbind", "where", "zero_", "zeros",
    "zeros_like",
}  # fmt: skip
_SUMS = {
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "cumsum", "dot", "embedding_dense_backward", "index_add",
    "index_add_", "linear", "mm", "mv", "scatter_add", "scatter_add_", "sum",
}  # fmt: skip


class Rounded(TorchDispatchMode):
    """Computes in float64, and puts every result off by as much as ``dtype`` may.

    Half a unit of the result of an elementary operation; of a sum of n numbers, sqrt(n) half units of the sum of their
    magnitudes.

    Source: Parker, "Monte Carlo Arithmetic", UCLA CSD-970002, 1997; Higham and Mary, "A new approach to probabilistic
    rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019, for the sums.
    """

    def __init__(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        super().__init__()
        self._unit = torch.finfo(dtype).eps / 2
        self._draws = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        scale = _scale_of_sum(func, args, kwargs) if name in _SUMS else None
        result = func(*args, **kwargs)
        if name in _EXACT or func.is_view or (name == "scatter_reduce" and args[4] in ("amax", "amin")):
            return result
        for made in tree_leaves(result):
            if isinstance(made, Tensor) and made.dtype == torch.float64:
                noise = torch.rand(made.shape, dtype=made.dtype, generator=self._draws).mul_(2).sub_(1)
                # Infinity, with which a maximum begins, is exact.
                noise.mul_(made if scale is None else scale).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
                made.add_(noise, alpha=self._unit)
        return result


def _scale_of_sum(func, args, kwargs) -> Tensor:
    """sqrt(n) times the sum of magnitudes, of every sum of n terms that ``func`` makes; in place on copies."""

    def evaluated(change: Callable[[Tensor], Tensor]) -> Tensor:
        def changed(leaf: object) -> object:
            return change(leaf) if isinstance(leaf, Tensor) and leaf.dtype == torch.float64 else leaf

        return func(*tree_map(changed, args), **tree_map(changed, kwargs))

    return evaluated(torch.ones_like).abs().sqrt().mul(evaluated(torch.abs))


def assert_rounded(
    found: Tensor | Sequence[Tensor],
    exactly: Callable[[], Tensor | Sequence[Tensor]],
    dtype: torch.dtype | None = None,
    margin: float = MARGIN,
) -> None:
    """``found`` is what a processor may make of ``exactly()``, a computation in float64 on the same numbers.

    Args:
        found: results, in the narrow dtype (float64 is taken as a dtype like others).
        exactly: evaluates the same in float64; gives as many tensors, of the same shapes.
        dtype: that ``found`` was computed in; its own by default.
        margin: see `MARGIN`.
    """
    found = _listed(found)
    dtype = dtype or found[0].dtype
    samples = []
    # Operation by operation: what compiled code does within one of them cannot be put off.
    with mock.patch.dict(os.environ, {"DAGNN_KERNELS": "reference"}):
        exact = _listed(exactly())
        for seed in range(SAMPLES):
            with Rounded(dtype, seed):
                samples.append(_listed(exactly()))
    unit = torch.finfo(dtype).eps
    for number, (ours, right, *rounded) in enumerate(zip(found, exact, *samples, strict=True)):
        assert ours.shape == right.shape, (number, ours.shape, right.shape)
        if not right.numel():
            continue
        error = (ours.double() - right).abs().max().item()
        must = max((sample - right).abs().max().item() for sample in rounded)
        allowed = margin * must + FLOOR * unit * right.abs().max().item()
        assert error <= allowed, f"result {number} is off by {error:.3g}; rounding explains {allowed:.3g}"


def _listed(results: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [t.detach() for t in ([results] if isinstance(results, Tensor) else results)]
