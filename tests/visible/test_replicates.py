"""`explain_replicates`: bits of each alone, exact family-wise p-values, controls of the right kind, refusals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dags

from dagnn import Dag, DagNN
from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.visible import ReplicateTraining, explain_replicates, rewired
from dagnn.visible.runs import Start, deterministic, train

SHORT = ReplicateTraining(epochs=2, batch_size=20, lr=0.02, weight_decay=0.1)
ALL = ("shuffled", "deterministic", "rewired")


def pathways():
    edges = [(f"g{k}", f"p{k // 4}") for k in range(16)] + [(f"p{k}", "top" if k < 2 else "y") for k in range(4)]
    return Dag([*edges, ("top", "y")], outputs=["y"])


def data(samples=80, seed=0):
    x = torch.randn(samples, 16, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, :4].sum(1) > 0).float()


def test_a_replicate_has_the_bits_it_has_alone_whatever_the_threads():
    dag, (x, y), threads, found = pathways(), data(), torch.get_num_threads(), []
    state = torch.get_rng_state()
    try:
        for count, replicates in ((1, 1), (1, 11), (2, 11)):
            torch.set_num_threads(count)
            found.append(explain_replicates(dag, x, y, replicates=replicates, shuffles=2, controls=ALL, training=SHORT))
    finally:
        torch.set_num_threads(threads)

    alone, one, two = found
    assert torch.equal(one.shares[:1], alone.shares) and torch.equal(one.shares, two.shares)
    assert torch.equal(one.control_shares["shuffled"][::11], alone.control_shares["shuffled"])
    assert torch.equal(one.control_shares["rewired"][:1], alone.control_shares["rewired"])
    assert all(torch.equal(one.control_sizes[name], two.control_sizes[name]) for name in ALL)
    assert len({tuple(shares) for shares in one.shares.tolist()}) == 11
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("path", ["compiled", "reference"])
def test_a_run_is_that_of_a_plain_loop(path, monkeypatch):
    monkeypatch.setenv("DAGNN_KERNELS", path)
    x, y = (part.double() for part in data())
    net = DagNN(pathways(), output_activation="tanh", dtype=torch.float64)
    net.reset_parameters(torch.Generator().manual_seed(5))
    run = Start(net).run(net._plan_on[torch.device("cpu")], 5, x, y, 7)
    weight, bias = run.weight, run.bias
    run.draw()
    assert torch.equal(weight, net.edge_weight) and torch.equal(bias, net.bias)
    train([run], SHORT, is_label=True, threads=1, done=lambda count: None)

    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02, weight_decay=0.1)
    random = np.random.default_rng(7)
    for _ in range(2):
        for rows in torch.from_numpy(random.permutation(80)).split(20):
            optimizer.zero_grad()
            logit = 4 * net(x[rows])[:, 0]
            torch.nn.functional.binary_cross_entropy_with_logits(logit, y[rows]).backward()
            optimizer.step()
    assert torch.allclose(weight, net.edge_weight, atol=1e-12) and torch.allclose(bias, net.bias, atol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_hidden_edges_and_biases_decay_by_their_share(share):
    x, y = (part.double() for part in data())
    net = DagNN(pathways(), output_activation="tanh", dtype=torch.float64)
    net.reset_parameters(torch.Generator().manual_seed(5))
    run = Start(net).run(net._plan_on[torch.device("cpu")], 5, x, y, 7)
    how = ReplicateTraining(epochs=2, batch_size=20, lr=0.02, weight_decay=3.0, hidden_decay=share)
    train([run], how, is_label=True, threads=1, done=lambda count: None)

    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02, weight_decay=0.0)
    hidden = torch.tensor([not source.startswith("g") for source, _ in net._layout.edge_names()])
    assert 0 < int(hidden.sum()) < len(hidden)
    random = np.random.default_rng(7)
    for _ in range(2):
        for rows in torch.from_numpy(random.permutation(80)).split(20):
            optimizer.zero_grad()
            logit = 4 * net(x[rows])[:, 0]
            torch.nn.functional.binary_cross_entropy_with_logits(logit, y[rows]).backward()
            with torch.no_grad():
                net.edge_weight.mul_(torch.where(hidden, 1 - 0.06 * share, 1 - 0.06))
                net.bias.mul_(1 - 0.06 * share)
            optimizer.step()
    assert torch.allclose(run.weight, net.edge_weight, atol=1e-12) and torch.allclose(run.bias, net.bias, atol=1e-12)


def test_the_planted_pathway_is_found_and_its_parent():
    found = explain_replicates(pathways(), *data(300), training=ReplicateTraining(epochs=40, lr=0.02, weight_decay=0.1))

    assert set(found.significant()) == {"p0", "top"}
    assert {name for name, _ in found.top(2)} == {"p0", "top"} and found.scores.min() > 0.9
    assert found.cautions() == []
    low, high = found.interval()
    assert (low <= found.mean).all() and (found.mean <= high).all()


def test_p_values_count_shuffles_whose_largest_node_is_as_large():
    found = explain_replicates(pathways(), *data(), replicates=2, shuffles=4, training=SHORT)
    null = found.control_sizes["shuffled"].sqrt().view(4, 2, -1).mean(1)
    sets = torch.cat([found.sizes.sqrt().mean(0, keepdim=True), null])
    hidden = [k for k, name in enumerate(found.node_names) if str(name)[0] in "pt"]
    statistic = (sets - sets.mean(0))[:, hidden]
    expected = [(1 + sum(float(row.max()) >= value for row in statistic[1:])) / 5 for value in statistic[0].tolist()]
    assert found.p_values[hidden].tolist() == expected and int(found.p_values.isnan().sum()) == 17


def test_differences_do_not_depend_on_how_far_noise_moves_the_output():
    found = explain_replicates(pathways(), *data(), replicates=2, shuffles=4, training=SHORT)
    hidden = ~found.p_values.isnan()
    assert float(found.difference[hidden].sum()) == pytest.approx(0, abs=1e-12)
    total = found.shares[:, hidden].sum(1).mean()
    null = found.control_sizes["shuffled"]
    expected = (found.sizes / found.sizes[:, hidden].sum(1, keepdim=True)).mean(0) - (
        null / null[:, hidden].sum(1, keepdim=True)
    ).mean(0)
    assert torch.allclose(found.difference, total * expected)

    other = explain_replicates(pathways(), *data(), replicates=2, shuffles=4, training=SHORT)
    other.control_sizes["shuffled"] *= torch.rand(8, 1, dtype=torch.float64) + 0.1
    assert torch.allclose(other.difference, found.difference, atol=1e-12)


def test_dead_networks_do_not_count_against_the_others():
    found, fewer = (
        explain_replicates(pathways(), *data(), replicates=2, shuffles=shuffles, training=SHORT) for shuffles in (3, 2)
    )
    found.control_sizes["shuffled"][4:] = 0  # what relu and a strong decay do to some: 0 / 0
    found.control_shares["shuffled"][4:] = torch.nan
    assert torch.equal(found.difference, fewer.difference) and found.top() == fewer.top()
    assert found.likeness() == fewer.likeness() and not np.isnan(found.likeness()["shuffled"])


def test_a_graph_without_hidden_nodes_has_differences():
    dag = Dag([("a", "y"), ("b", "y")])
    x = torch.randn(80, 2, generator=torch.Generator().manual_seed(0))
    training = ReplicateTraining(epochs=20, lr=0.05, weight_decay=0.1)
    found = explain_replicates(dag, x, (x[:, 0] > 0).float(), shuffles=2, training=training)
    difference = dict(zip(found.node_names, found.difference.tolist(), strict=True))
    assert difference["a"] > 0 > difference["b"] and found.top() == []


def test_one_run_is_said_to_say_nothing():
    found = explain_replicates(pathways(), *data(), replicates=1, controls=(), training=SHORT)
    assert "A single run says nothing" in str(found) and found.interval()[0].isnan().all()
    with pytest.raises(ConfigError, match="this needs the control 'shuffled'"):
        _ = found.p_values
    with pytest.raises(ConfigError, match="n must be a whole number, got 'a'"):
        found.top("a")
    with pytest.raises(ConfigError, match=r"level must lie between 0 and 1, got '5%': 0\.95 is usual"):
        found.interval("5%")
    few = explain_replicates(pathways(), *data(), replicates=2, shuffles=3, training=SHORT)
    with pytest.raises(ConfigError, match=r"level must lie between 0 and 1, got 5: 0\.05 is usual"):
        few.significant(5)
    assert "3 shuffles give no p-value below 0.25" in str(few)


def test_numbers_are_explained_too_and_runs_are_counted():
    x, _ = data()
    counts = []
    found = explain_replicates(
        pathways(), x, x[:, 0] * 3 + 1, replicates=2, controls=["deterministic"], training=SHORT,
        progress=lambda done, total: counts.append((done, total)),
    )  # fmt: skip
    assert counts[-1] == (4, 4) and found.scores.shape == (2,) and found.error < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_far_from_0_are_those_near_it(dtype):
    x, _ = data()
    y = (x[:, 0].double() * 1024).round() / 1024  # exact after the offset
    found = [
        explain_replicates(pathways(), x.to(dtype), values, replicates=1, shuffles=1, training=SHORT)
        for values in (y, y + 2.0**30, y + 2.0**40)
    ]
    for far in found[1:]:
        assert far.scores.tolist() == pytest.approx(found[0].scores.tolist(), abs=1e-4)


@settings(max_examples=30, deadline=None)
@given(dags(named=True, min_nodes=1), st.integers(0, 5))
def test_a_rewired_dag_keeps_every_degree_and_no_edge_twice(dag, seed):
    other = rewired(dag, seed)
    assert torch.equal(other.in_degree, dag.in_degree) and torch.equal(other.out_degree, dag.out_degree)
    assert len(set(map(tuple, other.edges.tolist()))) == dag.num_edges
    assert (
        other.names == dag.names and torch.equal(other.inputs, dag.inputs) and torch.equal(other.outputs, dag.outputs)
    )
    assert rewired(dag, seed) == other and rewired(dag, seed, rounds=0) == dag


def test_rewiring_moves_most_edges():
    dag = Dag([(f"a{k}", f"b{k % 40}") for k in range(400)] + [(f"b{k}", "y") for k in range(40)], outputs=["y"])
    before, after = (set(map(tuple, one.edges.tolist())) for one in (dag, rewired(dag, 0)))
    assert len(before & after) < 0.2 * len(before)


def test_deterministic_inputs_are_the_label():
    told = deterministic(torch.tensor([0.0, 1.0, 1.0, 0.0]), 2)
    assert told.tolist() == [[-1, -1], [1, 1], [1, 1], [-1, -1]]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"y": torch.ones(80)}, ConfigError, "one class only has nothing to learn"),
        (
            {"y": torch.randn(80).double() * 1e300},
            ConfigError,
            "y are too large for their variance in float64: scale y",
        ),
        ({"controls": None}, ConfigError, "rewired, got None"),
        ({"training": "x"}, ConfigError, r"training must be a ReplicateTraining\(...\) or None, got 'x'"),
        ({"y": torch.ones(79)}, GraphError, "y must have one number for each of 80 samples"),
        ({"y": torch.full((80,), torch.nan)}, ConfigError, "y is not finite for sample 0"),
        ({"x": torch.full((80, 16), torch.inf)}, ConfigError, "x is inf for the input 'g0' of sample 0"),
        ({"x": torch.ones(80, 15)}, GraphError, r"x must have the shape"),
        ({"replicates": 0}, ConfigError, "replicates must be a whole number, at least 1, got 0"),
        ({"shuffles": 0}, ConfigError, "shuffles must be"),
        ({"held_out": 1.0}, ConfigError, "held_out must lie between 0 and 1"),
        ({"controls": ["shuffle"]}, ConfigError, "got 'shuffle'"),
        ({"controls": "shuffled"}, ConfigError, "controls is a list"),
        ({"output": "z"}, GraphError, "'z'"),
        ({"y": np.array(["ill", "well"] * 40)}, DtypeError, "y must hold numbers, 0 and 1 for two classes, got <U4"),
        ({"y": torch.arange(80) == 50}, ConfigError, "the 60 samples to train on have one value of y only"),
        ({"steps": 0}, ConfigError, "steps must be a whole number, at least 1, got 0"),
        ({"baseline": torch.zeros(3)}, GraphError, "baseline must be a number, one sample"),
        ({"baseline": torch.full((16,), torch.nan)}, ConfigError, "baseline is nan for the input 'g0'"),
    ],
)
def test_bad_input_is_refused(arguments, error, text):
    x, y = data()
    trained = []
    with pytest.raises(error, match=text):
        explain_replicates(
            pathways(),
            **{"x": x, "y": y, "training": SHORT, "progress": lambda *count: trained.append(count)} | arguments,
        )
    assert not trained  # not after hours of training
    with pytest.raises(ConfigError, match="lr must be a finite number above 0"):
        ReplicateTraining(lr=-1.0)
    with pytest.raises(ConfigError, match="hidden_decay is a share of weight_decay"):
        ReplicateTraining(hidden_decay=2.0)
    for wrong in (True, "0", math.nan, -1.0, torch.tensor(1.0)):
        with pytest.raises(ConfigError, match="hidden_decay must be a finite number of at least 0"):
            ReplicateTraining(hidden_decay=wrong)
    with pytest.raises(ConfigError, match=r"lr \* weight_decay must be below 1, got 0.01 \* 200.0"):
        ReplicateTraining(lr=0.01, weight_decay=200.0, hidden_decay=0.5)  # signs of weights would change in every step
    numpys = ReplicateTraining(epochs=np.int64(2), lr=np.float32(0.125), hidden_decay=np.float16(0))
    assert (type(numpys.epochs), type(numpys.lr), numpys.hidden_decay) == (int, float, 0.0)
