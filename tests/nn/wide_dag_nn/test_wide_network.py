import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from wide_networks import batch_for, by_modules, wide_networks

from dagnn import ConfigError, Dag, DagNN, DtypeError, GraphError, WideDagNN

TERMS = Dag([("g1", "t"), ("g2", "t"), ("g2", "s"), ("g3", "s"), ("t", "r"), ("s", "r"), ("g1", "r")])


def drug_cell(**more):
    torch.manual_seed(0)
    arguments = {"width": 6, "normalise": "batch", "heads": 1, "head_activation": "tanh", "dtype": torch.float64}
    return WideDagNN(TERMS, **(arguments | more))


@settings(deadline=None, max_examples=8)
@given(wide_networks(), st.sampled_from([2, 3, 5]), st.booleans())
def test_the_function_is_that_of_modules_node_by_node(net, batch, training):
    net.train(training)
    x = batch_for(net, batch)
    expected, heads = by_modules(net, x)
    torch.testing.assert_close(net(x), expected, rtol=1e-10, atol=1e-10)
    if heads:
        y, found = net.with_heads(x)
        torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
        assert set(found) == set(heads)
        for node, value in heads.items():
            torch.testing.assert_close(found[node], value, rtol=1e-10, atol=1e-10)


def test_one_unit_everywhere_is_a_dagnn_with_the_same_parameters():
    torch.manual_seed(3)
    wide = WideDagNN(TERMS, dtype=torch.float64)
    torch.manual_seed(3)
    net = DagNN(TERMS, dtype=torch.float64)
    x = batch_for(wide, 5)
    assert torch.equal(wide.edge_weight, net.edge_weight)
    torch.testing.assert_close(wide(x), net(x), rtol=1e-13, atol=1e-13)
    assert {edge: block.item() for edge, block in wide.edge_weights().items()} == net.edge_weights()


def test_running_statistics_are_those_of_pytorchs_batch_norm():
    net, x = drug_cell(), torch.randn(7, 3, dtype=torch.float64)
    h = torch.tanh(sum(x[:, [c]] * net.weight_of(g, "t").T for c, g in ((0, "g1"), (1, "g2"))) + net.biases()["t"])
    norm = nn.BatchNorm1d(6, dtype=torch.float64)
    norm(h)
    net(x)
    own = {name: net._wide.norm_first[place] for place, name in enumerate(_places(net))}
    at = slice(own["t"], own["t"] + 6)
    torch.testing.assert_close(net.running_mean[at], norm.running_mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(net.running_var[at], norm.running_var, rtol=1e-12, atol=1e-12)


def _places(net):
    return [net.dag.name_of(node) for node in net._wide.edges.node_at.tolist()]


def test_eval_mode_moves_no_statistics_and_treats_samples_alone():
    net = drug_cell()
    net(torch.randn(9, 3, dtype=torch.float64))
    before = net.running_mean.clone()
    net.eval()
    x = torch.randn(4, 3, dtype=torch.float64)
    together = net(x)
    torch.testing.assert_close(torch.cat([net(row) for row in x.split(1)]), together)
    assert torch.equal(net.running_mean, before)


@pytest.mark.parametrize("batch", [0, 1])
def test_a_batch_norm_refuses_fewer_than_two_samples_in_training(batch):
    net, before = drug_cell(), drug_cell().running_mean.clone()
    with pytest.raises(GraphError, match=f"needs at least two samples, got {batch}: it has no variance of one"):
        net(torch.zeros(batch, 3, dtype=torch.float64))
    assert torch.equal(net.running_mean, before)
    assert net.eval()(torch.zeros(batch, 3, dtype=torch.float64)).shape == (batch, 1)


@pytest.mark.parametrize("normalise", [None, "layer"])
@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (3,), (2, 4, 3)])
def test_any_batch_shape(normalise, shape):
    net = drug_cell(normalise=normalise)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    y = net(x)
    assert y.shape == (*shape[:-1], 1)
    flat = net(x.reshape(-1, 3))
    torch.testing.assert_close(y.reshape(-1, 1), flat)
    y.sum().backward()
    assert x.grad.shape == shape


