"""A search on several cores gives the same bits as on one, and what it says is true whenever it stops."""

import random

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagnn.errors import ConfigError
from dagnn.ged import EditCosts, ged_matrix, graph_edit_distance, optimal_edit_paths
from dagnn.ged.exact import dual_search, lanes, search, solve
from dagnn.ged.exact.bounds import DEPTH, ENTERING, NEXT_CHILD, NODES, NUM_CHILDREN, UPPER, new_search
from dagnn.ged.exact.limits import Watch
from dagnn.ged.exact.problem import new_problem
from dagnn.ged.exact.tables import build_tables
from dagnn.ged.labelled import read_pair

COSTS = {
    "unit": {},
    "deletions pay": {"node_substitution": 5.0, "edge_deletion": 0.5},
    "asymmetric": {"node_deletion": 3.0, "edge_insertion": 0.25, "edge_substitution": 0.7},
    "by label": {
        "edge_substitution": lambda a, b: abs(a - b) / 4,
        "edge_insertion": lambda label: 1 + label,
        "node_deletion": lambda label: 0.25 + label,
    },
    "wide": {"node_insertion": 1e-9, "edge_deletion": 1e12},
    "free": {"node_insertion": 0.0, "edge_substitution": 0.0, "edge_deletion": 0.0},
}


@pytest.fixture
def from_the_start(monkeypatch):
    """Searches are split up at once, in the shortest rounds, so that small pairs pass work on too."""
    monkeypatch.setattr(solve, "ALONE", 0)
    monkeypatch.setattr(lanes, "SHORTEST", 8)
    monkeypatch.setattr(lanes, "LONGEST", 8)


def drawn(rng, oracle, nodes, directed=True, loops=0):
    """A random graph with labels on nodes and edges, and some self-loops."""
    graph = oracle.random_dag(rng, nodes, labels=2, probability=0.5)
    edges = [*graph.edges, *((u, u, None) for u in rng.sample(range(nodes), min(loops, nodes)))]
    return oracle.Graph(graph.labels, [(u, v, rng.randrange(3)) for u, v, _ in edges], directed)


def plain(oracle, costs):
    def as_function(name, cost):
        return (lambda a, b: cost * (a != b)) if name.endswith("substitution") else (lambda label: cost)

    return oracle.Costs(**{name: cost if callable(cost) else as_function(name, cost) for name, cost in costs.items()})


def hard_pair(seed, nodes=14):
    """Two unrelated graphs without labels, whose search is long."""
    return [nx.gnm_random_graph(nodes, 2 * nodes, seed=2 * seed + i) for i in range(2)]


@pytest.mark.usefixtures("from_the_start")
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("costs", COSTS)
def test_small_pairs_have_the_distance_of_brute_force(oracle, costs, directed):
    rng = random.Random(costs)
    for _ in range(8):
        pair = [drawn(rng, oracle, rng.randint(2, 5), directed, loops=rng.randrange(3)) for _ in range(2)]
        found = graph_edit_distance(*map(oracle.to_networkx, pair), EditCosts(**COSTS[costs]), workers=2)
        assert found.proved and found.upper == pytest.approx(oracle.brute_force(*pair, plain(oracle, COSTS[costs])))


@pytest.mark.parametrize("dual", [True, False])
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    costs=st.sampled_from(sorted(COSTS)),
    budget=st.sampled_from([1, 50, 400, 1_500, 4_000, 10**9]),
    bound=st.sampled_from([None, 6.0]),
)
def test_the_number_of_cores_changes_no_bit(oracle, dual, seed, costs, budget, bound):
    rng = random.Random(seed)
    pair = [oracle.to_networkx(drawn(rng, oracle, rng.randint(5, 8), loops=1)) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solve, "ALONE", 0)
        patch.setattr(lanes, "SHORTEST", 8)
        patch.setattr(lanes, "LONGEST", 16)
        patch.setattr(solve, "fits", solve.fits if dual else lambda problem: False)
        found = [
            graph_edit_distance(
                *pair, EditCosts(**COSTS[costs]), budget=min(budget, 20_000), upper_bound=bound, workers=workers
            )
            for workers in (1, 2, 3)
        ]
    assert found[0] == found[1] == found[2]
    alone = graph_edit_distance(*pair, EditCosts(**COSTS[costs]), upper_bound=bound, workers=1)
    assert alone.proved or bound is not None
    for one in found:
        assert one.lower <= alone.upper and one.upper >= alone.lower
        assert one.proved is (one.lower == one.upper)
        if alone.proved and one.proved:
            assert one.upper == alone.upper


