"""Weights, biases and gradients of a `WideDagNN` by name, and the values of its heads with their loss."""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.nn.dag_nn.tables import NamedInputs
from dagnn.nn.learnable import check_own, value_of
from dagnn.nn.wide_dag_nn.layout import WideLayout


class NamedBlocks(NamedInputs):
    """What a `WideDagNN` offers by name: the blocks of its edges, the biases of its nodes, and gradients of both.

    >>> from dagnn import Dag
    >>> from dagnn.nn import WideDagNN
    >>> net = WideDagNN(Dag([("a", "c"), ("b", "c"), ("c", "d")]), width=2)
    >>> isinstance(net, NamedBlocks)
    True
    >>> net.set_weights({("a", "c"): [[0.5], [0.25]]})
    >>> net.weight_of("a", "c").tolist(), tuple(net.edge_weights()[("c", "d")].shape)
    ([[0.5], [0.25]], (1, 2))
    """

    bias: nn.Parameter
    _wide: WideLayout

    def edge_names(self) -> list[tuple[Hashable, Hashable]]:
        """The edge (u, v) of every block of ``edge_weight``, in their order; heads come after them."""
        return self._wide.edges.edge_names()

    def bias_names(self) -> list[Hashable]:
        """The node of every group of entries of ``bias``, in their order; heads come after them."""
        return self._wide.edges.bias_names()

    def edge_weights(self) -> dict[tuple[Hashable, Hashable], Tensor]:
        """(u, v) -> block ``[width(v), width(u)]``, for every edge; copies."""
        return self._wide.blocks(value_of(self, "edge_weight").detach().clone())

    def weight_of(self, u: Hashable, v: Hashable) -> Tensor:
        """The block of the edge u -> v, ``[width(v), width(u)]``; a copy.

        Raises:
            GraphError: an unknown node, or no such edge.
        """
        edge = self._wide.edges.index_of(u, v)
        return self._wide.block(value_of(self, "edge_weight").detach(), edge).clone()

    def biases(self) -> dict[Hashable, Tensor]:
        """Node -> biases ``[width]``, for every node that has some; copies."""
        return self._wide.of_units(value_of(self, "bias").detach().clone())

    def set_weights(self, weights: Mapping[tuple[Hashable, Hashable], Any]) -> None:
        """Set the blocks of these edges, in place; the others stay.

        Args:
            weights: (u, v) -> block ``[width(v), width(u)]``: a tensor, array or nested list; a number for a block of
                one.

        Raises:
            GraphError: an unknown node, no such edge, one twice, a block of another shape. Nothing has changed then, as
                with every error.
            DtypeError: something that holds no real numbers; ``weights`` is no mapping.
            ConfigError: the weights are computed from others, as by ``torch.nn.utils.parametrize``.
        """
        check_own(self, ("edge_weight",), "set_weights")
        wide = self._wide
        _assign("weights", weights, wide.edges.index_of_edge, lambda edge: wide.block(self.edge_weight.detach(), edge))

    def set_biases(self, biases: Mapping[Hashable, Any]) -> None:
        """Set the biases of these nodes, in place, ``[width]`` each; the others stay. Errors as of `set_weights`."""
        check_own(self, ("bias",), "set_biases")
        of_node = list(self._wide.of_units(self.bias.detach()).values())
        _assign("biases", biases, self._wide.edges.bias_index_of, lambda index: of_node[index])

    def grad_of(self, u: Hashable, v: Hashable) -> Tensor:
        """The gradient accumulated for the edge u -> v, ``[width(v), width(u)]``; zeros when there is none yet.

        Raises:
            GraphError: an unknown node, or no such edge.
            ConfigError: the weights are computed from others, which hold the gradients.
        """
        return self._wide.block(self._grad("edge_weight"), self._wide.edges.index_of(u, v)).clone()

    def edge_grads(self) -> dict[tuple[Hashable, Hashable], Tensor]:
        """(u, v) -> accumulated gradient, for every edge; zeros where nothing is. Errors as of `grad_of`."""
        return self._wide.blocks(self._grad("edge_weight").clone())

    def bias_grads(self) -> dict[Hashable, Tensor]:
        """Node -> accumulated gradient of its biases; zeros where nothing is. Errors as of `grad_of`."""
        return self._wide.of_units(self._grad("bias").clone())

    def _grad(self, name: str) -> Tensor:
        check_own(self, (name,), "a gradient by name")
        parameter: Tensor = getattr(self, name)
        return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach()


