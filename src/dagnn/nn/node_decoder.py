"""`NodeDecoder`: a graph node by node, each action chosen in the light of those before."""

import math
from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from dagnn.errors import GraphError
from dagnn.kernels.graph_plans import Graph, check_graph, dense_places, graph_of_node, num_graphs
from dagnn.nn.attention import MultiHeadAttention, to_dense
from dagnn.nn.checks import check_rows, check_size
from dagnn.nn.edit_scripts import COPY, LABEL, OPERAND, STOP, EditScripts, check_kinds
from dagnn.nn.heads import GraphPool
from dagnn.nn.learnable import LearnableModule
from dagnn.nn.reparametrised import before_call


class ScriptLogits(NamedTuple):
    """What the next action may be, undecided: B scripts, T actions, L labels, K nodes of the largest input, N nodes.

    The softmax of an action runs over all four together. What would not give a DAG has the lowest
    finite number: an operand that is no earlier node or goes to a copy, a copy of no node, a node
    or operand beyond the budget.
    """

    stop: Tensor
    """``[B, T, 1]``"""
    label: Tensor
    """``[B, T, L]``"""
    copy: Tensor
    """``[B, T, K]``"""
    operand: Tensor
    """``[B, T, N]``"""

    def cross_entropy(self, scripts: EditScripts, graph: Graph) -> Tensor:
        """Mean over all actions of ``-log`` the probability that the script's action has, a scalar.

        A copy of any node that is alike counts as right; see `EditScripts`.
        """
        logits = torch.cat(self, dim=2)
        right = _right(self, scripts, graph)
        lost = logits.logsumexp(2) - logits.masked_fill(~right, torch.finfo(logits.dtype).min).logsumexp(2)
        length = scripts.length.to(logits.device).unsqueeze(1)
        counts = torch.arange(logits.shape[1], device=logits.device) < length
        return torch.where(counts, lost, 0).sum() / counts.sum().clamp(min=1)


