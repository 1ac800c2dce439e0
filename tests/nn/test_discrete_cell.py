"""`DiscreteCell` against automata and order statistics written out, and its hard form as the limit of the soft one."""

import io
import math
import random

import numpy as np
import pytest
import torch
from torch import Tensor

from dagnn.errors import ConfigError, GraphError
from dagnn.graph import Dag, DagBatch
from dagnn.nn import DagSweep, DiscreteCell

K = 5
# Nodes with 3, 0, 1, 6 and 2 operands, whose edges are in no order.
COUNTS = (3, 0, 1, 6, 2)
EDGES = [(v, place) for v, count in enumerate(COUNTS) for place in range(count)]
random.Random(0).shuffle(EDGES)
TARGET, POSITION = torch.tensor(EDGES).unbind(1)


def made(**options: int) -> DiscreteCell:
    torch.manual_seed(0)
    cell = DiscreteCell(3, K, **options).double()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.normal_()
        place = torch.randn(K, dtype=torch.float64)
        cell.above.copy_(place.unsqueeze(1) - place)  # an order
    return cell


def drawn(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features and the operands' distributions."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(len(COUNTS), 3, dtype=torch.float64, generator=generator)
    return features, torch.randn(len(EDGES), K, dtype=torch.float64, generator=generator).softmax(1)


def operands_of(v: int) -> list[int]:
    """The edges into node v, by position."""
    return sorted((e for e in range(len(EDGES)) if TARGET[e] == v), key=lambda e: POSITION[e])


def folded(cell: DiscreteCell, sequence: list[Tensor], kind: int) -> Tensor:
    first, table = (cell.sharpness * cell.first[kind]).softmax(-1), (cell.sharpness * cell.next[kind]).softmax(-1)
    state = sum(sequence[0][c] * first[c] for c in range(K))
    for symbol in sequence[1:]:
        state = sum(state[a] * symbol[c] * table[a, c] for a in range(K) for c in range(K))
    return state


@pytest.mark.parametrize("operators", [None, 3])
def test_a_soft_node_is_the_sum_over_all_ways_through_its_tables(operators):
    cell = made(operators=operators)
    features, p = drawn()
    operator = None if operators is None else torch.tensor([2, 0, 1, 1, 2])
    (found,) = cell(features, (p,), TARGET, POSITION, operator)
    above = torch.sigmoid(cell.sharpness * (cell.above - cell.above.t()))

    for v, count in enumerate(COUNTS):
        own = [p[e] for e in operands_of(v)]
        kind = 0 if operator is None else int(operator[v])
        if not own:
            expected = (cell.sharpness * (features[v] @ cell.feature_weight + cell.bias)).softmax(0)
            torch.testing.assert_close(found[v], expected)
            continue
        total = torch.stack(own).sum(0)
        below = torch.stack([sum(total[t] * above[s, t] for t in range(K) if t != s) for s in range(K)])
        marks = [0.5, *(count * q / 4 + side for q in (1, 2, 3) for side in (-0.125, 0.125)), count - 0.5]
        # Lower quantiles, then upper ones.
        marks = [marks[i] for i in (0, 1, 3, 5, 2, 4, 6, 7)]
        marks = [min(max(mark, 0.5), count - 0.5) for mark in marks]
        statistics = []
        for mark in marks:
            sharp = 4 * cell.sharpness
            mass = torch.sigmoid(sharp * (below + total - mark)) - torch.sigmoid(sharp * (below - mark))
            mass = mass + 1e-6 / cell.sharpness * total
            statistics.append(mass / mass.sum())
        chosen = (cell.sharpness * cell.chosen[kind]).softmax(-1)
        picks = [sum(chosen[h, j] * statistics[j] for j in range(8)) for h in range(2)]
        share = torch.sigmoid(2 * cell.sharpness * cell.in_order[kind])
        expected = share * folded(cell, own, kind) + (1 - share) * folded(cell, picks, kind)
        torch.testing.assert_close(found[v], expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.sum(1), torch.ones(len(COUNTS), dtype=torch.float64))


@pytest.mark.parametrize("seed", range(3))
def test_hard_is_the_limit_of_soft(seed):
    cell = made(operators=2)
    features, _ = drawn(seed)
    p = torch.eye(K, dtype=torch.float64)[torch.randint(K, (len(EDGES),))]
    operator = torch.tensor([1, 0, 1, 0, 1])
    cell.sharpness = 1e5
    (soft,) = cell(features, (p,), TARGET, POSITION, operator)
    cell.sharpness = math.inf
    (hard,) = cell(features, (p,), TARGET, POSITION, operator)
    assert set(hard.flatten().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(soft, hard, rtol=0, atol=1e-9)


def test_a_hard_node_is_one_symbol_even_where_the_relation_is_no_order():
    cell = made()
    cell.sharpness = math.inf
    symbols = torch.eye(K, dtype=torch.float64)
    for seed in range(20):
        torch.manual_seed(seed)
        with torch.no_grad():
            cell.above.normal_()
        (y,) = cell(drawn()[0], (symbols[torch.randint(K, (len(EDGES),))],), TARGET, POSITION)
        assert torch.equal(y.max(1).values, torch.ones(len(COUNTS), dtype=torch.float64))
        assert torch.equal(y.sum(1), torch.ones(len(COUNTS), dtype=torch.float64))


def hard_cell(quantiles: int = 4) -> DiscreteCell:
    """One that passes its single statistic on, with the symbols in the order 3 < 0 < 4 < 1 < 2."""
    cell = made(picks=1, quantiles=quantiles)
    cell.sharpness = math.inf
    place = torch.tensor([1.0, 3.0, 4.0, 0.0, 2.0], dtype=torch.float64)
    with torch.no_grad():
        cell.above.copy_(place.unsqueeze(1) - place)
        cell.first.copy_(torch.eye(K))
        cell.in_order.fill_(-1)
    return cell


@pytest.mark.parametrize("quantiles", [1, 2, 4, 7])
def test_statistics_are_those_of_the_sorted_operands(quantiles):
    cell = hard_cell(quantiles)
    order = [3, 0, 4, 1, 2]
    draw = random.Random(1)
    for count in (1, 2, 3, 4, 5, 8, 15, 28, 101):
        values = [draw.randrange(K) for _ in range(count)]
        ranked = sorted(values, key=order.index)
        levels = [q / quantiles for q in range(1, quantiles)]
        lower = [math.ceil(round(q * count, 9)) - 1 for q in levels]
        upper = [math.floor(round(q * count, 9)) for q in levels]
        for j, rank in enumerate([0, *lower, *upper, count - 1]):
            with torch.no_grad():
                cell.chosen.zero_()[0, 0, j] = 1
            p = torch.eye(K, dtype=torch.float64)[values]
            (y,) = cell(torch.zeros(1, 3).double(), (p,), torch.zeros(count, dtype=torch.int64), torch.arange(count))
            assert int(y.argmax()) == ranked[rank], (count, j)


def test_an_automaton_reads_operands_in_the_order_of_their_positions():
    """The table of x, y -> 2 x + y modulo 5: operands are digits of a binary number, the highest first."""
    cell = made()
    cell.sharpness = math.inf
    x, y = torch.arange(K).unsqueeze(1), torch.arange(K)
    with torch.no_grad():
        cell.in_order.fill_(1)
        cell.first.copy_(torch.eye(K))
        cell.next.zero_().scatter_(-1, ((2 * x + y) % K).view(1, K, K, 1), 1)
    digits = torch.tensor([e % 2 for e in range(len(EDGES))])
    (found,) = cell(drawn()[0], (torch.eye(K, dtype=torch.float64)[digits],), TARGET, POSITION)
    for v, count in enumerate(COUNTS):
        if count:
            number = int("".join(str(int(digits[e])) for e in operands_of(v)), 2)
            assert int(found[v].argmax()) == number % K


def test_a_level_with_a_node_that_has_no_operands_has_finite_gradients():
    cell = made()
    features, p = drawn()
    p.requires_grad_()
    cell(features, (p,), TARGET, POSITION)[0].square().sum().backward()
    assert all(t.grad.isfinite().all() for t in (p, *cell.parameters()))


@pytest.mark.parametrize("direction", ["up", "down", "both"])
def test_empty_graphs_single_nodes_and_ragged_batches(direction):
    sweep = DagSweep(made(), direction)
    width = K * len(sweep.cells)
    graphs = [Dag([], 0), Dag([], 1), Dag([(0, 2), (1, 2), (2, 3), (1, 3), (0, 4)]), Dag([], 2)]
    x = torch.randn(8, 3, dtype=torch.float64)
    together = sweep(x, DagBatch.from_dags(graphs))
    assert together.shape == (8, width)
    alone = [sweep(part, dag) for part, dag in zip(x.split([dag.num_nodes for dag in graphs]), graphs, strict=True)]
    assert alone[0].shape == (0, width)
    torch.testing.assert_close(together, torch.cat(alone))


def test_the_sharpness_is_saved_copied_and_loaded():
    sweep = DagSweep(made(operators=2), "both")
    sweep.cells["up"].sharpness, sweep.cells["down"].sharpness = 7.5, math.inf
    file = io.BytesIO()
    torch.save(sweep.state_dict(), file)
    file.seek(0)
    other = DagSweep(DiscreteCell(3, K, operators=2).double(), "both")
    assert other.cells["up"].sharpness == other.cells["down"].sharpness == 2.0
    other.load_state_dict(torch.load(file, weights_only=True))
    assert (other.cells["up"].sharpness, other.cells["down"].sharpness) == (7.5, math.inf)
    dag = Dag([(0, 2), (1, 2), (2, 3)], node_attributes={"operator": torch.tensor([0, 0, 1, 0])})
    x = torch.randn(4, 3, dtype=torch.float64)
    assert torch.equal(other(x, dag), sweep(x, dag))


def test_a_down_cell_is_drawn_anew_and_as_sharp():
    cell = made()
    cell.sharpness = 5.0
    down = DagSweep(cell, "both").cells["down"]
    assert down.sharpness == 5.0 and not torch.equal(down.next, cell.next)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-4, 1e7, -math.inf, math.nan, True, "hard", 2j])
