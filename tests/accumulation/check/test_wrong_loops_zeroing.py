"""Wrong loops: when gradients are set to zero."""

from torch.nn.functional import mse_loss

K = 4


def total(micro_batches, i):
    window = micro_batches[i - i % K : i - i % K + K]
    return sum(len(x) for x, _ in window)


def ends(micro_batches, i):
    return (i + 1) % K == 0 or i + 1 == len(micro_batches)


def test_never_zeroed(kinds):
    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            (mse_loss(model(x), y) * len(x) / total(micro_batches, i)).backward()
            if ends(micro_batches, i):
                optimizer.step()

    assert kinds(train_step) == ["not zeroed"]


def test_zeroed_in_every_micro_batch(kinds):
    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            optimizer.zero_grad()
            (mse_loss(model(x), y) * len(x) / total(micro_batches, i)).backward()
            if ends(micro_batches, i):
                optimizer.step()

    assert kinds(train_step) == ["zeroed too often"]


def test_zeroed_before_the_step(kinds):
    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            (mse_loss(model(x), y) * len(x) / total(micro_batches, i)).backward()
            if ends(micro_batches, i):
                optimizer.zero_grad()
                optimizer.step()

    assert kinds(train_step) == ["zeroed too often"]
