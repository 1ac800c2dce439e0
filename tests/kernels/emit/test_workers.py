"""Threads: the same bits for any number, safe beside each other and after a fork."""

import multiprocessing
import threading

import pytest
import torch

from dagnn.graph import Dag
from dagnn.kernels.emit import workers
from dagnn.kernels.network import compiled_plan
from dagnn.nn import DagNN

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(300, 20, generator=GENERATOR)


def sparse(dtype: torch.dtype = torch.float32) -> DagNN:
    """600 nodes, 20 of them inputs, about 5,000 edges."""
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(20, 600, (5_000,), generator=generator)
    source = (torch.rand(5_000, generator=generator) * target).long()
    torch.manual_seed(2)
    return DagNN(Dag(torch.stack([source, target], 1).unique(dim=0), 600, inputs=range(20)), dtype=dtype)


def dense() -> DagNN:
    """An MLP 20-100-80-1, its layers as blocks."""
    sizes = [20, 100, 80, 1]
    start = [sum(sizes[:i]) for i in range(5)]
    edges = [(u, v) for i in range(3) for u in range(start[i], start[i + 1]) for v in range(start[i + 1], start[i + 2])]
    torch.manual_seed(2)
    return DagNN(Dag(torch.tensor(edges), start[4]))


@pytest.fixture(autouse=True)
def _every_pass_is_shared(monkeypatch):
    monkeypatch.setattr(compiled_plan, "PARALLEL_WORK", 0)


@pytest.fixture
def restored_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def large() -> DagNN:
    """An MLP 20-700-600, whose products are cut into pieces from some 40 samples on."""
    edges = [(u, v) for u in range(20) for v in range(20, 720)]
    edges += [(u, v) for u in range(20, 720) for v in range(720, 1320)]
    torch.manual_seed(2)
    return DagNN(Dag(torch.tensor(edges), 1320))


def bits(net: DagNN, x: torch.Tensor) -> list[bytes]:
    """Output and all gradients, byte by byte."""
    net.zero_grad()
    x = x.to(net.edge_weight.dtype).clone().requires_grad_()
    y = net(x)
    y.square().sum().backward()
    return [t.detach().numpy().tobytes() for t in (y, x.grad, net.edge_weight.grad, net.bias.grad)]


@pytest.mark.parametrize("make", [sparse, dense, lambda: sparse(torch.float64)])
@pytest.mark.parametrize("batch", [1, 33, 300])
def test_the_bits_do_not_depend_on_the_number_of_threads(make, batch, restored_threads):
    results = []
    for threads in (1, 2, 3, 1):
        torch.set_num_threads(threads)
        results.append(bits(make(), X[:batch]))
    assert results[0] == results[1] == results[2] == results[3]


def test_the_bits_of_products_in_pieces_do_not_depend_on_the_number_of_threads(restored_threads):
    net, results = large(), []
    for threads in (1, 2, 3, 1):
        torch.set_num_threads(threads)
        results.append(bits(net, X))
    assert results[0] == results[1] == results[2] == results[3]
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("is_mkl", [True, False])
def test_products_in_pieces_cover_everything_once_and_raise_what_fails(monkeypatch, restored_threads, is_mkl):
    if not is_mkl:
        monkeypatch.setattr(workers, "_product_threads", lambda: None)
    torch.set_num_threads(3)
    seen = []
    workers.run_products(lambda part: seen.extend(range(1000)[part]), 1000, 64)
    assert sorted(seen) == list(range(1000))

    def fails(part):
        if part.start == 640:
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        workers.run_products(fails, 1000, 64)
    assert torch.get_num_threads() == 3


def test_threads_of_python_do_the_same(monkeypatch, restored_threads):
    torch.set_num_threads(2)
    expected = bits(sparse(), X)
    monkeypatch.setattr(workers, "_team", lambda: workers.python_team)
    assert bits(sparse(), X) == expected


def test_two_python_threads_on_one_network_lose_no_gradient(restored_threads):
    torch.set_num_threads(2)
    net = sparse(torch.float64)
    net(X.double()).sum().backward()
    once = net.edge_weight.grad.clone()
    net.zero_grad()
    gate = threading.Barrier(2)

    def work() -> None:
        gate.wait()
        for _ in range(10):
            net(X.double()).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(net.edge_weight.grad, 20 * once, rtol=1e-12, atol=1e-12)


def _child(net: DagNN, queue) -> None:
    queue.put(bits(net, X))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_computes_after_its_parent_used_threads(restored_threads):
    torch.set_num_threads(2)
    net = sparse()
    expected = bits(net, X)
    net.zero_grad()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(net, queue))
    child.start()
    found = queue.get(timeout=60)
    child.join(60)
    assert (found, child.exitcode) == (expected, 0)


def test_how_many_workers(monkeypatch, restored_threads):
    torch.set_num_threads(3)
    assert [workers.num_workers(pieces) for pieces in (0, 1, 2, 3, 9)] == [1, 1, 2, 3, 3]
    monkeypatch.setattr(workers, "_is_forked", True)
    assert workers.num_workers(9) == 1


@pytest.mark.fault("training_and_command", 11)
@pytest.mark.parametrize(("work", "shared"), [(1 << 30, 1), (0, 2)])
def test_a_small_pass_wakes_no_other_thread(work, shared, monkeypatch, restored_threads):
    monkeypatch.setattr(compiled_plan, "PARALLEL_WORK", work)
    torch.set_num_threads(2)
    teams: list[int] = []
    team = workers._team()
    monkeypatch.setattr(workers, "_team", lambda: lambda f, frame, count: (teams.append(count), team(f, frame, count)))
    bits(sparse(), X)
    assert max(teams, default=1) == shared
