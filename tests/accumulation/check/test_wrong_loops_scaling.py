"""Wrong loops: what losses are multiplied by."""

import pytest
from torch.nn.functional import mse_loss

K = 4


def loop(scale, reduction="mean"):
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
    assert kinds(loop(scale, reduction)) == [cause]


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
