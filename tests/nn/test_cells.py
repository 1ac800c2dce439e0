"""Cells against their papers' equations, written out one node and one operand at a time."""

import pytest
import torch
from torch import Tensor, nn

from dagnn.errors import ConfigError, GraphError
from dagnn.graph import Dag
from dagnn.nn import AttentionCell, Cell, ChildSumTreeLSTMCell, DagSweep, GRUCell, TreeLSTMCell

D, H = 3, 4
# Three nodes: the first without operands, the second with one in place 1, the third with two.
TARGET, POSITION = torch.tensor([2, 1, 2]), torch.tensor([1, 1, 0])
GENERATOR = torch.Generator().manual_seed(0)
X, STATE_H, STATE_C = (torch.randn(3, width, dtype=torch.float64, generator=GENERATOR) for width in (D, H, H))


def operands(v: int) -> list[int]:
    return [e for e in range(3) if TARGET[e] == v]


def made(make, *args, operators: int | None = None) -> nn.Module:
    torch.manual_seed(0)
    cell = (make(*args) if operators is None else make(*args, operators=operators)).double()
    for p in cell.parameters():
        nn.init.normal_(p, std=0.5)
    return cell


def columns(matrix: Tensor, gate: int) -> Tensor:
    return matrix[..., gate * H : (gate + 1) * H]


