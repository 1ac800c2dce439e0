"""The file of a `DagNN`, and the record in its state dict: what comes back, and what is refused."""

import copy
import io
import json
import random
import warnings

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import dags
from torch import nn

from dagnn.errors import CheckpointError, StateDictError
from dagnn.graph import Dag
from dagnn.nn import DagNN
from dagnn.nn.dag_nn import file as dag_nn_file
from dagnn.nn.dag_nn.edit import without

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
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    document = json.dumps(json.loads(header["__metadata__"]["dagnn"]) | changes)
    tensors = safetensors.torch.load(content)
    path.write_bytes(
        safetensors.torch.save(tensors, {"dagnn": document, "sha256": dag_nn_file._digest(document, tensors)})
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 3}, "has version 3, this dagnn reads versions 1 and 2: update dagnn"),
        ({"version": 2}, "holds no valid network: 'aggregations'"),
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


RECORDED = [("a", "h"), ("b", "h"), ("a", "g"), ("h", "y"), ("g", "y")]


def recorded(edges=RECORDED, **options) -> DagNN:
    return DagNN(Dag(edges, inputs=["a", "b"], outputs=["y"]), dtype=torch.float64, **options)


@pytest.mark.fault("graphs_and_networks", 5)
def test_the_state_of_another_topology_of_equal_size_is_refused_and_the_edges_named():
    net = recorded()
    best = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        net.edge_weight[net.edge_names().index(("a", "g"))] = 0
    net.prune(threshold=0, allow_disconnected=True)
    net.grow([("b", "g")])
    before = copy.deepcopy(net.state_dict())
    for strict in (True, False):
        with pytest.raises(
            StateDictError,
            match="only the state dict has the edge 'a' -> 'g'; only this network has the edge 'b' -> 'g'",
        ):
            net.load_state_dict(best, strict=strict)
    with pytest.raises(RuntimeError, match="of another structure"):  # as callers of PyTorch expect
        nn.ModuleDict({"inner": net}).load_state_dict({f"inner.{key}": value for key, value in best.items()})
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    del best["_extra_state"]  # as the message says
    net.load_state_dict(best)
    assert torch.equal(net.edge_weight, best["edge_weight"])


@given(dags(min_nodes=3, max_nodes=7, named=None), st.data())
def test_a_state_dict_fits_networks_with_the_same_edges_and_biases_and_no_other(dag, data):
    """An edge less and an edge more: as many weights."""
    net = DagNN(Dag(dag.edges, dag.num_nodes, names=dag.names, inputs=[], outputs=[dag.name_of(0)]), bias=False)
    present = {tuple(edge) for edge in dag.edges.tolist()}
    order = {v: i for i, v in enumerate(dag.order.tolist())}
    absent = [(u, v) for u in order for v in order if order[u] < order[v] and (u, v) not in present]
    state = net.state_dict()
    DagNN(net.dag, bias=False).load_state_dict(state)
    if present and absent:
        gone, new = data.draw(st.sampled_from(sorted(present))), data.draw(st.sampled_from(absent))
        edges = torch.tensor([*(present - {gone}), new])
        other = DagNN(Dag(edges, dag.num_nodes, names=dag.names, inputs=[], outputs=[dag.name_of(0)]), bias=False)
        with pytest.raises(StateDictError) as raised:
            other.load_state_dict(state)
        for u, v in (gone, new):
            assert f"{dag.name_of(u)!r} -> {dag.name_of(v)!r}" in str(raised.value)


def test_biases_of_other_nodes_are_another_structure():
    with pytest.raises(StateDictError, match=r"state dict has the bias of 'g'; only this network has the bias of 'h'"):
        recorded(bias=["h", "y"]).load_state_dict(recorded(bias=["g", "y"]).state_dict())


def test_nodes_of_other_names_and_another_number_of_edges():
    state = recorded([(u, {"g": "pathway 7"}.get(v, v)) for u, v in RECORDED[:3]] + [("h", "y"), ("pathway 7", "y")])
    with pytest.raises(
        StateDictError, match=r"the edges 'a' -> \(a node that is not here\), .* -> 'y' and the bias of"
    ):
        recorded().load_state_dict(state.state_dict())
    more = [*RECORDED, *((f"x{i}", "h") for i in range(9))]
    with pytest.raises(StateDictError, match=r"only this network has the edges .* and 6 more"):
        recorded(more).load_state_dict(recorded([*RECORDED, ("a", "y")]).state_dict())


def test_other_inputs_outputs_and_orders_are_the_same_structure():
    net = recorded()
    other = DagNN(Dag(RECORDED[::-1], inputs=["b", "a"], outputs=["y", "h", "g"]), dtype=torch.float64)
    other.load_state_dict(net.state_dict())
    assert other.edge_weights() == net.edge_weights() and other.biases() == net.biases()


def test_states_of_earlier_versions_and_plain_vectors_are_taken_in_their_order():
    net, plain = recorded(), dict(recorded().named_parameters())
    assert str(net.load_state_dict(plain)) == "<All keys matched successfully>"
    assert torch.equal(net.edge_weight, plain["edge_weight"])