@pytest.mark.parametrize("budget", [4_100, 5_000, 9_000])
def test_hard_pairs_are_the_same_on_any_number_of_cores(budget):
    """With the constants as they are."""
    pairs = [hard_pair(seed, nodes=18) for seed in range(2)]
    for pair in pairs:
        one, two, three = (graph_edit_distance(*pair, budget=budget, workers=workers) for workers in (1, 2, 3))
        assert one == two == three
        assert 4_000 < one.search_nodes < budget + 8 and not one.proved
        assert one == graph_edit_distance(*pair, budget=budget)
        matrix = ged_matrix([pair[0]], [pair[1]], budget=budget, workers=3)
        assert (matrix.lower.item(), matrix.upper.item()) == (one.lower, one.upper)


@pytest.mark.usefixtures("from_the_start")
def test_a_larger_budget_never_gives_worse_bounds():
    pair = hard_pair(0, nodes=10)
    found = [graph_edit_distance(*pair, budget=budget, workers=2) for budget in (0, 1, 300, 1_000, 3_000, 10**6)]
    assert [one.lower for one in found] == sorted(one.lower for one in found)
    assert [one.upper for one in found] == sorted((one.upper for one in found), reverse=True)
    assert [one.search_nodes for one in found] == sorted(one.search_nodes for one in found)
    assert found[-1].proved
    for budget, one in zip((0, 1, 300, 1_000, 3_000), found, strict=False):
        assert one.search_nodes < budget + 8
        assert one.lower <= found[-1].upper <= one.upper


@pytest.mark.usefixtures("from_the_start")
def test_maps_cost_what_the_result_says():
    for seed in range(4):
        found = graph_edit_distance(*hard_pair(seed, nodes=9), workers=3)
        assert found.proved and sum(edit.cost for edit in found.edit_path) == found.upper


@pytest.mark.usefixtures("from_the_start")
def test_all_optimal_paths_are_found(oracle):
    pair = [oracle.to_networkx(drawn(random.Random(seed), oracle, 5)) for seed in (1, 2)]
    maps = [{path.node_map for path in optimal_edit_paths(*pair, workers=workers).paths} for workers in (1, 3)]
    assert maps[0] == maps[1] and len(maps[0]) >= 1


def test_an_easy_pair_starts_no_threads(monkeypatch):
    def refuse(*_):
        raise AssertionError("an easy pair needs no threads")

    monkeypatch.setattr(lanes, "ThreadPoolExecutor", refuse)
    assert graph_edit_distance(nx.path_graph(9), nx.cycle_graph(9), workers=4).proved


def test_a_hard_pair_starts_as_many_as_were_given_and_at_most_one_a_lane(monkeypatch):
    started, pool = [], lanes.ThreadPoolExecutor
    monkeypatch.setattr(lanes, "ThreadPoolExecutor", lambda count, name: started.append(count) or pool(count, name))
    for workers in (1, 3, 100):
        graph_edit_distance(*hard_pair(0, nodes=18), budget=4_200, workers=workers)
    assert started == [1, 3, lanes.LANES]


