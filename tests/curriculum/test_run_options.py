"""Options of the main job in small: own runs, an early end, held-out neighbourhoods, a warm start."""

import shutil
from collections import Counter

import numpy as np
import pytest
from small_curriculum import config_of, last_bytes, rows_without_clock

from dagnn.curriculum import run as curriculum_run
from dagnn.curriculum.accuracy import evaluate, labels_of, opened_run
from dagnn.curriculum.evaluation_file import Evaluation
from dagnn.curriculum.report import results_table
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.run import search_lr, train
from dagnn.curriculum.traces import KINDS, kind_of
from dagnn.data import BatchIterator
from dagnn.errors import CheckpointError, ConfigError, RunError
from dagnn.rewriting import dataset
from dagnn.rewriting.dataset import NeighbourhoodLoader, is_held_out, mistakes_of, read_neighbourhoods

LEVEL_1 = {
    "curriculum__levels": [1],
    "curriculum__samples": [300],
    "model__width": 64,
    "batch_size": 128,
    "ema_decay": 0.9,
    "optimizer__lr": 5e-3,
    "schedule__name": "constant",
    "checkpoint__save_every": 60,
    "checkpoint__keep_last": 9,
}


def quiet(line):
    """What a run notes, unsaid."""


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    path = tmp_path_factory.mktemp("taught") / "run"
    train(config_of(path, **LEVEL_1, max_steps=240, eval_every=60, curriculum__own_runs=8), note=quiet)
    return path


def evaluations(path):
    return [row for row in rows_without_clock(path) if row["kind"] == "evaluation"]


def test_mistakes_in_own_runs_are_learned_from(taught):
    met = [row for row in evaluations(taught) if "mistakes" in row]
    assert met
    assert met[0]["windows_wrong"] <= 0.03
    assert met[0]["mistakes"] >= met[0]["mistakes_new"] > 0


def test_traced_neighbourhoods_that_are_wrong_are_learned_from_without_own_runs(tmp_path):
    train(config_of(tmp_path / "run", **LEVEL_1, max_steps=240, eval_every=60), note=quiet)
    rows = [row for row in evaluations(tmp_path / "run") if "mistakes" in row]
    assert any(row["mistakes"] for row in rows)
    assert not any(row["mistakes_new"] for row in rows)
    lessons = mistakes_of(opened_run(tmp_path / "run")[2].state["data"])
    assert len(lessons) == sum(row["mistakes"] for row in rows)


def test_a_resume_goes_on_with_the_same_lessons(taught, tmp_path):
    shutil.copytree(taught, tmp_path / "again")
    config = config_of(tmp_path / "again", **LEVEL_1, max_steps=240, eval_every=60, curriculum__own_runs=8)
    train(config, resume=True, step=180, note=quiet)
    assert last_bytes(tmp_path / "again") == last_bytes(taught)
    assert rows_without_clock(tmp_path / "again") == rows_without_clock(taught)


def test_neighbourhoods_learned_from_count_as_trained_on(taught):
    counts = evaluate(taught, expressions=40).neighbourhoods
    assert counts.held_out == {}
    assert counts.unseen < counts.asked


def test_training_ends_with_the_last_wrong_neighbourhood(tmp_path):
    changes = {**LEVEL_1, "curriculum__samples": [40], "max_steps": 3000, "eval_every": 40, "eval_samples": 2}
    config = config_of(tmp_path / "run", **changes, early_stopping__when_right=True)
    found = train(config, note=quiet)
    *before, last = evaluations(tmp_path / "run")
    assert found.step == last["step"] < 3000
    assert last["finished"] is True
    assert last["windows_wrong"] == 0
    assert all(row["windows_wrong"] > 0 and "finished" not in row for row in before)
    assert train(config, resume=True, note=quiet).step == found.step