def test_dropout_drops_whole_nodes_of_single_samples_and_keeps_the_mean():
    dag = Dag([("x", "a"), ("a", "y")], outputs=["a", "y"])
    net = WideDagNN(dag, width={"a": 3}, activation="identity", dropout={"a": 0.25}, dtype=torch.float64)
    net.set_weights({("x", "a"): [[1.0], [2.0], [3.0]]})
    torch.manual_seed(0)
    values = net(torch.ones(4000, 1, dtype=torch.float64))[:, :3]
    kept = values[:, 0] != 0
    assert torch.equal(values[kept], torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).div(0.75).expand(kept.sum(), 3))
    assert not values[~kept].any()
    # 0.75 +- 5 standard deviations of a mean of 4,000 draws
    assert abs(kept.double().mean().item() - 0.75) < 5 * (0.25 * 0.75 / 4000) ** 0.5
    assert torch.equal(net.eval()(torch.ones(1, 1, dtype=torch.float64))[0, :3], torch.tensor([1.0, 2, 3]).double())


def test_dropout_follows_the_seed_and_is_that_of_modules():
    dag = Dag([(0, 3), (1, 3), (1, 4), (2, 4), (3, 5), (4, 5), (0, 5)])
    torch.manual_seed(0)
    net = WideDagNN(dag, width=3, normalise="batch", heads=1, dropout={4: 0.5, 5: 0.2}, dtype=torch.float64)
    x = torch.randn(6, 3, dtype=torch.float64)
    torch.manual_seed(5)
    y, _ = net.with_heads(x)
    torch.manual_seed(5)
    draws = torch.rand(2, 6, dtype=torch.float64)
    dropped = {4: (draws[0] < 0.5).double() / 0.5, 5: (draws[1] < 0.8).double() / 0.8}
    torch.testing.assert_close(y, by_modules(net, x, dropped)[0])


def test_the_loss_weighs_heads_as_said():
    net, x, target = drug_cell(), torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 1, dtype=torch.float64)
    _, heads = net.with_heads(x)
    each = {name: nn.functional.mse_loss(value, target) for name, value in heads.items()}
    mse = nn.functional.mse_loss
    torch.testing.assert_close(heads.loss(mse, target), each["r"] + 0.2 * (each["s"] + each["t"]))
    torch.testing.assert_close(heads.loss(mse, target, {"s": 0.5}), each["r"] + 0.5 * each["s"])
    torch.testing.assert_close(heads.loss(mse, target, [0, 0.3, 1]), each["r"] + 0.3 * (each["s"] + each["t"]))


def test_the_loss_takes_classes():
    net, x = drug_cell(heads=3), torch.randn(5, 3, dtype=torch.float64)
    target = torch.tensor([0, 2, 1, 1, 0])
    _, heads = net.with_heads(x)
    cross = nn.functional.cross_entropy
    expected = cross(heads["r"], target) + 0.3 * (cross(heads["s"], target) + cross(heads["t"], target))
    torch.testing.assert_close(heads.loss(cross, target, 0.3), expected)


def test_training_lowers_the_loss_of_every_head():
    net = drug_cell()
    x = torch.randn(32, 3, dtype=torch.float64)
    target = torch.tanh(x[:, :1] - x[:, 1:2])
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        _, heads = net.with_heads(x)
        heads.loss(nn.functional.mse_loss, target).backward()
        optimizer.step()
        losses.append({name: nn.functional.mse_loss(value, target).item() for name, value in heads.items()})
    assert all(losses[-1][name] < 0.6 * losses[0][name] for name in ("r", "t"))


def test_inputs_with_several_units_and_an_inner_output():
    dag = Dag([("a", "c"), ("b", "c"), ("c", "d")], outputs=["c", "d"])
    net = WideDagNN(dag, width={"a": 2, "c": 3}, activation="identity", bias=False, dtype=torch.float64)
    x = torch.tensor([[1.0, 10, 100]], dtype=torch.float64)
    a, b, d = torch.arange(6.0).view(3, 2), torch.tensor([[1.0], [2], [3]]), torch.tensor([[1.0, 1, 1]])
    net.set_weights({("a", "c"): a, ("b", "c"): b, ("c", "d"): d})
    c = a.double() @ x[0, :2] + b.double() @ x[0, 2:]
    assert net(x).tolist() == [[*c.tolist(), c.sum().item()]]
    with pytest.raises(DtypeError, match="an input has several units"):
        net({"a": [1.0], "b": [2.0]})


def test_columns_by_name():
    net = drug_cell().eval()
    x = torch.randn(4, 3, dtype=torch.float64)
    table = {name: x[:, column].tolist() for column, name in reversed(list(enumerate(net.input_names)))}
    assert torch.equal(net(table), net(x))


def test_copies_and_pickles_are_the_same_function():
    net = drug_cell().eval()
    x = torch.randn(4, 3, dtype=torch.float64)
    assert torch.equal(copy.deepcopy(net)(x), net(x))
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), net(x))


