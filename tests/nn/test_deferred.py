"""Modules whose weights get memory and values later: the device "meta", a default device, fake tensors."""

import pytest
import torch
import torch.distributed as dist
from module_cases import CASES, every, loss_of, made
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import fully_shard

from dagnn.errors import ConfigError
from dagnn.graph import Dag
from dagnn.nn import DagNN, from_sequential

DIAMOND = [("x", "a"), ("x", "b"), ("a", "y"), ("b", "y"), ("x", "y")]


@pytest.mark.fault("graphs_and_networks", 18)
@every(CASES)
@pytest.mark.parametrize("assign", [False, True])
def test_a_module_made_on_the_meta_device_is_filled_later(case, assign, monkeypatch):
    monkeypatch.setenv("DAGNN_KERNELS", "reference")  # the values count here, not how fast they come
    module = made(case)
    with torch.device("meta"):
        deferred = case.make().double()
    assert all(value.is_meta for value in (*deferred.parameters(), *deferred.buffers()))
    if not assign:
        deferred.to_empty(device="cpu")
        for part in deferred.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
    deferred.load_state_dict(module.state_dict(), assign=assign)
    assert torch.equal(loss_of(case, deferred), loss_of(case, module))


@pytest.mark.fault("graphs_and_networks", 18)
def test_weights_are_drawn_when_there_is_memory_for_them():
    eager = DagNN(Dag(DIAMOND))
    eager.reset_parameters(torch.Generator().manual_seed(3))
    with torch.device("meta"):
        inside = DagNN(Dag(DIAMOND))  # the Dag too
    for deferred in (inside, DagNN(Dag(DIAMOND), device="meta")):
        assert deferred.edge_weight.is_meta and deferred.bias.is_meta
        assert deferred(torch.empty(2, 1, device="meta")).shape == (2, 1)
        deferred.to_empty(device="cpu").reset_parameters(torch.Generator().manual_seed(3))
        assert deferred.edge_weights() == eager.edge_weights()
        assert torch.equal(deferred(torch.ones(2, 1)), eager(torch.ones(2, 1)))
    skipped = torch.nn.utils.skip_init(DagNN, Dag(DIAMOND))
    skipped.load_state_dict(eager.state_dict())
    assert skipped.edge_weights() == eager.edge_weights()


def test_a_default_device_moves_weights_and_nothing_of_the_structure():
    torch.set_default_device("meta")
    try:
        deferred, dense = DagNN(Dag(DIAMOND)), from_sequential(torch.nn.Sequential(torch.nn.Linear(2, 3)))
    finally:
        torch.set_default_device(None)
    for net in (deferred, dense):
        assert net.edge_weight.is_meta
        net.to_empty(device="cpu").reset_parameters()
        net.prune(fraction=0.2, allow_disconnected=True)
        assert net(torch.ones(len(net.input_names))).isfinite().all()
    eager = DagNN(Dag(DIAMOND))
    torch.set_default_device("meta")
    try:
        eager.grow([("a", "b")])
        eager.prune(fraction=0.2, allow_disconnected=True)
        assert eager(torch.ones(1, device="cpu")).device.type == "cpu"
    finally:
        torch.set_default_device(None)


def test_fake_tensors_make_a_network_without_values():
    dag = Dag(DIAMOND)
    with FakeTensorMode():
        net = DagNN(dag)
    assert (net.edge_weight.shape, net.bias.shape) == ((5,), (3,))
    net.load_state_dict(DagNN(dag).state_dict(), assign=True)
    assert net(torch.ones(2, 1)).shape == (2, 1)


@pytest.mark.filterwarnings("default")  # those of PyTorch's own random numbers on several devices
def test_a_sharded_network_is_drawn_read_and_saved_whole_and_keeps_its_structure(tmp_path):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        net = DagNN(Dag(DIAMOND), device="meta")
        fully_shard(net)
        net.to_empty(device="cpu").reset_parameters()
        weights = net.edge_weights()
        assert all(0 < abs(weight) <= 3**0.5 for weight in weights.values())
        net.save(tmp_path / "net")
        y = net(torch.ones(2, 1))
        net.reshard()  # memory that NumPy has borrowed could not be given back
        assert torch.equal(DagNN.load(tmp_path / "net")(torch.ones(2, 1)), y)
        for change in (lambda: net.prune(fraction=0.2), lambda: net.grow([("a", "b")]), lambda: net.set_weights({})):
            with pytest.raises(ConfigError, match="needs the parameters whole, but fully_shard has taken them apart"):
                change()
        net.load_state_dict(net.state_dict())
        assert net.edge_weights() == weights
    finally:
        dist.destroy_process_group()