class HeadValues(Mapping[Hashable, Tensor]):
    """What the heads of a `WideDagNN` compute, by node; and the weighted sum of their losses.

    Attributes:
        outputs: ``[..., outputs of all heads]``, one head after another, in the order of iteration.

    >>> from dagnn import Dag
    >>> from dagnn.nn import WideDagNN
    >>> net = WideDagNN(Dag([("a", "c"), ("c", "d")]), width=2, heads=1)
    >>> y, heads = net.with_heads(torch.randn(5, 1))
    >>> isinstance(heads, HeadValues), list(heads), heads["c"].shape, torch.equal(heads["d"], y)
    (True, ['c', 'd'], torch.Size([5, 1]), True)
    """

    def __init__(self, layout: WideLayout, outputs: Tensor) -> None:
        self.outputs = outputs
        self._layout = layout
        self._index = layout.head_names

    def __getitem__(self, node: Hashable) -> Tensor:
        counts = self._layout.head[self._layout.with_head]
        if node not in self._index:
            raise KeyError(node)
        index = self._index[node]
        chosen: Tensor = self.outputs.narrow(-1, int(counts[:index].sum()), int(counts[index]))
        return chosen

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def loss(
        self,
        function: Callable[..., Tensor],
        target: Tensor,
        auxiliary: float | Mapping[Hashable, float] | Sequence[float] = 0.2,
    ) -> Tensor:
        """The sum over all heads of weight times mean loss against one target; outputs have the weight 1.

        The heads must have as many outputs as each other. DCell weighs inner heads 0.3, DrugCell 0.2.

        Args:
            function: one of ``torch.nn.functional``, such as ``mse_loss``, or another that is called as
                ``function(prediction [n, outputs], target [n, ...], reduction="none")``.
            target: ``[B, ...]``, one for every sample.
            auxiliary: the weight of the heads of nodes that are no outputs; or node -> weight, 0 for those that it does
                not name; or a weight for each level.

        Returns:
            a scalar.

        Raises:
            GraphError: heads with different numbers of outputs, no head, an unknown node, another number of samples.
            ConfigError: weights that are no finite numbers, or not one for each level.

        Source: Ma et al., "Using deep learning to model the hierarchical structure and function of a cell", Nature
        Methods 15, 2018, equation 3.

        >>> from dagnn import Dag
        >>> from dagnn.nn import WideDagNN
        >>> net = WideDagNN(Dag([("a", "c"), ("c", "d")]), width=2, heads=1)
        >>> y, heads = net.with_heads(torch.zeros(5, 1))
        >>> heads.loss(torch.nn.functional.mse_loss, torch.ones(5, 1), auxiliary=0.5).item()
        1.5
        """
        counts = self._layout.head[self._layout.with_head].tolist()
        if len(set(counts)) != 1:
            given = "no heads" if not counts else f"heads with {min(counts)} to {max(counts)} outputs"
            raise GraphError(
                f"one target fits heads with equally many outputs, got {given}: add up the losses of heads[node]."
            )
        flat = self.outputs.flatten(0, -2) if self.outputs.dim() != 2 else self.outputs
        if len(target) != len(flat):
            raise GraphError(f"target must have {len(flat)} samples, as x has, got {len(target)}.")
        heads = len(counts)
        # Head by head, not sample by sample: so they lie in memory, and with one output nothing is copied.
        prediction = flat.t().reshape(heads, counts[0], len(flat)).transpose(1, 2).reshape(-1, counts[0])
        repeated = target.expand(heads, *target.shape).flatten(0, 1)
        each = function(prediction, repeated, reduction="none").reshape(heads, -1).mean(1)
        weights = torch.from_numpy(self._weights(auxiliary)).to(each)
        return (each * weights).sum()

    def _weights(self, auxiliary: object) -> NDArray[np.float64]:
        """The weight of every head, in their order."""
        layout, places = self._layout.edges, self._layout.with_head
        if isinstance(auxiliary, Mapping):
            unknown = [name for name in auxiliary if name not in self._index]
            if unknown:
                raise GraphError(f"auxiliary names {unknown[0]!r}, which has no head.")
            inner = np.array([_number(auxiliary.get(name, 0.0), f"auxiliary[{name!r}]") for name in self._index])
        elif isinstance(auxiliary, Sequence):
            count = int(layout.levels.max()) + 1
            if len(auxiliary) != count:
                raise ConfigError(f"auxiliary lists {len(auxiliary)} weights, expected one for each of {count} levels.")
            of_levels = np.array([_number(one, f"auxiliary[{level}]") for level, one in enumerate(auxiliary)])
            inner = of_levels[layout.levels.numpy()[places]]
        else:
            inner = np.full(len(places), _number(auxiliary, "auxiliary"))
        return np.where(np.isin(places, layout.outputs.numpy()), 1.0, inner)


def _number(given: object, argument: str) -> float:
    if isinstance(given, Real) and not isinstance(given, bool) and math.isfinite(given):
        return float(given)
    raise ConfigError(f"{argument} must be a finite number, got {given!r}.")


def _assign(argument: str, values: Any, index_of: Callable[[Any], int], place_of: Callable[[int], Tensor]) -> None:
    """Write every value to its place, in place; nothing is written if one is wrong."""
    if not isinstance(values, Mapping):
        raise DtypeError(f"{argument} must be a mapping from names to values, got a {type(values).__name__}.")
    found = dict[int, tuple[Tensor, Tensor]]()
    for name, value in values.items():
        index = index_of(name)
        if index in found:
            raise GraphError(f"{argument} has {name!r} twice: give it once.")
        place = place_of(index)
        try:
            given = torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else place.dtype)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DtypeError(f"{argument}[{name!r}] must hold real numbers, got {value!r:.80}.") from error
        if given.is_complex() or given.dtype == torch.bool:
            raise DtypeError(f"{argument}[{name!r}] must hold real numbers, got {given.dtype}.")
        if given.shape != place.shape and not (given.dim() == 0 and place.numel() == 1):
            raise GraphError(f"{argument}[{name!r}] must have the shape {list(place.shape)}, got {list(given.shape)}.")
        found[index] = (place, given)
    with torch.no_grad():
        for place, given in found.values():
            place.copy_(given.detach().reshape(place.shape))
