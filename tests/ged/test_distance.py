import pickle
import random
import time
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
import torch

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.ged import EditCosts, ged_bounds, graph_edit_distance
from dagnn.graph import Dag

NAMES = ["node_substitution", "node_deletion", "node_insertion", "edge_substitution", "edge_deletion", "edge_insertion"]


def random_pair(rng, oracle, largest):
    """Two small graphs of the same random kind, and costs as ours and as the oracle's."""
    directed, multi, loops = rng.random() < 0.6, rng.random() < 0.3, rng.random() < 0.4
    node_labels, edge_labels = rng.choice([1, 2, 3]), rng.choice([1, 1, 2, 3])

    def graph():
        nodes, edges, seen = rng.randint(0, largest), [], set()
        for _ in range(rng.randint(0, 2 * largest - 2) if nodes else 0):
            u, v = rng.randrange(nodes), rng.randrange(nodes)
            key = (u, v) if directed else (min(u, v), max(u, v))
            if (u == v and not loops) or (key in seen and not multi):
                continue
            seen.add(key)
            edges.append((u, v, rng.randrange(edge_labels)))
        return oracle.Graph([rng.randrange(node_labels) for _ in range(nodes)], edges, directed)

    def price():
        return rng.choice([0, 0.25, 0.5, 1, 1, 2, 3, 5])

    form = rng.choice(["unit", "constant", "matrix", "callable"])
    if form == "unit":
        return graph(), graph(), multi, EditCosts(), oracle.Costs()
    tables = {}
    for name in NAMES:
        size = node_labels if name.startswith("node") else edge_labels
        if form == "constant":
            value = price()
            tables[name] = value * (1 - np.eye(size)) if name.endswith("substitution") else np.full(size, value)
        else:
            shape = (size, size) if name.endswith("substitution") else (size,)
            tables[name] = np.array([price() for _ in range(np.prod(shape))], dtype=float).reshape(shape)
    functions = {
        name: (lambda a, b, t=table: float(t[a, b])) if table.ndim == 2 else (lambda a, t=table: float(t[a]))
        for name, table in tables.items()
    }
    given = {"constant": {name: float(table.max()) for name, table in tables.items()}, "matrix": tables}
    return graph(), graph(), multi, EditCosts(**given.get(form, functions)), oracle.Costs(**functions)


def check_against_brute_force(seeds, oracle, largest):
    for seed in seeds:
        a, b, multi, costs, plain_costs = random_pair(random.Random(seed), oracle, largest)
        expected = oracle.brute_force(a, b, plain_costs)
        left, right = oracle.to_networkx(a, multi), oracle.to_networkx(b, multi)
        for budget in (0, 3, 100_000):
            result = graph_edit_distance(left, right, costs, budget=budget)
            assert result.lower - 1e-9 <= expected <= result.upper + 1e-9, seed
            bounds = ged_bounds(left, right, costs, tight=budget > 0)
            assert bounds.lower - 1e-9 <= expected <= bounds.upper + 1e-9, seed
            node_map = {u: v for u, v in result.node_map if u is not None and v is not None}
            assert oracle.cost_of_map(a, b, node_map, plain_costs) == pytest.approx(result.upper), seed
            assert sum(edit.cost for edit in result.edit_path) == pytest.approx(result.upper), seed
        assert result.proved, seed
        assert result.distance == pytest.approx(expected), seed


def test_distance_is_that_of_brute_force(oracle):
    check_against_brute_force(range(300), oracle, largest=4)


def test_distance_by_linear_prices_is_that_of_brute_force(oracle, monkeypatch):
    monkeypatch.setattr("dagnn.ged.exact.solve.PATIENCE", 0)
    check_against_brute_force(range(200), oracle, largest=4)


@pytest.mark.slow
def test_distance_is_that_of_brute_force_on_many_pairs(oracle):
    check_against_brute_force(range(300, 5300), oracle, largest=5)


@pytest.mark.slow
def test_distance_by_linear_prices_is_that_of_brute_force_on_many_pairs(oracle, monkeypatch):
    monkeypatch.setattr("dagnn.ged.exact.solve.PATIENCE", 0)
    check_against_brute_force(range(300, 2300), oracle, largest=5)


def test_linear_prices_prove_unrelated_graphs_that_branch_match_does_not(oracle, monkeypatch):
    rng = random.Random(0)
    a, b = (oracle.to_networkx(oracle.random_dag(rng, 19)) for _ in range(2))
    proved = graph_edit_distance(a, b, budget=5_000)
    assert proved.proved
    tight, plain = ged_bounds(a, b, tight=True), ged_bounds(a, b)
    assert plain.lower + 5 <= tight.lower <= proved.distance <= tight.upper
    monkeypatch.setattr("dagnn.ged.exact.solve.PATIENCE", 5_000)
    assert not graph_edit_distance(a, b, budget=5_000).proved


