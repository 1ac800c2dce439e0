"""`dagnn visible`: from a graph and a table to scores, an explanation and pictures; one line for what goes wrong."""

import csv
import gzip
import json
import math

import numpy as np
import pytest

from dagnn import Dag, DagNN
from dagnn.cli import main
from dagnn.visible.on_disk import Model, read_samples

GENES = ["TP53", "BRCA1", "CDK1", "CCNB1"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Gene sets, a table of edges, and samples whose state depends on the sum of two genes."""
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets.gmt").write_text("repair\tx\tTP53\tBRCA1\ncycle\tx\tCDK1\tCCNB1\tTP53\n")
    (tmp_path / "edges.csv").write_text("source,target\nTP53,repair\nBRCA1,repair\nCDK1,cycle\nCCNB1,cycle\n")
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 4)).round(4)
    signal = x[:, 0] + x[:, 1]
    with (tmp_path / "data.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["", *GENES, "state", "level", "time", "died"])
        for i in range(60):
            state = "ill" if signal[i] > 0 else "well"
            writer.writerow(
                [f"s{i}", *x[i], state, round(signal[i], 4), round(float(np.exp(-signal[i])), 4), int(i % 3 > 0)]
            )
    return tmp_path


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def visible(capsys, *arguments):
    assert main(["visible", *arguments]) == 0
    return capsys.readouterr()


GRAPHML = (
    '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed"><node id="a"/><node id="b"/>'
    '<edge source="a" target="b"/></graph></graphml>'
)
EDGES = ["fit", "--graph", "edges.csv", "--data", "data.csv", "--target", "state"]
FIT = ["fit", "--graph", "sets.gmt", "--data", "data.csv", "--extra", "ignore", "--epochs", "60"]


def test_fit_writes_scores_predictions_tables_a_page_and_a_report(files, capsys):
    output = visible(capsys, *FIT, "--target", "state", "--out", "run")

    scores = {row["part"]: row for row in rows(files / "run" / "scores.csv")}
    assert [scores[part]["samples"] for part in ("training", "held out")] == ["48.0", "12.0"]
    assert float(scores["held out"]["balanced accuracy"]) > 0.8
    predictions = rows(files / "run" / "predictions.csv")
    assert [row["sample"] for row in predictions] == [f"s{i}" for i in range(60)]
    held = [row for row in predictions if row["part"] == "held out"]
    assert float(scores["held out"]["accuracy"]) == pytest.approx(np.mean([r["state"] == r["predicted"] for r in held]))
    assert all(
        float(r["probability of ill"]) + float(r["probability of well"]) == pytest.approx(1) for r in predictions
    )
    net = DagNN.load(files / "run" / "network.safetensors")
    weights = {(row["source"], row["target"]): float(row["weight"]) for row in rows(files / "run" / "edges.csv")}
    assert weights[("TP53", "repair")] == net.weight_of("TP53", "repair") and len(weights) == net.dag.num_edges
    report = (files / "run" / "report.html").read_text()
    assert "balanced accuracy" in report and "data:image/svg+xml" in report and 'href="network.html"' in report
    assert '"TP53"' in (files / "run" / "network.html").read_text()
    assert "fitted in 60 epochs" in output.err and "classification" in output.err and "held out" in output.out


def test_the_same_seed_gives_the_same_files(files, capsys):
    for out in ("a", "b"):
        visible(capsys, *FIT, "--target", "state", "--out", out, "--epochs", "5")

    for name in ("edges.csv", "predictions.csv", "report.html", "network.html"):
        assert (files / "a" / name).read_bytes() == (files / "b" / name).read_bytes()


def test_a_saved_model_predicts_what_the_table_says(files, capsys):
    visible(capsys, *FIT, "--target", "level", "--out", "run")

    model = Model.load(files / "run")
    assert model.task == "regression"
    x = model.inputs(read_samples("data.csv"))
    standard = np.array([[float(row[gene]) for gene in model.net.input_names] for row in rows(files / "data.csv")])
    np.testing.assert_allclose(x.numpy(), (standard - model.mean) / model.scale, rtol=1e-5, atol=1e-6)
    values = model.net(x).detach().numpy()[:, 0]
    predicted = np.array([float(row["predicted"]) for row in rows(files / "run" / "predictions.csv")])
    assert np.corrcoef(values, predicted)[0, 1] == pytest.approx(1, abs=1e-6)  # the target is standardized too
    assert float(rows(files / "run" / "scores.csv")[1]["R2"]) > 0.8


def test_survival_is_fitted_on_time_and_event(files, capsys):
    visible(capsys, *FIT, "--target", "time", "--event", "died", "--out", "run")

    scores = rows(files / "run" / "scores.csv")
    assert float(scores[1]["concordance index"]) > 0.8
    assert {row["event"] for row in rows(files / "run" / "predictions.csv")} == {"0", "1"}


def test_explain_finds_what_the_target_depends_on_and_warns_of_one_network(files, capsys):
    visible(capsys, *FIT, "--target", "state", "--out", "run")
    output = visible(capsys, "explain", "run", "--data", "data.csv", "--top", "4")

    nodes = {row["node"]: row for row in rows(files / "run" / "explained_nodes.csv")}
    share = {name: float(row["share"]) for name, row in nodes.items()}
    assert min(share["TP53"], share["BRCA1"]) > 2 * max(share["CDK1"], share["CCNB1"])
    assert share["class well"] == pytest.approx(1, abs=0.05)
    edges = rows(files / "run" / "explained_edges.csv")
    sizes = [abs(float(row["mean conductance"])) for row in edges]
    assert sizes == sorted(sizes, reverse=True) and len(edges) == 7
    assert len(output.out.splitlines()) == 4 + 2 and "completeness error" in output.out
    assert "A single run says nothing about ranks" in output.err
    assert "A single run says nothing about ranks" in (files / "run" / "explained.html").read_text()
    assert (files / "run" / "explanation.svg").read_text().startswith("<?xml")
    assert '"importance"' in (files / "run" / "explanation.html").read_text()


ANEW = ["--epochs", "15", "--learning-rate", "0.02", "--weight-decay", "0.1"]


def test_explain_trains_replicates_and_says_what_they_show(files, capsys):
    visible(capsys, *FIT, "--target", "state", "--out", "run")
    output = visible(capsys, "explain", "run", "--data", "data.csv", "--replicates", "3", *ANEW)

    table = rows(files / "run" / "replicates.csv")
    p_value = {row["node"]: row["p"] for row in table}
    assert p_value["repair"] == "0.05" and float(p_value["cycle"]) > 0.05
    assert p_value["TP53"] == p_value["class well"] == ""  # neither inputs nor the output are tested
    assert [row["node"] for row in table if row["p"]] == ["repair", "cycle"]
    assert all(float(row["low"]) <= float(row["share"]) for row in table)
    assert "3 replicates for ('class', 'well'), held-out score" in output.out and "replicates.csv" in output.out
    assert "60 of 60 networks trained" in output.err and "A single run" not in output.err + output.out
    assert "3 replicates for" in (files / "run" / "explained.html").read_text()


def test_one_replicate_says_that_it_says_nothing(files, capsys):
    visible(capsys, *FIT, "--target", "level", "--out", "run")
    output = visible(capsys, "explain", "run", "--data", "data.csv", "--replicates", "1", "--shuffles", "2", *ANEW)

    assert "A single run says nothing: seeds move importances more than labels do." in output.out
    assert "2 shuffles give no p-value below 0.33: take 19 or more for 0.05." in output.out
    assert rows(files / "run" / "replicates.csv")[0]["low"] == ""


def test_replicates_are_refused_where_they_mean_nothing(files, capsys):
    visible(capsys, *FIT, "--target", "time", "--event", "died", "--out", "survival")
    visible(capsys, *FIT, "--target", "state", "--out", "run")
    data = (files / "data.csv").read_text()
    (files / "other.csv").write_text(data.replace(",ill,", ",healthy,", 1))
    (files / "none.csv").write_text(data.replace(",state,", ",was,", 1))
    for run, table, more, text in (
        ("survival", "data.csv", [], "--replicates is for classes and numbers, and this network is a survival model"),
        ("run", "data.csv", ["--output", "repair"], "'repair' is no output: leave --output out."),
        ("run", "other.csv", [], "has 'healthy' as 'state', and the network was fitted on ill, well"),
        ("run", "none.csv", [], "none.csv has no column 'state'"),
        ("run", "data.csv", ["--shuffles", "0"], "shuffles must be a whole number, at least 1, got 0."),
        ("run", "data.csv", ["--learning-rate", "-1"], "--learning-rate must be a finite number above 0, got -1.0."),
        ("run", "data.csv", ["--top", "0"], "--top must be at least 1, got 0."),
        ("run", "data.csv", ["--replicates", "-1"], "replicates must be a whole number, at least 1, got -1."),
        (
            "run",
            "data.csv",
            ["--hidden-decay", "2"],
            "--hidden-decay is a share of --weight-decay, from 0.0 to 1.0, got 2.0.",
        ),
    ):
        assert main(["visible", "explain", run, "--data", table, "--replicates", "2", *more]) == 2
        assert text in capsys.readouterr().err


@pytest.mark.parametrize("out", ["p.svg", "p.png", "p.pdf", "p.html"])
@pytest.mark.parametrize("source", ["sets.gmt", "edges.csv", "net.safetensors"])
def test_draw_takes_graphs_and_networks(files, capsys, source, out):
    DagNN(Dag([("a", "b")])).save(files / "net.safetensors")

    assert visible(capsys, "draw", source, out).out == f"{out}\n"
    assert (files / out).stat().st_size > 1000


def test_draw_takes_a_fitted_network_and_the_most_important(files, capsys):
    visible(capsys, *FIT, "--target", "state", "--out", "run", "--epochs", "2")
    visible(capsys, "draw", "run", "p.svg", "--top", "3")

    assert "4 of 7 nodes" in (files / "p.svg").read_text()  # text is drawn as paths, with a comment that says it


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["explode"], "unknown command 'visible explode'"),
        ([*FIT], "Missing from dagnn visible fit: --target"),
        ([*FIT, "--target", "none"], "data.csv has no column 'none': its columns are"),
        ([*FIT[:5], "--target", "state"], "data.csv has 4 columns that are no inputs of the graph"),
        ([*FIT[:5], "--target", "state"], "'one': --extra ignore leaves them out."),
        (
            [*FIT, "--target", "CDK1"],
            "data.csv lacks 1 of 4 inputs of the graph: 'CDK1': add these columns, or take the",
        ),
        (
            [*FIT, "--target", "state", "--columns", "0", "1"],
            "sets.gmt: --columns is for .csv, .tsv, .tab, .txt, .parquet",
        ),
        ([*EDGES, "--hierarchy", "containment"], "edges.csv: --hierarchy is for .gmt, and not for .csv: leave it out."),
        ([*EDGES, "--columns", "from", "to"], "choose with --columns SOURCE TARGET, by number (from 0) if there is no"),
        ([*EDGES, "--root", "TP53"], "--root 'TP53' is a node that feeds others"),
        ([*FIT, "--target", "level", "--learning-rate", "1e30"], ": lower --learning-rate 1e+30, or scale X."),
        ([*FIT, "--target", "state", "--epochs", "0"], "--epochs must be a whole number of at least 1, got 0."),
        (
            [*FIT, "--target", "level", "--task", "classification"],
            "--held-out 0.2 of 60 samples does not leave every class in both parts: choose",
        ),
        (["fit", "--graph", "bad.csv.gz", "--data", "data.csv", "--target", "state"], "cannot read bad.csv.gz: "),
        (["draw", "bad.gmt.gz", "p.svg"], "cannot read bad.gmt.gz: "),
        (["draw", "deep.json.gz", "p.svg"], "deep.json.gz: not a JSON document: maximum recursion"),
        ([*FIT, "--target", "state", "--held-out", "1.5"], "--held-out must be at least 0 and less than 1, got 1.5."),
        ([*FIT, "--target", "state", "--event", "state"], "data.csv: sample 's0', column 'state' has"),
        ([*FIT, "--target", "state", "--task", "survival"], "a survival model needs --event"),
        ([*FIT, "--target", "level", "--task", "survival", "--event", "level"], "column 'level' must hold 0"),
        ([*FIT, "--target", "level", "--event", "died"], "has the time -"),
        ([*FIT, "--target", "one"], "y holds one class only, 'x'"),
        (["fit", "--graph", "none.gmt", "--data", "data.csv", "--target", "state"], "cannot read none.gmt"),
        (["fit", "--graph", "a.xyz", "--data", "data.csv", "--target", "state"], "a.xyz: the ending '.xyz' tells no"),
        (["fit", "--graph", "sets.gmt", "--data", "none.csv", "--target", "state"], "cannot read none.csv"),
        (["explain", "nothing", "--data", "data.csv"], "nothing holds no fitted network (model.json: No such file"),
        (["explain", "nothing"], "give the samples to explain with --data FILE"),
        (["draw", "sets.gmt", "p.gif"], "the picture p.gif must end in .svg, .png or .pdf."),
        (["draw", "sets.gmt", "p.html", "--top", "3"], "--top is for pictures"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(files, capsys, arguments, text):
    table = (files / "data.csv").read_text().splitlines()
    (files / "data.csv").write_text("\n".join(line + (",one" if i == 0 else ",x") for i, line in enumerate(table)))
    for name in ("bad.csv.gz", "bad.gmt.gz"):
        (files / name).write_bytes(gzip.compress(b"source,target")[:10] + b"\xff\xff\xff\xff")
    (files / "deep.json.gz").write_bytes(gzip.compress(b"[" * 100_000))

    assert main(["visible", *arguments]) == 2

    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("dagnn: ")]
    assert len(lines) == 1 and text in lines[0]
    assert not (files / "visible").exists()


def test_a_target_and_inputs_far_from_0_are_learned(files, capsys):
    table = rows(files / "data.csv")
    with (files / "far.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*GENES, "when"])
        writer.writerows([*(1.6e9 + float(row[gene]) for gene in GENES), 1.6e9 + float(row["level"])] for row in table)
    visible(capsys, *FIT[:3], "--data", "far.csv", "--target", "when", "--epochs", "100", "--out", "run")

    assert float(rows(files / "run" / "scores.csv")[1]["R2"]) > 0.8
    predictions = rows(files / "run" / "predictions.csv")
    assert len({row["predicted"] for row in predictions}) > 50
    visible(capsys, "explain", "run", "--data", "far.csv")
    share = {row["node"]: float(row["share"]) for row in rows(files / "run" / "explained_nodes.csv")}
    assert min(share["TP53"], share["BRCA1"]) > 2 * max(share["CDK1"], share["CCNB1"])
    text = (files / "far.csv").read_text()
    (files / "far.csv").write_text(text.replace(text.splitlines()[1].split(",")[0], "1e300"))
    assert main(["visible", *FIT[:3], "--data", "far.csv", "--target", "when", "--out", "other"]) == 2
    assert "the values of 'TP53' are too large for their variance in float64" in capsys.readouterr().err


def test_a_table_of_edges_without_a_header_is_read_by_number(files, capsys):
    text = (files / "edges.csv").read_text().partition("\n")[2]
    (files / "bare.csv").write_text(text)
    for name, content in (("a.graphml", GRAPHML), ("b.json", Dag([("a", "b")]).to_json())):
        (files / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    visible(capsys, "draw", "bare.csv", "p.html", "--columns", "0", "1")
    visible(capsys, "draw", "edges.csv", "q.html")
    assert (files / "p.html").read_text().count("TP53") == (files / "q.html").read_text().count("TP53") > 0
    for name in ("a.graphml.gz", "b.json.gz"):
        visible(capsys, "draw", name, "p.svg")


def test_a_folder_that_is_not_empty_is_kept(files, capsys):
    (files / "run").mkdir()
    (files / "run" / "mine.txt").write_text("keep")

    assert main(["visible", *FIT, "--target", "state", "--out", "run"]) == 2
    assert "run is not empty: choose another folder with --out, or add --overwrite." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,a\n1,2\n", "has more than one column 'a'"),
        ("a,b\n", "has no samples below its header"),
        ("a,b\n1\n", "line 2: expected 2 cells, as in the header, got 1"),
        ("", "is empty"),
        ('a,b\n1,"x\n2,y\n', r'x\.csv, line 2: a cell that begins with " must end with the next one'),
    ],
)
def test_tables_that_cannot_be_read_name_the_place(tmp_path, text, message):
    (tmp_path / "x.csv").write_text(text)

    with pytest.raises(ValueError, match=message):
        read_samples(tmp_path / "x.csv")


@pytest.mark.parametrize("cell", ["", "NaN", "inf", "much"])
def test_cells_that_are_no_numbers_are_refused_by_sample_and_column(tmp_path, cell):
    (tmp_path / "x.csv").write_text(f",a,b\ns1,1,2\ns2,3,{cell}\n")

    samples = read_samples(tmp_path / "x.csv")
    assert samples.numbers("a").tolist() == [1, 3]
    with pytest.raises(ValueError, match=r"x\.csv: sample 's2', column 'b' has"):
        samples.numbers("b")


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"format": "other"},
        {"mean": [0.0]},
        {"classes": None},
        {"classes": [1, 2]},
        {"labels": {"p": 3}},
        {"labels": ["p"]},
        {"target": 3},
        {"task": ["regression"]},
        {"scale": [0.0, 1.0, 1.0, 1.0]},
        {"mean": [0.0, 10**400, 1.0, 1.0]},
        {"mean": [math.nan] * 4},
        None,
    ],
)
def test_a_damaged_or_foreign_model_is_refused(files, capsys, change):
    visible(capsys, *FIT, "--target", "state", "--out", "run", "--epochs", "1")
    path = files / "run" / "model.json"
    path.write_text("[" * 100_000 if change is None else json.dumps(json.loads(path.read_text()) | change))

    assert main(["visible", "explain", "run", "--data", "data.csv"]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "model.json: " in error
