"""`dagnn ged` and `dagnn ged search`: what it prints and draws, and one line for everything that goes wrong."""

import json

import pytest

from dagnn.cli import main
from dagnn.graph import Dag

A = Dag([("a", "b"), ("b", "c")], node_attributes={"label": ("x", "y", "z")})
B = Dag([("a", "b"), ("a", "c")], node_attributes={"label": ("x", "y", "w")})


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two graphs and some files that hold none, in the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text(A.to_json())
    (tmp_path / "b.json").write_text(B.to_json())
    (tmp_path / "text.json").write_text("no JSON")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "other.json").write_text('{"nodes": []}')
    (tmp_path / "plain.json").write_text(Dag([("a", "b")]).to_json())
    (tmp_path / "many.json").write_text(Dag([], 2001).to_json())
    (tmp_path / "huge.json").write_text(Dag([], 1).to_json().replace('"num_nodes": 1', f'"num_nodes": {10**14}'))
    return tmp_path


def ged(capsys, *arguments):
    assert main(["ged", *arguments]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out


def test_distance_bounds_and_the_edits_are_told_in_words(files, capsys):
    assert ged(capsys, "a.json", "b.json").splitlines() == [
        "distance  3, proved",
        "lower     3",
        "upper     3",
        "search    2 nodes",
        "edits     3",
        "  delete edge b -> c (1)",
        "  substitute node c [z] by c [w] (1)",
        "  insert edge a -> c (1)",
    ]


def test_equal_graphs_need_no_edits(files, capsys):
    assert ged(capsys, "a.json", "a.json").splitlines()[-1] == "edits     none"


def test_costs_and_labels_are_flags(files, capsys):
    told = ged(capsys, "a.json", "b.json", "--edge-insertion", "0.25", "--node-label", "none", "--json")

    found = json.loads(told)
    assert found["distance"] == 1.25
    assert [edit["cost"] for edit in found["edit_path"]] == [1.0, 0.25]


def test_json_has_the_bounds_the_map_and_the_path(files, capsys):
    found = json.loads(ged(capsys, "a.json", "b.json", "--json"))

    assert {key: found[key] for key in ("distance", "lower", "upper", "proved", "plot")} == (
        {"distance": 3.0, "lower": 3.0, "upper": 3.0, "proved": True, "plot": None}
    )
    assert sorted(found["node_map"]) == [["a", "a"], ["b", "b"], ["c", "c"]]
    assert found["edit_path"][1] == {
        "kind": "substitute node",
        "source": "c",
        "target": "c",
        "source_label": "z",
        "target_label": "w",
        "cost": 1.0,
    }


def test_distance_that_is_not_proved_is_two_bounds(files, capsys):
    tournament = Dag([(i, j) for i in range(12) for j in range(i + 1, 12) if (i * j) % 3])
    (files / "c.json").write_text(tournament.to_json())
    (files / "d.json").write_text(Dag([(i, j) for i in range(12) for j in range(i + 1, 12) if (i + j) % 3]).to_json())

    told = ged(capsys, "c.json", "d.json", "--budget", "0")
    found = json.loads(ged(capsys, "c.json", "d.json", "--budget", "0", "--json"))

    lower, upper = found["lower"], found["upper"]
    assert found["distance"] is None and not found["proved"] and lower < upper
    assert told.startswith(f"distance  between {lower:g} and {upper:g}, not proved: raise --budget\n")


@pytest.mark.parametrize(("name", "begins"), [("edits.svg", b"<?xml"), ("edits.PNG", b"\x89PNG")])
def test_picture_is_drawn(name, begins, files, capsys):
    assert ged(capsys, "a.json", "b.json", "--plot", name).endswith(f"picture   {name}\n")

    assert (files / name).read_bytes().startswith(begins)
    assert [path.name for path in files.iterdir() if path.name.startswith(".")] == []


def test_names_and_labels_of_any_kind_stay_on_their_line_and_valid_json(files, capsys):
    odd = Dag([("new\nline", ("a", 1))], node_attributes={"label": (float("nan"), None)})
    (files / "odd.json").write_text(odd.to_json())

    told = ged(capsys, "odd.json", "a.json").splitlines()
    found = json.loads(ged(capsys, "odd.json", "a.json", "--json"))

    assert len(told) == 5 + len(found["edit_path"])
    assert ["new\nline", "a"] in found["node_map"] or [["a", 1], "a"] in found["node_map"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["a.json"], "Missing from dagnn ged: B.JSON"),
        (["a.json", "none.json"], "No such file or directory: none.json"),
        (["a.json", "."], "Is a directory: ."),
        (["text.json", "b.json"], "text.json: not a JSON document"),
        (["a.json", "bytes.json"], "bytes.json: not a JSON document"),
        (["a.json", "other.json"], "other.json: not a Dag: the document must be an object with"),
        (["a.json", "huge.json"], "huge.json: num_nodes must be at least 0 and fit in memory, got 100000000000000."),
        (["a.json", "plain.json"], "a has the node attribute 'label' and b has not"),
        (["many.json", "plain.json"], "a has 2,001 nodes: graphs of up to 2,000 can be compared."),
        (["a.json", "b.json", "--node-insertion", "nan"], "node_insertion is nan: a cost must be finite"),
        (["a.json", "b.json", "--edge-deletion", "-1"], "edge_deletion is -1.0: a cost must be finite and at least 0."),
        (["a.json", "b.json", "--edge-substitution", "inf"], "edge_substitution is inf"),
        (["a.json", "b.json", "--budget", "-1"], "budget is -1: it must be a whole number of search nodes"),
        (["a.json", "b.json", "--seconds", "nan"], "seconds is nan: it must be at least 0."),
        (["a.json", "b.json", "--plot", "p.pdf"], "the picture p.pdf must end in .svg or .png."),
        (["a.json", "b.json", "--plot", "none/p.svg"], "No such file or directory: none/p.svg"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, text, files, capsys):
    assert main(["ged", *arguments]) == 2

    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"dagnn: {text}") and output.err.count("\n") == 1


