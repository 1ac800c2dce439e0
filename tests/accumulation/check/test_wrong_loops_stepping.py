"""Wrong loops: when the optimizer and the schedule step."""

import pytest
from torch.nn.functional import mse_loss

K = 4


def loop(steps_at, after_loop=lambda optimizer: None, schedule=None):
    """A loop that is right but for when it steps: ``steps_at(i, number of micro-batches)``."""

    def plain(model, optimizer, micro_batches):
        run(model, optimizer, micro_batches, None)

    def with_scheduler(model, optimizer, micro_batches, scheduler):
        run(model, optimizer, micro_batches, scheduler)

    def run(model, optimizer, micro_batches, scheduler):
        for i, (x, y) in enumerate(micro_batches):
            items = sum(len(a) for a, _ in micro_batches[i - i % K : i - i % K + K])
            (mse_loss(model(x), y) * len(x) / items).backward()
            if steps_at(i, len(micro_batches)):
                optimizer.step()
                optimizer.zero_grad()
            if schedule is not None and schedule(i, len(micro_batches)):
                scheduler.step()
        after_loop(optimizer)

    return with_scheduler if schedule else plain


def right(i, n):
    return (i + 1) % K == 0 or i + 1 == n


@pytest.mark.parametrize(
    ("train_step", "cause"),
    [
        (loop(lambda i, n: True), "early or extra step"),
        (loop(lambda i, n: i % K == 0), "early or extra step"),
        (loop(lambda i, n: (i + 1) % (K - 1) == 0 or i + 1 == n), "early or extra step"),
        (loop(right, after_loop=lambda optimizer: optimizer.step()), "early or extra step"),
        (loop(lambda i, n: i + 1 == n), "missing step"),
        (loop(lambda i, n: False), "missing step"),
        (loop(lambda i, n: (i + 1) % K == 0), "lost remainder"),
        (loop(right, schedule=lambda i, n: True), "schedule per micro-batch"),
        (loop(right, schedule=right), None),
    ],
)
def test_stepping(kinds, train_step, cause):
    assert kinds(train_step) == ([cause] if cause else [])


def test_remainder_left_out_on_purpose_is_right(kinds):
    assert kinds(loop(lambda i, n: (i + 1) % K == 0), tail=False) == []
