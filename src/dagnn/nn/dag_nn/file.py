"""What a `DagNN` writes down about its structure: its own file, and the record in its state dict.

**The file** is a safetensors file. Its header has two texts: ``dagnn``, a JSON document with ``format``, ``version``,
``dag`` (the text of `Dag.to_json`), ``activations`` (one per node: a name, or the rows of a formula as text, which are
data and no code) and ``bias`` (true, false, or the indices of the nodes that have one); in version 2 also
``aggregations`` and ``responses`` (one per node); and ``sha256``, the hex digest of that document and of every tensor's
name, dtype, shape and bytes. Any safetensors reader opens it. Reading it never unpickles or imports anything.

**The record** is the extra state in a state dict. A vector of weights has no names in it: of two networks with as many
edges, each would silently take the weights of the other. The record is one int32 tensor
``[num_edges + num_biases + 2, 2]``. A row is an edge, as the codes of its source and its target; or a bias, as -1 and
the code of its node; the last but one is -2 and a hash of what the nodes compute (earlier versions had none), and the
last row is a checksum of the others. The code of an int below 2^30 is that int; the code of
another name is 2^30 or more, from a hash. The record is a CPU tensor whose shape follows from the structure, so it
goes wherever a state dict goes. It is no buffer, because averages over buffers and conversions would change it.
"""

import hashlib
import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import CheckpointError, DagnnError, StateDictError, warn
from dagnn.files import replace_file
from dagnn.graph import Dag
from dagnn.graph.cached import ordinary_tensors
from dagnn.graph.names import sort_key
from dagnn.graph.text_formats import json_arguments
from dagnn.kernels.nodes import ACTIVATIONS
from dagnn.nn.dag_nn.parameters import ParameterLayout, bias_mask, node_activations, node_aggregations, node_responses
from dagnn.nn.learnable import LearnableModule

_FORMAT, _VERSION = "dagnn.DagNN", 2
_PLAIN_VERSION = 1  # of networks that sum and have no formulas: earlier versions of dagnn read them too
_BIAS, _FUNCTIONS = -1, -2
_SMALL = 1 << 30
_SHOWN = 3


@dataclass(frozen=True, eq=False)
class Document:
    """The JSON document of a file, checked.

    Attributes:
        activations, aggregations, responses: one per node, in node order.
        bias: whether all nodes have one, or none; or which do, bool ``[num_nodes]``.
    """

    dag: Dag
    activations: list[str]
    aggregations: list[str]
    responses: list[float]
    bias: bool | Tensor

    @property
    def is_plain(self) -> bool:
        """Whether version 1 can hold it."""
        of_sums = set(self.aggregations) <= {"sum"} and set(self.responses) <= {1.0}
        return of_sums and all(name in ACTIVATIONS for name in self.activations)

    @property
    def of_nodes(self) -> dict[str, Any]:
        """Arguments of `DagNN` with these names."""
        return {
            "activation": self.activations,
            "aggregation": self.aggregations,
            "response": self.responses,
            "bias": self.has_bias,
        }

    @property
    def has_bias(self) -> Tensor:
        """bool ``[num_nodes]``: the nodes with a bias, sources that are no inputs included."""
        has_bias = (self.dag.in_degree == 0) | self.bias
        has_bias[self.dag.inputs] = False
        return has_bias


def write(path: Path, document: Document, tensors: dict[str, Tensor]) -> None:
    """Write a network to ``path``, completely or not at all; errors as of `DagNN.save`."""
    bias = document.bias
    content = {
        "format": _FORMAT,
        "version": _PLAIN_VERSION if document.is_plain else _VERSION,
        "dag": document.dag.to_json(),
        "activations": document.activations,
        "bias": bias if isinstance(bias, bool) else bias.nonzero().flatten().tolist(),
    }
    if not document.is_plain:
        content |= {"aggregations": document.aggregations, "responses": document.responses}
    write_content(path, content, tensors)