class NodeDecoder(LearnableModule):
    """Writes a graph as an edit script: the next action from the input's nodes and the actions so far.

    A transformer over the actions. Copies and operands are chosen by pointing: an input node by its
    features, an operand by what was known when it was complete.
    Sources: You et al., "GraphRNN", ICML 2018 (node by node); Vinyals, Fortunato, Jaitly, "Pointer
    Networks", NeurIPS 2015; Vaswani et al., "Attention Is All You Need", NeurIPS 2017.

    Args:
        dim: width of the features, a multiple of ``heads``.
        num_labels: labels that can be written, the length of the vocabulary.
        max_nodes: the most nodes that a script can write; a copy is one, however large.
        max_operands: the most operands of a node.
        layers: of the transformer.
        heads: of every attention.

    Raises:
        ConfigError: a size below 1, or ``dim`` no multiple of ``heads``.

    Shapes: x ``[num_nodes, dim]``, a `Dag` or `DagBatch` and its `EditScripts` -> `ScriptLogits`.
    """

    def __init__(
        self, dim: int, num_labels: int, max_nodes: int, *, max_operands: int = 3, layers: int = 2, heads: int = 4
    ) -> None:
        super().__init__()
        self.dim = check_size("dim", dim)
        self.num_labels = check_size("num_labels", num_labels)
        self.max_nodes = check_size("max_nodes", max_nodes)
        self.max_operands = check_size("max_operands", max_operands)
        self.pool = GraphPool("mean")
        self.pooled = nn.Linear(dim, dim)
        # Row 0 of a table of places: before the first node, before the first operand.
        self.kinds = nn.Parameter(torch.empty(4, dim))
        self.labels = nn.Parameter(torch.empty(num_labels, dim))
        self.node_places = nn.Parameter(torch.empty(max_nodes + 1, dim))
        self.operand_places = nn.Parameter(torch.empty(max_operands + 1, dim))
        self.copied = nn.Linear(dim, dim)
        self.used = nn.Linear(dim, dim)
        self.layers = nn.ModuleList(_ActionLayer(dim, heads) for _ in range(check_size("layers", layers)))
        self.norm = nn.LayerNorm(dim)
        self.stop_or_label = nn.Linear(dim, 1 + num_labels)
        self.point = nn.Linear(dim, 2 * dim)
        self.copy_key = nn.Linear(dim, dim)
        self.operand_key = nn.Linear(dim, dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Vectors of actions and places standard normal; the layers keep PyTorch's own start."""
        for table in (self.kinds, self.labels, self.node_places, self.operand_places):
            nn.init.normal_(table)

    def forward(self, x: Tensor, graph: Graph, scripts: EditScripts) -> ScriptLogits:
        """Logits of every action, given the script's own actions before it (teacher forcing).

        Raises:
            DtypeError, GraphError: ``x`` does not fit the graph; scripts for other graphs, with
                a label, node or operand beyond the decoder's, or one that writes no DAG.
        """
        self._check_scripts(scripts, graph)
        memory = self._memory(x, graph)
        kind, value = scripts.kind.to(x.device), scripts.value.to(x.device)
        state = _state(kind)
        rows = self._embedded(kind, value, state, memory)
        upto = torch.ones(rows.shape[1], rows.shape[1], dtype=torch.bool, device=x.device).tril()
        for layer in self._layers():
            rows = layer(rows, layer.seen(rows), upto.expand(len(rows), -1, -1), memory.rows, memory.present)
        rows = self.norm(rows)
        return self._logits(rows, rows, state, memory)

    @torch.no_grad()
    def generate(self, x: Tensor, graph: Graph, *, max_nodes: int | None = None) -> EditScripts:
        """The scripts of the likeliest action at every step.

        Every script ends within its budget of nodes and operands, and writes a DAG.

        Args:
            max_nodes: the most nodes per script, at most that of the decoder, which is the default.
        """
        budget = self.max_nodes if max_nodes is None else min(self.max_nodes, check_size("max_nodes", max_nodes))
        before_call(self, x, graph)
        memory = self._memory(x, graph)
        batch = num_graphs(graph)
        kind = torch.zeros(batch, 0, dtype=torch.int64, device=x.device)
        value, finished = kind, torch.zeros(batch, dtype=torch.bool, device=x.device)
        # What a layer has seen of the actions before, and the rows that came out of the last one.
        seen = [x.new_zeros(batch, 0, self.dim) for _ in self.layers]
        outs = x.new_zeros(batch, 0, self.dim)
        for _ in range(budget * (1 + self.max_operands) + 1):
            # The action that is looked for is the last one of the state; what it holds is not read.
            padded_kind, padded_value = (torch.cat([t, t.new_zeros(batch, 1)], dim=1) for t in (kind, value))
            state = _state(padded_kind)
            row = self._embedded(padded_kind, padded_value, state, memory)[:, -1:]
            for i, layer in enumerate(self._layers()):
                seen[i] = torch.cat([seen[i], layer.seen(row)], dim=1)
                everything = torch.ones(seen[i].shape[:2], dtype=torch.bool, device=x.device)
                row = layer(row, seen[i], everything, memory.rows, memory.present)
            row = self.norm(row)
            outs = torch.cat([outs, row], dim=1)
            logits = self._logits(row, outs, state, memory, budget)
            best = _likeliest(logits)
            new_kind, new_value = _as_action(best, logits)
            kind = torch.cat([kind, torch.where(finished, STOP, new_kind).unsqueeze(1)], dim=1)
            value = torch.cat([value, torch.where(finished, 0, new_value).unsqueeze(1)], dim=1)
            finished = finished | (new_kind == STOP)
            if bool(finished.all()):
                break
        length = (kind != STOP).sum(1) + 1
        return EditScripts(kind, value, length)

    def _layers(self) -> "Iterator[_ActionLayer]":
        return (cast(_ActionLayer, layer) for layer in self.layers)

    def _memory(self, x: Tensor, graph: Graph) -> "_Memory":
        check_graph(graph)
        check_rows("x", x, graph.num_nodes, self.dim, self.kinds.dtype)
        nodes, is_node = to_dense(x, graph)
        # The pooled graph is one more row to ask: there is always one, also where there are no nodes.
        rows = torch.cat([self.pooled(self.pool(x, graph)).unsqueeze(1), nodes], dim=1)
        present = torch.cat([is_node.new_ones(len(is_node), 1), is_node], dim=1)
        return _Memory(rows, present, self.copied(rows), self.copy_key(rows))

    def _embedded(self, kind: Tensor, value: Tensor, state: "_State", memory: "_Memory") -> Tensor:
        """``[B, T, dim]``: for every action what is known before it, which is the action before and its place."""
        label = self.labels[value.clamp(max=self.num_labels - 1)] * (kind == LABEL).unsqueeze(2)
        row = torch.where(kind == COPY, value + 1, 0)
        copy = _rows(memory.copied, row) * (kind == COPY).unsqueeze(2)
        content = label + copy
        # An operand looks like the node that it is.
        of_operand = _rows(content, state.written_at.gather(1, torch.where(kind == OPERAND, value, 0)))
        content = content + self.used(of_operand) * (kind == OPERAND).unsqueeze(2) + self.kinds[kind]
        before = torch.cat([content.new_zeros(len(content), 1, self.dim), content[:, :-1]], dim=1)
        nodes = state.nodes.clamp(max=self.max_nodes)
        operands = state.operands.clamp(max=self.max_operands)
        return before + self.node_places[nodes] + self.operand_places[operands]

    def _logits(
        self, rows: Tensor, outs: Tensor, state: "_State", memory: "_Memory", budget: int | None = None
    ) -> ScriptLogits:
        """Logits of the last actions, one for each of ``rows``.

        Args:
            rows: ``[B, T', dim]``, what is known at these actions.
            outs: ``[B, T, dim]``, what is known at all actions up to the last.
        """
        here = slice(outs.shape[1] - rows.shape[1], None)
        nodes, operands, is_open = state.nodes[:, here], state.operands[:, here], state.is_open[:, here]
        stop, label = self.stop_or_label(rows).split([1, self.num_labels], dim=2)
        to_copy, to_operand = self.point(rows).chunk(2, dim=2)
        copy = to_copy @ memory.copy_key[:, 1:].transpose(1, 2) / math.sqrt(self.dim)
        # Node j is complete where the next one is written.
        complete_at = state.written_at[:, 1 : self.max_nodes + 1].clamp(max=outs.shape[1] - 1)
        key = _rows(self.operand_key(outs), complete_at)
        operand = to_operand @ key.transpose(1, 2) / math.sqrt(self.dim)

        full = (nodes >= (self.max_nodes if budget is None else budget)).unsqueeze(2)
        earlier = torch.arange(key.shape[1], device=rows.device) < (nodes - 1).unsqueeze(2)
        may_use = (is_open & (operands < self.max_operands)).unsqueeze(2)
        return ScriptLogits(
            stop,
            _forbidden(label, full),
            _forbidden(copy, full | ~memory.present[:, None, 1:]),
            _forbidden(operand, ~(earlier & may_use)),
        )

    def _check_scripts(self, scripts: EditScripts, graph: Graph) -> None:
        check_graph(graph)
        kind, value = scripts.kind, scripts.value
        if len(scripts) != num_graphs(graph):
            raise GraphError(f"there are {len(scripts)} scripts, but {num_graphs(graph)} graphs.")
        if scripts.alike is not None and scripts.alike.shape != (graph.num_nodes,):
            raise GraphError(
                f"alike must have one entry for each of the {graph.num_nodes} nodes of the input, got "
                f"{list(scripts.alike.shape)}: make the scripts for this batch."
            )
        if len(kind) and not 0 <= int(scripts.length.min()) <= int(scripts.length.max()) <= kind.shape[1]:
            raise GraphError(f"length must be in 0 .. {kind.shape[1]}, the actions that there are.")
        check_kinds(kind)
        state = _state(kind)
        owner = graph_of_node(graph, kind.device)
        in_graph = torch.bincount(owner, minlength=len(scripts)).unsqueeze(1)
        writes = (kind == LABEL) | (kind == COPY)
        for wrong, what in (
            ((kind == LABEL) & (value >= self.num_labels), f"a label beyond num_labels={self.num_labels}"),
            ((kind == COPY) & (value >= in_graph), "a copy of a node that the input has not"),
            (writes & (state.nodes >= self.max_nodes), f"a node beyond max_nodes={self.max_nodes}"),
            (
                (kind == OPERAND) & (state.operands >= self.max_operands),
                f"an operand beyond max_operands={self.max_operands}",
            ),
            (
                (kind == OPERAND) & ~(state.is_open & (value < state.nodes - 1)),
                "an operand that is no earlier node, or that goes to a copy",
            ),
            (value < 0, "a negative value"),
        ):
            if wrong.any():
                script, action = wrong.nonzero()[0].tolist()
                raise GraphError(f"action {action} of script {script} is {what}: got {int(value[script, action])}.")


class _ActionLayer(nn.Module):
    """An action asks those before, then the input, then thinks: each with a residual and a norm before."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.to_actions = MultiHeadAttention(dim, heads)
        self.to_memory = MultiHeadAttention(dim, heads)
        self.think = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))

    def seen(self, rows: Tensor) -> Tensor:
        """What later actions can ask ``rows`` for."""
        return cast(Tensor, self.norms[0](rows))

    def forward(self, rows: Tensor, seen: Tensor, may_see: Tensor, memory: Tensor, present: Tensor) -> Tensor:
        rows = rows + self.to_actions(self.norms[0](rows), seen, may_see)
        rows = rows + self.to_memory(self.norms[1](rows), memory, present)
        return cast(Tensor, rows + self.think(self.norms[2](rows)))


class _Memory(NamedTuple):
    """The input: row 0 is the pooled graph, then its nodes, padded."""

    rows: Tensor
    present: Tensor
    copied: Tensor
    copy_key: Tensor


class _State(NamedTuple):
    """How far a script is before each of its actions."""

    nodes: Tensor
    """int64 ``[B, T]``: nodes written."""
    operands: Tensor
    """int64 ``[B, T]``: operands of the newest node."""
    is_open: Tensor
    """bool ``[B, T]``: the newest node is a LABEL, so it can have operands."""
    written_at: Tensor
    """int64 ``[B, T + 1]``: the action that writes node j; T where there is none."""


def _state(kind: Tensor) -> _State:
    batch, steps = kind.shape
    writes = (kind == LABEL) | (kind == COPY)
    upto = writes.cumsum(1)
    step = torch.arange(steps, device=kind.device).expand(batch, -1)
    last_write = torch.where(writes, step, -1).cummax(1).values if steps else step
    zero = kind.new_zeros(batch, 1)
    is_operand = (kind == OPERAND).cumsum(1)
    at_write = is_operand.gather(1, last_write.clamp(min=0)) * (last_write >= 0)
    is_label = (kind == LABEL).gather(1, last_write.clamp(min=0)) & (last_write >= 0)
    written_at = torch.full((batch, steps + 2), steps, dtype=torch.int64, device=kind.device)
    written_at.scatter_(1, torch.where(writes, upto - 1, steps + 1), step)
    nodes, operands, is_open = (
        torch.cat([zero.to(after.dtype), after[:, :-1]], dim=1) for after in (upto, is_operand - at_write, is_label)
    )
    return _State(nodes, operands, is_open, written_at[:, :-1])


def _rows(rows: Tensor, index: Tensor) -> Tensor:
    """``rows[b, index[b, i]]``: ``[B, I, dim]`` of ``[B, R, dim]``; an index behind the end takes the last row."""
    last = max(rows.shape[1] - 1, 0)
    return rows.gather(1, index.clamp(max=last).unsqueeze(2).expand(-1, -1, rows.shape[2]))


def _right(logits: ScriptLogits, scripts: EditScripts, graph: Graph) -> Tensor:
    """bool ``[B, T, 1 + L + K + N]``: which actions are right."""
    kind, value = scripts.kind.to(logits.stop.device), scripts.value.to(logits.stop.device)
    widths = torch.tensor([part.shape[2] for part in logits], device=value.device)
    column = (widths.cumsum(0) - widths)[kind] + torch.where(kind == STOP, 0, value)
    right = torch.zeros(*kind.shape, int(widths.sum()), dtype=torch.bool, device=kind.device)
    right.scatter_(2, column.unsqueeze(2), True)
    if scripts.alike is not None and logits.copy.shape[2]:
        place, width = dense_places(graph, value.device)
        alike = torch.full((len(kind) * width,), -1, device=value.device)
        alike = alike.index_copy(0, place, scripts.alike.to(value.device)).view(-1, width)
        copied = alike.gather(1, torch.where(kind == COPY, value, 0))
        same = (alike.unsqueeze(1) == copied.unsqueeze(2)) & (kind == COPY).unsqueeze(2)
        first = int(widths[:2].sum())
        right[:, :, first : first + width] |= same
    return right


def _forbidden(logits: Tensor, where: Tensor) -> Tensor:
    return logits.masked_fill(where, torch.finfo(logits.dtype).min)  # its own dtype: autocast has several


def _likeliest(logits: ScriptLogits) -> Tensor:
    """int64 ``[B]``: the column of the likeliest action that is allowed, also where all of those are -inf."""
    scores = torch.cat(logits, dim=2).squeeze(1)
    lowest = torch.finfo(scores.dtype).min
    stop = scores[:, :1].clamp(min=lowest)  # the one that is always allowed
    return torch.cat([stop, scores[:, 1:].masked_fill(scores[:, 1:] <= lowest, float("-inf"))], dim=1).argmax(1)


def _as_action(column: Tensor, logits: ScriptLogits) -> tuple[Tensor, Tensor]:
    """Kind and value of the actions that stand in these columns of all logits side by side: int64 ``[B]`` each."""
    widths = torch.tensor([part.shape[2] for part in logits], device=column.device)
    kind = torch.searchsorted(widths.cumsum(0), column, right=True)
    return kind, column - (widths.cumsum(0) - widths)[kind]
