"""How a `DagNN` starts: sums of unit variance, whatever the in-degree and the activations."""

import pytest
import torch

from dagnn.graph import Dag
from dagnn.nn import DagNN


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "silu", "softplus"])
def test_sums_have_about_unit_second_moment_at_any_depth(activation):
    width, depth = 60, 4
    edges = [
        ((layer, i), (layer + 1, j))
        for layer in range(depth)
        for i in range(width)
        for j in range(width)
        if (i + j) % 3
    ]
    dag = Dag(edges, outputs=[(depth, j) for j in range(width)])
    net = DagNN(dag, activation=activation)
    net.reset_parameters(torch.Generator().manual_seed(0))
    y = net(torch.randn(400, width, generator=torch.Generator().manual_seed(1)))
    assert 0.6 < y.square().mean().item() < 1.5


def test_weights_are_bounded_by_in_degree_and_biases_are_zero():
    edges = [(f"i{k}", "many") for k in range(50)] + [("i0", "one"), ("s", "one")]
    dag = Dag(edges, inputs=[f"i{k}" for k in range(50)])
    net = DagNN(dag, activation="relu")
    net.reset_parameters(torch.Generator().manual_seed(0))
    many = max(abs(net.weight_of(f"i{k}", "many")) for k in range(50))
    assert 0.9 * (3 / 50) ** 0.5 < many <= (3 / 50) ** 0.5
    assert abs(net.weight_of("s", "one")) <= (3 / (2 * 0.5)) ** 0.5
    by_place = net.bias.tolist()  # s is on level 0, then many and one
    assert by_place[1:] == [0.0, 0.0]
    assert 0 < abs(by_place[0]) <= 3**0.5


def test_reset_parameters_draws_anew_and_repeats_with_a_generator():
    net = DagNN(Dag([("a", "c"), ("b", "c")]))
    first = net.edge_weight.tolist()
    net.reset_parameters()
    assert net.edge_weight.tolist() != first
    net.reset_parameters(torch.Generator().manual_seed(3))
    again = net.edge_weight.tolist()
    net.reset_parameters(torch.Generator().manual_seed(3))
    assert net.edge_weight.tolist() == again
