"""`DagNN`: any DAG as a network with one trainable weight per edge."""

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from dagnn import kernels
from dagnn.errors import ConfigError, DtypeError, GraphError, warn
from dagnn.graph import Dag
from dagnn.graph.cached import ordinary_tensors
from dagnn.kernels.activations import check_activation
from dagnn.nn.checks import check_dag
from dagnn.nn.dag_nn import edit as dag_nn_edit
from dagnn.nn.dag_nn import file as dag_nn_file
from dagnn.nn.dag_nn.edit import StructureChange
from dagnn.nn.dag_nn.file import check_record, record_of
from dagnn.nn.dag_nn.names import NamedParameters, as_input
from dagnn.nn.dag_nn.parameters import (
    ParameterLayout,
    bias_mask,
    draw_uniform,
    initial_bounds,
    node_activations,
    warn_of_constants,
)
from dagnn.nn.learnable import check_own, value_of

_PARAMETERS = ("edge_weight", "bias")


@final
class DagNN(NamedParameters):
    """``value[v] = act_v(sum over edges u -> v of w_uv * value[u] + b_v)``; inputs take their value from x.

    **Columns.** Column i of x is the node ``net.input_names[i]``, column j of y is ``net.output_names[j]``: the order
    of ``Dag(inputs=..., outputs=...)``; without those, that of the sources and sinks among ``dag.names``, which is the
    order in which the edges first name them. A data frame or a mapping as x is aligned by name (see `input_from`),
    whatever the order of its columns.

    Sources that are not inputs hold a trainable bias, also with ``bias=False``: their value is ``act_v(b_v)``, random
    at the start. An unmeasured gene, or a pathway without one, becomes such a constant, so a warning names them,
    unless ``bias=[...]`` does; ``dag.without_dangling()`` drops them. Outputs may be
    any nodes, inner ones and inputs too; to read another node changes no other output. Parameters follow the *names* of
    the nodes (see `ParameterLayout`): the same DAG declared in another order loads the same state dict to the same
    function. A state dict says to which edges it belongs: a network with others refuses it and names them.

    Args:
        dag: a `Dag` with at least one output and no edge into an input.
        activation: one of `dagnn.kernels.ACTIVATIONS` for all hidden nodes; or one per node, as a
            list in the order of the Dag's nodes or a dict by node name. What a list or dict says of
            an output node wins over ``output_activation``; what it says of an input is ignored.
        output_activation: of the outputs that no edge leaves. An output that feeds other nodes is a hidden node: it
            has ``activation``.
        bias: give every node that is not an input a bias; or the nodes to give one, by name.
        dtype: ``torch.float32`` or ``torch.float64``; by default torch's default dtype.
        device: of the parameters; by default torch's default device. On "meta" the weights have no values until
            ``to_empty(device=...)`` and `reset_parameters`, or ``load_state_dict(..., assign=True)``.

    Attributes:
        edge_weight: one entry per edge, in an order of its own, which is not that of ``dag.edges`` or of any file:
            `edge_names` gives it. Read and write weights by name: `edge_weights`, `set_weights`, `weight_of`.
        bias: one entry per node that has a bias, as `bias_names` says; by name: `biases`, `set_biases`.

    Raises:
        ConfigError: an unknown activation, a list of another length, a dict without a hidden node.
        GraphError: no outputs, an edge into an input, an edge twice, an unknown name in the dict.
        DtypeError: another dtype, or no `Dag`.

    Shapes: x ``[..., inputs]`` -> y ``[..., outputs]``, any batch shape, also empty.

    >>> net = DagNN(Dag([("a", "c"), ("b", "c")]), bias=False)
    >>> net.set_weights({("a", "c"): 2.0, ("b", "c"): 3.0})
    >>> net.input_names, net(torch.tensor([[1.0, 10.0]])).tolist()
    (('a', 'b'), [[32.0]])
    >>> net({"b": [10.0], "a": [1.0]}).tolist()
    [[32.0]]
    """

    def __init__(
        self,
        dag: Dag,
        *,
        activation: str | Sequence[str] | Mapping[Hashable, str] = "tanh",
        output_activation: str = "identity",
        bias: bool | Collection[Hashable] | Tensor = True,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__()
        check_dag(dag)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in (torch.float32, torch.float64):
            raise DtypeError(f"dtype must be torch.float32 or torch.float64, got {dtype}.")
        self.dag = dag
        with ordinary_tensors():  # the structure is on the CPU, with values, whatever device the weights are made on
            self.activations = node_activations(dag, activation, output_activation)
            self.bias_nodes = bias_mask(dag, bias)
            self._layout = ParameterLayout(dag, self.bias_nodes)
            warn_of_constants(dag, self.bias_nodes)
            self._plan_on = {torch.device("cpu"): self._planned()}
        self.edge_weight = nn.Parameter(torch.empty(dag.num_edges, dtype=dtype, device=device))
        self.bias = nn.Parameter(torch.empty(self._layout.num_biases, dtype=dtype, device=device))
        self._last_input: Tensor | None = None
        self.reset_parameters()

    def _planned(self) -> kernels.NetworkPlan:
        layout = self._layout
        return kernels.plan_network(
            layout.edges,
            layout.levels,
            layout.inputs,
            layout.outputs,
            layout.has_bias,
            list(map(self.activations.__getitem__, layout.node_at.tolist())),
        )

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

        Raises:
            ConfigError: a parameter is computed from others, as by ``torch.nn.utils.parametrize``.
        """
        check_own(self, _PARAMETERS, "reset_parameters")
        weight_bound, bias_bound = initial_bounds(self._layout, self.activations)
        for parameter, bound in ((self.edge_weight, weight_bound), (self.bias, bias_bound)):
            draw_uniform(parameter, bound, generator)

    @property
    def input_names(self) -> tuple[Hashable, ...]:
        """The node of every column of x; its index where nodes have no names."""
        return tuple(map(self.dag.name_of, self.dag.inputs.tolist()))

    @property
    def output_names(self) -> tuple[Hashable, ...]:
        """The node of every column of y; its index where nodes have no names."""
        return tuple(map(self.dag.name_of, self.dag.outputs.tolist()))

    def input_from(self, table: Any) -> Tensor:
        """``x [..., inputs]`` from columns by name, of the dtype and on the device of the parameters.

        ``net(table)`` does this for every call; convert a table once where it is used often.

        Args:
            table: a data frame (of pandas, polars, pyarrow ...), one row of pandas, or a mapping from name to column (a
                tensor, an array, a list or a number; all of one shape). Their order does not matter and columns that
                are no inputs are ignored. A NumPy array ``[..., inputs]`` has no names: its columns are taken in the
                order of `input_names`. Missing values become NaN.

        Raises:
            GraphError: an input without a column (all are listed), a name with two columns, columns of different shapes
                or row labels.
            DtypeError: a column that holds no real numbers; something without columns.
        """
        return as_input(table, self.input_names, self.edge_weight)

    def forward(self, x: Any) -> Tensor:
        """Outputs ``[..., outputs]`` for ``x [..., inputs]``, columns as `input_names` and `output_names` say.

        Args:
            x: a tensor of the dtype of the parameters; or columns by name or an array, as `input_from` takes them.

        Raises:
            DtypeError: ``x`` has another dtype than the parameters, or is sparse.
            GraphError: the last dimension of ``x`` is not the number of inputs; names are missing.
        """
        if type(x) is not Tensor and not isinstance(x, Tensor):
            x = self.input_from(x)
        # Past nn.Module, which looks for them elsewhere first: that took as long as all of the checks.
        held = self._parameters
        weight, bias = held.get("edge_weight"), held.get("bias")
        if weight is None or bias is None:  # computed anew for every step, as torch.nn.utils.parametrize does
            weight, bias = self.edge_weight, self.bias
        x = _checked(x, self.dag.inputs.shape[0], weight.dtype)
        # Only a training step leaves something behind: an evaluation in between disturbs nothing.
        if self.training and _may_be_kept(x):
            self.__dict__["_last_input"] = x  # past nn.Module, which would ask whether it is a parameter
        return self._run(x, weight, bias)

    def _run(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        plan = self._plan_for(x)
        if x.dim() == 2:
            return kernels.run_network(plan, x, weight, bias)
        y = kernels.run_network(plan, _rows(x), weight, bias)
        return y.reshape(*x.shape[:-1], len(self.dag.outputs))

    def _plan_for(self, x: Tensor) -> kernels.NetworkPlan:
        plan = self._plan_on.get(x.device)
        if plan is None:
            plan = self._plan_on.setdefault(x.device, self._plan_on[torch.device("cpu")].to(x.device))
        return plan

    # ---- gradients by hand ----

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
        if self.training:
            self._backward(grad_output, None)

    def backward_and_update(self, grad_output: Tensor, lr: float) -> None:
        """Deprecated: `backward_accumulate`, then `step`, in one pass. In eval mode: nothing."""
        warn(
            "backward_and_update is deprecated: call backward_accumulate(grad_output), then step(lr).",
            DeprecationWarning,
        )
        if not self.training:
            return
        if not 0 <= lr < math.inf:
            self.step(lr)  # says what is wrong with it
        if not self._backward(grad_output, lr):
            self.step(lr)

    def _backward(self, grad_output: Tensor, lr: float | None) -> bool:
        """Accumulate, and with ``lr`` also step if one pass can do both; whether it did."""
        x = self._last_input
        if x is None:
            raise GraphError("there is no forward pass to go back through: call the network in training mode first.")
        expected = [*x.shape[:-1], len(self.dag.outputs)]
        if list(grad_output.shape) != expected:
            raise GraphError(
                f"grad_output must have the shape of the last output, {expected}, got {list(grad_output.shape)}."
            )
        weight, bias = value_of(self, "edge_weight"), value_of(self, "bias")
        if grad_output.dtype != weight.dtype:
            raise DtypeError(f"grad_output must be {weight.dtype}, the dtype of y, got {grad_output.dtype}.")

        rows = grad_output.reshape(x.shape[:-1].numel(), len(self.dag.outputs))
        if kernels.accumulate_network(self._plan_for(x), _rows(x), weight, bias, rows, lr):
            return lr is not None
        with torch.enable_grad():
            y = self._run(x, weight, bias)
        if y.requires_grad:
            # retain_graph keeps what lies before x; our own part of the graph dies with y.
            torch.autograd.backward(y, grad_output, retain_graph=True)
        return False

    # ---- structure that changes ----

    def prune(
        self, *, threshold: float | None = None, fraction: float | None = None, allow_disconnected: bool = False
    ) -> StructureChange:
        """Remove the edges of smallest absolute weight. Nodes stay; the parameters stay the same objects.

        Weights, accumulated gradients and biases of what stays are kept; for an optimizer's state call
        ``carry_over(optimizer)`` on what comes back. A node that loses its last edge holds a bias.

        Args:
            threshold: remove where ``|weight| <= threshold``; NaN weights stay.
            fraction: or remove this share of the edges, rounded down.
            allow_disconnected: an output may lose its last path from an input.

        Raises:
            ConfigError: not exactly one of the two, or out of range.
            GraphError: an output would lose its last path from an input. Nothing has changed then, as with every error.
            ConfigError: a parameter is computed from others, as by ``torch.nn.utils.prune`` or ``parametrize``.
        """
        check_own(self, _PARAMETERS, "prune")
        kept = dag_nn_edit.kept_by_prune(self, threshold, fraction)
        if not allow_disconnected:
            dag_nn_edit.check_outputs_stay_connected(self, kept)
        return self._changed(dag_nn_edit.without(self, kept), self.activations)

    def grow(
        self,
        edges: Iterable[tuple[Hashable, Hashable]] | Tensor = (),
        *,
        nodes: Sequence[Hashable] | int = (),
        weight: float | Sequence[float] | Tensor = 0.0,
        activation: str = "tanh",
    ) -> StructureChange:
        """Add edges, and nodes for them. With weights of 0 the outputs do not change.

        Weights, gradients and biases of what was there are kept, as for `prune`.

        Args:
            edges: pairs of names (of indices where nodes have none), or int64 indices ``[num_new, 2]``.
            nodes: names of new nodes; their number where nodes have no names.
            weight: of the new edges: one for all, or one for each.
            activation: of the new nodes.

        Raises:
            GraphError: an unknown node, an edge that is there already, an edge into an input, a Dag with attributes.
            DtypeError: edges or names of nodes in a form that has no pairs, or no order.
            CycleError: the new edges close a cycle. Nothing has changed then, as with every error.
            ConfigError: weights that are no real numbers, or too large for the dtype; edges without an order for a list
                of weights; a parameter that is computed from others, as by ``torch.nn.utils.prune``.
        """
        check_own(self, _PARAMETERS, "grow")
        check_activation(activation)
        dag, new = dag_nn_edit.with_more(self, edges, nodes)
        values = dag_nn_edit.new_weights(weight, len(new), self.edge_weight)
        if isinstance(edges, Mapping) or (values.dim() and isinstance(edges, set | frozenset)):
            raise ConfigError(
                f"edges must be a list, in the order of weight=[...], got a {type(edges).__name__}: list them."
            )
        activations = self.activations + [activation] * (dag.num_nodes - self.dag.num_nodes)
        change = self._changed(dag, activations)
        slots = self._layout.slots_of(torch.from_numpy(new))
        with torch.no_grad():
            self.edge_weight[slots.to(values.device)] = values
        return change

    def _changed(self, dag: Dag, activations: list[str]) -> StructureChange:
        """Take another Dag, whose first nodes are those of the old one."""
        old = self._layout
        with ordinary_tensors():
            # A bias never goes: a source that gets its first edge keeps what it held.
            has_bias = torch.full((dag.num_nodes,), self.bias_nodes is True)
            has_bias[old.node_at[old.has_bias]] = True
            by_name = old.by_name if dag.num_nodes == old.dag.num_nodes else None
            layout = ParameterLayout(dag, True if self.bias_nodes is True else has_bias, by_name)
            edge_from, bias_from = dag_nn_edit.slots_before(old, layout)
        before = (len(self.edge_weight), len(self.bias))
        values = [
            dag_nn_edit.moved(parameter.detach(), moved_from)
            for parameter, moved_from in ((self.edge_weight, edge_from), (self.bias, bias_from))
        ]

        self.dag, self.activations, self._layout, self._last_input = dag, activations, layout, None
        if self.bias_nodes is not True:
            self.bias_nodes = has_bias.index_fill_(0, layout.node_at[layout.has_bias], True)
        self._plan_on = {torch.device("cpu"): self._planned()}
        dag_nn_edit.replace_values(self.edge_weight, values[0], edge_from)
        dag_nn_edit.replace_values(self.bias, values[1], bias_from)
        stayed = int((edge_from >= 0).sum())
        return StructureChange(
            self.edge_weight, self.bias, before[0] - stayed, dag.num_edges - stayed, edge_from, bias_from, before
        )

    # ---- files and copies ----

    def save(self, path: str | PathLike[str]) -> None:
        """Write topology, activations and weights to one file; see `dagnn.nn.dag_nn.file`.

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
        net = cls(document.dag, activation=document.activations, bias=document.biased)
        net.bias_nodes = bias_mask(document.dag, document.bias)
        net.to(weights["edge_weight"].dtype)
        net.load_state_dict(weights)
        return net

    def get_extra_state(self) -> Tensor:
        """What the state dict says of the edges and nodes that the weights belong to: see `dagnn.nn.dag_nn.file`."""
        return record_of(self._layout)

    def set_extra_state(self, state: Any) -> None:
        """Nothing: `load_state_dict` compares it with the structure of this network, which it does not change."""

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        metadata: Any,
        strict: bool,
        missing: list[str],
        *lists: list[str],
    ) -> None:
        key = f"{prefix}_extra_state"
        if key in state_dict:  # before anything is copied
            check_record(state_dict[key], self._layout, prefix[:-1])
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *lists)
        if key in missing:  # of an earlier version, or plain vectors: they are taken in their order
            missing.remove(key)

    def __getstate__(self) -> dict[str, Any]:
        # A tensor inside an autograd graph can be neither pickled nor deep-copied.
        computed = {name: self.__dict__[name].detach() for name in _PARAMETERS if name in self.__dict__}
        return {**self.__dict__, **computed, "_last_input": None}

    def extra_repr(self) -> str:
        return (
            f"num_nodes={self.dag.num_nodes}, num_edges={self.dag.num_edges}, "
            f"inputs={len(self.dag.inputs)}, outputs={len(self.dag.outputs)}"
        )