def test_held_out_neighbourhoods_are_asked_at_the_end_by_kind(tmp_path):
    config = config_of(tmp_path / "run", max_steps=8, curriculum__held_out_windows=0.1)
    found = train(config, note=quiet)
    neighbourhoods = read_neighbourhoods(tmp_path / "run", SIGNATURE)[0].neighbourhoods
    expected = Counter(kind_of(neighbourhood) for neighbourhood in neighbourhoods if is_held_out(neighbourhood, 0.1))
    assert {kind: count.total for kind, count in found.neighbourhoods.held_out.items()} == expected
    assert all(0 <= count.right <= count.total for count in found.neighbourhoods.held_out.values())
    assert Evaluation.read(tmp_path / "run") == found
    table = [line.rsplit(maxsplit=1) for line in results_table(found)]
    for kind in KINDS:
        (total,) = [last for first, last in table if first.startswith(f"{kind} ")]
        assert total == f"{expected[kind]:,}"
    # Most of the neighbourhoods that it was asked about come from training; the held-out ones count as unseen.
    assert found.neighbourhoods.unseen >= 0.05 * found.neighbourhoods.asked


def test_a_warm_start_begins_where_the_other_run_ended(taught, tmp_path):
    changes = {"max_steps": 6, "eval_every": 0, "model__width": 64, "curriculum__levels": [1, 2], "batch_size": 128}
    losses = {}
    for name, begin in (("warm", str(taught)), ("cold", "")):
        train(config_of(tmp_path / name, **changes, curriculum__samples=[60], warm_start=begin), note=quiet)
        losses[name] = next(row["loss"] for row in rows_without_clock(tmp_path / name) if row["kind"] == "step")
    assert losses["warm"] < 0.5 * losses["cold"]


def test_a_resumed_run_needs_its_warm_start_no_more(taught, tmp_path):
    shutil.copytree(taught, tmp_path / "begin")
    changes = {"max_steps": 6, "eval_every": 0, "model__width": 64, "curriculum__levels": [1]}
    config = config_of(tmp_path / "run", **changes, warm_start=str(tmp_path / "begin"))
    train(config, note=quiet)
    shutil.rmtree(tmp_path / "begin")
    assert train(config, resume=True, note=quiet).step == 6


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """What a training says that is to be refused before anything is made or traced."""

    def traced(*_, **__):
        raise AssertionError("neighbourhoods were traced first")

    monkeypatch.setattr(curriculum_run, "collect_neighbourhoods", traced)

    def told(error, **changes):
        config = config_of(tmp_path / "new", **changes)
        for refusing in (train, search_lr):
            with pytest.raises(error) as found:
                refusing(config, note=quiet)
        assert not (tmp_path / "new").exists()  # nor does a second try meet a half-begun run
        return str(found.value)

    return told


def test_a_warm_start_from_nothing_is_refused(refused, tmp_path):
    assert "holds no run" in refused(RunError, warm_start=str(tmp_path / "nowhere"))


def test_a_warm_start_from_another_size_or_backbone_is_refused(refused, taught, tmp_path):
    assert refused(ConfigError, model__width=32, warm_start=str(taught)) == (
        f"warm_start = {taught}: its network does not fit: model.width is 64 there, 32 here. "
        "Add --model.width 64, or leave warm_start out."
    )
    sizes = {"model__backbone": "graph", "model__width": 64, "model__blocks": 3, "model__slot_width": 8}
    assert refused(ConfigError, **sizes, warm_start=str(taught)) == (
        f"warm_start = {taught}: its network does not fit: model.backbone is features there, graph here, "
        "model.blocks is 2 there, 3 here, model.slot_width is 64 there, 8 here. "
        "Add --model.backbone features --model.blocks 2 --model.slot-width 64, or leave warm_start out."
    )


def test_a_warm_start_from_a_graph_network_tells_its_dimension_too(tmp_path):
    graph = {"model__backbone": "graph", "model__graph_dim": 16}
    small = {"curriculum__levels": [1], "max_steps": 6, "eval_every": 0}
    train(config_of(tmp_path / "graph", **small, **graph), note=quiet)
    begin = str(tmp_path / "graph")
    for here, told in (
        ({}, "model.backbone is graph there, features here, model.graph_dim is 16 there, 128 here. "),
        ({**graph, "model__graph_dim": 8}, "model.graph_dim is 16 there, 8 here. Add --model.graph-dim 16, or "),
    ):
        with pytest.raises(ConfigError) as found:
            train(config_of(tmp_path / "new", **small, **here, warm_start=begin), note=quiet)
        assert told in str(found.value)
    # A head of whole graphs begins anew; more or fewer slots, and levels, are fine.
    changes = {**small, **graph, "loss__objective": "ged", "model__num_slots": 40}
    assert train(config_of(tmp_path / "ged", **changes, warm_start=begin), note=quiet).step == 6


