"""The file of a `DagNN`: what comes back, and what is refused."""

import json
import random

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from strategies import dags

from dagnn.errors import CheckpointError
from dagnn.graph import Dag
from dagnn.nn import DagNN
from dagnn.nn.dag_nn import file as dag_nn_file

EDGES = [("x", "a"), ("x", "λ"), ("a", "y"), ("λ", "y"), ("s", "y")]


def network() -> DagNN:
    torch.manual_seed(0)
    return DagNN(Dag(EDGES, inputs=["x"], outputs=["y", "a"]), activation={"a": "gelu", "λ": "elu", "s": "relu"})


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(dags(min_nodes=1, named=None))
def test_a_loaded_network_is_the_same_function(tmp_path, dag):
    net = DagNN(dag, activation="silu", bias=False, dtype=torch.float64)
    net.save(tmp_path / "net.safetensors")
    loaded = DagNN.load(tmp_path / "net.safetensors")
    x = torch.randn(2, len(dag.inputs), dtype=torch.float64)
    assert torch.equal(loaded(x), net(x))
    assert (loaded.dag, loaded.activations, loaded.bias_nodes) == (dag, net.activations, False)
    assert [path.name for path in tmp_path.iterdir()] == ["net.safetensors"]  # nothing half-written is left


def test_other_tools_read_the_tensors(tmp_path):
    net = network()
    net.save(tmp_path / "net.safetensors")
    tensors = safetensors.torch.load_file(tmp_path / "net.safetensors")
    assert torch.equal(tensors["edge_weight"], net.edge_weight)


def test_a_half_precision_network_keeps_its_dtype(tmp_path):
    net = network().half()
    net.save(tmp_path / "net")
    assert DagNN.load(tmp_path / "net").edge_weight.dtype == torch.float16


def test_a_truncated_file_is_refused_at_any_length(tmp_path):
    path = tmp_path / "net"
    network().save(path)
    content = path.read_bytes()
    for length in [*range(60), *range(60, len(content), 37), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="net"):
            DagNN.load(path)


def test_any_flipped_bit_is_refused(tmp_path):
    path = tmp_path / "net"
    network().save(path)
    content = path.read_bytes()
    pick = random.Random(0)
    for place in range(len(content)):
        broken = bytearray(content)
        broken[place] ^= 1 << pick.randrange(8)
        path.write_bytes(broken)
        with pytest.raises(CheckpointError):
            DagNN.load(path)


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "net"
    torch.save({"edge_weight": torch.ones(5)}, path)  # a pickle: must not even be opened as one
    with pytest.raises(CheckpointError, match=r"is not a network that DagNN\.save wrote"):
        DagNN.load(path)
    safetensors.torch.save_file({"edge_weight": torch.ones(5)}, path)
    with pytest.raises(CheckpointError, match=r"is not a network that DagNN\.save wrote"):
        DagNN.load(path)
    path.write_text(json.dumps({"dag": 1}))
    with pytest.raises(CheckpointError, match=r"is not a network that DagNN\.save wrote"):
        DagNN.load(path)


def rewritten(path, **changes) -> None:
    """The same file with other values in its document and a digest that fits."""
    from dagnn.nn.dag_nn.file import _digest

    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    document = json.dumps(json.loads(header["__metadata__"]["dagnn"]) | changes)
    tensors = safetensors.torch.load(content)
    path.write_bytes(safetensors.torch.save(tensors, {"dagnn": document, "sha256": _digest(document, tensors)}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "has version 2, this dagnn reads version 1: update dagnn"),
        ({"format": "other"}, "holds a 'other', expected a 'dagnn.DagNN'"),
        ({"dag": "{}"}, "holds no valid network"),
    ],
)
def test_a_file_of_another_kind_or_version_says_so(tmp_path, changes, message):
    path = tmp_path / "net"
    network().save(path)
    rewritten(path, **changes)
    with pytest.raises(CheckpointError, match=message):
        DagNN.load(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match="nothing cannot be read: No such file"):
        DagNN.load(tmp_path / "nothing")


def test_a_failed_save_keeps_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "net"
    network().save(path)
    before = path.read_bytes()

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        network().save(path)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["net"]


@pytest.mark.fault("graphs_and_networks", 2)
@pytest.mark.parametrize(("count", "fits"), [(9, True), (10, False)])
def test_an_earlier_file_whose_names_sorted_otherwise_is_refused(tmp_path, count, fits):
    # Earlier versions kept 10.0 as a float and sorted it by its text, before 2.0.
    net = DagNN(Dag([(u, 0.5) for u in range(1, count + 1)], names=[*range(1, count + 1), 0.5]))
    net.save(tmp_path / "net")
    tensors = safetensors.torch.load_file(tmp_path / "net")
    with safetensors.safe_open(tmp_path / "net", "pt") as file:
        document = json.loads(file.metadata()["dagnn"])
    dag = json.loads(document["dag"])
    dag["names"] = list(map(float, dag["names"]))
    document = json.dumps(document | {"dag": json.dumps(dag)})
    metadata = {"dagnn": document, "sha256": dag_nn_file._digest(document, tensors)}
    safetensors.torch.save_file(tensors, tmp_path / "net", metadata)
    if fits:
        assert torch.equal(DagNN.load(tmp_path / "net").edge_weight, net.edge_weight)
    else:
        with pytest.raises(CheckpointError, match="of an earlier version, which sorted floats as text"):
            DagNN.load(tmp_path / "net")


def test_names_of_every_kind_come_back(tmp_path):
    names = [3, "a", 0.5, b"b", None, (1, "a"), frozenset({"x", "y", ("z", 2)})]
    net = DagNN(Dag([(name, "o") for name in names], names=[*names, "o"]))
    net.save(tmp_path / "net")
    assert DagNN.load(tmp_path / "net").edge_weights() == net.edge_weights()