def test_other_functions_of_the_nodes_are_warned_of_and_earlier_records_are_read():
    def functions(**options):
        return DagNN(Dag(RECORDED, outputs=["y"]), **options)

    state = functions().state_dict()
    rows = state["_extra_state"][:-2]  # an earlier version had no hash of functions
    earlier = {**state, "_extra_state": torch.cat([rows, torch.from_numpy(dag_nn_file._checksum(rows.numpy()))])}
    others = [
        functions(activation="relu"),
        functions(activation=lambda z: z.tanh() * 2),
        functions(output_activation="sigmoid"),
        functions(aggregation={"h": "product"}),
        functions(response={"y": 2}),
    ]
    for net in others:
        with pytest.warns(UserWarning, match="but other activations, aggregations or responses"):
            net.load_state_dict(state)
        assert torch.equal(net.edge_weight, state["edge_weight"])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            net.load_state_dict(earlier)
            net.load_state_dict(net.state_dict())
            DagNN(
                Dag(RECORDED[::-1], outputs=["y"]),
                activation=dict(zip(net.dag.names, net.activations, strict=True)),
                aggregation=dict(zip(net.dag.names, net.aggregations, strict=True)),
                response=dict(zip(net.dag.names, net.responses, strict=True)),
            ).load_state_dict(net.state_dict())
    with pytest.raises(StateDictError):
        recorded([*RECORDED[:-1], ("b", "y")]).load_state_dict(earlier)


def test_equal_integers_are_one_name_with_and_without_names():
    edges = torch.tensor([[0, 2], [1, 2]])
    DagNN(Dag(edges, names=[0, 1, 2])).load_state_dict(DagNN(Dag(edges)).state_dict())
    with pytest.raises(StateDictError, match=r"state dict has the edge 0 -> 2; only this network has the edge 0 -> 1"):
        DagNN(Dag([(0, 1), (1, 2)], inputs=[0])).load_state_dict(DagNN(Dag(edges), bias=[2]).state_dict())


# ---- where state dicts go ----


def through_torch_save(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


WAYS = {
    "as it is": lambda state: state,
    "torch.save": through_torch_save,
    "safetensors": lambda state: safetensors.torch.load(safetensors.torch.save(dict(state))),
    "copied": copy.deepcopy,
    "in double": lambda state: {name: value.double() for name, value in state.items()},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_record_survives(way):
    net, state = recorded(), WAYS[way](recorded().state_dict())
    net.load_state_dict(state)
    assert torch.equal(net.edge_weight, state["edge_weight"])
    with pytest.raises(StateDictError):
        recorded([*RECORDED[:-1], ("b", "y")]).load_state_dict(state)


def test_a_record_that_arithmetic_has_changed_only_warns():
    net, states = recorded(), [recorded().state_dict() for _ in range(2)]
    mean = {name: (states[0][name] + states[1][name]) / 2 for name in states[0]}
    with pytest.warns(UserWarning, match=r"'_extra_state', .* has been averaged, converted or damaged: .* unchecked"):
        net.load_state_dict(mean)
    assert torch.equal(net.edge_weight, mean["edge_weight"])
    for changed in (torch.zeros(3), "text", states[0]["_extra_state"].half(), states[0]["_extra_state"] + 1):
        with pytest.warns(UserWarning, match="Delete that key"):
            net.load_state_dict({**states[0], "_extra_state": changed})


def test_it_is_no_parameter_and_no_buffer():
    net = recorded()
    assert net.num_parameters() == 5 + 3 and not list(net.buffers())
    half = {name: value.dtype for name, value in net.to(torch.float16).state_dict().items()}
    assert half == {"edge_weight": torch.float16, "bias": torch.float16, "_extra_state": torch.int32}
    x = torch.ones(1, 2, dtype=torch.float64)
    net = recorded()
    assert torch.equal(torch.func.functional_call(net, net.state_dict(), x), net(x))


def test_wrappers_keep_it():
    outer = nn.Sequential(recorded())
    average = torch.optim.swa_utils.AveragedModel(outer, use_buffers=True)
    for _ in range(3):
        average.update_parameters(outer)
    outer.load_state_dict({name.removeprefix("module."): v for name, v in average.state_dict().items() if "." in name})
    with pytest.raises(StateDictError, match="the state dict of '0' is of another structure"):
        nn.Sequential(recorded([*RECORDED[:-1], ("b", "y")])).load_state_dict(outer.state_dict())
    twin = recorded()
    twin.load_state_dict(outer[0].state_dict(), assign=True)
    assert torch.equal(twin.edge_weight, outer[0].edge_weight)


def test_a_changed_network_says_its_own_structure():
    net = recorded()
    net.prune(fraction=0.2, allow_disconnected=True)
    DagNN(net.dag, dtype=torch.float64).load_state_dict(net.state_dict())
    with pytest.raises(StateDictError):
        net.load_state_dict(recorded().state_dict())
    assert without(net._layout, torch.ones(4, dtype=torch.bool)) == net.dag


def test_a_file_of_a_network_holds_its_dag_and_needs_no_record(tmp_path):
    net = recorded()
    net.save(tmp_path / "net")
    assert set(safetensors.torch.load_file(tmp_path / "net")) == {"edge_weight", "bias"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert DagNN.load(tmp_path / "net").edge_weights() == net.edge_weights()
    assert issubclass(StateDictError, CheckpointError)
