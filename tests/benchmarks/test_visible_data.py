"""The table of real data: intervals by hand, and a row for every model."""

import numpy as np
import pytest

from benchmarks.visible_data import Scores, interval, scored, table


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
