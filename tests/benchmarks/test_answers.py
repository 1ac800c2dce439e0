"""The table of operations from answers: what a row must reach, and that a Transformer stands beside it."""

import pytest

from benchmarks.answers import Row, measured
from dagnn.answers import ARITHMETIC


def test_a_row_that_is_slow_wrong_or_without_certificate_is_missed():
    good = Row("+", 0, 100, 1.0, 2.0, True, {10: 1.0}, {})
    assert good.ok
    assert not good._replace(certified=False).ok
    assert not good._replace(seconds=601.0).ok
    assert not good._replace(right={10: 0.999}).ok


# Operations learned and certified from so few answers: tests/answers. What the table makes of them is above.
@pytest.mark.slow
def test_a_short_form_learns_and_a_transformer_of_no_time_does_not():
    known = {}
    row = measured("-", 0, known, answers=6000, lengths=(10, 50), count=20, least=0.0)
    assert row.right == {10: 1.0, 50: 1.0}
    assert row.certified
    assert known["-"][0].operation is ARITHMETIC["-"].operation
    assert set(row.transformer) == {4, 10, 30}
    assert row.transformer[30] == 0
