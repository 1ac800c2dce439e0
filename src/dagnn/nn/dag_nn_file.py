"""The file of a `DagNN`: a safetensors file whose header carries the topology as JSON.

Header metadata, two texts: ``dagnn``, a JSON document with ``format``, ``version``, ``dag`` (the
text of `Dag.to_json`), ``activations`` (one per node) and ``bias`` (true, false, or the indices of
the nodes that have one); and ``sha256``, the hex digest of that document and of every tensor's
name, dtype, shape and bytes. Any safetensors reader opens it; nothing in it is ever unpickled or
imported.
"""

import hashlib
import json
import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from torch import Tensor

from dagnn.errors import CheckpointError, DagnnError
from dagnn.graph import Dag, json_format
from dagnn.graph.name_forms import sort_key
from dagnn.nn.reparametrised import value_of

if TYPE_CHECKING:
    from dagnn.nn.dag_nn import DagNN

FORMAT, VERSION = "dagnn.DagNN", 1


@dataclass(frozen=True)
class Document:
    """What the JSON of a file says, checked."""

    dag: Dag
    activations: list[str]
    bias: bool | list[Hashable]

    @property
    def biased(self) -> Tensor:
        """bool ``[num_nodes]``: the nodes that have one, with the sources that are no inputs."""
        has_bias = self.dag.in_degree == 0
        if self.bias is True:
            has_bias[:] = True
        elif self.bias:
            has_bias[[self.dag.index_of(node) for node in self.bias]] = True
        has_bias[self.dag.inputs] = False
        return has_bias


def write(path: Path, net: "DagNN") -> None:
    """Write ``net`` to ``path``: to a neighbour first, moved into place when it is safely on disk."""
    document = json.dumps(
        {
            "format": FORMAT,
            "version": VERSION,
            "dag": net.dag.to_json(),
            "activations": net.activations,
            "bias": net.bias_nodes if isinstance(net.bias_nodes, bool) else _indices(net.bias_nodes),
        }
    )
    # What they are computed to be, if some tool of PyTorch does that: the file holds a plain network.
    # Copies: to hash them NumPy borrows their memory, and PyTorch never resizes that again, as fully_shard must.
    tensors = {name: value_of(net, name).detach().cpu().clone() for name in ("edge_weight", "bias")}
    content = safetensors.torch.save(tensors, {"dagnn": document, "sha256": _digest(document, tensors)})

    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path) -> tuple[Document, dict[str, Tensor]]:
    """The checked document and the tensors of ``path``.

    Raises:
        CheckpointError: no file, or one that is truncated, altered, foreign or newer.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        tensors = safetensors.torch.load(content)
        metadata = header["__metadata__"]
        document, digest = metadata["dagnn"], metadata["sha256"]
    except Exception as error:  # whatever a broken file makes the parsers raise
        raise CheckpointError(
            f"{path} is not a network that DagNN.save wrote, or it is damaged ({type(error).__name__}): "
            "restore it from a copy."
        ) from error
    if _digest(document, tensors) != digest:
        raise CheckpointError(f"{path} is damaged: its content does not match its sha256. Restore it from a copy.")
    return _parse(path, json.loads(document)), tensors


def _parse(path: Path, document: dict[str, Any]) -> Document:
    if document.get("format") != FORMAT:
        raise CheckpointError(f"{path} holds a {document.get('format')!r}, expected a {FORMAT!r}.")
    if document.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has version {document.get('version')!r}, this dagnn reads version {VERSION}: update dagnn."
        )
    try:
        arguments, bias = json_format.arguments_from(document["dag"]), document["bias"]
        dag = Dag(**arguments)
        nodes = bias if isinstance(bias, bool) else [dag.name_of(node) for node in bias]
        parsed = Document(dag, list(document["activations"]), nodes)
    except (DagnnError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"{path} holds no valid network: {error}") from error
    _check_order(path, arguments["names"] or (), dag)
    return parsed


def _check_order(path: Path, written: Sequence[Hashable], dag: Dag) -> None:
    """Raise CheckpointError if names sort otherwise than when they were written: 10.0 was a text, before 2.0."""
    if set(map(type, written)) <= {int, str}:
        return
    before, now = list(map(sort_key, written)), list(map(sort_key, dag.names or ()))
    if sorted(range(len(now)), key=before.__getitem__) != sorted(range(len(now)), key=now.__getitem__):
        raise CheckpointError(
            f"{path} is of an earlier version, which sorted floats as text: its weights would change places. Load it "
            "with the version that wrote it, and save it with names that are str or int."
        )


def _indices(mask: Tensor) -> list[int]:
    return [int(node) for node in mask.nonzero().flatten()]


def _digest(document: str, tensors: dict[str, Tensor]) -> str:
    """Hex sha256 over the document and every tensor, in the order of their names."""
    sha256 = hashlib.sha256(document.encode())
    for name in sorted(tensors):
        value = tensors[name]
        sha256.update(f"\n{name} {value.dtype} {list(value.shape)}\n".encode())
        sha256.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha256.hexdigest()
