"""`DagNN`: any DAG as a network with one trainable weight per edge."""

import warnings
from collections.abc import Hashable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from dagnn import kernels
from dagnn.errors import DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.nn import dag_nn_file
from dagnn.nn.dag_nn_init import initial_bounds, node_activations
from dagnn.nn.learnable import LearnableModule
from dagnn.nn.parameter_layout import ParameterLayout


@final
class DagNN(LearnableModule):
    """``value[v] = act_v(sum over edges u -> v of w_uv * value[u] + b_v)``; inputs take their value from x.

    Sources that are not inputs hold a trainable bias: their value is ``act_v(b_v)``. Outputs may be
    any nodes, inner ones and inputs too. Parameters follow the *names* of the nodes (see
    `ParameterLayout`): the same DAG declared in another order loads the same state dict to the same
    function.

    Args:
        dag: a `Dag` with at least one output and no edge into an input.
        activation: one of `dagnn.kernels.ACTIVATIONS` for all hidden nodes; or one per node, as a
            list in the order of the Dag's nodes or a dict by node name. What a list or dict says of
            an output node wins over ``output_activation``; what it says of an input is ignored.
        output_activation: of the output nodes.
        bias: give every node that is not an input a bias.
        dtype: ``torch.float32`` or ``torch.float64``; by default torch's default dtype.

    Raises:
        ConfigError: an unknown activation, a list of another length, a dict without a hidden node.
        GraphError: no outputs, an edge into an input, an edge twice, an unknown name in the dict.
        DtypeError: another dtype.

    Shapes: x ``[..., inputs]`` -> y ``[..., outputs]``, any batch shape, also empty.

    >>> net = DagNN(Dag([("a", "c"), ("b", "c")]), bias=False)
    >>> _ = net.load_state_dict({"edge_weight": torch.tensor([2.0, 3.0]), "bias": torch.empty(0)})
    >>> net.weight_of("b", "c"), net(torch.tensor([[1.0, 10.0]])).tolist()
    (3.0, [[32.0]])
    """

    def __init__(
        self,
        dag: Dag,
        *,
        activation: str | Sequence[str] | Mapping[Hashable, str] = "tanh",
        output_activation: str = "identity",
        bias: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in (torch.float32, torch.float64):
            raise DtypeError(f"dtype must be torch.float32 or torch.float64, got {dtype}.")
        self.dag = dag
        self.bias_everywhere = bias
        self.activations = node_activations(dag, activation, output_activation)
        self._layout = ParameterLayout(dag, bias)
        self.edge_weight = nn.Parameter(torch.empty(dag.num_edges, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(self._layout.num_biases, dtype=dtype))

        layout = self._layout
        plan = kernels.plan_network(
            layout.edges,
            layout.levels,
            layout.inputs,
            layout.outputs,
            layout.has_bias,
            [self.activations[node] for node in layout.node_at.tolist()],
        )
        self._plan_on = {torch.device("cpu"): plan}
        self._last_input: Tensor | None = None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights, scaled so that every node's sum has about unit variance for unit inputs.

        Uniform with variance ``1 / (in_degree(v) * E[value_u^2])`` for the edge u -> v, where
        ``E[value_u^2]`` is 1 for an input and what the activation leaves of a unit Gaussian
        otherwise. Source: He et al., "Delving Deep into Rectifiers", ICCV 2015, equations 6-10, per
        edge instead of per layer. Biases are 0; those of sources have unit variance, as inputs do.
        The draws follow the parameter layout: one seed gives a named edge the same weight however
        the Dag was declared.

        Args:
            generator: on the device of the parameters; by default torch's global one.
        """
        weight_bound, bias_bound = initial_bounds(self._layout, self.activations)
        for parameter, bound in ((self.edge_weight, weight_bound), (self.bias, bias_bound)):
            parameter.uniform_(-1, 1, generator=generator).mul_(bound.to(parameter))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs ``[..., outputs]`` for ``x [..., inputs]``, in the Dag's order of inputs and outputs.

        Raises:
            DtypeError: ``x`` has another dtype than the parameters.
            GraphError: the last dimension of ``x`` is not the number of inputs.
        """
        x = self._checked(x)
        # Only a training step leaves something behind: an evaluation in between disturbs nothing.
        if self.training and _may_be_kept(x):
            self._last_input = x
        return self._run(x)

    def _run(self, x: Tensor) -> Tensor:
        plan = self._plan_on.get(x.device)
        if plan is None:
            plan = self._plan_on.setdefault(x.device, self._plan_on[torch.device("cpu")].to(x.device))
        batch = x.shape[:-1]
        rows = x.reshape(batch.numel(), x.shape[-1])  # not -1: ambiguous when there are no inputs
        return kernels.run_network(plan, rows, self.edge_weight, self.bias).reshape(*batch, len(self.dag.outputs))

    # ---- weights and gradients by name ----

    def weight_of(self, u: Hashable, v: Hashable) -> float:
        """The weight of the edge u -> v. Raises GraphError if there is none."""
        return float(self.edge_weight.detach()[self._layout.slot_of(u, v)])

    def grad_of(self, u: Hashable, v: Hashable) -> float:
        """The gradient accumulated for the edge u -> v; 0.0 when there is none yet.

        Raises:
            GraphError: an unknown node, or no such edge.
        """
        slot = self._layout.slot_of(u, v)
        return 0.0 if self.edge_weight.grad is None else float(self.edge_weight.grad[slot])

    def get_edge_grad(self, u: Hashable, v: Hashable) -> float:
        """The same as `grad_of`: the reading twin of `accumulate_edge_grad`."""
        return self.grad_of(u, v)

    def edge_grads(self) -> dict[tuple[Hashable, Hashable], float]:
        """(u, v) -> accumulated gradient, for every edge; 0.0 where nothing is accumulated."""
        grad = self.edge_weight.grad
        values = [0.0] * self.dag.num_edges if grad is None else grad.tolist()
        return dict(zip(self._layout.edge_names(), values, strict=True))

    @torch.no_grad()
    def accumulate_edge_grad(self, u: Hashable, v: Hashable, g: float | Tensor) -> None:
        """Add ``g`` to the accumulated gradient of the edge u -> v. In eval mode: nothing.

        Args:
            g: a number, or a tensor with one element.

        Raises:
            GraphError: an unknown node, or no such edge.
        """
        slot = self._layout.slot_of(u, v)
        if not (self.training and self.edge_weight.requires_grad):
            return
        if self.edge_weight.grad is None:
            self.edge_weight.grad = torch.zeros_like(self.edge_weight)
        self.edge_weight.grad[slot] += g.item() if isinstance(g, Tensor) else g

    def backward_accumulate(self, grad_output: Tensor) -> None:
        """Backward from an output gradient given by hand; gradients sum. In eval mode: nothing.

        Like ``y.backward(grad_output)`` for the last ``y = net(x)`` in training mode, but it may be
        called again, and also where that call ran under ``torch.no_grad()``: the pass is run anew
        from x, with the weights as they are now. Where x needs a gradient, it gets one.

        Args:
            grad_output: ``[..., outputs]``, the shape and dtype of y.

        Raises:
            GraphError: no forward pass in training mode came before, or another shape.
            DtypeError: another dtype.
        """
        if not self.training:
            return
        if self._last_input is None:
            raise GraphError("there is no forward pass to go back through: call the network in training mode first.")
        expected = [*self._last_input.shape[:-1], len(self.dag.outputs)]
        if list(grad_output.shape) != expected:
            raise GraphError(
                f"grad_output must have the shape of the last output, {expected}, got {list(grad_output.shape)}."
            )
        if grad_output.dtype != self.edge_weight.dtype:
            raise DtypeError(f"grad_output must be {self.edge_weight.dtype}, the dtype of y, got {grad_output.dtype}.")

        with torch.enable_grad():
            y = self._run(self._last_input)
        if y.requires_grad:
            # retain_graph keeps what lies before x; our own part of the graph dies with y.
            torch.autograd.backward(y, grad_output, retain_graph=True)

    def backward_and_update(self, grad_output: Tensor, lr: float) -> None:
        """Deprecated: `backward_accumulate`, then `step`. In eval mode: nothing."""
        warnings.warn(
            "backward_and_update is deprecated: call backward_accumulate(grad_output), then step(lr).",
            DeprecationWarning,
            stacklevel=2,
        )
        if self.training:
            self.backward_accumulate(grad_output)
            self.step(lr)

    # ---- files and copies ----

    def save(self, path: str | PathLike[str]) -> None:
        """Write topology, activations and weights to one file; see `dagnn.nn.dag_nn_file`.

        The file appears under its name complete or not at all. Gradients are not in it.

        Raises:
            GraphError: the Dag has names or attributes that JSON cannot hold.
            OSError: the file cannot be written; what was there before stays.
        """
        dag_nn_file.write(Path(path), self)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The network that `save` wrote, on the CPU, in training mode.

        Raises:
            CheckpointError: no file, or one that is truncated, altered, foreign or newer.
        """
        document, weights = dag_nn_file.read(Path(path))
        net = cls(document.dag, activation=document.activations, bias=document.bias)
        net.to(weights["edge_weight"].dtype)
        net.load_state_dict(weights)
        return net

    def __getstate__(self) -> dict[str, Any]:
        # A tensor inside an autograd graph can be neither pickled nor deep-copied.
        return {**self.__dict__, "_last_input": None}

    def extra_repr(self) -> str:
        return (
            f"num_nodes={self.dag.num_nodes}, num_edges={self.dag.num_edges}, "
            f"inputs={len(self.dag.inputs)}, outputs={len(self.dag.outputs)}"
        )

    def _checked(self, x: Tensor) -> Tensor:
        """``x`` of the right shape and dtype; under autocast other floating dtypes are converted."""
        expected = len(self.dag.inputs)
        if x.dim() == 0 or x.shape[-1] != expected:
            raise GraphError(f"x must have the shape [..., inputs] = [..., {expected}], got {list(x.shape)}.")
        dtype = self.edge_weight.dtype
        if x.dtype != dtype:
            if not (x.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
                raise DtypeError(
                    f"x must be {dtype}, the dtype of the parameters, got {x.dtype}: "
                    f"convert it with x.to({dtype}), or the network with net.to(...)."
                )
            x = x.to(dtype)
        return x


def _may_be_kept(x: Tensor) -> bool:
    """False for a tensor that must not outlive its context: one of ``torch.func`` or of inference mode."""
    if torch.compiler.is_compiling():  # neither occurs there, and the questions below cannot be traced
        return True
    return not (x.is_inference() or torch._C._functorch.is_functorch_wrapped_tensor(x))
