"""Every loop of the corpus gets its verdict and its cause. ``scripts/check_corpus.py`` prints them as a table."""

import pytest
from accumulation.check.corpus import CASES

from dagnn.accumulation.check import check_loop

# A fifth of them by default, all in `make test-all`: together they take minutes.
EVERY = 5


@pytest.mark.fault("checker", 2, 3)
@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=str(c), marks=[pytest.mark.slow] if i % EVERY else []) for i, c in enumerate(CASES)],
)
def test_verdict_and_cause(case):
    report = check_loop(**case.arguments())
    assert [str(cause.kind) for cause in report.causes] == ([case.cause] if case.cause else []), str(report)
    assert report.equal == (case.cause is None), str(report)


def test_the_corpus_is_large_and_holds_every_loop_right_and_wrong():
    names = {case.name for case in CASES}
    assert len(names) >= 60
    for wrong in (False, True):
        assert {case.name for case in CASES if bool(case.mistake) == wrong} == names
