"""A `DagNN` on disk: a safetensors file with its topology, and state dicts that refuse another topology."""

import hashlib
import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import CheckpointError, DagnnError, StateDictError, warn
from dagnn.files import replace_file
from dagnn.graph import Dag
from dagnn.graph.formats import json as json_format
from dagnn.graph.names import sort_key
from dagnn.nn.dag_nn.parameters import ParameterLayout, stable_text
from dagnn.nn.learnable import value_of

if TYPE_CHECKING:
    from dagnn.nn.dag_nn.network import DagNN


_BIAS = -1
_SMALL = 1 << 30
_SHOWN = 3


def record_of(layout: ParameterLayout) -> Tensor:
    """The edges and biases of a layout, by slot: see above."""
    codes = _codes(layout)
    biased = codes[layout.has_bias.numpy()]
    edges = codes[layout.edges.numpy()].reshape(-1, 2)
    rows = np.concatenate([edges, np.stack([np.full_like(biased, _BIAS), biased], axis=1)])
    return torch.from_numpy(np.concatenate([rows, _checksum(rows)]))


def check_record(record: object, layout: ParameterLayout, module: str) -> None:
    """Raise if a state dict with this record belongs to another structure than the one of ``layout``.

    A record that arithmetic has changed (the mean of two state dicts, a conversion to 16 bits) only makes a warning.

    Args:
        record: what `record_of` gave once.
        module: the name of the network inside the model that loads; "" for itself.

    Raises:
        StateDictError: another structure; the message names edges and biases of the one and not of the other.
    """
    key = f"{module}._extra_state" if module else "_extra_state"
    if isinstance(record, Tensor) and record.is_meta:
        return  # no values, of the record or of the weights
    theirs = _read(record)
    if theirs is None:
        warn(
            f"the state dict's {key!r}, which says which edges its weights belong to, has been averaged, converted or "
            "damaged: the weights are loaded in their order, unchecked. Delete that key if this is what you want."
        )
        return
    mine = record_of(layout).numpy()[:-1]
    if np.array_equal(theirs, mine):
        return
    name_of = _names(layout)
    only_theirs, only_mine = _difference(theirs, mine), _difference(mine, theirs)
    told = [
        f"only {who} has {_some(rows, name_of)}"
        for who, rows in (("the state dict", only_theirs), ("this network", only_mine))
        if len(rows)
    ] or ["they come in another order"]
    raise StateDictError(
        f"the state dict{f' of {module!r}' if module else ''} is of another structure than this network: "
        f"{'; '.join(told)}. Load it into a network on the same Dag (DagNN.save and DagNN.load keep both together), "
        f"or delete {key!r} from it to load the weights in their order, whatever they belonged to."
    )


def _codes(layout: ParameterLayout) -> NDArray[np.int32]:
    """The code of the node at each place."""
    nodes = layout.node_at.numpy()
    names = layout.dag.names
    if names is None and len(nodes) <= _SMALL:
        return nodes.astype(np.int32)
    return np.array([_code(layout.dag.name_of(node)) for node in nodes.tolist()], dtype=np.int32)


def _code(name: object) -> int:
    if type(name) is int and 0 <= name < _SMALL:
        return name
    digest = hashlib.blake2b(stable_text(name).encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return _SMALL | int.from_bytes(digest, "little") & _SMALL - 1


def _checksum(rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """int32 ``[1, 2]``."""
    digest = hashlib.blake2b(rows.astype("<i4").tobytes(), digest_size=8).digest()
    return np.frombuffer(digest, dtype="<i4").astype(np.int32).reshape(1, 2)


def _read(record: object) -> NDArray[np.int32] | None:
    """The rows of a record; None if it is none."""
    if not isinstance(record, Tensor) or record.dim() != 2 or record.shape[1] != 2 or not len(record):
        return None
    values = record.detach().cpu().double().numpy()  # exact for int32, and as it was saved where that was float64
    rows = values.astype(np.int32) if (np.abs(values) <= 2**31).all() else None
    if rows is None or not np.array_equal(rows, values) or not np.array_equal(_checksum(rows[:-1]), rows[-1:]):
        return None
    return rows[:-1]


def _difference(rows: NDArray[np.int32], others: NDArray[np.int32]) -> NDArray[np.int64]:
    """The rows that are not among the others, in their order."""
    keys, other_keys = (each.astype(np.int64) @ np.array([1 << 32, 1]) for each in (rows, others))
    return rows[~np.isin(keys, other_keys)].astype(np.int64)


def _names(layout: ParameterLayout) -> dict[int, str]:
    names = [repr(layout.dag.name_of(node)) for node in layout.node_at.tolist()]
    return dict(zip(_codes(layout).tolist(), names, strict=True))


def _some(rows: NDArray[np.int64], name_of: dict[int, str]) -> str:
    """The first rows in words."""
    edges, biases = rows[rows[:, 0] != _BIAS], rows[rows[:, 0] == _BIAS]
    parts = []
    if len(edges):
        shown = ", ".join(f"{_name(u, name_of)} -> {_name(v, name_of)}" for u, v in edges[:_SHOWN].tolist())
        parts.append(f"the edge{'s' * (len(edges) > 1)} {shown}{_rest(edges)}")
    if len(biases):
        shown = ", ".join(_name(v, name_of) for _, v in biases[:_SHOWN].tolist())
        parts.append(f"the bias{'es' * (len(biases) > 1)} of {shown}{_rest(biases)}")
    return " and ".join(parts)


def _name(code: int, name_of: dict[int, str]) -> str:
    if code < _SMALL:
        return str(code)
    return name_of.get(code, "(a node that is not here)")


def _rest(rows: NDArray[np.int64]) -> str:
    return f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""


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
    """Write ``net`` to ``path``. After an error, or a crash, ``path`` holds what it held before."""
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

    replace_file(path, content)


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