@pytest.mark.parametrize("dual", [True, False])
def test_every_open_node_belongs_to_one_lane(monkeypatch, dual):
    """All that lanes hold after sharing out is what they held before, and nothing twice."""
    monkeypatch.setattr(solve, "ALONE", 300)
    monkeypatch.setattr(lanes, "LONGEST", 16)
    if not dual:
        monkeypatch.setattr(solve, "fits", lambda problem: False)
    share_out, counts = lanes.Lanes._share_out, []

    def held(group):
        bounds = [
            lane.child_bound[depth, place]
            for lane, busy in zip(group._searches, group._busy, strict=True)
            if busy
            for depth in range(lane.numbers[DEPTH] + 1 - lane.numbers[ENTERING])
            for place in range(lane.depths[NEXT_CHILD, depth], lane.depths[NUM_CHILDREN, depth])
        ]
        cut = dual_search._cut(group._first) if dual else search._cut(group._first.numbers)
        return sorted(bound for bound in bounds if bound <= cut)  # nobody enters the others

    def checked(group):
        before = held(group)
        share_out(group)
        assert held(group) == before
        counts.append(sum(group._busy))
        assert len({int(lane.numbers[UPPER]) for lane in group._searches}) == 1
        assert group.nodes == sum(int(lane.numbers[NODES]) for lane in group._searches)

    monkeypatch.setattr(lanes.Lanes, "_share_out", checked)
    graph_edit_distance(*hard_pair(1, nodes=18), budget=8_000, workers=2)
    assert max(counts) == lanes.LANES


def test_a_search_on_several_cores_ends_at_the_deadline(monkeypatch):
    monkeypatch.setattr(solve, "ALONE", 100)
    found = graph_edit_distance(*hard_pair(3, nodes=30), budget=10**15, seconds=0.5, workers=3)
    assert not found.proved and found.search_nodes > 100 and found.lower < found.upper


def test_a_search_that_was_stopped_goes_no_further():
    watch = Watch()
    tables = build_tables(read_pair(*hard_pair(0), directed=None, node_label=None, edge_label=None), EditCosts())
    watch.stop[0] = 1
    found = solve.find(tables, 0, 1, watch=watch, budget=10**15, workers=2)
    assert 0 <= found.lower <= found.upper and not found.proved


@pytest.mark.usefixtures("from_the_start")
def test_branch_match_keeps_to_the_budget(monkeypatch):
    monkeypatch.setattr(solve, "fits", lambda problem: False)
    for budget in (*range(1, 40), 99, 300):
        assert graph_edit_distance(*hard_pair(0), budget=budget, workers=2).search_nodes == budget


@pytest.mark.parametrize(("nodes", "edges"), [(12, 60), (60, 180), (200, 0), (200, 40), (410, 1)])
@pytest.mark.parametrize("dual", [True, False])
def test_large_pairs_have_fewer_lanes(nodes, edges, dual):
    pair = [nx.gnm_random_graph(nodes, edges, seed=seed) for seed in range(2)]
    tables = build_tables(read_pair(*pair, directed=None, node_label=None, edge_label=None), EditCosts())
    problem, watch = new_problem(tables.tables, *tables.graphs), Watch()
    first = dual_search.allocate(problem, watch.stop) if dual else new_search(problem, 10**6, watch.stop)
    searches = lanes.Lanes(problem, first, watch)._searches
    assert 1 <= len(searches) <= lanes.LANES and (nodes > 12 or len(searches) == lanes.LANES)
    entries = [one.share.size + one.base.size if dual else sum(array.size for array in one) for one in searches]
    assert sum(entries) <= max(lanes.MOST_ENTRIES, entries[0])


@pytest.mark.parametrize("workers", [0, -1, 1.5, "two", True])
def test_workers_that_are_no_number_of_threads_are_refused(workers):
    for call in (graph_edit_distance, optimal_edit_paths):
        with pytest.raises(ConfigError, match=r"workers is .*: it must be a whole number of threads, at least 1\."):
            call(nx.path_graph(2), nx.path_graph(2), workers=workers)


def test_whole_numbers_of_numpy_are_numbers_of_threads():
    assert graph_edit_distance(nx.path_graph(3), nx.path_graph(3), workers=np.int64(2)).distance == 0
