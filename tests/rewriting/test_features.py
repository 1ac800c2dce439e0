"""GraphRewriter with a graph network that reads the neighbourhoods: the same interface, the same results."""

import pytest
import torch
from decimal_addition import SIGNATURE, replacement_of, sum_tokens, value_of

from dagnn.errors import ConfigError
from dagnn.rewriting import RewritingMachine, RuleRewriter, neighbourhood_nodes, read_neighbourhood
from dagnn.rewriting.features import NeighbourhoodGraphs
from dagnn.rewriting.network import GraphRewriter


@pytest.fixture(scope="module")
def neighbourhoods():
    machine = RewritingMachine(SIGNATURE, RuleRewriter(replacement_of), eager=True)
    machine.run([sum_tokens([a, b]) for a in range(40) for b in (0, 7, 38, 95)])
    return [machine.neighbourhood(w) for w in range(machine.num_neighbourhoods)]


def rewriter(neighbourhoods, **sizes) -> GraphRewriter:
    sizes = {"width": 16, "blocks": 1, "num_slots": 8, "graph_dim": 8, **sizes}
    return GraphRewriter.from_neighbourhoods(SIGNATURE, neighbourhoods, backbone="graph", **sizes)


def test_a_packed_neighbourhood_holds_its_nodes_and_their_children(neighbourhoods):
    graphs = NeighbourhoodGraphs.from_neighbourhoods(SIGNATURE, neighbourhoods)
    packed = graphs.encode(neighbourhoods)
    for neighbourhood, row in zip(neighbourhoods, packed.tolist(), strict=True):
        nodes = neighbourhood_nodes(read_neighbourhood(neighbourhood, SIGNATURE))
        parts = [row[i : i + 5] for i in range(0, len(row), 5)]
        assert [bool(part[0]) for part in parts] == [i < len(nodes) for i in range(len(parts))]
        for node, (symbol, *children) in zip(nodes, parts, strict=False):
            assert symbol > 1  # known
            assert [child - 1 for child in children if child] == [child.index for child in node.children]


def test_what_is_unknown_shares_one_symbol(neighbourhoods):
    few = NeighbourhoodGraphs.from_neighbourhoods(SIGNATURE, neighbourhoods[:1])
    assert (
        NeighbourhoodGraphs(SIGNATURE, few.known).encode(neighbourhoods).tolist() == few.encode(neighbourhoods).tolist()
    )
    symbols = set(few.encode(neighbourhoods)[:, ::5].flatten().tolist())
    assert 1 in symbols
    assert max(symbols) <= few.num_symbols


def test_a_neighbourhood_is_read_alike_alone_and_among_others(neighbourhoods):
    net = rewriter(neighbourhoods).double()
    with torch.no_grad():
        together = net(net.encode(neighbourhoods))
        alone = torch.cat([net(net.encode([neighbourhood])) for neighbourhood in neighbourhoods[:20]])
    torch.testing.assert_close(together[:20], alone)


def test_operands_are_told_apart_and_shared_nodes_are_one(neighbourhoods):
    add, one, two, end = (SIGNATURE.id_of[name] for name in ("add", "d1", "d2", "end"))
    hidden = SIGNATURE.hidden
    forth, back = (add, one, hidden, two, hidden), (add, two, hidden, one, hidden)
    shared, apart = (add, end, hidden + 2), (add, end, hidden)
    net = rewriter([*neighbourhoods, forth, back, shared, apart]).double()
    with torch.no_grad():
        for a, b in ((forth, back), (shared, apart)):
            first, second = net(net.encode([a, b]))
            assert (first - second).abs().max() > 1e-6


def test_gradients_are_right_in_float64(neighbourhoods):
    torch.manual_seed(0)
    few = neighbourhoods[:5]
    net = rewriter(few, width=6, graph_dim=4).double()
    rows = net.encode(few)
    targets = net.features.encode_targets(few, [replacement_of(w) for w in few], num_slots=4)
    loss = net.loss(rows, targets)
    loss.backward()
    for name, parameter in net.named_parameters():
        gradient = parameter.grad
        if gradient is None or not gradient.abs().max():
            continue
        place = tuple(int(i) for i in torch.unravel_index(gradient.abs().argmax(), gradient.shape))
        with torch.no_grad():
            parameter[place] += 1e-5
            above = net.loss(rows, targets)
            parameter[place] -= 2e-5
            below = net.loss(rows, targets)
            parameter[place] += 1e-5
        assert gradient[place].item() == pytest.approx((above - below).item() / 2e-5, rel=1e-4), name


def test_it_learns_to_add(neighbourhoods):
    torch.manual_seed(0)
    net = rewriter(neighbourhoods, width=64, graph_dim=32)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    rows = net.encode(neighbourhoods)
    targets = net.features.encode_targets(neighbourhoods, [replacement_of(w) for w in neighbourhoods], net.num_slots)
    for _ in range(120):
        optimizer.zero_grad()
        net.loss(rows, targets).backward()
        optimizer.step()
    assert net.rewrite(neighbourhoods) == [replacement_of(neighbourhood) for neighbourhood in neighbourhoods]
    pairs = [(39, 95), (38, 38), (0, 7), (27, 38)]
    assert [value_of(result.tokens) for result in net.solve([sum_tokens(pair) for pair in pairs])] == [134, 76, 7, 65]


def test_a_warm_start_keeps_what_was_known(neighbourhoods):
    known, net = rewriter(neighbourhoods[:30]), rewriter(neighbourhoods, num_slots=12)
    assert 0 < net.warm_start(known) < len(net.graphs.known)
    rows = known.encode(neighbourhoods[:30]), net.encode(neighbourhoods[:30])
    known, net = known.double(), net.double()
    with torch.no_grad():
        torch.testing.assert_close(net(rows[1], 8), known(rows[0], 8))
    for other in (
        rewriter(neighbourhoods, graph_dim=12),
        GraphRewriter.from_neighbourhoods(SIGNATURE, neighbourhoods, width=16, blocks=1, num_slots=8),
    ):
        with pytest.raises(ConfigError, match="of the same backbone: it is "):
            other.warm_start(known)


def test_an_unknown_backbone_is_refused(neighbourhoods):
    with pytest.raises(ConfigError, match="backbone must be one of features, graph, got 'lstm'"):
        GraphRewriter.from_neighbourhoods(SIGNATURE, neighbourhoods, backbone="lstm")
