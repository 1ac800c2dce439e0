"""What a `WideDagNN` writes down: its own file, and the record in its state dict.

**The file** is as that of a `DagNN` (see `dagnn.nn.dag_nn.file`), with the format "dagnn.WideDagNN" and the settings of
every node in the document.

**The record** is that of a `DagNN` for edges and biases, and behind it a row for every node, by place: its width; and
16 times the outputs of its head, plus 4 times the number of its norm, plus 1 where its head has two layers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dagnn.errors import CheckpointError, DagnnError, StateDictError
from dagnn.graph import Dag
from dagnn.graph.cached import ordinary_tensors
from dagnn.graph.text_formats import json_arguments
from dagnn.kernels.nodes import activation_text
from dagnn.kernels.wide.plan import Normalise
from dagnn.nn.dag_nn import file
from dagnn.nn.dag_nn.parameters import bias_mask
from dagnn.nn.wide_dag_nn.layout import NodeSettings, WideLayout

_FORMAT, _VERSION = "dagnn.WideDagNN", 1
_NORMS: tuple[Normalise | None, ...] = (None, "batch", "layer")


@dataclass(frozen=True, eq=False)
class Document:
    """The JSON document of a file, checked."""

    dag: Dag
    nodes: NodeSettings
    head: str | None
    normalise: Normalise | None
    bias: bool | Tensor


def write(
    path: Path,
    dag: Dag,
    layout: WideLayout,
    normalise: Normalise | None,
    bias: bool | Tensor,
    tensors: dict[str, Tensor],
) -> None:
    """Write a network to ``path``, completely or not at all; errors as of `dagnn.nn.dag_nn.file.write`."""
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "dag": dag.to_json(),
        "nodes": layout.nodes.document(),
        "head_activation": layout.head_activation,
        "normalise": normalise,
        "bias": bias if isinstance(bias, bool) else bias.nonzero().flatten().tolist(),
    }
    file.write_content(path, content, tensors)


def read(path: Path) -> tuple[Document, dict[str, Tensor]]:
    """The checked document of ``path``, and its tensors by name; errors as of `dagnn.nn.dag_nn.file.read`."""
    content, tensors = file.read_content(path)
    if content.get("format") != _FORMAT:
        raise CheckpointError(
            f"{path} holds a {content.get('format')!r}, expected a {_FORMAT!r}: give a file that WideDagNN.save wrote."
        )
    if content.get("version") != _VERSION or isinstance(content["version"], bool):
        raise CheckpointError(
            f"{path} has version {content.get('version')!r}, this dagnn reads version {_VERSION}: update dagnn."
        )
    return _parse(path, content), tensors


def _parse(path: Path, content: dict[str, Any]) -> Document:
    try:
        dag, bias = Dag(**json_arguments(content["dag"])), content["bias"]
        with ordinary_tensors():
            mask = bias_mask(dag, bias if isinstance(bias, bool) else [dag.name_of(node) for node in bias])
        nodes, head = NodeSettings.read(content["nodes"], dag.num_nodes), content["head_activation"]
        return Document(
            dag,
            nodes,
            None if head is None else activation_text(head),
            _NORMS[_NORMS.index(content["normalise"])],
            mask,
        )
    except (DagnnError, KeyError, TypeError, IndexError, ValueError) as error:
        raise CheckpointError(f"{path} holds no valid network: {error}") from error


def record_of(layout: WideLayout, normalise: Normalise | None) -> Tensor:
    """The record, int32 ``[rows, 2]``, as the module's docstring describes it."""
    return torch.cat([file.record_of(layout.edges, _functions(layout)), torch.from_numpy(_nodes(layout, normalise))])


def check_record(record: object, layout: WideLayout, normalise: Normalise | None, module: str) -> None:
    """Check that a state dict with this record belongs to this structure; warns as `dagnn.nn.dag_nn.file` does.

    StateDictError for other edges or biases, other widths, norms or heads; the message names the first difference.
    """
    mine, count = _nodes(layout, normalise), len(layout.width)
    if not isinstance(record, Tensor) or record.is_meta or record.dim() != 2 or len(record) < count:
        file.check_record(record, layout.edges, _functions(layout), module)
        return
    file.check_record(record[: len(record) - count], layout.edges, _functions(layout), module)
    theirs = record[len(record) - count :].cpu().numpy()
    different = np.flatnonzero((theirs != mine).any(axis=1))
    if len(different):
        place = int(different[0])
        name = layout.edges.dag.name_of(int(layout.edges.node_at[place]))
        raise StateDictError(
            f"the state dict{f' of {module!r}' if module else ''} is of a network with other units, norms or heads "
            f"than this one: the node {name!r} has {_words(theirs[place])} there and {_words(mine[place])} here "
            f"({len(different)} nodes differ): make the network with the same arguments."
        )


def _functions(layout: WideLayout) -> int:
    count = layout.edges.dag.num_nodes
    return file.functions_hash(layout.edges, layout.nodes.activation, ["sum"] * count, [1.0] * count)


def _nodes(layout: WideLayout, normalise: Normalise | None) -> Any:
    depth = 0 if layout.head_activation is None else 1
    codes = layout.head * 16 + layout.normed * 4 * _NORMS.index(normalise) + (layout.head > 0) * depth
    return np.stack([layout.width, codes], axis=1).astype(np.int32)


def _words(row: Any) -> str:
    width, code = row.tolist()
    norm = _NORMS[code // 4 % 4] if code // 4 % 4 < len(_NORMS) else None
    head = f"a head of {1 + code % 2} layer{'s' * (code % 2)} with {code // 16} outputs" if code // 16 else "no head"
    return f"{width} units, {f'a {norm} norm' if norm else 'no norm'} and {head}"
