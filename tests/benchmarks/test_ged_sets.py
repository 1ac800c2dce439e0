"""The sets of graph edit distance: their stand-ins, their pairs, and tables of distances that go on after a stop."""

import csv
import importlib.util
import json
from pathlib import Path

import networkx as nx
import pytest

from benchmarks.ged_sets import SETS, beside_fgwalign, cores, graphs_of, load_fgwalign, main, row, sample, stand_in
from dagnn.ged import graph_edit_distance, read_graph_files

SCRIPT = Path(__file__).parents[2] / "scripts" / "ged_ground_truth.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("ged_ground_truth", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SETS)
def test_a_stand_in_has_the_sizes_and_labels_of_the_set(name):
    kind, graphs = SETS[name], stand_in(name)
    assert len(graphs) == kind.graphs
    assert all(kind.nodes[0] <= len(graph) <= kind.nodes[1] for graph in graphs)
    labels = {label for graph in graphs for _, label in graph.nodes(data="label")}
    assert labels == {None} if kind.labels == 1 else len(labels) > 5


def test_a_set_is_read_where_it_is_and_said_to_be_absent_where_it_is_not(tmp_path):
    (tmp_path / "AIDS.jsonl").write_text('{"n": 2, "edges": [[0, 1]], "labels": ["C", "O"]}\n')
    graphs, own = graphs_of("AIDS", tmp_path)
    assert own and [len(graph) for graph in graphs] == [2]
    assert not graphs_of("LINUX", tmp_path)[1] and not graphs_of("LINUX", None)[1]


def test_pairs_are_of_the_sizes_and_a_share_below_the_claim_is_missed(capsys):
    graphs = [nx.path_graph(n) for n in range(1, 9)]
    pairs = sample(graphs, (3, 5), 12)
    assert len(pairs) == 12 and all(3 <= len(graph) <= 5 for pair in pairs for graph in pair)
    assert row("paths", pairs, 1.0, per_100=1.0)
    assert "paths: 12 of 12 proved (at least 100%)" in capsys.readouterr().out
    assert not row("paths", pairs, 1.1)
    assert "MISSED" in capsys.readouterr().out


def test_hard_pairs_are_measured_on_one_core_and_on_two(capsys):
    pair = tuple(nx.gnm_random_graph(18, 36, seed=seed) for seed in (0, 1))
    cores("random", [pair, (nx.path_graph(3), nx.path_graph(4))], budget=20_000, rounds=1)
    assert "random, 1 of 2 pairs of 20,000 search nodes or more" in capsys.readouterr().out


FAKE = """import torch
def FGWAlign(g1_adj, g2_adj, g1_labels=None, g2_labels=None, patience=15, topk=5):
    different = 0 if g1_labels is None else int((g1_labels != g2_labels).sum())
    return float((g1_adj != g2_adj).sum()) / 2 + different + (patience == 1), torch.eye(3)
"""


def test_a_copy_of_fgwalign_runs_on_the_same_pairs(tmp_path, capsys):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "FGWAlign.py").write_text(FAKE)
    a, b = nx.path_graph(3), nx.cycle_graph(3)
    function = load_fgwalign(tmp_path)
    beside_fgwalign("paths", [(a, b), (b, a)], function)
    nx.set_node_attributes(a, {0: "C", 1: "C", 2: "O"}, "label")
    nx.set_node_attributes(b, {0: "C", 1: "O", 2: "O"}, "label")
    beside_fgwalign("labels", [(a, b)], function)
    fast, full, labels, _ = capsys.readouterr().out.splitlines()
    assert "paths, 2 pairs, FGWAlign, fast: mean error 1.00, exact on 0%" in fast
    assert (
        "full: mean error 0.00, exact on 100%" in full and "labels, 1 pairs, FGWAlign, fast: mean error 1.00" in labels
    )


def test_a_folder_without_fgwalign_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--fgwalign", str(tmp_path)])
    assert "FGWAlign.py is not there: give the folder that README.md of FGWAlign is in." in capsys.readouterr().err


def test_the_table_of_distances_goes_on_after_the_last_whole_row(script, tmp_path, capsys):
    (tmp_path / "set.jsonl").write_text(
        "".join(json.dumps({"n": n, "edges": [[0, i] for i in range(1, n)]}) + "\n" for n in (1, 2, 3, 9))
    )
    table = tmp_path / "table.csv"
    arguments = [str(tmp_path / "set.jsonl"), str(table), "--max-nodes", "4"]
    assert script.main(arguments) == 0
    whole = table.read_text()
    rows, graphs = list(csv.DictReader(whole.splitlines())), read_graph_files(tmp_path / "set.jsonl")
    assert len(rows) == 6
    for each in rows:
        found = graph_edit_distance(graphs[each["a"]], graphs[each["b"]])
        assert float(each["lower"]) == float(each["upper"]) == found.distance
        assert each["edits"] == "; ".join(map(str, found.edit_path))
        assert json.loads(each["node_map"]) == [list(pair) for pair in found.node_map]

    table.write_text(whole[: whole.rindex("True") + 2])  # killed in the middle of the last row
    assert script.main(arguments) == 0
    assert table.read_text() == whole
    assert "5 of them are in" in capsys.readouterr().out
    assert script.main(arguments) == 0 and table.read_text() == whole

    table.write_text(whole.replace("jsonl:0", "jsonl:7"))
    with pytest.raises(SystemExit, match="it is of another set"):
        script.main(arguments)
