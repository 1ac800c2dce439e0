"""The tables of the curriculum comparison say what the results say, also where a rival wins."""

import json

import pytest

from benchmarks import curriculum
from benchmarks.curriculum_settings import OUR_FLAGS, SETTINGS
from benchmarks.curriculum_table import NAMES, RIVALS, Result, comparison, curve_plot, curve_table, lost


def result(contestant, seed=0, accuracy=None, **changed):
    values = {
        "contestant": contestant,
        "seed": seed,
        "cpu_minutes": 5.0,
        "cpu_seconds": 300.0,
        "parameters": 1_000,
        "steps": 10,
        "examples": 3_000,
        "answers_per_second": 20.0,
        "asked": 100,
        "accuracy": accuracy or {"level 1": 0.5, "level 2": 0.25},
    }
    return Result(**{**values, **changed})


def rows_of(table):
    return {row[0]: row[1:] for row in ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n"))}


def test_the_best_is_bold_and_seeds_are_averaged():
    results = [
        result("A", accuracy={"level 1": 0.5, "level 2": 0.9}),
        result("C", 0, {"level 1": 1.0, "level 2": 0.8}),
        result("C", 1, {"level 1": 0.9, "level 2": 0.8}),
    ]
    rows = rows_of(comparison(results).split("\n\n")[1])

    assert rows["level 1"] == ["50.00", "**95.00 (90.0 .. 100.0)**"]
    assert rows["level 2"] == ["**90.00**", "80.00 (80.0 .. 80.0)"]
    assert lost(results) == ["level 2: Transformer, answers 90.00 %, ours 80.00 %"]


def test_variants_of_ours_are_shown_and_decide_nothing():
    results = [result("A"), *(result(name, accuracy={"level 1": 0.9, "level 2": 0.9}) for name in ("C2", "C3"))]
    assert lost(results) == []  # without C there is no claim
    results.append(result("C", accuracy={"level 1": 0.6, "level 2": 0.2}))
    table = comparison(results).split("\n\n")[1]

    assert table.split("\n")[0].endswith("| ours (C) | ours, graph backbone (C2) | ours, GedLoss (C3) |")
    assert rows_of(table)["level 1"] == ["50.00", "60.00", "**90.00**", "**90.00**"]
    assert lost(results) == ["level 2: Transformer, answers 25.00 %, ours 20.00 %"]


def test_costs_and_times_are_told():
    curve = [(60.0, dict.fromkeys(range(1, 8), 0.5) | {1: 0.95}), (120.0, dict.fromkeys(range(1, 8), 0.92))]
    windows = {"asked": 100, "unseen": 10, "unseen_right": 9}
    tables = comparison([result("B"), result("C", curve=curve, windows=windows)]).split("\n\n")
    costs, times = rows_of(tables[2]), rows_of(tables[3])

    assert costs["CPU minutes of training"] == ["5.00", "5.00"]
    assert costs["training examples/s"] == ["10", "10"]
    assert times["all levels, CPU min to 90 % / 99 %"] == ["never / never", "2.0 / never"]
    assert times["level 1, CPU min to 90 % / 99 %"] == ["never / never", "1.0 / never"]
    assert "100 distinct neighbourhoods" in tables[4] and "90.00 %" in tables[4]


def test_a_mark_that_one_seed_misses_is_told():
    reached, missed = [(60.0, dict.fromkeys(range(1, 8), 1.0))], [(60.0, dict.fromkeys(range(1, 8), 0.0))]
    table = comparison([result("C", 0, curve=reached), result("C", 1, curve=missed)])

    assert "| 1.0 (1 of 2) / 1.0 (1 of 2) |" in table


def test_accuracy_by_the_number_of_expressions(tmp_path):
    levels = {f"level {level}": 0.5 for level in range(1, 8)}
    results = [result("C", accuracy=levels, expressions=count) for count in (3_000, 1_000)]
    rows = curve_table(results).split("\n")
    curve_plot(results, tmp_path / "plot.png")

    assert [row.split("|")[1].strip() for row in rows[2:]] == ["1,000", "3,000"]
    assert rows[2].count("50.00") == 7
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_pieces_are_joined(tmp_path, capsys):
    ours, rival = tmp_path / "c.json", tmp_path / "a.json"
    one = result("C", accuracy={"level 1": 0.4}, curve=[(1.5, {1: 0.25})])
    curriculum.write(ours, [one])
    curriculum.write(rival, [result("A", accuracy={"level 1": 0.5})])

    assert curriculum.read(ours) == [one]
    assert curriculum.main(["--join", str(ours)]) == 0
    assert curriculum.main(["--join", str(ours), str(rival), "--json", str(tmp_path / "all.json")]) == 1
    assert len(json.loads((tmp_path / "all.json").read_text())["results"]) == 2
    assert "missed: level 1: Transformer, answers 50.00 %, ours 40.00 %" in capsys.readouterr().err


def test_every_contestant_and_seed_is_measured_in_a_process_of_its_own(monkeypatch, capsys):
    asked = []

    def in_process(name, seed, given, expressions=None, max_steps=None):
        asked.append((name, seed, given.cpu_minutes, given.questions, expressions or given.expressions, max_steps))
        return [result(name, seed, {f"level {level}": 1.0 for level in range(1, 8)}, expressions=expressions)]

    monkeypatch.setattr(curriculum, "in_process", in_process)

    assert curriculum.main([]) == 0
    assert asked == [(name, seed, 5.0, 500, None, None) for seed in range(3) for name in ("A", "A2", "A3", "B", "C")]
    asked.clear()
    assert curriculum.main(["--quick", "--only", "A", "C"]) == 0
    assert asked == [("A", 0, 0.5, 40, 600, None), ("C", 0, 0.5, 40, 600, None)]
    asked.clear()
    assert curriculum.main(["--only", "C2", "C3", "--seeds", "1"]) == 0
    assert [name for name, *_ in asked] == ["C2", "C3"]
    asked.clear()
    assert curriculum.main(["--samples", "--seeds", "1"]) == 0
    assert asked == [("C", 0, 5.0, 500, count, 3_000) for count in (1_000, 3_000, 10_000, 30_000)]
    assert "| 30,000 |" in capsys.readouterr().out


def test_every_contestant_has_settings_and_a_place():
    assert [*SETTINGS] == [*RIVALS]
    assert [*SETTINGS, *OUR_FLAGS] == [*NAMES]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(NAMES))
def test_a_contestant_is_measured_from_nothing(name, tmp_path):
    path = tmp_path / "out.json"
    flags = ["--cpu-minutes", "0.05", "--questions", "2", "--expressions", "20", "--json", str(path)]

    assert curriculum.main(["--only", name, "--seed", "0", *flags]) == 0
    (found,) = curriculum.read(path)
    assert (found.contestant, found.seed, found.expressions, found.asked) == (name, 0, 20, 2)
    assert len(found.accuracy) == 24
    assert found.parameters > 100_000 and found.steps > 0 and found.examples > 0
    assert (found.windows is not None) == (name in ("C", "C2", "C3"))
