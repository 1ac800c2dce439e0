"""Wrong loops: each with the one cause that the checker must name."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from dagnn.accumulation.check import check_loop

K = 4


def items_of_window(micro_batches, i):
    return sum(len(x) for x, _ in micro_batches[i - i % K : i - i % K + K])


def ends(micro_batches, i):
    return (i + 1) % K == 0 or i + 1 == len(micro_batches)


# ---- what losses are multiplied by ----


def scaled(scale, reduction="mean"):
    """A loop that is right but for ``scale(micro_batches of the window, this micro-batch)``."""

    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            window = micro_batches[i - i % K : i - i % K + K]
            (mse_loss(model(x), y, reduction=reduction) * scale([len(a) for a, _ in window], len(x))).backward()
            if (i + 1) % K == 0 or i + 1 == len(micro_batches):
                optimizer.step()
                optimizer.zero_grad()

    return train_step


@pytest.mark.parametrize(
    ("scale", "reduction", "cause"),
    [
        (lambda sizes, n: 1, "mean", "not scaled"),
        (lambda sizes, n: 1 / len(sizes) ** 2, "mean", "scaled twice"),
        (lambda sizes, n: n / sum(sizes) / len(sizes), "mean", "scaled twice"),
        (lambda sizes, n: 1 / len(sizes), "mean", "mean of means"),
        (lambda sizes, n: n**2 / sum(m**2 for m in sizes), "mean", "wrong denominator"),
        (
            lambda sizes, n: n / sum(sizes) if len(sizes) == K else n / sum(sizes) * len(sizes) / K,
            "mean",
            "short last window scaled by K",
        ),
        (lambda sizes, n: 0.3 * n / sum(sizes), "mean", "wrong scale"),
        # mse_loss sums over 2 outputs as well: half of it is the sum of the items' own means.
        (lambda sizes, n: 0.5, "sum", "sum loss"),
        (lambda sizes, n: 0.5 / len(sizes), "sum", "sum loss"),
    ],
)
def test_scaling(kinds, scale, reduction, cause):
    assert kinds(scaled(scale, reduction)) == [cause]


def test_divided_by_k_with_equal_micro_batches_is_right(kinds):
    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            window = micro_batches[i - i % K : i - i % K + K]
            (mse_loss(model(x), y) / len(window)).backward()
            if (i + 1) % K == 0 or i + 1 == len(micro_batches):
                optimizer.step()
                optimizer.zero_grad()

    assert kinds(train_step, ragged=False) == []
    assert kinds(train_step) == ["mean of means"]


# ---- when gradients are set to zero ----


def test_never_zeroed(kinds):
    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            (mse_loss(model(x), y) * len(x) / items_of_window(micro_batches, i)).backward()
            if ends(micro_batches, i):
                optimizer.step()

    assert kinds(train_step) == ["not zeroed"]


def test_zeroed_in_every_micro_batch(kinds):
    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            optimizer.zero_grad()
            (mse_loss(model(x), y) * len(x) / items_of_window(micro_batches, i)).backward()
            if ends(micro_batches, i):
                optimizer.step()

    assert kinds(train_step) == ["zeroed too often"]


def test_zeroed_before_the_step(kinds):
    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            (mse_loss(model(x), y) * len(x) / items_of_window(micro_batches, i)).backward()
            if ends(micro_batches, i):
                optimizer.zero_grad()
                optimizer.step()

    assert kinds(train_step) == ["zeroed too often"]


# ---- when the optimizer and the schedule step ----


def stepping(steps_at, after_loop=lambda optimizer: None, schedule=None):
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


def at_ends(i, n):
    return (i + 1) % K == 0 or i + 1 == n


@pytest.mark.parametrize(
    ("train_step", "cause"),
    [
        (stepping(lambda i, n: True), "early or extra step"),
        (stepping(lambda i, n: i % K == 0), "early or extra step"),
        (stepping(lambda i, n: (i + 1) % (K - 1) == 0 or i + 1 == n), "early or extra step"),
        (stepping(at_ends, after_loop=lambda optimizer: optimizer.step()), None),  # without a gradient: does nothing
        (stepping(lambda i, n: i + 1 == n), "missing step"),
        (stepping(lambda i, n: False), "missing step"),
        (stepping(lambda i, n: (i + 1) % K == 0), "lost remainder"),
        (stepping(at_ends, schedule=lambda i, n: True), "schedule per micro-batch"),
        (stepping(at_ends, schedule=at_ends), None),
    ],
)
def test_stepping(kinds, train_step, cause):
    assert kinds(train_step) == ([cause] if cause else [])


def test_remainder_left_out_on_purpose_is_right(kinds):
    assert kinds(stepping(lambda i, n: (i + 1) % K == 0), tail=False) == []


# ---- clipping, precision, parameters left out ----


def test_clipped_after_every_backward(kinds):
    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            (mse_loss(model(x), y) * len(x) / items_of_window(micro_batches, i)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if ends(micro_batches, i):
                optimizer.step()
                optimizer.zero_grad()

    assert kinds(train_step) == ["clip per micro-batch"]


def test_clipped_by_value_after_every_backward(kinds):
    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            (mse_loss(model(x), y) * len(x) / items_of_window(micro_batches, i)).backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.1)
            if ends(micro_batches, i):
                optimizer.step()
                optimizer.zero_grad()

    assert kinds(train_step) == ["clip per micro-batch"]


def test_summed_in_bfloat16(kinds):
    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            (mse_loss(model(x), y) * len(x) / items_of_window(micro_batches, i)).backward()
            for p in model.parameters():
                p.grad = p.grad.bfloat16().to(p.dtype)
            if ends(micro_batches, i):
                optimizer.step()
                optimizer.zero_grad()

    assert kinds(train_step) == ["low precision"]


def test_a_forward_pass_in_autocast_is_no_mistake_but_is_noted(subject):
    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            with torch.autocast("cpu", torch.bfloat16):
                output = model(x)
            (mse_loss(output.float(), y) * len(x) / items_of_window(micro_batches, i)).backward()
            if ends(micro_batches, i):
                optimizer.step()
                optimizer.zero_grad()

    report = check_loop(train_step, *subject, loss_fn=lambda m, b: mse_loss(m(b[0]), b[1]), micro_batches=K)
    assert report.equal
    assert "its passes run in 16 bits, as in autocast" in str(report)


def test_the_length_of_the_tail_divides_all_windows(kinds):
    def train_step(model, optimizer, micro_batches):
        divisor = len(micro_batches) % K or K
        for i, (x, y) in enumerate(micro_batches):
            (mse_loss(model(x), y) / divisor).backward()
            if ends(micro_batches, i):
                optimizer.step()
                optimizer.zero_grad()

    assert kinds(train_step, ragged=False) == ["wrong scale"]


def test_the_root_of_a_mean_couples_the_items(kinds):
    def loss(model, batch):
        return mse_loss(model(batch[0]), batch[1]).sqrt()

    def train_step(model, optimizer, micro_batches):
        for i, inputs in enumerate(micro_batches):
            (loss(model, inputs) * len(inputs[0]) / items_of_window(micro_batches, i)).backward()
            if ends(micro_batches, i):
                optimizer.step()
                optimizer.zero_grad()

    assert kinds(train_step, loss_fn=loss) == ["batch-coupled loss"]


def test_gradients_of_torch_func_that_are_never_divided(kinds):
    def train_step(model, optimizer, micro_batches):
        def loss(parameters, x, y):
            return mse_loss(torch.func.functional_call(model, parameters, (x,)), y)

        for i, (x, y) in enumerate(micro_batches):
            values = {name: p.detach() for name, p in model.named_parameters()}
            gradients = torch.func.grad(loss)(values, x, y)
            for name, p in model.named_parameters():
                p.grad = gradients[name] if p.grad is None else p.grad + gradients[name]
            if ends(micro_batches, i):
                optimizer.step()
                optimizer.zero_grad()

    assert kinds(train_step) == ["not scaled"]


def test_part_of_the_model_detached(kinds):
    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            with torch.no_grad():
                hidden = model[1](model[0](x))
            (mse_loss(model[2](hidden), y) * len(x) / items_of_window(micro_batches, i)).backward()
            if ends(micro_batches, i):
                optimizer.step()
                optimizer.zero_grad()

    assert kinds(train_step) == ["unused parameter"]
