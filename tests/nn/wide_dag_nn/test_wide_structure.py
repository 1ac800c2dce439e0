"""Blocks by name, edges that come and go, files and state dicts of wide nodes."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from wide_networks import batch_for, wide_networks

from dagnn import CheckpointError, ConfigError, Dag, DagNN, DtypeError, GraphError, StateDictError, WideDagNN

TERMS = Dag([("g1", "t"), ("g2", "t"), ("g2", "s"), ("g3", "s"), ("t", "r"), ("s", "r"), ("g1", "r")])


def drug_cell(dag=TERMS, **more):
    torch.manual_seed(0)
    arguments = {"width": 4, "normalise": "batch", "heads": 1, "head_activation": "tanh", "dtype": torch.float64}
    return WideDagNN(dag, **(arguments | more))


def step(net, optimizer, x):
    optimizer.zero_grad()
    net.with_heads(x)[1].outputs.square().mean().backward()
    optimizer.step()


# ---- by name ----


def test_blocks_and_gradients_by_name_are_those_of_the_vector():
    net, x = drug_cell(), torch.randn(5, 3, dtype=torch.float64)
    net.with_heads(x)[1].outputs.square().sum().backward()
    grads, blocks = net.edge_grads(), net.edge_weights()
    assert {edge: tuple(block.shape) for edge, block in blocks.items()} == {
        ("g1", "t"): (4, 1), ("g2", "t"): (4, 1), ("g2", "s"): (4, 1), ("g3", "s"): (4, 1),
        ("t", "r"): (4, 4), ("s", "r"): (4, 4), ("g1", "r"): (4, 1),
    }  # fmt: skip
    heads = sum(matrix.numel() for layers in net.head_weights().values() for matrix, _ in layers)
    assert sum(block.numel() for block in blocks.values()) + heads == net.edge_weight.numel()
    squares = sum(grad.square().sum() for grad in grads.values())
    assert squares.item() == pytest.approx(
        net.edge_weight.grad[: net.edge_weight.numel() - heads].square().sum().item()
    )
    assert torch.equal(net.grad_of("t", "r"), grads[("t", "r")])
    assert set(net.bias_grads()) == {"t", "s", "r"}
    # one step against the gradient of a single block lowers the loss by about its square
    before = net.with_heads(x)[1].outputs.square().sum().item()
    net.set_weights({("t", "r"): blocks[("t", "r")] - 1e-6 * grads[("t", "r")]})
    after = net.with_heads(x)[1].outputs.square().sum().item()
    assert before - after == pytest.approx(1e-6 * grads[("t", "r")].square().sum().item(), rel=1e-3)


def test_what_is_set_by_name_is_what_is_read():
    net = drug_cell()
    block, biases = torch.arange(16.0, dtype=torch.float64).view(4, 4), [1.0, 2.0, 3.0, 4.0]
    others = {edge: value for edge, value in net.edge_weights().items() if edge != ("t", "r")}
    net.set_weights({("t", "r"): block})
    net.set_biases({"s": biases})
    assert torch.equal(net.weight_of("t", "r"), block)
    assert net.biases()["s"].tolist() == biases
    assert all(torch.equal(net.weight_of(*edge), value) for edge, value in others.items())


@pytest.mark.parametrize(
    ("weights", "error", "text"),
    [
        ({("t", "r"): 1.0}, GraphError, "weights[('t', 'r')] must have the shape [4, 4], got []"),
        ({("g1", "t"): [[1.0] * 4]}, GraphError, "must have the shape [4, 1], got [1, 4]"),
        ({("r", "t"): 1.0}, GraphError, "there is no edge 'r' -> 't'; there is 't' -> 'r'"),
        ({("g1", "t"): [["a"]] * 4}, DtypeError, "weights[('g1', 't')] must hold real numbers"),
        ([1.0], DtypeError, "weights must be a mapping from names to values, got a list"),
    ],
)
def test_blocks_that_are_refused_change_nothing(weights, error, text):
    net = drug_cell()
    before = net.edge_weight.detach().clone()
    good = {("g2", "t"): torch.ones(4, 1)}
    with pytest.raises(error) as caught:
        net.set_weights(good | weights if isinstance(weights, dict) else weights)
    assert text in str(caught.value)
    assert torch.equal(net.edge_weight, before)


# ---- structure ----


def test_pruning_removes_the_blocks_of_smallest_root_mean_square():
    net = drug_cell()
    sizes = {edge: block.square().mean().sqrt().item() for edge, block in net.edge_weights().items()}
    smallest = sorted(sizes, key=sizes.get)[:2]
    blocks, x = net.edge_weights(), torch.randn(4, 3, dtype=torch.float64)
    net.set_weights({edge: torch.zeros_like(blocks[edge]) for edge in smallest})
    expected = net.eval()(x)
    net.set_weights({edge: blocks[edge] for edge in smallest})
    change = net.prune(fraction=0.3)
    assert (change.removed, set(sizes) - set(net.edge_names())) == (2, set(smallest))
    assert all(torch.equal(net.weight_of(*edge), blocks[edge]) for edge in net.edge_names())
    torch.testing.assert_close(net(x), expected)


def test_growing_with_zeros_changes_nothing_and_moves_everything_along():
    net, x = drug_cell(), torch.randn(6, 3, dtype=torch.float64)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    step(net, optimizer, x)
    net.eval()
    before, heads, blocks = net(x), net.with_heads(x)[1], net.edge_weights()
    moments = {
        edge: net._wide.block(optimizer.state[net.edge_weight]["exp_avg"], k).clone()
        for k, edge in enumerate(net.edge_names())
    }
    # "t" comes two levels later than before, so nodes, heads and norms change places
    change = net.grow([("s", "n"), ("n", "t")], nodes=["n"], width=3)
    change.carry_over(optimizer)
    assert (change.removed, change.added) == (0, 2)
    torch.testing.assert_close(net(x), before)
    torch.testing.assert_close(net.with_heads(x)[1]["t"], heads["t"])
    assert all(torch.equal(net.weight_of(*edge), block) for edge, block in blocks.items())
    assert net.weight_of("n", "t").shape == (4, 3)
    state = optimizer.state[net.edge_weight]["exp_avg"]
    for k, edge in enumerate(net.edge_names()):
        moment = net._wide.block(state, k)
        assert torch.equal(moment, moments.get(edge, torch.zeros_like(moment)))
    net.train()
    step(net, optimizer, x)
    assert net.grad_of("s", "n").shape == (3, 4)


@settings(deadline=None, max_examples=12)
@given(wide_networks(max_nodes=6), st.sampled_from([0.0, 0.3, 0.6, 1.0]))
def test_pruned_networks_compute_what_zero_blocks_do(net, fraction):
    assume(not any(net._wide.nodes.residual))  # an edge that goes takes its part of a mean along
    x, blocks = batch_for(net.eval(), 3), net.edge_weights()
    before_names = net.edge_names()
    weight, bias = net.edge_weight.detach().clone(), net.bias.detach().clone()
    sizes = torch.stack([block.square().mean() for block in blocks.values()]).sqrt() if blocks else torch.zeros(0)
    gone = [before_names[k] for k in sizes.argsort(stable=True)[: int(fraction * len(sizes) + 1e-9)].tolist()]
    net.set_weights({edge: torch.zeros_like(blocks[edge]) for edge in gone})
    expected = net(x)
    with torch.no_grad():
        net.edge_weight.copy_(weight)
        net.bias.copy_(bias)
    net.prune(fraction=fraction, allow_disconnected=True)
    assert set(blocks) - set(net.edge_names()) == set(gone)
    torch.testing.assert_close(net(x), expected)


def test_changes_that_are_refused():
    net = drug_cell()
    with pytest.raises(GraphError, match="would cut the output 'r' off"):
        net.prune(fraction=1.0)
    with pytest.raises(ConfigError, match="width must be a whole number of at least 1, got 0"):
        net.grow(nodes=["n"], width=0)
    with pytest.raises(ConfigError, match="a layer norm of one unit is always 0"):
        drug_cell(normalise="layer").grow([("g1", "n"), ("n", "r")], nodes=["n"])
    assert net.dag is TERMS


# ---- files ----


@pytest.mark.parametrize("normalise", [None, "batch", "layer"])
def test_a_file_holds_the_whole_network(tmp_path, normalise):
    net = drug_cell(normalise=normalise, dropout={"t": 0.5}, residual=True, activation=lambda z: z * torch.sigmoid(z))
    step(net, torch.optim.SGD(net.parameters(), 0.1), torch.randn(6, 3, dtype=torch.float64))
    net.save(tmp_path / "net.safetensors")
    loaded = WideDagNN.load(tmp_path / "net.safetensors")
    x = torch.randn(5, 3, dtype=torch.float64)
    for mode in (True, False):
        results = []
        for each in (net, loaded):
            torch.manual_seed(1)
            results.append(each.train(mode).with_heads(x)[1].outputs)
        assert torch.equal(*results)
    assert loaded.widths == net.widths and loaded.activations == net.activations
    assert not loaded.has_gradients()


def test_files_that_are_refused(tmp_path):
    path = tmp_path / "net.safetensors"
    DagNN(TERMS).save(path)
    with pytest.raises(CheckpointError, match=r"holds a 'dagnn\.DagNN', expected a 'dagnn\.WideDagNN'"):
        WideDagNN.load(path)
    drug_cell().save(path)
    with pytest.raises(CheckpointError, match=r"expected a 'dagnn\.DagNN'"):
        DagNN.load(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged"):
        WideDagNN.load(path)


def test_a_state_dict_goes_to_the_same_dag_declared_in_another_order():
    net, edges = drug_cell(), [tuple(map(TERMS.name_of, edge)) for edge in TERMS.edges.tolist()]
    twin = drug_cell(Dag(edges[::-1], inputs=["g1", "g2", "g3"]))
    twin.load_state_dict(net.state_dict())
    x = torch.randn(5, 3, dtype=torch.float64)
    assert torch.equal(twin(x), net(x))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        # as many weights, biases and norms as in the network
        ({"width": {"t": 4, "s": 4, "r": 4}, "normalise": "layer"}, "4 units, a batch norm"),
        ({"width": {"t": 3, "s": 5, "r": 4}}, "the node 's' has 4 units, a batch norm and a head of 2 layers"),
        ({"head_activation": None}, "and a head of 1 layer with 1 outputs here"),
        ({"heads": ["r"]}, "no head here (2 nodes differ)"),
    ],
)
def test_a_state_dict_of_other_units_is_refused_before_anything_is_copied(arguments, text):
    state, other = drug_cell().state_dict(), drug_cell(**arguments)
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(StateDictError) as caught:
        other.load_state_dict(state)
    assert text in str(caught.value)
    assert all(torch.equal(before[name], value) for name, value in other.state_dict().items())


def test_a_state_dict_of_other_edges_is_refused():
    other = drug_cell(Dag([("g1", "t"), ("g2", "s"), ("g2", "t"), ("g3", "s"), ("t", "r"), ("s", "r"), ("g2", "r")]))
    with pytest.raises(StateDictError, match="only the state dict has the edge 'g1' -> 'r'"):
        other.load_state_dict(drug_cell().state_dict())
