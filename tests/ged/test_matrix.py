import random

import pytest
import torch

from dagnn.errors import ConfigError, GraphError
from dagnn.ged import EditCosts, ged_matrix, graph_edit_distance
from dagnn.graph import Dag


@pytest.fixture
def graphs(oracle):
    rng = random.Random(0)
    return [oracle.to_networkx(oracle.random_dag(rng, rng.randint(3, 9), labels=2)) for _ in range(6)]


@pytest.mark.parametrize("costs", [EditCosts(), EditCosts(node_insertion=2, edge_deletion=0.5)])
def test_entries_are_the_distances_of_the_pairs(graphs, costs):
    found = ged_matrix(graphs, costs=costs)
    expected = torch.tensor([[graph_edit_distance(a, b, costs).distance for b in graphs] for a in graphs])
    assert found.proved.all()
    torch.testing.assert_close(found.upper, expected.double())
    torch.testing.assert_close(found.lower, expected.double())


def test_rectangle_is_a_part_of_the_square(graphs):
    square, part = ged_matrix(graphs), ged_matrix(graphs[:2], graphs[2:])
    torch.testing.assert_close(part.upper, square.upper[:2, 2:])
    assert part.upper.shape == (2, 4)
    assert ged_matrix([], graphs).upper.shape == (0, 6)


@pytest.mark.parametrize("budget", [0, 3, 1000])
def test_parallel_result_is_the_serial_one_bit_for_bit(graphs, budget):
    serial, parallel = (ged_matrix(graphs, budget=budget, workers=workers) for workers in (1, 3))
    for name in ("lower", "upper", "proved", "search_nodes"):
        assert torch.equal(getattr(serial, name), getattr(parallel, name))


def test_bad_input_names_the_graph():
    with pytest.raises(ConfigError, match="workers is 0"):
        ged_matrix([], workers=0)
    labelled = Dag([], 1, node_attributes={"label": ("a",)})
    with pytest.raises(GraphError, match=r"graphs\[1\] has the node attribute 'label' and graphs\[0\] has not"):
        ged_matrix([Dag([], 1), labelled])
    with pytest.raises(GraphError, match=r"other\[0\] has the node attribute 'label' and graphs\[0\] has not"):
        ged_matrix([Dag([], 1)], [labelled])