def test_sharpness_must_be_one_that_float32_can_train(value):
    cell = made()
    with pytest.raises(ConfigError, match=r"sharpness must be a number from 0.001 to 1,000,000, or math.inf, got"):
        cell.sharpness = value
    assert cell.sharpness == 2.0


@pytest.mark.parametrize("value", [1e-3, 1, np.float32(2.5), np.int64(3), 1e6, math.inf])
def test_sharpness_in_range_has_finite_gradients(value):
    cell = made()
    cell.sharpness = value
    assert type(cell.sharpness) is float and cell.sharpness == value
    y = DagSweep(cell)(torch.randn(4, 3, dtype=torch.float64), Dag([(0, 2), (1, 2), (2, 3)]))
    assert y.isfinite().all()
    if value < math.inf:
        y[3, 0].backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in cell.parameters())


@pytest.mark.parametrize("name", ["in_features", "symbols", "operators", "picks", "quantiles"])
def test_a_size_below_1_is_refused_by_name(name):
    with pytest.raises(ConfigError, match=f"{name} must be a whole number of at least 1, got 0"):
        DiscreteCell(**{"in_features": 3, "symbols": 4, name: 0})


@pytest.mark.fault("graphs_and_networks", 1)
def test_sizes_may_be_whole_numbers_of_numpy_and_are_kept_as_python_s():
    cell = DiscreteCell(np.int64(3), np.int32(4), operators=np.uint8(2))
    assert all(type(size) is int for size in (cell.in_features, cell.symbols, cell.operators, *cell.state_sizes))
    with pytest.raises(ConfigError, match=r"symbols must be a whole number of at least 1, got np.float64\(4.0\)"):
        DiscreteCell(3, np.float64(4))