def random_pairs(oracle, count, nodes=9, seed=0):
    rng = random.Random(seed)
    for i in range(count):
        a = oracle.random_dag(rng, nodes)
        yield a, oracle.perturbed(rng, a, 4) if i % 2 else oracle.random_dag(rng, nodes - i % 3)


def test_order_of_nodes_does_not_matter(oracle):
    rng = random.Random(1)
    for a, b in random_pairs(oracle, 20):
        shuffled = oracle.perturbed(rng, a, 0)
        first = graph_edit_distance(oracle.to_networkx(a), oracle.to_networkx(b)).distance
        assert graph_edit_distance(oracle.to_networkx(shuffled), oracle.to_networkx(b)).distance == first
        assert graph_edit_distance(oracle.to_networkx(a), oracle.to_networkx(shuffled)).distance == 0


def test_distance_is_symmetric_under_swapped_costs_and_scales_with_them(oracle):
    costs = EditCosts(node_insertion=2, node_deletion=1.5, edge_insertion=0.5, edge_deletion=3, node_substitution=4)
    swapped = EditCosts(node_insertion=1.5, node_deletion=2, edge_insertion=3, edge_deletion=0.5, node_substitution=4)
    thrice = EditCosts(**{name: 3 * getattr(costs, name) for name in NAMES if name != "edge_substitution"})
    for a, b in random_pairs(oracle, 12, nodes=7):
        left, right = oracle.to_networkx(a), oracle.to_networkx(b)
        distance = graph_edit_distance(left, right, costs).distance
        assert graph_edit_distance(right, left, swapped).distance == distance
        assert graph_edit_distance(left, right, thrice).distance == 3 * distance
        assert graph_edit_distance(left, right).distance == graph_edit_distance(right, left).distance


def test_triangle_inequality_holds_for_unit_costs(oracle):
    rng = random.Random(3)
    for _ in range(15):
        a, b, c = (oracle.to_networkx(oracle.random_dag(rng, rng.randint(3, 7), labels=2)) for _ in range(3))
        ab, bc, ac = (graph_edit_distance(x, y).distance for x, y in ((a, b), (b, c), (a, c)))
        assert ac <= ab + bc


def test_bounds_hold_and_tighten_with_the_budget(oracle):
    for a, b in random_pairs(oracle, 12, nodes=10, seed=4):
        left, right = oracle.to_networkx(a), oracle.to_networkx(b)
        exact = graph_edit_distance(left, right).distance
        bounds = ged_bounds(left, right)
        assert bounds.lower <= exact <= bounds.upper
        lower = -1.0
        for budget in (0, 1, 5, 20, 100):
            result = graph_edit_distance(left, right, budget=budget)
            assert lower <= result.lower <= exact <= result.upper
            assert result.search_nodes <= budget
            assert result.proved == (result.lower == result.upper)
            lower = result.lower


def test_hard_pair_with_a_small_budget_gives_bounds_and_a_warning(oracle):
    rng = random.Random(0)
    a, b = (oracle.to_networkx(oracle.random_dag(rng, nodes)) for nodes in (18, 19))
    result = graph_edit_distance(a, b, budget=50)
    assert not result.proved
    assert 0 < result.lower < result.upper
    with pytest.warns(UserWarning, match=f"is between {result.lower:g} and {result.upper:g}"):
        assert result.distance == result.upper
    assert graph_edit_distance(a, b, budget=50) == result


def test_clock_stops_the_search(oracle):
    rng = random.Random(0)
    a, b = (oracle.to_networkx(oracle.random_dag(rng, nodes)) for nodes in (30, 31))
    started = time.monotonic()
    result = graph_edit_distance(a, b, budget=10**9, seconds=0.1)
    assert time.monotonic() - started < 20  # a billion nodes would take hours
    assert result.lower <= result.upper
    assert not result.proved


def test_stopping_and_going_on_is_the_same_as_never_stopping(oracle):
    for a, b in random_pairs(oracle, 6, nodes=11, seed=6):
        left, right = oracle.to_networkx(a), oracle.to_networkx(b)
        assert graph_edit_distance(left, right, seconds=60) == graph_edit_distance(left, right)


def test_regular_graphs_with_a_root_bound_of_zero_can_be_resumed():
    a, b = nx.disjoint_union(nx.cycle_graph(4), nx.cycle_graph(4)), nx.cycle_graph(8)
    assert graph_edit_distance(a, b, budget=0).lower == 0
    assert graph_edit_distance(a, b, seconds=60).distance == 4