def test_second_derivatives_with_batch_norm():
    net = drug_cell(width=2, residual=True)
    x = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: net.with_heads(x)[1].outputs, (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: net.with_heads(x)[1].outputs, (x,), fast_mode=True)


def test_an_exported_program_takes_any_batch_and_computes_the_same():
    net = drug_cell().eval()
    x = torch.randn(4, 3, dtype=torch.float64)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    more = torch.randn(9, 3, dtype=torch.float64)
    torch.testing.assert_close(program.module()(more), net(more), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"width": 0}, ConfigError, "width must be a whole number of at least 1, got 0"),
        ({"width": {"t": 2.5}}, ConfigError, "width['t'] must be a whole number of at least 1, got 2.5"),
        ({"width": {"nobody": 2}}, GraphError, "nobody"),
        ({"width": [1, 6]}, ConfigError, "width lists 2 numbers, expected one for each of 3 levels"),
        ({"normalise": "group"}, ConfigError, "normalise must be 'batch', 'layer' or None, got 'group'"),
        (
            {"width": {"t": 2}, "normalise": "layer"},
            ConfigError,
            "a layer norm of one unit is always 0, and the node 's'",
        ),
        ({"dropout": 1.0}, ConfigError, "dropout must be at least 0 and below 1, got 1.0"),
        ({"dropout": {"g1": 0.5}}, GraphError, "dropout names the input 'g1'"),
        ({"heads": ["g1"]}, GraphError, "heads names the input 'g1'"),
        ({"heads": "t"}, ConfigError, "heads must be a number of outputs for every node"),
        ({"heads": {"t": 0}}, ConfigError, "heads['t'] must be a whole number of at least 1, got 0"),
        ({"residual": 1}, ConfigError, "residual must be True or False, got 1"),
        ({"dtype": torch.float16}, DtypeError, "dtype must be torch.float32 or torch.float64"),
    ],
)
def test_arguments_that_are_refused(arguments, error, text):
    with pytest.raises(error) as caught:
        WideDagNN(TERMS, **arguments)
    assert text in str(caught.value)


def test_calls_that_are_refused():
    net = drug_cell()
    with pytest.raises(GraphError, match=r"x must have the shape \[..., inputs\] = \[..., 3\], got \[2, 4\]"):
        net(torch.zeros(2, 4, dtype=torch.float64))
    with pytest.raises(DtypeError, match=r"x must be torch.float64"):
        net(torch.zeros(2, 3))
    with pytest.raises(ConfigError, match="this network has no heads"):
        drug_cell(heads=None).with_heads(torch.zeros(2, 3, dtype=torch.float64))
    _, heads = drug_cell(heads={"t": 1, "s": 2}).with_heads(torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(GraphError, match="got heads with 1 to 2 outputs"):
        heads.loss(nn.functional.mse_loss, torch.zeros(2, 1))
    _, heads = net.with_heads(torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(GraphError, match="target must have 2 samples, as x has, got 3"):
        heads.loss(nn.functional.mse_loss, torch.zeros(3, 1))
    with pytest.raises(GraphError, match="auxiliary names 'g1', which has no head"):
        heads.loss(nn.functional.mse_loss, torch.zeros(2, 1), {"g1": 1.0})


def test_an_output_with_a_head_needs_its_activation_in_a_dict():
    dag = Dag([("a", "h"), ("h", "y")])
    with pytest.raises(ConfigError, match="activation is a dict without the hidden node 'y'"):
        WideDagNN(dag, activation={"h": "relu"}, heads=1)
    assert WideDagNN(dag, activation={"h": "relu"}).activations == ["identity", "relu", "identity"]
    assert WideDagNN(dag, activation="relu", heads=1).activations == ["identity", "relu", "relu"]


@pytest.mark.parametrize("dag", [Dag([], 2), Dag([(0, 1), (1, 2)], 3, outputs=[0])], ids=["no edges", "no way"])
@pytest.mark.parametrize(
    "make", [DagNN, lambda dag: WideDagNN(dag, width=2, normalise="layer")], ids=["narrow", "wide"]
)
def test_parameters_that_no_output_depends_on_have_gradients_of_zeros_on_both_paths(make, dag, monkeypatch):
    net = make(dag)
    for path in ("compiled", "reference"):
        monkeypatch.setenv("DAGNN_KERNELS", path)
        net.zero_grad()
        net(torch.randn(3, len(dag.inputs), requires_grad=True)).sum().backward()
        assert all(one.grad is not None and not one.grad.any() for one in net.parameters()), path
