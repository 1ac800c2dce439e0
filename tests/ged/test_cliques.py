import itertools

import pytest
import torch

from dagnn.ged import clique_counts
from dagnn.ged.loss_parts import clique_cost


@pytest.mark.parametrize(
    ("nodes", "size", "count"), [(4, 3, 4), (5, 3, 10), (5, 4, 5), (4, 4, 1), (3, 4, 0), (0, 3, 0)]
)
def test_complete_graphs_have_known_clique_counts(nodes, size, count):
    complete = (1.0 - torch.eye(nodes))[None]
    assert clique_counts(complete, size).tolist() == [count]


@pytest.mark.parametrize("size", [3, 4])
def test_fractional_count_is_the_sum_of_products(size):
    raw = torch.rand(2, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).triu(1)
    skeleton = raw + raw.transpose(1, 2)
    products = [
        torch.stack([skeleton[:, i, j] for i, j in itertools.combinations(nodes, 2)]).prod(0)
        for nodes in itertools.combinations(range(6), size)
    ]
    torch.testing.assert_close(clique_counts(skeleton, size), torch.stack(products).sum(0))


def test_missing_and_spurious_cliques_are_both_charged():
    complete = torch.ones(1, 4, 4, dtype=torch.bool).triu(1)
    empty = torch.zeros_like(complete)
    sure = torch.where(complete, 60.0, -60.0)
    none = torch.full((1, 4, 4), -60.0)
    assert clique_cost(sure, complete, size=3, normalize=False).item() == pytest.approx(0, abs=1e-6)
    assert clique_cost(none, complete, size=3, normalize=False).item() == pytest.approx(4)
    assert clique_cost(none, complete, size=3, normalize=True).item() == pytest.approx(1)
    assert clique_cost(sure, empty, size=3, normalize=False).item() == pytest.approx(4)
    assert clique_cost(sure, empty, size=4, normalize=False).item() == pytest.approx(1)


def test_even_chances_for_a_clique_of_four_keep_a_gradient():
    # Their product is 1/64 (and its gradient vanishes with it); the geometric mean is 1/2.
    complete = torch.ones(1, 4, 4, dtype=torch.bool).triu(1)
    edges = torch.full((1, 4, 4), -60.0).where(~complete, torch.tensor(0.0)).requires_grad_()
    cost = clique_cost(edges, complete, size=4, normalize=False)
    cost.sum().backward()
    assert cost.item() == pytest.approx(0.5, abs=1e-5)
    torch.testing.assert_close(edges.grad[complete], torch.full((6,), -0.5 * 0.5 / 6))