def test_operators_must_be_in_range_and_there():
    sweep = DagSweep(DiscreteCell(3, K, operators=2))
    outside = Dag([(0, 1)], node_attributes={"operator": torch.tensor([0, 2])})
    with pytest.raises(GraphError, match=r"a node has operator 2, but operators=2 allows operators 0 \.\. 1"):
        sweep(torch.randn(2, 3), outside)
    with pytest.raises(GraphError, match="operator"):
        sweep(torch.randn(2, 3), Dag([(0, 1)]))


def test_what_short_expressions_teach_is_right_for_long_ones():
    """Sums modulo 3 of two or three leaves, from their values alone; then of 200 leaves, hard."""
    torch.manual_seed(0)
    cell = DiscreteCell(3, 3)
    sweep = DagSweep(cell)
    optimizer = torch.optim.Adam(cell.parameters(), lr=0.05)
    shapes = [Dag([(i, count) for i in range(count)]) for count in (1, 2, 3)]
    batch = DagBatch.from_dags([dag for dag in shapes for _ in range(40)])
    roots = batch.out_degree == 0
    for i in range(100):
        cell.sharpness = 2 + i * 6 / 100
        leaves = torch.randint(3, (batch.num_nodes,))
        of_leaves = torch.zeros(batch.num_nodes, dtype=torch.int64).index_add(
            0, batch.edges[:, 1], leaves[batch.edges[:, 0]]
        )
        p = sweep(torch.eye(3), batch, leaves)[roots].gather(1, (of_leaves[roots] % 3).unsqueeze(1))
        optimizer.zero_grad()
        (-(p + 1e-12).log()).mean().backward()
        optimizer.step()

    cell.sharpness = math.inf
    for _ in range(20):
        leaves = torch.randint(3, (201,))
        y = sweep(torch.eye(3), Dag([(i, 200) for i in range(200)]), leaves)
        assert int(y[200].argmax()) == int(leaves[:200].sum()) % 3
