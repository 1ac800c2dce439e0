"""The checker's verdict does not depend on K, on the model or on the data."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from dagnn.accumulation.check import check_loop

LOOPS = {
    # name: (factor of a loss by (sizes in the window, own size, K), zero after the step, cause)
    "right": (lambda sizes, n, k: n / sum(sizes), True, []),
    "not scaled": (lambda sizes, n, k: 1.0, True, ["not scaled"]),
    "mean of means": (lambda sizes, n, k: 1 / len(sizes), True, ["mean of means"]),
    "scaled twice": (lambda sizes, n, k: n / sum(sizes) / len(sizes), True, ["scaled twice"]),
    "not zeroed": (lambda sizes, n, k: n / sum(sizes), False, ["not zeroed"]),
    "short window": (
        lambda sizes, n, k: n / sum(sizes) * len(sizes) / k,
        True,
        ["short last window scaled by K"],
    ),
}


def loop(name, k, loss):
    factor, zero, _ = LOOPS[name]

    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            window = micro_batches[i - i % k : i - i % k + k]
            (loss(model(x), y) * factor([len(a) for a, _ in window], len(x), k)).backward()
            if (i + 1) % k == 0 or i + 1 == len(micro_batches):
                optimizer.step()
                if zero:
                    optimizer.zero_grad()

    return train_step


@given(
    name=st.sampled_from(list(LOOPS)),
    k=st.integers(2, 7),
    seed=st.integers(0, 10_000),
    classify=st.booleans(),
    hidden=st.integers(6, 12),
)
def test_verdict(name, k, seed, classify, hidden):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, hidden), nn.Tanh(), nn.Linear(hidden, 3))
    items = 6 * k + 1
    targets = torch.randint(0, 3, (items,)) if classify else torch.randn(items, 3)
    loss = cross_entropy if classify else mse_loss
    report = check_loop(
        loop(name, k, loss),
        model,
        (torch.randn(items, 7), targets),
        loss_fn=lambda m, b: loss(m(b[0]), b[1]),
        micro_batches=k,
    )
    assert [str(cause.kind) for cause in report.causes] == LOOPS[name][2], str(report)
    assert report.equal == (name == "right")
