"""The two objectives of a batch of collected, against values worked by hand and against each other."""

import pytest
import torch
from torch.nn import functional as F

from dagnn.curriculum.config import CurriculumConfig, LossConfig
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.traces import collect_neighbourhoods
from dagnn.errors import ConfigError
from dagnn.rewriting import GraphRewriter
from dagnn.rewriting.dataset import NeighbourhoodBatch
from dagnn.rewriting.features import replacement_graphs
from dagnn.rewriting.network import replacement_objective


@pytest.fixture(scope="module")
def collected():
    return collect_neighbourhoods({1: 30}, seed=5)


def network(collected) -> GraphRewriter:
    torch.manual_seed(0)
    return GraphRewriter.from_neighbourhoods(SIGNATURE, collected.neighbourhoods, width=16, blocks=1, whole_graphs=True)


def batch_of(net, collected, count=12) -> NeighbourhoodBatch:
    some, replacements = collected.neighbourhoods[:count], collected.replacements[:count]
    return NeighbourhoodBatch(net.encode(some), net.features.encode_targets(some, replacements, net.num_slots)[:, None])


def test_a_replacement_as_a_graph():
    # Labels a, f(1), +(2): (+ (f a) copy), one node alone, and "leave it".
    arity = torch.tensor([0, 1, 2])
    graphs = replacement_graphs(torch.tensor([[3, 2, 1, 4, -1], [4, -1, -1, -1, -1], [0, -1, -1, -1, -1]]), arity)
    graphs.check()
    assert graphs.exists.tolist() == [[True] * 4, [True, False, False, False], [True, False, False, False]]
    assert graphs.adjacency.nonzero().tolist() == [[0, 1, 0], [0, 2, 1], [0, 3, 0]]
    assert graphs.labels[0].tolist() == [3, 2, 1, 4]


def test_the_ged_objective_is_its_three_likelihoods(collected):
    net = network(collected).double()
    batch = batch_of(net, collected)
    target = replacement_graphs(batch.targets[:, 0], net.arity)
    exists, size = target.exists, target.exists.sum(1)
    with torch.no_grad():
        existence, labels, edges = net.predict_graphs(batch.rows, exists.shape[1])
        node = F.binary_cross_entropy_with_logits(existence, exists.double(), reduction="none").sum(1)
        node = node + (F.cross_entropy(labels.transpose(1, 2), target.labels, reduction="none") * exists).sum(1)
        pairs = exists[:, :, None] & exists[:, None] & ~torch.eye(exists.shape[1], dtype=torch.bool)
        edge = F.binary_cross_entropy_with_logits(edges, target.adjacency.double(), reduction="none")
        expected = 0.7 * node / size + 0.4 * (edge * pairs).sum((1, 2)) / (size - 1).clamp(min=1)
        found = replacement_objective("ged", alpha=0.7, beta=0.4)(net, *batch)
    torch.testing.assert_close(found, expected.mean())


def test_the_edit_objective_is_the_networks_loss(collected):
    net = network(collected)
    batch = batch_of(net, collected)
    found = replacement_objective("edit", alpha=0.7, beta=0.4, gamma=0.1)(net, *batch)
    assert torch.equal(found, net.loss(batch.rows, batch.targets, alpha=0.7, beta=0.4, gamma=0.1))


@pytest.mark.parametrize("objective", ["edit", "ged"])
def test_an_empty_batch_costs_nothing(collected, objective):
    net = network(collected)
    batch = batch_of(net, collected)
    cost = replacement_objective(objective)(net, batch.rows[:0], batch.targets[:0])
    cost.backward()
    assert cost == 0


def test_neighbourhoods_are_learned_by_the_ged_objective(collected):
    net = network(collected)
    batch, objective = batch_of(net, collected, 60), replacement_objective("ged")
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        objective(net, *batch).backward()
        optimizer.step()
    assert net.rewrite(collected.neighbourhoods[:60]) == collected.replacements[:60]


def test_a_network_without_edges_and_a_searched_alignment_are_refused(collected):
    plain = GraphRewriter.from_neighbourhoods(SIGNATURE, collected.neighbourhoods, width=16, blocks=1)
    with pytest.raises(ConfigError, match="make it with whole_graphs=True"):
        plain.predict_graphs(plain.encode(collected.neighbourhoods[:2]))
    with pytest.raises(ConfigError, match=r"allowed is order with loss\.objective = ged"):
        CurriculumConfig(loss=LossConfig(objective="ged", alignment="searched"))
