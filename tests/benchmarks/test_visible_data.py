"""The table of real data: intervals by hand, and a row for every model."""

import json

import numpy as np
import pytest

from benchmarks.visible_data import Scores, interval, join, scored, table


def test_the_interval_widens_for_folds_that_share_their_training_data():
    mean, half = interval([0.5, 0.6, 0.7, 0.8, 0.9], folds=5)
    # Variance .025 times (1/5 + 1/4); t with 4 degrees of freedom is 2.776.
    assert (mean, half) == (pytest.approx(0.7), pytest.approx(2.776 * (0.025 * 0.45) ** 0.5, rel=1e-3))
    assert interval([0.5] * 15) == (0.5, 0.0)


def test_every_sample_is_tested_once_a_seed():
    pytest.importorskip("sklearn")
    seen = []

    class Model:
        def fit(self, x, y):
            self.rows = set(x[:, 0].tolist())
            return self

    def judge(model, x, y):
        assert model.rows.isdisjoint(x[:, 0].tolist()) and (x[:, 0] == y).all()
        seen.extend(y.tolist())
        return 0.25

    y = np.arange(20)
    row = scored("data", "model", "score", lambda seed: Model(), y[:, None], y, y % 2, (0, 1), judge)
    assert sorted(seen) == sorted([*range(20)] * 2) and row.values == [0.25] * 10


def test_the_table_has_a_row_for_each_model():
    lines = table(
        [Scores("cells", "a", "accuracy", [0.5, 0.7], 1.5), Scores("cells", "b", "accuracy", [1.0, 1.0], 0.25)]
    )
    assert lines.splitlines()[2].startswith("| cells | a | accuracy | 0.600 | ")
    assert lines.splitlines()[3] == "| cells | b | accuracy | 1.000 | 1.000 .. 1.000 | 0.25 |"


def test_rows_join_those_of_earlier_runs(tmp_path):
    path = tmp_path / "rows.json"
    join(path, [Scores("cells", "a", "accuracy", [0.5, 0.7], 1.0), Scores("survival", "c", "C-index", [0.6, 0.6], 1.0)])
    join(path, [Scores("cells", "b", "accuracy", [1.0, 1.0], 1.0), Scores("cells", "a", "accuracy", [0.9, 0.9], 1.0)])

    rows = json.loads(path.read_text())["rows"]
    assert [row[:4] for row in rows] == [
        ["cells", "a", "accuracy", "0.900"], ["cells", "b", "accuracy", "1.000"], ["survival", "c", "C-index", "0.600"]
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("package", ["kpnn2", "binn"])
def test_peers_learn_on_our_graphs_and_take_columns_by_name(package):
    try:
        __import__(package)
    except ImportError:
        pytest.skip(f"needs {package}")
    pandas = pytest.importorskip("pandas")
    from benchmarks.visible_data_peers import Binn, Kpnn2, PeerClassifier
    from dagnn import Dag

    dag = Dag([("a", "p"), ("b", "p"), ("c", "q"), ("p", "r"), ("q", "r"), ("b", "s")])
    x = np.random.default_rng(0).normal(size=(200, 3))
    frame, y = pandas.DataFrame(x, columns=["c", "a", "b"]), np.where(x[:, 1] + x[:, 2] > 0, "ill", "well")
    model = PeerClassifier({"kpnn2": Kpnn2, "binn": Binn}[package](dag)).fit(frame[:150], y[:150])

    assert sorted(frame.columns[model._columns]) == ["a", "b", "c"]
    assert (model.predict(frame[150:]) == y[150:]).mean() > 0.85
