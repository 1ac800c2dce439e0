"""What a state dict says of its structure, so that a network of another structure refuses it and names the difference.

A vector of weights has no names in it: of two networks with as many edges, each would take the weights of the other
without a word. So the state dict of a `DagNN` carries a tensor as its extra state:
int32 ``[num_edges + num_biases + 1, 2]``. A row is an edge, as codes of its source and its target; or a bias, as -1 and
the code of its node; the last row is a checksum of the others. The code of an int below 2^30 is that int, of another
name 2^30 and more by a hash of it. It is one tensor on the CPU whose shape follows from the structure, so that it goes
wherever a state dict goes, and no buffer, which an average over buffers or a conversion would change.
"""

import hashlib
import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import StateDictError
from dagnn.nn.parameter_layout import ParameterLayout, stable_text

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
        warnings.warn(
            f"the state dict's {key!r}, which says which edges its weights belong to, has been averaged, converted or "
            "damaged: the weights are loaded in their order, unchecked. Delete that key if this is what you want.",
            stacklevel=2,
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