def test_a_warm_start_from_other_labels_is_refused(refused, taught, monkeypatch):
    known = labels_of(SIGNATURE)
    renamed = [*known[:3], ["strange", 2, None], *known[4:]]
    ours = "/".join(map(str, known[3]))
    for there, told in (
        (renamed, f"(label 3 is 'strange/2/None' there, '{ours}' here)"),
        (known[:-1], f"({len(known) - 1} labels there, {len(known)} here)"),
    ):
        run, config, checkpoint = opened_run(taught)
        checkpoint.state["description"]["labels"] = there
        monkeypatch.setattr(curriculum_run, "opened_run", lambda path, opened=(run, config, checkpoint): opened)
        assert refused(CheckpointError, model__width=64, warm_start=str(taught)) == (
            f"warm_start = {taught}: the checkpoint of step 240 was trained on another set of rewrite rules {told}: "
            "train a new run with this version."
        )


def test_own_runs_never_learn_from_a_neighbourhood_that_is_held_out(tmp_path, monkeypatch):
    drawn, met = [], []

    class Watched(BatchIterator):
        def next_batch(self):
            drawn.append(super().next_batch())
            return drawn[-1]

    class Recording(NeighbourhoodLoader):
        def learn_from(self, mistakes):
            met.extend(mistakes)
            return super().learn_from(mistakes)

    monkeypatch.setattr(dataset, "BatchIterator", Watched)
    monkeypatch.setattr(curriculum_run, "NeighbourhoodLoader", Recording)
    changes = {**LEVEL_1, "max_steps": 240, "eval_every": 60, "curriculum__own_runs": 8}
    train(config_of(tmp_path / "run", **changes, curriculum__held_out_windows=0.2), note=quiet)

    assert any(is_held_out(mistake.neighbourhood, 0.2) for mistake in met)  # it was tempted
    learned = mistakes_of(opened_run(tmp_path / "run")[2].state["data"])
    assert learned
    assert not any(is_held_out(mistake.neighbourhood, 0.2) for mistake in learned)
    # Those that were met for the first time stand behind the traced ones.
    traced = read_neighbourhoods(tmp_path / "run", SIGNATURE)[0].neighbourhoods
    items = set(np.concatenate(drawn).tolist())
    assert max(items) >= len(traced)
    assert not any(is_held_out(traced[item], 0.2) for item in items if item < len(traced))


@pytest.mark.parametrize(
    ("key", "value"),
    [("curriculum__own_runs", 5), ("early_stopping__when_right", True), ("early_stopping__patience", 1)],
)
def test_what_waits_for_an_evaluation_needs_one(tmp_path, key, value):
    with pytest.raises(ConfigError, match="eval_every = 0: allowed is at least 1 with"):
        config_of(tmp_path, eval_every=0, **{key: value})


@pytest.mark.parametrize("kind", [{"model__backbone": "graph", "model__graph_dim": 16}, {"loss__objective": "ged"}])
def test_another_backbone_and_another_objective_train_and_are_read_again(tmp_path, kind):
    sizes = {**kind, "curriculum__levels": [1, 2], "max_steps": 10}
    found = train(config_of(tmp_path / "run", **sizes, eval_every=5), note=quiet)
    losses = [row["loss"] for row in rows_without_clock(tmp_path / "run") if row["kind"] == "step"]
    assert losses[-1] < losses[0]
    again = evaluate(tmp_path / "run", expressions=3)
    assert again.levels[1].examples == found.levels[1].examples
    assert again.parameters == found.parameters