def test_upper_bound_is_inclusive():
    three, four = nx.path_graph(3), nx.path_graph(4)
    assert graph_edit_distance(three, four, upper_bound=2).distance == 2
    beyond = graph_edit_distance(three, four, upper_bound=1)
    assert beyond.lower > 1
    assert beyond.upper >= 2


def test_upper_bound_never_hides_a_distance_within_it(oracle):
    for a, b in random_pairs(oracle, 10, nodes=8, seed=7):
        left, right = oracle.to_networkx(a), oracle.to_networkx(b)
        full = graph_edit_distance(left, right)
        for bound in (0, full.distance - 1, full.distance, full.distance + 2):
            result = graph_edit_distance(left, right, upper_bound=max(0, bound))
            assert result.lower <= full.distance <= result.upper
            if bound >= full.distance:
                assert result.proved
            else:
                assert result.lower > bound
                assert result.search_nodes <= full.search_nodes


def test_near_pairs_are_proved_without_searching_much(oracle):
    rng = random.Random(5)
    for nodes in (20, 50):
        for _ in range(3):
            a = oracle.random_dag(rng, nodes)
            b = oracle.perturbed(rng, a, 4)
            result = graph_edit_distance(oracle.to_networkx(a), oracle.to_networkx(b))
            assert result.proved
            assert result.distance <= 4
            assert result.search_nodes <= 200


def test_exchangeable_nodes_are_tried_once():
    # 6! orders of the leaves on either side are one order.
    result = graph_edit_distance(nx.star_graph(7), nx.cycle_graph(8))
    assert result.distance == 11
    assert result.search_nodes < 500
    halves = nx.disjoint_union(nx.complete_graph(4), nx.complete_graph(4))
    assert graph_edit_distance(nx.complete_graph(8), halves).distance == 16


def test_fractions_of_costs_are_exact(oracle):
    third = 1 / 3
    costs = EditCosts(
        node_substitution=0.1, node_deletion=0.2, node_insertion=0.2, edge_deletion=0.7, edge_insertion=third
    )
    for a, b in random_pairs(oracle, 6, nodes=5, seed=8):
        found = graph_edit_distance(oracle.to_networkx(a), oracle.to_networkx(b), costs)
        prices = {"node_substitution": lambda x, y: 0.1 * (x != y), "node_deletion": lambda x: 0.2}
        prices |= {"node_insertion": lambda x: 0.2, "edge_deletion": lambda x: 0.7, "edge_insertion": lambda x: third}
        assert found.distance == pytest.approx(oracle.brute_force(a, b, oracle.Costs(**prices)), rel=1e-12)


def test_costs_without_a_common_unit_are_exact(oracle):
    root, pi = 2**0.5, np.pi
    for a, b in random_pairs(oracle, 6, nodes=5, seed=9):
        costs = EditCosts(node_substitution=root, edge_deletion=pi, edge_insertion=pi)
        found = graph_edit_distance(oracle.to_networkx(a), oracle.to_networkx(b), costs)
        prices = {"node_substitution": lambda x, y: root * (x != y)}
        prices |= {"edge_deletion": lambda x: pi, "edge_insertion": lambda x: pi}
        assert found.proved
        assert found.distance == pytest.approx(oracle.brute_force(a, b, oracle.Costs(**prices)), rel=1e-15)


def test_dags_networkx_graphs_and_pyg_data_can_be_mixed():
    dag = Dag([("x", "y"), ("y", "z")], node_attributes={"label": ("a", "b", "c")})
    graph = nx.DiGraph([("p", "q"), ("q", "r")])
    nx.set_node_attributes(graph, {"p": "a", "q": "b", "r": "d"}, "label")
    data = SimpleNamespace(num_nodes=3, edge_index=torch.tensor([[0, 1], [1, 2]]), label=["a", "b", "c"])
    assert graph_edit_distance(dag, graph).distance == 1
    assert graph_edit_distance(data, dag).distance == 0
    arrows = SimpleNamespace(num_nodes=3, edge_index=torch.tensor([[0, 1], [1, 2]]), edge_attr=torch.tensor([5, 6]))
    assert graph_edit_distance(arrows, arrows, edge_label="edge_attr").distance == 0
    assert graph_edit_distance(graph, data).node_map == (("p", 0), ("q", 1), ("r", 2))


