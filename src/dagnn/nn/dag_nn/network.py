"""`DagNN`: any DAG as a network with one trainable weight per edge."""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from dagnn import kernels
from dagnn.errors import ConfigError, DtypeError, GraphError, warn
from dagnn.graph import Dag
from dagnn.graph.cached import ordinary_tensors
from dagnn.kernels.nodes import activation_text, check_aggregation
from dagnn.nn.dag_nn import edit, file
from dagnn.nn.dag_nn.export import Exports
from dagnn.nn.dag_nn.imported import read_sequential
from dagnn.nn.dag_nn.parameters import (
    ParameterLayout,
    bias_mask,
    check_response,
    draw_uniform,
    initial_bounds,
    network_plan,
    node_activations,
    node_aggregations,
    node_responses,
    warn_of_constants,
)
from dagnn.nn.dag_nn.tables import may_be_kept, rows_of
from dagnn.nn.learnable import check_dag, check_dtype, check_own, value_of

_PARAMETERS = ("edge_weight", "bias")
# A name, or a function of one value that is recorded as a formula.
Activation = str | Callable[[Any], Any]


@final
class DagNN(Exports, file.RecordsStructure):
    """``value[v] = act_v(sum over edges u -> v of w_uv * value[u] + b_v)``; inputs take their value from x.

    **Nodes** may be more: ``act_v(b_v + r_v * aggregate over edges u -> v of w_uv * value[u])``, with a name or formula
    as act_v, an aggregation and a response r_v of their own. `from_neat` makes such networks of genomes.

    **Columns.** Column i of x is the node ``net.input_names[i]``, column j of y is ``net.output_names[j]``: the order
    of ``Dag(inputs=..., outputs=...)``; without those, that of the sources and sinks among ``dag.names``, which is the
    order in which the edges first name them. A data frame or a mapping as x is aligned by name (see `input_from`),
    whatever the order of its columns.

    **Constants.** Sources that are not inputs hold a trainable bias, also with ``bias=False``: their value is
    ``act_v(b_v)``, random at the start. An unmeasured gene, or a pathway without one, becomes such a constant, so a
    warning names them, unless ``bias=[...]`` does; ``dag.without_dangling()`` drops them.

    **Outputs** may be any nodes, inner ones and inputs too. Reading another node changes no other output.

    **Parameters** follow the *names* of the nodes: the same DAG declared in another order loads the same state dict to
    the same function. A state dict records the edges that it belongs to: a network with other edges refuses it and
    names the difference; one with other functions of its nodes warns.

    Args:
        dag: a `Dag` with at least one output and no edge into an input.
        activation: one of `dagnn.kernels.ACTIVATIONS`; one of neat-python's, such as ``"neat.sin"``; or a formula: a
            function of one value made of ``+ - * /`` and PyTorch's functions, such as
            ``lambda z: z * torch.sigmoid(z)``. One for all hidden nodes; or one per node, as a list in the order of the
            Dag's nodes or a dict by node name. The entry of an output in a list or dict wins over
            ``output_activation``; that of an input is ignored.
        output_activation: of the outputs that no edge leaves. An output that feeds other nodes is a hidden node and has
            ``activation``.
        aggregation: one of ``sum``, ``mean``, ``product``, ``max``, ``min``, ``maxabs`` (the largest absolute value,
            with its sign) and ``median``, of the weighted values; for all nodes, or a list, or a dict by node name,
            where nodes that it does not name sum. Without edges, a product is 1 and all others are 0.
        response: a finite number by which the aggregate of a node is multiplied; for all nodes, or a list, or a dict
            where nodes that it does not name have 1. It is no parameter.
        bias: give every node that is not an input a bias; or the nodes to give one, by name.
        width: always 1: networks of several units a node are `dagnn.nn.WideDagNN`.
        dtype: ``torch.float32`` or ``torch.float64``; by default torch's default dtype.
        device: of the parameters; by default torch's default device. On "meta" the weights have no values until
            ``to_empty(device=...)`` and `reset_parameters`, or ``load_state_dict(..., assign=True)``.

    Attributes:
        edge_weight: float ``[num_edges]``, in an order of its own, which is not that of ``dag.edges`` or of any file:
            `edge_names` lists it. Read and write weights by name: `edge_weights`, `set_weights`, `weight_of`.
        bias: float ``[num_biases]``, one entry per node that has a bias, in the order of `bias_names`; by name:
            `biases`, `set_biases`.
        activations: the activation of every node, in the order of the Dag's nodes: its name, or its formula as text,
            which can be given as ``activation`` again.
        aggregations, responses: those of every node, in the same order.

    Raises:
        ConfigError: an unknown activation or aggregation, a function that is no formula, a list of another length, a
            dict of activations without a hidden node; another width.
        GraphError: no outputs, an edge into an input, an edge twice, an unknown name in the dict.
        DtypeError: another dtype, or no `Dag`.

    Shapes: x ``[..., inputs]`` -> y ``[..., outputs]``, both of the parameters' dtype; any batch shape, also empty.

    >>> net = DagNN(Dag([("a", "c"), ("b", "c")]), bias=False)
    >>> net.set_weights({("a", "c"): 2.0, ("b", "c"): 3.0})
    >>> net.input_names, net(torch.tensor([[1.0, 10.0]])).tolist()
    (('a', 'b'), [[32.0]])
    >>> net({"b": [10.0], "a": [1.0]}).tolist()
    [[32.0]]
    >>> gate = DagNN(net.dag, output_activation=lambda z: z / (1 + z.abs()), aggregation="product")
    >>> gate.set_weights({("a", "c"): 2.0, ("b", "c"): 3.0})
    >>> gate(torch.tensor([[0.5, 1.0]])).tolist()
    [[0.75]]
    """

    def __init__(
        self,
        dag: Dag,
        *,
        activation: Activation | Sequence[Activation] | Mapping[Hashable, Activation] = "tanh",
        output_activation: Activation = "identity",
        aggregation: str | Sequence[str] | Mapping[Hashable, str] = "sum",
        response: float | Sequence[float] | Mapping[Hashable, float] | Tensor = 1.0,
        bias: bool | Collection[Hashable] | Tensor = True,
        width: int = 1,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__()
        check_dag(dag)
        if width != 1:
            raise ConfigError(
                f"a DagNN has one unit a node, got width={width!r}: for several take dagnn.WideDagNN(dag, width=...)."
            )
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in (torch.float32, torch.float64):
            raise DtypeError(
                f"dtype must be torch.float32 or torch.float64, got {dtype}: make the network in one of them, then "
                "convert it with net.to(...)."
            )
        self.dag = dag
        with ordinary_tensors():  # the structure is on the CPU, with values, whatever device the weights are made on
            self.activations = node_activations(dag, activation, output_activation)
            self.aggregations, self.responses = node_aggregations(dag, aggregation), node_responses(dag, response)
            self.bias_nodes = bias_mask(dag, bias)
            self._layout = ParameterLayout(dag, self.bias_nodes)
            warn_of_constants(dag, self.bias_nodes)
            self._plan_on = {
                torch.device("cpu"): network_plan(self._layout, self.activations, self.aggregations, self.responses)
            }
        self.edge_weight = nn.Parameter(torch.empty(dag.num_edges, dtype=dtype, device=device))
        self.bias = nn.Parameter(torch.empty(self._layout.num_biases, dtype=dtype, device=device))
        self._last_input: Tensor | None = None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights, scaled so that every node's sum has about unit variance for unit inputs.

        Uniform with variance ``1 / (in_degree(v) * E[value_u^2])`` for the edge u -> v, where ``E[value_u^2]`` is 1 for
        an input, and otherwise the second moment of the activation of a unit Gaussian, at most 100. A mean has
        1 / in_degree in place of it, products and extremes 1. Biases are 0; those of sources have unit variance, as
        inputs do. The draws follow the names: one seed gives a named edge the same weight however the Dag was declared.
        Source: He et al., "Delving Deep into Rectifiers", ICCV 2015, equations 6-10, per edge instead of per layer.

        Args:
            generator: on the device of the parameters; by default torch's global one.

        Raises:
            ConfigError: a parameter is computed from others, as by ``torch.nn.utils.parametrize``.
        """
        check_own(self, _PARAMETERS, "reset_parameters")
        weight_bound, bias_bound = initial_bounds(self._layout, self.activations, self.aggregations)
        for parameter, bound in ((self.edge_weight, weight_bound), (self.bias, bias_bound)):
            draw_uniform(parameter, bound, generator)

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
        # Not self.edge_weight: nn.Module's lookup tries other places first, and took as long as all of the checks.
        held = self._parameters
        weight, bias = held.get("edge_weight"), held.get("bias")
        if weight is None or bias is None:  # computed from others, as by torch.nn.utils.parametrize
            weight, bias = self.edge_weight, self.bias
        inputs = self.dag.inputs.shape[0]
        if x.dim() == 0 or x.shape[-1] != inputs:
            raise GraphError(
                f"x must have the shape [..., inputs] = [..., {inputs}], got {list(x.shape)}: input_names lists them."
            )
        check_dtype("x", x, weight.dtype)
        if x.dtype != weight.dtype:  # under autocast
            x = x.to(weight.dtype)
        # Only in training mode: an evaluation between forward and backward must not replace the input.
        if self.training and may_be_kept(x):
            self.__dict__["_last_input"] = x  # nn.Module.__setattr__ would check for parameters and modules first
        return self._run(x, weight, bias)

    def _run(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        plan = self._plan_for(x)
        if x.dim() == 2:
            return kernels.run_network(plan, x, weight, bias)
        y = kernels.run_network(plan, rows_of(x), weight, bias)
        return y.reshape(*x.shape[:-1], len(self.dag.outputs))

    def _plan_for(self, x: Tensor) -> kernels.NetworkPlan:
        plan = self._plan_on.get(x.device)
        if plan is None:
            plan = self._plan_on.setdefault(x.device, self._plan_on[torch.device("cpu")].to(x.device))
        return plan

    # ---- gradients by hand ----

    def backward_accumulate(self, grad_output: Tensor) -> None:
        """Backward from an output gradient given by hand; gradients sum. In eval mode: nothing.

        Like ``y.backward(grad_output)`` for the last ``y = net(x)`` in training mode. It runs the
        forward pass again from that x, with the weights as they are now, so it may be called several
        times, and after a forward pass under ``torch.no_grad()``. If x needs a gradient, it gets one.

        Args:
            grad_output: ``[..., outputs]``, the shape and dtype of y.

        Raises:
            GraphError: no forward pass in training mode came before, or another shape.
            DtypeError: another dtype.
        """
        if self.training:
            self._backward(grad_output, None)

    def backward_and_update(self, grad_output: Tensor, lr: float) -> None:
        """Deprecated: `backward_accumulate`, then `step`. In eval mode: nothing. Errors as of these two."""
        warn(
            "backward_and_update is deprecated: call backward_accumulate(grad_output), then step(lr).",
            DeprecationWarning,
        )
        if not self.training:
            return
        if not 0 <= lr < math.inf:
            self.step(lr)  # raises the error for this lr
        if not self._backward(grad_output, lr):
            self.step(lr)

    def _backward(self, grad_output: Tensor, lr: float | None) -> bool:
        """Accumulate; with ``lr`` also step, where the kernel does both in one pass. Whether it has stepped."""
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
            raise DtypeError(
                f"grad_output must be {weight.dtype}, the dtype of y, got {grad_output.dtype}: convert it."
            )

        rows = grad_output.reshape(x.shape[:-1].numel(), len(self.dag.outputs))
        if kernels.accumulate_network(self._plan_for(x), rows_of(x), weight, bias, rows, lr):
            return lr is not None
        with torch.enable_grad():
            y = self._run(x, weight, bias)
        if y.requires_grad:
            # retain_graph, because x may have a graph of its own, which the next call needs; our part is freed with y.
            torch.autograd.backward(y, grad_output, retain_graph=True)
        return False

    # ---- structure that changes ----

    def prune(
        self, *, threshold: float | None = None, fraction: float | None = None, allow_disconnected: bool = False
    ) -> edit.StructureChange:
        """Remove the edges of smallest absolute weight. Nodes stay; the parameters stay the same objects.

        What stays keeps its weight, bias and accumulated gradient. For the state of an optimizer, call
        ``carry_over(optimizer)`` on the result. A node that loses its last incoming edge gets a bias.

        Args:
            threshold: remove where ``|weight| <= threshold``; NaN weights stay.
            fraction: or remove this share of the edges, rounded down.
            allow_disconnected: an output may lose its last path from an input.

        Raises:
            ConfigError: not exactly one of ``threshold`` and ``fraction``, or one out of range; a parameter is computed
                from others, as by ``torch.nn.utils.prune`` or ``parametrize``.
            GraphError: an output would lose its last path from an input. Nothing has changed then, as with every error.
        """
        check_own(self, _PARAMETERS, "prune")
        kept = edit.kept_by_prune(self.edge_weight, threshold, fraction)
        if not allow_disconnected:
            edit.check_outputs_stay_connected(self._layout, kept)
        dag = edit.without(self._layout, kept)
        return self._change_structure(dag, self.activations, self.aggregations, self.responses)

    def grow(
        self,
        edges: Iterable[tuple[Hashable, Hashable]] | Tensor = (),
        *,
        nodes: Sequence[Hashable] | int = (),
        weight: float | Sequence[float] | Tensor = 0.0,
        activation: Activation = "tanh",
        aggregation: str = "sum",
        response: float = 1.0,
    ) -> edit.StructureChange:
        """Add edges, and nodes for them. With weights of 0 the outputs do not change where nodes are sums.

        What was there keeps its weight, bias and gradient, as with `prune`.

        Args:
            edges: pairs of names (of indices where nodes have none), or int64 indices ``[num_new, 2]``.
            nodes: names of new nodes; their number where nodes have no names.
            weight: of the new edges: one for all, or one for each.
            activation, aggregation, response: of the new nodes.

        Raises:
            GraphError: an unknown node, an edge that is there already, an edge into an input, a Dag with attributes.
            DtypeError: edges or names of nodes in a form that has no pairs, or no order.
            CycleError: the new edges close a cycle. Nothing has changed then, as with every error.
            ConfigError: weights that are no real numbers, or too large for the dtype; edges without an order for a list
                of weights; a parameter that is computed from others; an unknown activation or aggregation.
        """
        check_own(self, _PARAMETERS, "grow")
        text, kind, factor = activation_text(activation), check_aggregation(aggregation), check_response(response)
        dag, new = edit.with_more(self.dag, edges, nodes)
        values = edit.new_weights(weight, edges, len(new), self.edge_weight)
        more = dag.num_nodes - self.dag.num_nodes
        change = self._change_structure(
            dag, self.activations + [text] * more, self.aggregations + [kind] * more, self.responses + [factor] * more
        )
        indices = self._layout.indices_of(torch.from_numpy(new))
        with torch.no_grad():
            self.edge_weight[indices.to(values.device)] = values
        return change

    def _change_structure(
        self, dag: Dag, activations: list[str], aggregations: list[str], responses: list[float]
    ) -> edit.StructureChange:
        """Take another Dag, whose first nodes are those of the old one, and lists for its nodes."""
        all_biased = self.bias_nodes is True
        with ordinary_tensors():
            layout, edge_from, bias_from = edit.changed_layout(self._layout, dag, all_biased=all_biased)
            plan = network_plan(layout, activations, aggregations, responses)
            biased = torch.zeros(dag.num_nodes, dtype=torch.bool)
            biased[layout.node_at[layout.has_bias]] = True
        change = edit.move_parameters(self.edge_weight, self.bias, edge_from, bias_from)  # nothing fails after this
        self.dag, self._layout, self._last_input = dag, layout, None
        self.activations, self.aggregations, self.responses = activations, aggregations, responses
        self.bias_nodes = True if all_biased else biased
        self._plan_on = {torch.device("cpu"): plan}
        return change

    # ---- files and copies ----

    def save(self, path: str | PathLike[str]) -> None:
        """Write topology, activations and weights to one safetensors file, completely or not at all.

        Parameters that are computed from others (``torch.nn.utils.parametrize`` ...) are written as they are computed
        now: the file holds a plain network. Gradients are not in it.

        Raises:
            GraphError: the Dag has names or attributes that JSON cannot hold.
            OSError: the file cannot be written; what was there before stays.
        """
        document = file.Document(self.dag, self.activations, self.aggregations, self.responses, self.bias_nodes)
        file.write(Path(path), document, {name: value_of(self, name) for name in _PARAMETERS})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The network that `save` wrote, on the CPU, in training mode.

        Raises:
            CheckpointError: no file, or one that is truncated, altered, foreign or newer.
        """
        document, weights = file.read(Path(path))
        net = cls(document.dag, **document.of_nodes)
        net.bias_nodes = document.bias
        net.to(weights["edge_weight"].dtype)
        net.load_state_dict(weights)
        return net

    def get_extra_state(self) -> Tensor:
        """The record of the structure that goes into the state dict, int32; see `dagnn.nn.dag_nn.file`."""
        return file.record_of(self._layout, self._functions)

    @property
    def _functions(self) -> int:
        return file.functions_hash(self._layout, self.activations, self.aggregations, self.responses)

    def _check_record(self, record: object, module: str) -> None:
        file.check_record(record, self._layout, self._functions, module)

    def __getstate__(self) -> dict[str, Any]:
        # Computed weights and the last input may have an autograd graph: those can be neither pickled nor copied.
        computed = {name: self.__dict__[name].detach() for name in _PARAMETERS if name in self.__dict__}
        return {**self.__dict__, **computed, "_last_input": None}

    def extra_repr(self) -> str:
        return (
            f"num_nodes={self.dag.num_nodes}, num_edges={self.dag.num_edges}, "
            f"inputs={len(self.dag.inputs)}, outputs={len(self.dag.outputs)}"
        )


def from_sequential(model: nn.Sequential) -> DagNN:
    """A `DagNN` with the same function: one node per unit, one edge per weight. The weights are copies.

    Nodes have no names: features come first, then the units layer by layer. Between two linear layers in a row, the
    activation is the identity. The network has the model's dtype, device and training mode.

    Args:
        model: `nn.Linear` modules, each followed by at most one activation that `DagNN` knows, with PyTorch's default
            settings. All of one dtype, float32 or float64.

    Raises:
        ConfigError: another module, an activation with other settings, or no linear layer; the message names it.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> x = torch.randn(5, 3)
    >>> torch.allclose(from_sequential(model)(x), model(x), atol=1e-6)
    True
    """
    found = read_sequential(model)
    like = found.weights[0]
    net = DagNN(found.dag, activation=found.activation, bias=found.biased, dtype=like.dtype, device=like.device)
    with torch.no_grad():
        # `edge_weight` is ordered by (target, source), as a weight matrix [out, in] is in memory.
        net.edge_weight.copy_(torch.cat([weight.flatten() for weight in found.weights]))
        if found.biases:
            net.bias.copy_(torch.cat(found.biases))
    net.train(model.training)
    return net