def _checked(x: Tensor, inputs: int, dtype: torch.dtype) -> Tensor:
    """``x`` of the right shape and dtype; under autocast other floating dtypes are converted."""
    if x.dim() == 0 or x.shape[-1] != inputs:
        raise GraphError(f"x must have the shape [..., inputs] = [..., {inputs}], got {list(x.shape)}.")
    if x.layout is not torch.strided:
        raise DtypeError(f"x must be dense, got a tensor with the layout {x.layout}: convert it with x.to_dense().")
    if x.dtype != dtype:
        if not (x.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
            raise DtypeError(
                f"x must be {dtype}, the dtype of the parameters, got {x.dtype}: "
                f"convert it with x.to({dtype}), or the network with net.to(...)."
            )
        x = x.to(dtype)
    return x


def _may_be_kept(x: Tensor) -> bool:
    """False for a tensor that must not outlive its context: of an export, of ``torch.func``, of inference mode."""
    if torch.compiler.is_compiling():  # the others do not occur there, and the questions below cannot be traced
        return not torch.compiler.is_exporting()
    return not (x.is_inference() or torch._C._functorch.is_functorch_wrapped_tensor(x))


def _rows(x: Tensor) -> Tensor:
    """``x [..., inputs]`` as ``[B, inputs]``."""
    # Not by their number, which torch.export and torch.jit.trace would take for a constant.
    return x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)
