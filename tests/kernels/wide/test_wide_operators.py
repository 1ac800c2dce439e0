"""Networks of wide nodes under ``torch.compile``: one operator, with the values and gradients of the passes."""

import copy

import pytest
import torch
from wide_networks import batch_for, layered, parameters_of, state_of

from dagnn import DtypeError, GraphError, WideDagNN
from dagnn.graph import Dag
from dagnn.kernels.wide.plan import plan_of


@pytest.mark.filterwarnings("default")  # those of torch.compile itself
@pytest.mark.parametrize("normalise", [None, "batch", "layer"])
def test_torch_compile_takes_the_network_as_one_operator(normalise):
    net = layered(torch.float64, normalise=normalise)
    twin, operators = copy.deepcopy(net), []

    def backend(graph, example_inputs):
        operators.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    compiled = torch.compile(net, backend=backend, fullgraph=True)
    for batch in (5, 2):
        x = batch_for(net, batch)
        y = []
        for model in (compiled, twin):
            torch.manual_seed(0)  # of the masks of dropout
            y.append(model(x))
            y[-1].square().sum().backward()
        torch.testing.assert_close(*y)
        for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)
        for mine, theirs in zip(net.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(mine, theirs)
    assert [name for name in operators if "dagnn" in name].count("dagnn.wide_network.default") == len(
        [name for name in operators if "dagnn" in name]
    )
    assert any("dagnn.wide_network" in name for name in operators)
    torch.testing.assert_close(compiled.eval()(x), twin.eval()(x))


@pytest.mark.parametrize("normalise", [None, "batch", "layer"])
def test_the_operator_keeps_the_rules_of_torch_library(normalise):
    net = WideDagNN(Dag([(0, 2), (1, 2), (2, 3)]), width={2: 3}, dropout=0.2, normalise=normalise, dtype=torch.float64)
    x = batch_for(net, 4).requires_grad_()
    parameters = (net.edge_weight, net.bias, net.scale, net.shift)
    for own in (True, False):
        state = state_of(net, 4, own_statistics=own)
        given = (x, *parameters, *state, net._plan.fingerprint())
        torch.library.opcheck(torch.ops.dagnn.wide_network.default, given)


def test_a_fingerprint_names_equal_networks_while_one_lives():
    first, second = (layered(torch.float32), layered(torch.float64))
    fingerprint = first._plan.fingerprint()
    assert second._plan.fingerprint() == fingerprint
    assert layered(torch.float32, residual=False)._plan.fingerprint() != fingerprint
    del second
    assert plan_of(fingerprint) is first._plan
    del first
    with pytest.raises(GraphError, match="computes with a WideDagNN that this process does not hold"):
        plan_of(fingerprint)


def test_an_operator_refuses_what_does_not_fit():
    net = layered(torch.float32, normalise="batch", dropout=0.0)
    x, parameters, plan = batch_for(net, 3), parameters_of(net), net._plan.fingerprint()
    run = torch.ops.dagnn.wide_network
    with pytest.raises(GraphError, match=r"x must have the shape \[3, 40\], got \[3, 39\]"):
        run(x[:, 1:], *parameters, None, None, None, plan)
    with pytest.raises(GraphError, match="scale and shift belong to a norm"):
        run(x, parameters.weight, parameters.bias, None, None, None, None, None, plan)
    with pytest.raises(GraphError, match="mean and variance must be given both"):
        run(x, *parameters, parameters.scale, None, None, plan)
    with pytest.raises(DtypeError, match="all of one, got"):
        run(x.double(), *parameters, None, None, None, plan)
    with pytest.raises(GraphError, match="weights"):
        run(x, parameters.weight[1:], *parameters[1:], None, None, None, plan)
