"""What a graph computes once serves wherever it was first asked for."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from dagnn.graph import Dag, DagBatch

EDGES = [(0, 2), (1, 2), (2, 3), (0, 3)]
GRAPHS = {"dag": lambda: Dag(EDGES, 4), "batch": lambda: DagBatch.from_dags([Dag(EDGES, 4), Dag([(0, 1)], 2)])}
FACTS = ["order", "levels", "heights", "in_degree", "out_degree"]


def in_inference_mode(ask):
    with torch.inference_mode():
        ask()


def among_fake_tensors(ask):
    with FakeTensorMode(allow_non_fake_inputs=True):
        ask()


def second_derivative(function):
    return torch.func.grad(lambda x: torch.func.grad(function)(x).sum())


def within_a_second_derivative(ask):
    def function(x):
        ask()
        return x.square()

    second_derivative(function)(torch.ones(()))


@pytest.mark.parametrize("first", [in_inference_mode, among_fake_tensors, within_a_second_derivative])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_first_asked_for_elsewhere(graph, fact, first):
    asked, fresh = GRAPHS[graph](), GRAPHS[graph]()
    first(lambda: getattr(asked, fact))
    found, expected = getattr(asked, fact), getattr(fresh, fact)
    assert type(found) is torch.Tensor and not found.is_inference()
    assert torch.equal(found, expected)
    x = torch.ones(asked.num_nodes, requires_grad=True)
    (x * found).sum().backward()
    assert torch.equal(x.grad, expected.to(x.dtype))
    again = second_derivative(lambda x: (x * found).square().sum())(torch.ones(asked.num_nodes))
    assert torch.equal(again, 2.0 * expected.square())


def test_a_default_device_takes_nothing_from_a_graph():
    def graphs() -> list[Dag]:
        attributes = {"v": [1, 2, 3], "w": [1.0, 2.0, 3.0]}
        dag = Dag([("a", "c"), ("b", "c")], node_attributes=attributes, edge_attributes={"position": [1, 0]})
        return [
            dag,
            Dag.from_json(dag.to_json()),
            Dag.from_json(Dag([], 2, inputs=[]).to_json()),
            Dag.from_networkx(dag.to_networkx()),
            Dag.from_polish("(+ x (* x y))"),
            dag.without_dangling(),
        ]

    expected = graphs()
    with torch.device("meta"):
        made = graphs()
        batch = DagBatch.from_dags(made[:1])
        orders = [dag.order.tolist() for dag in made]
    assert made == expected and orders == [dag.order.tolist() for dag in expected]
    assert batch.to_dags() == expected[:1]
