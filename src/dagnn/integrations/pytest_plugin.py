"""pytest: fixtures that fail a test whose gradient is not that of the full batch. Nothing is imported unless used."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dagnn.accumulation import Report


@pytest.fixture(scope="session")
def assert_equal_gradients() -> "Callable[..., Report]":
    """``assert_equal_gradients(model, loss_fn, batch, **options)`` fails unless micro-batches give the full gradient.

    Takes what ``dagnn.check_equivalence`` takes (``splits``, ``weight``) and returns its report; the failure's text is
    the report too.
    """
    from dagnn.accumulation import check_equivalence

    def check(model: Any, loss_fn: Any, batch: Any, **options: Any) -> "Report":
        __tracebackhide__ = True
        return _equal(check_equivalence(model, loss_fn, batch, **options))

    return check


@pytest.fixture(scope="session")
def assert_loop() -> "Callable[..., Report]":
    """``assert_loop(train_step, model, batch, loss_fn=..., **options)`` fails unless the loop steps with that gradient.

    Takes what ``dagnn.check_loop`` takes (``micro_batches``, ``each_call``, ``ragged``, ``tail``) and returns its
    report; the failure's text is the report too.
    """
    from dagnn.accumulation import check_loop

    def check(train_step: Any, model: Any, batch: Any, **options: Any) -> "Report":
        __tracebackhide__ = True
        return _equal(check_loop(train_step, model, batch, **options))

    return check


def _equal(report: "Report") -> "Report":
    __tracebackhide__ = True
    if not report.equal:
        pytest.fail(str(report), pytrace=False)
    return report
