"""`EditScripts`: how to write a graph node by node, with copies of what the input already holds."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dagnn.errors import DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.kernels.graph_plans import Graph, check_graph, num_graphs

STOP, LABEL, COPY, OPERAND = range(4)

Signature = tuple[Hashable, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class EditScripts:
    """One script per graph of a batch: B scripts, at most T actions each.

    Actions, in ``kind`` and ``value``:

    ======== ===== ==================================================================================
    kind           what it does; nodes of the script are numbered 0, 1, 2, ... as they are written
    ======== ===== ==================================================================================
    STOP     0     ends the script
    LABEL    1     writes a new node with the label ``vocabulary[value]``
    COPY     2     writes node ``value`` of the input graph, with everything that it depends on
    OPERAND  3     makes node ``value`` of the script the next operand of the newest, a LABEL
    ======== ===== ==================================================================================

    ``(+ (f x) 0)`` becomes ``(g (f x) (f x))`` by: COPY 1, LABEL g, OPERAND 0, OPERAND 0, STOP. Nodes that are
    no operand of another are the outputs.

    Attributes:
        kind, value: int64 ``[B, T]``; 0 behind the end.
        length: int64 ``[B]``, actions, STOP included.
        alike: int64 ``[num_nodes]`` of the input, equal for nodes that stand for the same: the same label and operands
            that stand for the same. A copy of either is right. None if nothing is known about it.
    """

    kind: Tensor
    value: Tensor
    length: Tensor
    alike: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("kind", "value", "length", "alike"):
            tensor = getattr(self, name)
            if tensor is not None and tensor.dtype != torch.int64:
                raise DtypeError(f"{name} must be torch.int64, got {tensor.dtype}: convert it with .long().")
        if self.kind.dim() != 2 or self.value.shape != self.kind.shape or self.length.shape != self.kind.shape[:1]:
            raise GraphError(
                f"kind, value and length must have the shapes [B, T], [B, T] and [B], got {list(self.kind.shape)}, "
                f"{list(self.value.shape)} and {list(self.length.shape)}."
            )

    @classmethod
    def from_dags(
        cls, graph: Graph, targets: Sequence[Dag], vocabulary: Sequence[Hashable], *, copy: bool = True
    ) -> "EditScripts":
        """The scripts that write ``targets``: operands first, in the order of a reader (post-order).

        Args:
            graph: the input graphs, with the node attribute "label".
            targets: one for each input graph, with the node attribute "label". Operands are the sources of the edges
                into a node, in the order of ``edges`` (by position, or by node where there are none).
            vocabulary: the labels that can be written; they must hash.
            copy: what equals a part of the input is copied, in as large parts as there are, and equal parts of a target
                are written once. Without it, every node of a target is written as it is.

        Raises:
            GraphError: another number of targets than of graphs, no labels, or a label that is neither in the
                vocabulary nor in the input.

        Cost: a loop in Python over the nodes, about 2 microseconds each: do it once per sample, not per epoch.
        """
        check_graph(graph)
        if len(targets) != num_graphs(graph):
            raise GraphError(
                f"there must be one target for each of the {num_graphs(graph)} graphs, got {len(targets)}."
            )
        number = {label: i for i, label in enumerate(vocabulary)}
        known = dict[Signature, int]()
        alike = _alike(graph, known, "graph") if copy else []
        bounds = [0, graph.num_nodes] if isinstance(graph, Dag) else graph.node_offsets.tolist()
        scripts = list[list[tuple[int, int]]]()
        for i, target in enumerate(targets):
            own = alike[bounds[i] : bounds[i + 1]]
            first = {same: node for node, same in reversed(list(enumerate(own)))}  # the first of those that are alike
            ids = _alike(target, known, f"targets[{i}]") if copy else list(range(target.num_nodes))
            scripts.append(_script(target, ids, first, number, i))

        length = torch.tensor([len(script) for script in scripts], dtype=torch.int64)
        padded = torch.zeros(len(scripts), max(map(len, scripts), default=1), 2, dtype=torch.int64)
        for row, script in zip(padded, scripts, strict=True):
            row[: len(script)] = torch.tensor(script)
        kind, value = padded.unbind(2)
        return cls(
            kind.contiguous(), value.contiguous(), length, torch.tensor(alike, dtype=torch.int64) if copy else None
        )

    def to_dags(self, graph: Graph, vocabulary: Sequence[Hashable]) -> list[Dag]:
        """What the scripts write: Dags with "label" and "position", operands before operators.

        A node of the input is in the result once, however often it is copied. What is behind the end, and an operand
        for a copy, counts for nothing.

        Args:
            graph: the input graphs, with the node attribute "label".
            vocabulary: the labels, as for `from_dags`.

        Raises:
            GraphError: a script for another number of graphs, an action of no kind, or one that names what is not
                there.
        """
        check_graph(graph)
        check_kinds(self.kind)
        if len(self) != num_graphs(graph):
            raise GraphError(f"there are {len(self)} scripts, but {num_graphs(graph)} graphs.")
        inputs = [graph] if isinstance(graph, Dag) else list(graph)
        actions = torch.stack([self.kind, self.value], dim=2).tolist()
        return [
            _written(dag, script, vocabulary, i) for i, (dag, script) in enumerate(zip(inputs, actions, strict=True))
        ]

    def to(self, device: torch.device | str) -> "EditScripts":
        """The same scripts on ``device``."""
        alike = None if self.alike is None else self.alike.to(device)
        return EditScripts(self.kind.to(device), self.value.to(device), self.length.to(device), alike)

    def __len__(self) -> int:
        """How many scripts there are."""
        return len(self.length)


def check_kinds(kind: Tensor) -> None:
    """Raise GraphError unless ``kind`` holds nothing but STOP, LABEL, COPY and OPERAND."""
    wrong = ((kind < STOP) | (kind > OPERAND)).nonzero()
    if len(wrong):
        script, action = wrong[0].tolist()
        raise GraphError(
            f"action {action} of script {script} is of the kind {int(kind[script, action])}, but kinds are "
            f"{STOP} .. {OPERAND}."
        )


def _alike(dag: Graph, known: dict[Signature, int], argument: str) -> list[int]:
    """For every node the number of its signature; new ones are added to ``known``."""
    label = _labels(dag, argument)
    start = dag.csr_by_target.offsets.tolist()
    source = dag.edges[:, 0].tolist()
    ids = [0] * dag.num_nodes
    for node in dag.order.tolist():
        operands = tuple([ids[u] for u in source[start[node] : start[node + 1]]])
        ids[node] = known.setdefault((label[node], operands), len(known))
    return ids


def _script(
    target: Dag, ids: list[int], first: dict[int, int], number: dict[Hashable, int], index: int
) -> list[tuple[int, int]]:
    """The actions that write a target; nodes with one id are written once, those in ``first`` copied."""
    label = _labels(target, f"targets[{index}]")
    start = target.csr_by_target.offsets.tolist()
    source = target.edges[:, 0].tolist()
    place, script = dict[int, int](), list[tuple[int, int]]()
    sinks = (target.out_degree == 0).nonzero().flatten().tolist()
    stack = sinks[::-1]
    while stack:  # not by recursion: expressions may be deep
        node = stack[-1]
        same = ids[node]
        operands = source[start[node] : start[node + 1]]
        missing = [] if same in place or same in first else [u for u in operands if ids[u] not in place]
        if missing:
            stack += missing[::-1]
            continue
        stack.pop()
        if same in place:
            continue
        place[same] = len(place)
        if same in first:
            script.append((COPY, first[same]))
            continue
        if label[node] not in number:
            raise GraphError(
                f"targets[{index}] has a node with the label {label[node]!r}, which is neither in the vocabulary nor "
                "in the input: add it to the vocabulary."
            )
        script.append((LABEL, number[label[node]]))
        script += [(OPERAND, place[ids[u]]) for u in operands]
    return [*script, (STOP, 0)]


def _written(dag: Dag, script: Sequence[Sequence[int]], vocabulary: Sequence[Hashable], index: int) -> Dag:
    """The graph that one script writes."""
    labels, operands_of = list[Hashable](), list[list[int]]()
    written = list[int]()  # node of the script -> node of the result
    copied = dict[int, int]()  # node of the input -> node of the result
    newest: list[int] | None = None
    for step, (kind, value) in enumerate(script):
        if kind == STOP:
            break
        bound = (0, len(vocabulary), dag.num_nodes, len(written) - (newest is not None))[kind]
        if not 0 <= value < bound:
            what = ("", "label", "input node", "operand")[kind]
            raise GraphError(f"action {step} of script {index} names {what} {value}, but there are {bound} to choose.")
        if kind == LABEL:
            newest = []
            written.append(len(labels))
            labels.append(vocabulary[value])
            operands_of.append(newest)
        elif kind == COPY:
            newest = None
            _copy(dag, value, copied, labels, operands_of)
            written.append(copied[value])
        elif newest is not None:
            newest.append(written[value])

    target = [node for node, operands in enumerate(operands_of) for _ in operands]
    source = [u for operands in operands_of for u in operands]
    position = [k for operands in operands_of for k in range(len(operands))]
    return Dag(
        torch.tensor([source, target], dtype=torch.int64).T,
        len(labels),
        node_attributes={"label": labels},
        edge_attributes={"position": torch.tensor(position, dtype=torch.int64)},
    )


def _copy(dag: Dag, node: int, copied: dict[int, int], labels: list[Hashable], operands_of: list[list[int]]) -> None:
    """Adds ``node`` of the input and all that it depends on, except what is there."""
    label = _labels(dag, "graph")
    start, source = dag.csr_by_target.offsets, dag.edges[:, 0]
    stack = [node]
    while stack:
        v = stack[-1]
        operands = source[int(start[v]) : int(start[v + 1])].tolist()
        missing = [] if v in copied else [u for u in operands if u not in copied]
        if missing:
            stack += missing[::-1]
            continue
        stack.pop()
        if v not in copied:
            copied[v] = len(labels)
            labels.append(label[v])
            operands_of.append([copied[u] for u in operands])


def _labels(dag: Graph, argument: str) -> Sequence[Hashable]:
    label = dag.node_attributes.get("label")
    if label is None:
        if not dag.num_nodes:
            return []
        raise GraphError(f"{argument} needs the node attribute 'label'.")
    return label.tolist() if isinstance(label, Tensor) else label
