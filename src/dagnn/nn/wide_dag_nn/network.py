"""`WideDagNN`: any DAG as a network with several units a node, and a block of weights per edge."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import torch
from torch import Tensor, nn

from dagnn import kernels
from dagnn.errors import CheckpointError, ConfigError, DagnnError, DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.graph.cached import ordinary_tensors
from dagnn.kernels.nodes import activation_text
from dagnn.kernels.wide.plan import Normalise, WideParameters, WideResult, WideState
from dagnn.nn.dag_nn import edit
from dagnn.nn.dag_nn.file import RecordsStructure
from dagnn.nn.dag_nn.network import Activation
from dagnn.nn.dag_nn.parameters import ParameterLayout, bias_mask, draw_uniform, warn_of_constants
from dagnn.nn.dag_nn.pictures_and_tables import Seen
from dagnn.nn.dag_nn.tables import rows_of
from dagnn.nn.learnable import check_dag, check_dtype, check_own, check_size, value_of
from dagnn.nn.wide_dag_nn import file
from dagnn.nn.wide_dag_nn.layout import NodeSettings, WideLayout, entries_before, output_columns, read_settings
from dagnn.nn.wide_dag_nn.tables import HeadValues, NamedBlocks

_MOMENTUM = 0.1


@final
class WideDagNN(NamedBlocks, Seen, RecordsStructure):
    """A node v is ``width(v)`` numbers: ``h = act_v(b_v + sum over edges u -> v of W_uv value[u])``, then its norm.

    For models such as DCell, DrugCell, P-NET or GenNet, whose terms or pathways have several units each. A class beside
    `DagNN`, for an edge is a matrix here and a number there: what by-name methods return, what files hold and what can
    be exported differs. With one unit everywhere and none of the options it computes what a `DagNN` does.

    **Order.** Sum, activation, norm, dropout, residual, as in DrugCell: ``value = drop(norm(act(z))) + residual``.

    **Outputs.** An output without a head that no edge leaves has ``output_activation``, no norm, no dropout, no
    residual, and one unit unless ``width`` names it. An output with a head is read through it. y has the units, or the
    outputs of the heads, of all outputs, in the order of ``output_names``.

    **Batch norm** couples the samples: in training mode the mean and the biased variance of the batch normalise, and
    move the running ones by 0.1, with the unbiased variance; one sample is refused. In eval mode the running ones
    normalise. Exact windows of micro-batches do not exist with it: prefer ``normalise="layer"`` for those.

    Args:
        dag: a `Dag` with at least one output and no edge into an input.
        width: units of all nodes that are neither inputs nor final outputs, which have 1; or node -> units, 1 for
            those that it does not name; or one number for each level. An input with several units takes as many columns
            of x.
        activation, output_activation, bias, dtype, device: as of `DagNN`.
        normalise: "batch": every unit over the batch; "layer": every sample over the units of the node; or None. With
            a trainable scale and shift.
        dropout: the probability that a node is 0 in a sample, with all of its units, in training mode; or node ->
            probability. What stays is divided by one minus it.
        residual: add the mean of the values of those sources that have as many units as the node.
        heads: outputs of a small linear model that reads each node; or the nodes that have one, with one output; or
            node -> outputs. `with_heads` computes them, and their weighted loss trains inner nodes directly.
        head_activation: None: a head is one linear layer, as DCell's; "tanh": linear, tanh, linear, as DrugCell's.

    Attributes:
        edge_weight: float ``[weights]``: the blocks of all edges, then those of the heads. Read and write them by name:
            `edge_weights`, `set_weights`, `weight_of`.
        bias: float ``[biases]``, of nodes, then of heads.
        scale, shift: float ``[units with a norm]``, or None.
        running_mean, running_var: buffers like these for a batch norm, else None.
        widths, activations: of every node, in the order of the Dag's nodes.

    Raises:
        ConfigError: an argument out of range; a layer norm of a node with one unit.
        GraphError: no outputs, an edge into an input, an edge twice, an unknown name, a head on an input.
        DtypeError: another dtype, or no `Dag`.

    Shapes: x ``[..., inputs]`` -> y ``[..., outputs]``, both of the parameters' dtype; any batch shape.

    Source: Ma et al., Nature Methods 15, 2018 (DCell); Kuenzi et al., "Predicting drug response and synergy using a
    deep learning model of human cancer cells", Cancer Cell 38, 2020 (DrugCell).

    >>> dag = Dag([("g1", "term"), ("g2", "term"), ("g2", "root"), ("term", "root")])
    >>> net = WideDagNN(dag, width=6, normalise="batch", heads=1, head_activation="tanh")
    >>> x, target = torch.randn(8, 2), torch.randn(8, 1)
    >>> y, heads = net.with_heads(x)
    >>> heads.loss(nn.functional.mse_loss, target, auxiliary=0.2).backward()
    >>> y.shape, net.weight_of("term", "root").shape, net.grad_of("g1", "term").shape
    (torch.Size([8, 1]), torch.Size([6, 6]), torch.Size([6, 1]))
    """

    scale: nn.Parameter | None
    shift: nn.Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None

    def __init__(
        self,
        dag: Dag,
        *,
        width: int | Sequence[int] | Mapping[Hashable, int] = 1,
        activation: Activation | Sequence[Activation] | Mapping[Hashable, Activation] = "tanh",
        output_activation: Activation = "identity",
        normalise: Normalise | None = None,
        dropout: float | Mapping[Hashable, float] = 0.0,
        residual: bool = False,
        heads: int | Collection[Hashable] | Mapping[Hashable, int] | None = None,
        head_activation: Activation | None = None,
        bias: bool | Collection[Hashable] | Tensor = True,
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        super().__init__()
        check_dag(dag)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in (torch.float32, torch.float64):
            raise DtypeError(f"dtype must be torch.float32 or torch.float64, got {dtype}: convert with net.to(...).")
        with ordinary_tensors():
            nodes = read_settings(
                dag,
                width=width,
                activation=activation,
                output_activation=output_activation,
                normalise=normalise,
                dropout=dropout,
                residual=residual,
                heads=heads,
            )
            head = None if head_activation is None else activation_text(head_activation, "head_activation")
            self.bias_nodes = bias_mask(dag, bias)
            self.normalise = normalise
            self._take(dag, ParameterLayout(dag, self.bias_nodes), nodes, head)
            warn_of_constants(dag, self.bias_nodes)
        self._make_parameters(dtype, device)
        self.reset_parameters()

    def _take(self, dag: Dag, edges: ParameterLayout, nodes: NodeSettings, head_activation: str | None) -> None:
        """Take a structure; the parameters are made or moved by the caller."""
        self.dag, self.head_activation = dag, head_activation
        self.widths, self.activations = nodes.width, nodes.activation
        self._wide = WideLayout(edges, nodes, head_activation)
        self._plan = self._wide.plan(self.normalise)
        columns = output_columns(self._wide)
        self._columns = torch.from_numpy(columns)
        # Where they follow each other, y is a view: to gather them from transposed results cost 1 ms of 25.
        follow = len(columns) > 0 and bool((np.diff(columns) == 1).all())
        self._first_column = int(columns[0]) if follow else None
        rates = [nodes.dropout[node] for node in edges.node_at.tolist() if nodes.dropout[node] > 0]
        self._kept = 1 - torch.tensor(rates, dtype=torch.float64)

    def _make_parameters(self, dtype: torch.dtype, device: torch.device | str | int | None) -> None:
        def made(length: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(length, dtype=dtype, device=device))

        wide = self._wide
        self.edge_weight, self.bias = made(wide.num_weights), made(wide.num_biases)
        for name in ("scale", "shift"):
            self.register_parameter(name, None if self.normalise is None else made(wide.num_norms))
        for name in ("running_mean", "running_var"):
            is_batch = self.normalise == "batch"
            self.register_buffer(name, torch.empty(wide.num_norms, dtype=dtype, device=device) if is_batch else None)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights, as `DagNN.reset_parameters` does: every unit's sum has about unit variance at the start.

        What leaves a norm has unit variance. Scales become 1, shifts and running means 0, running variances 1.

        Args:
            generator: on the device of the parameters; by default torch's global one.

        Raises:
            ConfigError: a parameter is computed from others, as by ``torch.nn.utils.parametrize``.
        """
        check_own(self, self._parameter_names(), "reset_parameters")
        for parameter, bound in zip((self.edge_weight, self.bias), self._wide.bounds(), strict=True):
            draw_uniform(parameter, bound, generator)
        for ones, zeros in ((self.scale, self.shift), (self.running_var, self.running_mean)):
            if ones is not None and zeros is not None:
                ones.fill_(1)
                zeros.zero_()

    def _parameter_names(self) -> tuple[str, ...]:
        return ("edge_weight", "bias") if self.normalise is None else ("edge_weight", "bias", "scale", "shift")

    def forward(self, x: Any) -> Tensor:
        """Outputs ``[..., outputs]`` for ``x [..., inputs]``; an output with a head is read through it.

        Args:
            x: a tensor of the dtype of the parameters; or columns by name or an array, as `input_from` takes them.

        Raises:
            DtypeError: ``x`` has another dtype than the parameters, or is sparse.
            GraphError: another last dimension, missing names; a batch norm in training mode and fewer than two samples.
        """
        return self._read(x)[0]

    def with_heads(self, x: Any) -> tuple[Tensor, HeadValues]:
        """The outputs, as `forward` gives them, and the values of all heads, from one pass.

        Raises:
            ConfigError: the network has no heads. Other errors as of a call.
        """
        if not len(self._wide.with_head):
            raise ConfigError("this network has no heads: make it with heads=1, or with a list of nodes.")
        y, results = self._read(x)
        count = int(self._wide.head.sum())
        # No view where there is nothing to leave out: its backward pass would fill zeros in.
        return y, HeadValues(self._wide, results if count == results.shape[-1] else results.narrow(-1, 0, count))

    def _read(self, x: Any) -> tuple[Tensor, Tensor]:
        """Outputs, and all results ``[..., columns]`` that the plan reads."""
        if not isinstance(x, Tensor):
            if self._plan.columns != len(self.dag.inputs):
                raise DtypeError("an input has several units, so x has no columns by name: give a tensor.")
            x = self.input_from(x)
        columns = self._plan.columns
        if x.dim() == 0 or x.shape[-1] != columns:
            raise GraphError(
                f"x must have the shape [..., inputs] = [..., {columns}], got {list(x.shape)}: input_names lists them."
            )
        weight = self.edge_weight
        check_dtype("x", x, weight.dtype)
        rows = rows_of(x if x.dtype == weight.dtype else x.to(weight.dtype))
        result = self._run(rows)
        results = result.values.t()
        if x.dim() != 2:
            results = results.reshape(*x.shape[:-1], results.shape[-1])
        if self._first_column is None:
            return results.index_select(-1, self._columns.to(results.device)), results
        return results.narrow(-1, self._first_column, len(self._columns)), results

    def _run(self, rows: Tensor) -> WideResult:
        statistics = self.normalise == "batch" and self.training
        if statistics and rows.shape[0] < 2:
            raise GraphError(
                f"a batch norm in training mode needs at least two samples, got {rows.shape[0]}: it has no variance of "
                "one. Drop a last batch of one (drop_last=True), or choose normalise='layer'."
            )
        running = (None, None) if statistics else (self.running_mean, self.running_var)
        mask = None
        if self.training and len(self._kept):
            kept = self._kept.to(rows)
            draws = torch.rand(len(kept), rows.shape[0], dtype=rows.dtype, device=rows.device)
            mask = (draws < kept.unsqueeze(1)).to(rows.dtype) / kept.unsqueeze(1)
        parameters = WideParameters(self.edge_weight, self.bias, self.scale, self.shift)
        result = kernels.run_wide(self._plan, rows, parameters, WideState(*running, mask))
        if statistics and result.mean is not None and result.variance is not None:
            self._move_statistics(result.mean, result.variance, rows.shape[0])
        return result

    @torch.no_grad()
    def _move_statistics(self, mean: Tensor, variance: Tensor, batch: int) -> None:
        assert self.running_mean is not None and self.running_var is not None
        self.running_mean.lerp_(mean.to(self.running_mean), _MOMENTUM)
        self.running_var.lerp_(variance.to(self.running_var) * (batch / (batch - 1)), _MOMENTUM)

    def explain(self) -> str:
        """Which path computes this network, and why; one sentence."""
        return kernels.explain_wide(self._plan, value_of(self, "edge_weight"))

    def head_weights(self) -> dict[Hashable, list[tuple[Tensor, Tensor]]]:
        """Node -> the layers of its head, each a matrix ``[outputs, units]`` and biases ``[outputs]``; copies."""
        wide, layers = self._wide, 1 if self.head_activation is None else 2
        weight, bias = (value_of(self, name).detach().clone() for name in ("edge_weight", "bias"))
        found = dict[Hashable, list[tuple[Tensor, Tensor]]]()
        for place in wide.with_head.tolist():
            outputs, units = int(wide.head[place]), int(wide.width[place])
            at, own = int(wide.head_weight_first[place]), int(wide.head_bias_first[place])
            name = self.dag.name_of(int(wide.edges.node_at[place]))
            found[name] = []
            for _ in range(layers):
                matrix = weight[at : at + units * outputs].view(units, outputs).t()
                found[name].append((matrix, bias[own : own + outputs]))
                at, own, units = at + units * outputs, own + outputs, outputs
        return found

    # ---- structure that changes ----

    def prune(
        self, *, threshold: float | None = None, fraction: float | None = None, allow_disconnected: bool = False
    ) -> edit.StructureChange:
        """Remove the edges whose blocks have the smallest root mean square; nodes and heads stay.

        As `DagNN.prune`, whose arguments and errors it has, block by block: a block goes or stays as a whole.
        """
        check_own(self, self._parameter_names(), "prune")
        wide = self._wide
        squares = self.edge_weight.detach()[: int(wide.edge_first[-1])].square().double().cpu()
        sizes = torch.from_numpy(np.diff(wide.edge_first))
        of_edge = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        size = (squares.new_zeros(len(sizes)).index_add(0, of_edge, squares) / sizes).sqrt()
        kept = edit.kept_by_prune(size, threshold, fraction)
        if not allow_disconnected:
            edit.check_outputs_stay_connected(wide.edges, kept)
        return self._change(edit.without(wide.edges, kept), wide.nodes)

    def grow(
        self,
        edges: Iterable[tuple[Hashable, Hashable]] | Tensor = (),
        *,
        nodes: Sequence[Hashable] | int = (),
        width: int = 1,
        weight: float = 0.0,
        activation: Activation = "tanh",
    ) -> edit.StructureChange:
        """Add edges, and nodes for them. With weights of 0 nothing changes where no node gets its first norm.

        What was there keeps its weights, as with `prune`. New nodes have the norm and residual of hidden nodes.

        Args:
            edges, nodes, activation: as of `DagNN.grow`, whose errors it has.
            width: units of the new nodes.
            weight: fills the new blocks; `set_weights` gives them others.

        Raises:
            ConfigError: also a width below 1, and a layer norm of one unit.
        """
        check_own(self, self._parameter_names(), "grow")
        width = check_size("width", width)
        text = activation_text(activation)
        dag, new = edit.with_more(self.dag, edges, nodes)
        values = edit.new_weights(weight, list[Any](), 1, self.edge_weight)
        count = dag.num_nodes - self.dag.num_nodes
        settings = self._wide.nodes.more(count, width=width, activation=text, normed=self.normalise is not None)
        if count and self.normalise == "layer" and width == 1:
            raise ConfigError("a layer norm of one unit is always 0: give the new nodes width=2 or more.")
        change = self._change(dag, settings)
        wide = self._wide
        with torch.no_grad():
            for edge in wide.edges.indices_of(torch.from_numpy(new)).tolist():
                wide.block(self.edge_weight, edge).fill_(values.reshape(()))
        return change

    def _change(self, dag: Dag, nodes: NodeSettings) -> edit.StructureChange:
        """Take another Dag, whose first nodes are those of the old one."""
        old, all_biased = self._wide.edges, self.bias_nodes is True
        with ordinary_tensors():
            edges, edge_from, bias_from = edit.changed_layout(old, dag, all_biased=all_biased)
            wide = WideLayout(edges, nodes, self.head_activation)
            weights, biases, norms = entries_before(self._wide, wide, edge_from, bias_from)
        scales = [(each, norms) for each in (self.scale, self.shift) if each is not None]
        done = edit.moved_all([(self.edge_weight, weights), (self.bias, biases), *scales])
        if self.running_mean is not None and self.running_var is not None:
            self.running_mean, self.running_var = (
                edit.moved(each, norms) for each in (self.running_mean, self.running_var)
            )
        with torch.no_grad():
            for ones in (self.scale, self.running_var):
                if ones is not None:
                    ones.masked_fill_((norms < 0).to(ones.device), 1)
        if not all_biased:
            biased = torch.zeros(dag.num_nodes, dtype=torch.bool)
            biased[edges.node_at[edges.has_bias]] = True
            self.bias_nodes = biased
        stayed = int((edge_from >= 0).sum())
        removed, added = old.edges.shape[0] - stayed, len(edge_from) - stayed
        with ordinary_tensors():
            self._take(dag, edges, nodes, self.head_activation)
        return edit.StructureChange(self.edge_weight, self.bias, removed, added, edge_from, bias_from, done)

    # ---- files ----

    def save(self, path: str | PathLike[str]) -> None:
        """Write topology, settings, parameters and running statistics to one safetensors file, or nothing.

        Raises:
            GraphError: the Dag has names or attributes that JSON cannot hold.
            OSError: the file cannot be written; what was there before stays.
        """
        tensors = {name: value_of(self, name) for name in self._parameter_names()}
        tensors |= {name: buffer for name, buffer in self.named_buffers() if buffer is not None}
        file.write(Path(path), self.dag, self._wide, self.normalise, self.bias_nodes, tensors)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The network that `save` wrote, on the CPU, in training mode.

        Raises:
            CheckpointError: no file, or one that is truncated, altered, foreign or newer.
        """
        document, tensors = file.read(Path(path))
        net = cls.__new__(cls)
        nn.Module.__init__(net)
        net.normalise, net.bias_nodes = document.normalise, document.bias
        try:
            with ordinary_tensors():
                net._take(document.dag, ParameterLayout(document.dag, document.bias), document.nodes, document.head)
            net._make_parameters(tensors["edge_weight"].dtype, None)
            net.load_state_dict(tensors)
        except (DagnnError, RuntimeError, KeyError) as error:
            raise CheckpointError(f"{path} holds no valid network: {error}") from error
        return net

    def get_extra_state(self) -> Tensor:
        """The record of the structure and the widths that goes into the state dict, int32."""
        return file.record_of(self._wide, self.normalise)

    def _check_record(self, record: object, module: str) -> None:
        file.check_record(record, self._wide, self.normalise, module)

    def extra_repr(self) -> str:
        wide = self._wide
        return (
            f"num_nodes={self.dag.num_nodes}, num_edges={self.dag.num_edges}, units={sum(self.widths)}, "
            f"inputs={len(self.dag.inputs)}, outputs={len(self.dag.outputs)}, heads={len(wide.with_head)}, "
            f"normalise={self.normalise!r}"
        )