def test_pyg_lists_an_undirected_edge_twice():
    both = SimpleNamespace(num_nodes=3, edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    assert graph_edit_distance(both, nx.path_graph(3), directed=False).distance == 0
    one = SimpleNamespace(num_nodes=3, edge_index=torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(GraphError, match="edges in one direction only"):
        graph_edit_distance(one, nx.path_graph(3), directed=False)


def test_directions_can_be_ignored():
    fork, join = Dag([(0, 1), (0, 2)]), Dag([(1, 0), (2, 0)])
    assert graph_edit_distance(fork, join).distance == 2
    assert graph_edit_distance(fork, join, directed=False).distance == 0


def test_labels_may_be_arrays_and_are_compared_by_content():
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    a = Dag([(0, 1)], node_attributes={"x": features})
    b = Dag([(0, 1)], node_attributes={"x": features.flip(0)})
    assert graph_edit_distance(a, a, node_label="x").distance == 0
    assert graph_edit_distance(a, b, node_label="x").distance == 2


def test_positions_of_operands_are_edge_labels():
    minus, swapped = (Dag.from_polish(text) for text in ("(- a b)", "(- b a)"))
    assert graph_edit_distance(minus, swapped).distance == 0
    assert graph_edit_distance(minus, swapped, edge_label="position").distance == 2
    square, product = Dag.from_polish("(* x x)", share=True), Dag.from_polish("(* x x)")
    assert graph_edit_distance(square, product, edge_label="position").distance == 3


def test_edits_are_told_in_words_in_an_order_that_works():
    a = Dag([("a", "b"), ("b", "c")], node_attributes={"label": ("+", "x", "y")})
    b = Dag([("a", "b")], node_attributes={"label": ("+", "z")})
    result = graph_edit_distance(a, b)
    assert [str(edit) for edit in result.edit_path] == [
        "delete edge b -> c (1)",
        "delete node c [y] (1)",
        "substitute node b [x] by b [z] (1)",
    ]
    back = graph_edit_distance(b, a)
    assert [str(edit) for edit in back.edit_path] == [
        "substitute node b [z] by b [x] (1)",
        "insert node c [y] (1)",
        "insert edge b -> c (1)",
    ]
    assert back.node_map == (("a", "a"), ("b", "b"), (None, "c"))


def test_what_cannot_be_compared_is_refused():
    dag, graph = Dag([(0, 1)]), nx.path_graph(2)
    with pytest.raises(GraphError, match="a is directed and b is undirected: compare like with like"):
        graph_edit_distance(dag, graph)
    with pytest.raises(GraphError, match="b is undirected, but directed=True"):
        graph_edit_distance(dag, graph, directed=True)
    with pytest.raises(GraphError, match="b has the node attribute 'label' and a has not"):
        graph_edit_distance(dag, Dag([(0, 1)], node_attributes={"label": ("a", "b")}))
    with pytest.raises(DtypeError, match="a must be a Dag, a NetworkX graph or a PyG Data, got list"):
        graph_edit_distance([(0, 1)], dag)
    bad = SimpleNamespace(num_nodes=2, edge_index=torch.tensor([[1], [2]]))  # ids that count from 1
    with pytest.raises(GraphError, match=r"edge 0 of a is 1 -> 2, but it has the nodes 0 \.\. 1"):
        graph_edit_distance(bad, dag)
    short = SimpleNamespace(num_nodes=3, edge_index=torch.tensor([[0], [1]]), label=["a", "b"])
    with pytest.raises(GraphError, match="a has 2 labels in 'label', but 3 things to label"):
        graph_edit_distance(short, short)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"budget": -1}, "budget is -1"),
        ({"budget": 1.5}, r"budget is 1\.5"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"upper_bound": -2.0}, r"upper_bound is -2\.0"),
        ({"costs": EditCosts(node_deletion=lambda label: float("nan"))}, r"node_deletion\[0\] is nan"),
        ({"costs": EditCosts(edge_substitution=lambda a, b: -1.0)}, r"edge_substitution\[0, 0\] is -1\.0"),
    ],
)
def test_bad_settings_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        graph_edit_distance(Dag([(0, 1)]), Dag([(0, 1)]), **options)


def test_label_outside_a_cost_array_is_refused():
    a = Dag([], 1, node_attributes={"label": torch.tensor([3])})
    with pytest.raises(GraphError, match=r"the label 3 does not index node_insertion, which has the labels 0 \.\. 1"):
        graph_edit_distance(a, a, EditCosts(node_insertion=np.ones(2)))


def test_result_can_be_sent_to_another_process():
    result = graph_edit_distance(Dag([("a", "b")]), Dag([("a", "b"), ("b", "c")]))

    again = pickle.loads(pickle.dumps(result))

    assert again == result and again.edit_path == result.edit_path and len(result.edit_path) == 2