def test_ordered_tree_lstm_is_equations_9_to_14():
    cell = made(TreeLSTMCell, D, H, 2)
    h, c = cell(X, (STATE_H, STATE_C), TARGET, POSITION)
    for v in range(3):
        own = [X[v] @ columns(cell.feature_weight, gate) + columns(cell.bias, gate) for gate in range(4)]

        def from_operands(gate: int, v: int = v) -> Tensor:
            total = torch.zeros(H, dtype=torch.float64)
            for e in operands(v):
                k = int(POSITION[e])
                total += STATE_H[e] @ columns(cell.state_weight[k * H : (k + 1) * H], gate)
            return total

        i, o, u = (own[gate] + from_operands(gate) for gate in range(3))
        expected = i.sigmoid() * u.tanh()
        for e in operands(v):
            expected = expected + (own[3] + from_operands(3 + int(POSITION[e]))).sigmoid() * STATE_C[e]
        torch.testing.assert_close(c[v], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(h[v], o.sigmoid() * expected.tanh(), rtol=1e-12, atol=1e-12)


def test_child_sum_tree_lstm_is_equations_2_to_8():
    cell = made(ChildSumTreeLSTMCell, D, H)
    h, c = cell(X, (STATE_H, STATE_C), TARGET, POSITION)
    for v in range(3):
        summed = sum((STATE_H[e] for e in operands(v)), torch.zeros(H, dtype=torch.float64))
        own = [X[v] @ columns(cell.feature_weight, gate) + columns(cell.bias, gate) for gate in range(4)]
        i, o, u = (own[gate] + summed @ columns(cell.state_weight, gate) for gate in range(3))
        expected = i.sigmoid() * u.tanh()
        for e in operands(v):
            expected = expected + (own[3] + STATE_H[e] @ cell.forget_weight).sigmoid() * STATE_C[e]
        torch.testing.assert_close(c[v], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(h[v], o.sigmoid() * expected.tanh(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("how", ["sum", "mean", "max"])
def test_gru_over_the_aggregate(how):
    cell = made(GRUCell, D, H, how)
    (h,) = cell(X, (STATE_H,), TARGET, POSITION)
    for v in range(3):
        stacked = torch.stack([STATE_H[e] for e in operands(v)]) if operands(v) else torch.zeros(1, H).double()
        message = {"sum": stacked.sum(0), "mean": stacked.mean(0), "max": stacked.amax(0)}[how]
        gru = cell.gru
        r_x, z_x, n_x = (X[v] @ gru.weight_ih.t() + gru.bias_ih).chunk(3)
        r_h, z_h, n_h = (message @ gru.weight_hh.t() + gru.bias_hh).chunk(3)
        z = (z_x + z_h).sigmoid()
        expected = (1 - z) * (n_x + (r_x + r_h).sigmoid() * n_h).tanh() + z * message
        torch.testing.assert_close(h[v], expected, rtol=1e-12, atol=1e-12)


def test_attention_is_the_paper_with_its_term_for_the_node_itself():
    cell = made(AttentionCell, D, H)
    (h,) = cell(X, (STATE_H,), TARGET, POSITION)
    own_term = torch.randn(D, dtype=torch.float64)  # w_1 of the paper: any value gives the same attention
    for v in range(3):
        message = torch.zeros(H, dtype=torch.float64)
        if operands(v):
            score = torch.stack([X[v] @ own_term + STATE_H[e] @ cell.score_weight for e in operands(v)])
            message = sum(a * STATE_H[e] for a, e in zip(score.softmax(0), operands(v), strict=True))
        expected = cell.gru(X[v : v + 1], message.unsqueeze(0))[0]
        torch.testing.assert_close(h[v], expected, rtol=1e-12, atol=1e-12)


def test_attention_with_large_scores_stays_finite():
    cell = AttentionCell(D, H)
    nn.init.constant_(cell.score_weight, 1e4)
    (h,) = cell(X.float(), (STATE_H.float(),), TARGET, POSITION)
    assert h.isfinite().all()


def test_operands_in_the_same_place_are_summed_and_forgotten_one_by_one():
    cell = made(TreeLSTMCell, D, H, 1)
    same = torch.zeros(3, dtype=torch.int64)
    h, c = cell(X, (STATE_H, STATE_C), torch.tensor([0, 0, 1]), same)
    merged_h, merged_c = STATE_H[:2].sum(0, keepdim=True), STATE_C[:2].sum(0, keepdim=True)
    h_one, c_one = cell(X[:1], (merged_h, merged_c), torch.tensor([0]), same[:1])
    torch.testing.assert_close(c[:1], c_one)
    torch.testing.assert_close(h[:1], h_one)


def test_each_operator_has_a_weight_of_its_own():
    cell = made(TreeLSTMCell, D, H, 2, operators=3)
    operator = torch.tensor([1, 2, 1])
    h, c = cell(X, (STATE_H, STATE_C), TARGET, POSITION, operator)
    for v in range(3):
        single = made(TreeLSTMCell, D, H, 2)
        single.load_state_dict({**cell.state_dict(), "state_weight": cell.state_weight[operator[v]]})
        expected_h, expected_c = single(X, (STATE_H, STATE_C), TARGET, POSITION)
        torch.testing.assert_close((h[v], c[v]), (expected_h[v], expected_c[v]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", [ChildSumTreeLSTMCell, GRUCell, AttentionCell])
def test_each_operator_has_a_state_weight_of_its_own_and_shares_the_rest(make):
    cell = made(make, D, H, operators=3)
    states = (STATE_H, STATE_C)[: len(cell.state_sizes)]
    operator = torch.tensor([1, 2, 1])
    found = cell(X, states, TARGET, POSITION, operator)
    assert cell.state_weight.shape == (3, H, 3 * H)
    for v in range(3):
        single, shared = made(make, D, H), cell.state_dict()
        own = shared.pop("state_weight")[operator[v]]
        shared |= {"state_weight": own} if make is ChildSumTreeLSTMCell else {"gru.weight_hh": own.t()}
        single.load_state_dict(shared)
        for state, expected in zip(found, single(X, states, TARGET, POSITION), strict=True):
            torch.testing.assert_close(state[v], expected[v], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", [GRUCell, AttentionCell])
def test_a_gru_with_operators_has_their_weights_and_no_other(make):
    torch.manual_seed(0)
    cell = make(D, 64, operators=2)
    assert cell.gru.weight_hh is None and "state_weight" in dict(cell.named_parameters())
    before = cell.state_weight.clone()
    cell.reset_parameters()
    assert not torch.equal(cell.state_weight, before)
    assert 0.9 / 8 < float(cell.state_weight.detach().abs().max()) <= 1 / 8


@pytest.mark.parametrize("make", [TreeLSTMCell, ChildSumTreeLSTMCell, GRUCell, AttentionCell])
def test_operators_that_are_missing_or_too_large(make):
    cell = make(D, H, operators=2)
    states = (STATE_H.float(), STATE_C.float())[: len(cell.state_sizes)]
    with pytest.raises(GraphError, match=r"a node has operator 2, but operators=2 allows operators 0 \.\. 1: raise"):
        cell(X.float(), states, TARGET, POSITION, torch.tensor([0, 2, 1]))
    with pytest.raises(ConfigError, match="operator must be given if and only if operators is, got operators=2"):
        cell(X.float(), states, TARGET, POSITION)
    with pytest.raises(ConfigError, match="operators must be a whole number of at least 1, got 0"):
        make(D, H, operators=0)
    with pytest.raises(ConfigError, match="operator must be given if and only if operators is, got operators=None"):
        make(D, H)(X.float(), states, TARGET, POSITION, torch.tensor([0, 1, 1]))


def test_forget_gates_start_open():
    for cell in (TreeLSTMCell(D, H), ChildSumTreeLSTMCell(D, H)):
        assert cell.bias.tolist() == [0.0] * 3 * H + [1.0] * H


def test_a_position_beyond_max_children_is_named():
    cell = TreeLSTMCell(D, H, max_children=1)
    with pytest.raises(GraphError, match=r"position 1, but max_children=1 allows positions 0 \.\. 0: raise"):
        cell(X.float(), (STATE_H.float(), STATE_C.float()), TARGET, POSITION)


@pytest.mark.parametrize("make", [TreeLSTMCell, ChildSumTreeLSTMCell, GRUCell, AttentionCell])
def test_cells_fit_the_protocol_and_check_their_sizes(make):
    assert isinstance(make(D, H), Cell)
    with pytest.raises(ConfigError, match="in_features must be a whole number of at least 1, got 0"):
        make(0, H)
    with pytest.raises(ConfigError, match=r"hidden must be a whole number of at least 1, got 2\.5"):
        make(D, 2.5)


def test_an_unknown_aggregate():
    with pytest.raises(ConfigError, match="aggregate must be one of sum, mean, max, got 'median'"):
        GRUCell(D, H, "median")


def test_the_bias_that_only_the_new_state_has_is_summed_in_parts():
    """A float32 sum of n equal terms, one after another, is off by a share of n units of the last digit."""
    torch.manual_seed(0)
    count, sweep = 50_000, DagSweep(GRUCell(2, 3))
    graph, x = Dag(torch.zeros(0, 2, dtype=torch.int64), count), torch.ones(count, 2)
    (grad,) = torch.autograd.grad(sweep(x, graph).sum(), [sweep.cells["up"].gru.bias_hh])
    sweep = sweep.double()
    (exact,) = torch.autograd.grad(sweep(x[:1].double(), Dag([], num_nodes=1)).sum(), [sweep.cells["up"].gru.bias_hh])
    off = ((grad.double() / count - exact) / exact)[6:].abs().max()
    assert off < (count / 32 + 40) * 2**-24, off
