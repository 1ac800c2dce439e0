"""Deadlines and Ctrl-C: searches, bounds, matrices and trees end, and what they say by then holds."""

import _thread
import gc
import os
import random
import signal
import threading

import networkx as nx
import pytest

from dagnn.ged import EditCosts, ged_bounds, ged_matrix, graph_edit_distance, optimal_edit_paths, tree_edit_distance
from dagnn.ged.exact.bounds import new_search
from dagnn.ged.exact.limits import Watch
from dagnn.ged.exact.problem import new_problem
from dagnn.ged.exact.tables import build_tables
from dagnn.ged.labelled import read_pair
from dagnn.graph import Dag

ENDLESS = 10**15


def barabasi_albert(nodes, seed, labels=0):
    graph, rng = nx.barabasi_albert_graph(nodes, 3, seed=seed), random.Random(seed)
    if labels:
        nx.set_edge_attributes(graph, {edge: rng.randrange(labels) for edge in graph.edges}, "label")
    return graph


def random_tree(nodes, seed):
    rng = random.Random(seed)
    parents = [(i, rng.randrange(max(0, i - 3), i)) for i in range(1, nodes)]
    return Dag(parents, nodes, edge_attributes={"position": list(range(nodes - 1))})


def interrupted(work):
    """Whether ``work``, which takes hours, ends with KeyboardInterrupt after Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    timer = threading.Timer(0.3, _thread.interrupt_main)
    gc.disable()  # Hypothesis times collections in a callback, and Python drops what is raised in one
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        timer.cancel()
        gc.enable()
        signal.signal(signal.SIGINT, before)
    return True


LARGE = [barabasi_albert(400, seed) for seed in (0, 1)]
SMALL = [barabasi_albert(30, seed) for seed in range(3)]
BY_LABEL = EditCosts(edge_substitution=lambda x, y: abs(x - y) / 8, edge_deletion=lambda x: 1 + x)


@pytest.mark.fault("graph_edit_distance", 3)
@pytest.mark.parametrize(
    "work",
    [
        lambda: graph_edit_distance(*LARGE, budget=ENDLESS),
        lambda: graph_edit_distance(*SMALL[:2], budget=ENDLESS),
        lambda: graph_edit_distance(*SMALL[:2], budget=ENDLESS, workers=3),
        lambda: graph_edit_distance(*SMALL[:2], EditCosts(node_insertion=1e-9, edge_deletion=1e12), budget=ENDLESS),
        lambda: ged_bounds(nx.barabasi_albert_graph(900, 5, seed=0), nx.barabasi_albert_graph(900, 5, seed=1)),
        lambda: optimal_edit_paths(nx.complete_graph(12), nx.complete_graph(12), limit=ENDLESS, budget=ENDLESS),
        lambda: ged_matrix(SMALL, budget=ENDLESS, workers=1),
        lambda: ged_matrix([*SMALL, *LARGE], budget=ENDLESS, workers=3, progress=lambda done, total: None),
    ],
    ids=["large", "small", "cores", "wide costs", "bounds", "paths", "matrix", "threads"],
)
def test_ctrl_c_ends_a_search(work, monkeypatch):
    monkeypatch.setattr("dagnn.ged.exact.solve.ALONE", 100)  # hard pairs are on several cores when it comes
    graph_edit_distance(*SMALL[:2], budget=2_000)  # compiled code is loaded
    assert interrupted(work)


def test_ctrl_c_while_a_search_is_set_up_raises():
    """numba crashed the process when Ctrl-C came while it made the arrays that a jitted function returns."""
    graphs = read_pair(*LARGE, directed=None, node_label="label", edge_label="label")
    tables = build_tables(graphs, EditCosts())

    def set_up_endlessly():
        while True:
            new_search(new_problem(tables.tables, *tables.graphs), 1 << 40, Watch().stop)

    for _ in range(3):
        assert interrupted(set_up_endlessly)


@pytest.mark.fault("graph_edit_distance", 3)
def test_ctrl_c_ends_a_tree_edit_distance_in_python():
    a, b = random_tree(700, 0), random_tree(700, 1)
    wide = EditCosts(node_insertion=1e-300, node_deletion=1e300)
    assert interrupted(lambda: tree_edit_distance(a, b, wide))


@pytest.mark.fault("graph_edit_distance", 4)
@pytest.mark.parametrize("seconds", [0, 0.2])
@pytest.mark.parametrize("budget", [0, ENDLESS])
@pytest.mark.parametrize("costs", [None, BY_LABEL, EditCosts(node_deletion=1e-9, edge_deletion=1e12)])
def test_bounds_of_a_search_that_was_stopped_hold(seconds, budget, costs):
    graph = barabasi_albert(300, 0, labels=4)
    smaller = graph.subgraph(range(290)).copy()  # its edits from the whole graph are known
    removed = [data["label"] for *ends, data in graph.edges(data=True) if max(ends) >= 290]
    price = EditCosts() if costs is None else costs
    edge = price.edge_deletion if callable(price.edge_deletion) else lambda label: price.edge_deletion
    known = 10 * price.node_deletion + sum(edge(label) for label in removed)

    result = graph_edit_distance(graph, smaller, costs, budget=budget, seconds=seconds)

    assert 0 <= result.lower <= known * (1 + 1e-12)
    assert result.lower <= result.upper
    assert sum(edit.cost for edit in result.edit_path) == pytest.approx(result.upper, rel=1e-12)


@pytest.mark.fault("graph_edit_distance", 4)
def test_a_search_stopped_anywhere_has_bounds_that_hold(oracle, monkeypatch):
    rng = random.Random(0)
    for _ in range(12):
        a, b = (oracle.to_networkx(oracle.random_dag(rng, 7, labels=2)) for _ in range(2))
        expected = graph_edit_distance(a, b).distance
        for looks in (0, 1, 2, 5):
            left = iter(range(looks))
            monkeypatch.setattr(Watch, "over", lambda self, left=left: _raised(self, left))
            monkeypatch.setattr("dagnn.ged.exact.solve.SLICE_STEPS", 1000)
            monkeypatch.setattr("dagnn.ged.exact.solve.SLICE_SECONDS", 0)
            result = graph_edit_distance(a, b)
            assert result.lower <= expected <= result.upper
            monkeypatch.undo()


def _raised(watch, left):
    if next(left, None) is None:
        watch.stop[0] = 1
    return bool(watch.stop[0])


@pytest.mark.fault("docs_and_packaging", 6)
def test_matrix_stopped_by_the_clock_bounds_every_pair():
    found = ged_matrix([*LARGE, *SMALL], seconds=0)
    assert (found.lower <= found.upper).all() and not found.proved.all()
    assert found.upper[0, 1] <= found.everything[0, 1]
    with pytest.warns(UserWarning, match="distances are not proved"):
        assert (found.distance == found.upper).all()


@pytest.mark.fault("docs_and_packaging", 6)
def test_matrix_reports_progress(capsys):
    calls = []
    graphs = [nx.path_graph(n) for n in range(1, 6)]
    ged_matrix(graphs, progress=lambda done, total: calls.append((done, total)), workers=2)
    assert calls[-1] == (15, 15) and calls == sorted(calls)
    ged_matrix(graphs, progress=True)
    assert "15/15" in capsys.readouterr().err


@pytest.mark.fault("docs_and_packaging", 5)
def test_matrix_works_where_the_system_does_not_count_cores(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert ged_matrix([nx.path_graph(2), nx.path_graph(3)]).distance[0, 1] == 2


def test_an_error_in_a_worker_comes_out():
    def broken(done, total):
        raise RuntimeError("the caller's own")

    with pytest.raises(RuntimeError, match="the caller's own"):
        ged_matrix(SMALL, progress=broken)


@pytest.fixture
def endless(tmp_path):
    script = tmp_path / "endless.py"
    script.write_text("import time\ntime.sleep(1000)\n")
    return script


@pytest.mark.fault("graph_edit_distance", 3)
def test_ctrl_c_ends_a_process_of_its_own(endless):
    assert interrupted(lambda: Watch().run_script(endless, b""))


@pytest.mark.fault("graph_edit_distance", 4)
def test_a_process_of_its_own_ends_at_the_deadline_and_may_fail(endless, tmp_path):
    assert Watch(0.1).run_script(endless, b"") is None
    assert Watch().run_script(tmp_path / "missing.py", b"") is None


@pytest.mark.fault("graph_edit_distance", 3)
def test_bounds_by_a_process_of_its_own_are_the_same(monkeypatch):
    pair = [nx.gnm_random_graph(10, 16, seed=seed) for seed in (0, 1)]
    expected = ged_bounds(*pair, tight=True)
    calls = []
    monkeypatch.setattr("dagnn.ged.exact.relaxations.LIGHT", 0)
    run = Watch.run_script
    monkeypatch.setattr(Watch, "run_script", lambda *given: calls.append(given) or run(*given))
    assert ged_bounds(*pair, tight=True) == expected
    assert len(calls) == 1