def test_picture_that_cannot_be_written_leaves_the_old_one(files, capsys, monkeypatch):
    (files / "p.svg").write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device", "temporary")

    monkeypatch.setattr("pathlib.Path.replace", full)
    assert main(["ged", "a.json", "b.json", "--plot", "p.svg"]) == 2

    assert capsys.readouterr().err == "dagnn: No space left on device: p.svg\n"
    assert (files / "p.svg").read_text() == "old"
    assert [path.name for path in files.iterdir() if path.name.startswith(".")] == []


# ---- dagnn ged search ----


@pytest.fixture
def collection(tmp_path, monkeypatch):
    """Chains and a fork, in a folder of two files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "query.json").write_text('{"n": 3, "edges": [[0, 1], [1, 2]]}')
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "chains.jsonl").write_text(
        "".join(json.dumps({"n": n, "edges": [[i, i + 1] for i in range(n - 1)]}) + "\n" for n in range(1, 8))
    )
    (tmp_path / "set" / "fork.json").write_text('{"n": 4, "edges": [[0, 1], [0, 2], [0, 3]]}')
    return tmp_path


def test_search_prints_the_nearest_with_their_distance(collection, capsys):
    assert ged(capsys, "search", "query.json", "set", "--k", "4").splitlines()[:5] == [
        "4 of 8 graphs, exact",
        "  0           chains.jsonl:2",
        "  2           chains.jsonl:1",
        "  2           chains.jsonl:3",
        "  2           fork.json",
    ]


def test_search_in_json_names_what_is_undecided(collection, capsys):
    found = json.loads(ged(capsys, "search", "set/chains.jsonl:3", "set", "query.json", "--radius", "2", "--json"))
    assert [row["name"] for row in found["matches"]] == [f"set/chains.jsonl:{i}" for i in (3, 2, 4)] + [
        "set/fork.json",
        "query.json",
    ]
    assert found["complete"] and found["undecided"] == [] and sum(found["settled"].values()) == 9
    late = json.loads(ged(capsys, "search", "query.json", "set", "--seconds", "0", "--k", "1", "--json"))
    assert not late["complete"] and len(late["undecided"]) == 8
    (match,) = late["matches"]
    assert (match["name"], match["distance"], match["upper"]) == ("chains.jsonl:0", None, "inf")
    text = ged(capsys, "search", "query.json", "set", "--seconds", "0", "--k", "1")
    assert text.startswith("1 of 8 graphs, not exact, 8 undecided: raise --budget")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["query.json"], "no files or folders to search in"),
        (["set/chains.jsonl", "set"], "set/chains.jsonl holds 7 graphs: name one of them"),
        (["set/chains.jsonl:9", "set"], "set/chains.jsonl holds no graph '9'"),
        (["none.json", "set"], "No such file or directory: none.json"),
        (["query.json", "set", "--k", "0"], "k is 0"),
        (["query.json", "set", "--radius", "-1"], "radius is -1.0"),
    ],
)
def test_search_says_what_is_wrong_in_one_line(arguments, text, collection, capsys):
    assert main(["ged", "search", *arguments]) == 2
    output = capsys.readouterr()
    assert text in output.err and output.err.count("\n") == 1