def write_content(path: Path, content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a JSON document and tensors to ``path``, completely or not at all, so that `read_content` trusts them."""
    text = json.dumps(content)
    # Clones, because NumPy borrows their memory for the hash, and PyTorch never resizes borrowed memory again, which
    # fully_shard must do.
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
    replace_file(path, safetensors.torch.save(tensors, {"dagnn": text, "sha256": _digest(text, tensors)}))


def read(path: Path) -> tuple[Document, dict[str, Tensor]]:
    """The checked document of ``path``, and its tensors by name.

    CheckpointError for no file, or one that is truncated, altered, foreign or newer.
    """
    content, tensors = read_content(path)
    return _parse(path, content), tensors


def read_content(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The JSON document and the tensors that `write_content` wrote; errors as of `read`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}. Check the path.") from error
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        tensors = safetensors.torch.load(data)
        metadata = header["__metadata__"]
        document, digest = metadata["dagnn"], metadata["sha256"]
    except Exception as error:  # a broken file can make the parsers raise anything
        raise CheckpointError(
            f"{path} is not a network that DagNN.save wrote, or it is damaged ({type(error).__name__}): "
            "restore it from a copy."
        ) from error
    if _digest(document, tensors) != digest:
        raise CheckpointError(f"{path} is damaged: its content does not match its sha256. Restore it from a copy.")
    content = json.loads(document)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no document of a network: give a file that save wrote.")
    return content, tensors


def _parse(path: Path, document: dict[str, Any]) -> Document:
    if document.get("format") != _FORMAT:
        raise CheckpointError(
            f"{path} holds a {document.get('format')!r}, expected a {_FORMAT!r}: give a file that DagNN.save wrote."
        )
    version = document.get("version")
    if version not in (_PLAIN_VERSION, _VERSION) or isinstance(version, bool):
        raise CheckpointError(
            f"{path} has version {version!r}, this dagnn reads versions {_PLAIN_VERSION} and {_VERSION}: update dagnn."
        )
    try:
        arguments, bias = json_arguments(document["dag"]), document["bias"]
        dag = Dag(**arguments)
        with ordinary_tensors():  # on the CPU, whatever the default device
            mask = bias_mask(dag, bias if isinstance(bias, bool) else [dag.name_of(node) for node in bias])
        activations = node_activations(dag, list(document["activations"]), "identity")
        if version == _PLAIN_VERSION:
            aggregations, responses = ["sum"] * dag.num_nodes, [1.0] * dag.num_nodes
        else:
            aggregations = node_aggregations(dag, list(document["aggregations"]))
            responses = node_responses(dag, list(document["responses"]))
    except (DagnnError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"{path} holds no valid network: {error}") from error
    _check_order(path, arguments["names"] or (), dag)
    return Document(dag, activations, aggregations, responses, mask)


def _check_order(path: Path, written: Sequence[Hashable], dag: Dag) -> None:
    """Raise CheckpointError if names sort in another order than when they were written.

    Earlier versions sorted floats as text, 10.0 before 2.0.
    """
    if set(map(type, written)) <= {int, str}:
        return
    before, now = list(map(sort_key, written)), list(map(sort_key, dag.names or ()))
    if sorted(range(len(now)), key=before.__getitem__) != sorted(range(len(now)), key=now.__getitem__):
        raise CheckpointError(
            f"{path} is of an earlier version, which sorted floats as text: its weights would change places. Load it "
            "with the version that wrote it, and save it with names that are str or int."
        )


def _digest(document: str, tensors: dict[str, Tensor]) -> str:
    """Hex sha256 over the document and every tensor, in the order of their names."""
    sha256 = hashlib.sha256(document.encode())
    for name in sorted(tensors):
        value = tensors[name]
        sha256.update(f"\n{name} {value.dtype} {list(value.shape)}\n".encode())
        sha256.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha256.hexdigest()


class RecordsStructure(LearnableModule):
    """A module whose state dict holds a record of its structure: one of another structure is refused."""

    def _check_record(self, record: object, module: str) -> None:
        """Raise StateDictError for a record of another structure; ``module`` is the name of this one in messages."""
        raise NotImplementedError(f"{type(self).__name__} must compare records.")

    def set_extra_state(self, state: Any) -> None:
        """Does nothing: `_load_from_state_dict` has compared the record with the structure; loading changes none."""

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
            self._check_record(state_dict[key], prefix[:-1])
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, *lists)
        if key in missing:  # an earlier version, or plain vectors: they are loaded in their order
            missing.remove(key)


def functions_hash(
    layout: ParameterLayout, activations: Sequence[str], aggregations: Sequence[str], responses: Sequence[float]
) -> int:
    """A hash, below 2^30, of what the nodes that are no inputs compute, whatever the order of their declaration."""
    is_input = set(layout.dag.inputs.tolist())
    nodes = [node for node in layout.node_at.tolist() if node not in is_input]
    text = json.dumps([[activations[node], aggregations[node], responses[node].hex()] for node in nodes])
    return _hash(text.encode())


def record_of(layout: ParameterLayout, functions: int) -> Tensor:
    """The record of a layout, as the module's docstring describes it; ``functions`` is their `functions_hash`."""
    codes = _codes(layout)
    biased = codes[layout.has_bias.numpy()]
    edges = codes[layout.edges.numpy()].reshape(-1, 2)
    last = np.array([[_FUNCTIONS, functions]], dtype=np.int32)
    rows = np.concatenate([edges, np.stack([np.full_like(biased, _BIAS), biased], axis=1), last])
    return torch.from_numpy(np.concatenate([rows, _checksum(rows)]))


def check_record(record: object, layout: ParameterLayout, functions: int, module: str) -> None:
    """Check that a state dict with this record belongs to the structure of ``layout``.

    A record that arithmetic has changed (the mean of two state dicts, a conversion to 16 bits) only causes a warning.
    So do other functions of the nodes, for a trained network may be meant to get another activation.

    Args:
        record: what `record_of` returned when the state dict was made.
        functions: the `functions_hash` of the network that loads.
        module: the name of the network inside the model that loads; "" if it is that model.

    Raises:
        StateDictError: another structure; the message names edges and biases that only one of the two has.
    """
    key = f"{module}._extra_state" if module else "_extra_state"
    if isinstance(record, Tensor) and record.is_meta:
        return  # neither the record nor the weights have values
    theirs = _read(record)
    if theirs is None:
        warn(
            f"the state dict's {key!r}, which says which edges its weights belong to, has been averaged, converted or "
            "damaged: the weights are loaded in their order, unchecked. Delete that key if this is what you want."
        )
        return
    mine, their_functions = record_of(layout, functions).numpy()[:-2], functions
    if len(theirs) and theirs[-1, 0] == _FUNCTIONS:
        theirs, their_functions = theirs[:-1], int(theirs[-1, 1])
    if np.array_equal(theirs, mine):
        if their_functions != functions:
            warn(
                f"the state dict{f' of {module!r}' if module else ''} is of a network with the same edges and biases, "
                "but other activations, aggregations or responses, or written by another version of dagnn: its weights "
                "are loaded, and the outputs are others. DagNN.save and DagNN.load keep all of it together."
            )
        return
    name_of = _names(layout)
    only_theirs, only_mine = _difference(theirs, mine), _difference(mine, theirs)
    differences = [
        f"only {who} has {_some(rows, name_of)}"
        for who, rows in (("the state dict", only_theirs), ("this network", only_mine))
        if len(rows)
    ] or ["they come in another order"]
    raise StateDictError(
        f"the state dict{f' of {module!r}' if module else ''} is of another structure than this network: "
        f"{'; '.join(differences)}. Load it into a network on the same Dag (DagNN.save and DagNN.load keep both "
        f"together), or delete {key!r} from it to load the weights in their order, whatever they belonged to."
    )


def _codes(layout: ParameterLayout) -> NDArray[np.int32]:
    """The code of the node at each place."""
    nodes = layout.node_at.numpy()
    names = layout.dag.names
    if names is None and len(nodes) <= _SMALL:
        return nodes.astype(np.int32)
    return np.array([_code(layout.dag.name_of(node)) for node in nodes.tolist()], dtype=np.int32)


def _code(name: Hashable) -> int:
    if type(name) is int and 0 <= name < _SMALL:
        return name
    # repr of the sort key names the type too, and is the same in every process, as hash() is not.
    return _SMALL | _hash(repr(sort_key(name)).encode("utf-8", "surrogatepass"))


def _hash(text: bytes) -> int:
    """Below 2^30."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little") & _SMALL - 1


def _checksum(rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """int32 ``[1, 2]``."""
    digest = hashlib.blake2b(rows.astype("<i4").tobytes(), digest_size=8).digest()
    return np.frombuffer(digest, dtype="<i4").astype(np.int32).reshape(1, 2)


def _read(record: object) -> NDArray[np.int32] | None:
    """The rows of a record without its checksum; None if it is damaged or no record."""
    if not isinstance(record, Tensor) or record.dim() != 2 or record.shape[1] != 2 or not len(record):
        return None
    values = record.detach().cpu().double().numpy()  # exact for int32, also after a detour over float64
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
    """The first rows in words, such as "the edges 'a' -> 'b', 'a' -> 'c' and 7 more"."""
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
