"""Right loops, written in many ways: no false alarm."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from dagnn.accumulation import GradientAccumulator, accumulate, check_equivalence
from dagnn.accumulation.check import Kind

K = 4


def windows_of(micro_batches):
    return [micro_batches[i : i + K] for i in range(0, len(micro_batches), K)]


def test_by_hand_with_shares(kinds):
    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches):
            optimizer.zero_grad()
            for x, y in window:
                (mse_loss(model(x), y) * len(x) / sum(len(a) for a, _ in window)).backward()
            optimizer.step()

    assert kinds(train_step) == []


def test_sum_loss_divided_before_the_step(kinds):
    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches):
            optimizer.zero_grad()
            for x, y in window:
                mse_loss(model(x), y, reduction="sum").backward()
            for p in model.parameters():
                p.grad /= sum(y.numel() for _, y in window)
            optimizer.step()

    assert kinds(train_step) == []


def test_full_batch_in_one_piece(kinds):
    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches):
            optimizer.zero_grad()
            mse_loss(model(torch.cat([x for x, _ in window])), torch.cat([y for _, y in window])).backward()
            optimizer.step()

    assert kinds(train_step) == []


def test_clipping_by_norm_and_by_value_before_the_step(kinds):
    for clip in (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_):

        def train_step(model, optimizer, micro_batches, clip=clip):
            for window in windows_of(micro_batches):
                for x, y in window:
                    (mse_loss(model(x), y) * len(x) / sum(len(a) for a, _ in window)).backward()
                clip(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()

        assert kinds(train_step) == []


def test_schedule_once_per_step(kinds):
    def train_step(model, optimizer, micro_batches, scheduler):
        for window in windows_of(micro_batches):
            for x, y in window:
                (mse_loss(model(x), y) * len(x) / sum(len(a) for a, _ in window)).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()

    assert kinds(train_step) == []


def test_loss_scaler(kinds):
    def train_step(model, optimizer, micro_batches):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for window in windows_of(micro_batches):
            for x, y in window:
                scaler.scale(mse_loss(model(x), y) * len(x) / sum(len(a) for a, _ in window)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    assert kinds(train_step) == []


def test_windows_of_this_library(kinds):
    def train_step(model, optimizer, micro_batches, scheduler):
        accumulator = GradientAccumulator(model, optimizer, scheduler=scheduler, max_norm=1.0)
        for window in accumulator.windows(micro_batches, micro_batches=K):
            for x, y in window:
                window.backward(mse_loss(model(x), y))
            window.step()

    assert kinds(train_step) == []


def test_manual_form_of_this_library(kinds):
    def train_step(model, optimizer, micro_batches):
        accumulator = GradientAccumulator(model, optimizer)
        for i, (x, y) in enumerate(micro_batches):
            accumulator.backward(mse_loss(model(x), y), weight=len(x))
            if (i + 1) % K == 0:
                accumulator.step()
        accumulator.flush()

    assert kinds(train_step) == []


def test_one_call_of_this_library(kinds):
    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches):
            batch = tuple(torch.cat(parts) for parts in zip(*window, strict=True))
            accumulate(model, lambda m, b: mse_loss(m(b[0]), b[1]), batch, micro_batch_size=3)
            optimizer.step()
            optimizer.zero_grad()

    assert kinds(train_step) == []


def test_one_call_per_window(kinds):
    def train_step(model, optimizer, micro_batches):
        for x, y in micro_batches:
            (mse_loss(model(x), y) * len(x) / sum(len(a) for a, _ in micro_batches)).backward()
        optimizer.step()
        optimizer.zero_grad()

    assert kinds(train_step, each_call="window") == []


def test_a_loop_that_calls_train_and_evaluates_in_between(kinds):
    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches):
            for x, y in window:
                model.train()
                (mse_loss(model(x), y) * len(x) / sum(len(a) for a, _ in window)).backward()
                model.eval()
                with torch.no_grad():
                    model(x)
            optimizer.step()
            optimizer.zero_grad()

    assert kinds(train_step) == []


def test_token_weighted_loss(subject, kinds):
    model, (inputs, _) = subject
    targets = torch.randint(0, 2, (32,), generator=torch.Generator().manual_seed(0))
    targets[[0, 5, 6, 11, 14, 20, 27]] = -100

    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches):
            tokens = sum(int((y >= 0).sum()) for _, y in window)
            for x, y in window:
                (cross_entropy(model(x), y, reduction="sum") / tokens).backward()
            optimizer.step()
            optimizer.zero_grad()

    from dagnn.accumulation.check import check_loop

    def loss_fn(model, batch):
        return cross_entropy(model(batch[0]), batch[1])

    report = check_loop(train_step, model, (inputs, targets), loss_fn=loss_fn, micro_batches=K)
    assert report.equal, str(report)


def test_the_generator_of_a_loss_is_left_as_it_was():
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()

    def noisy(model, batch):
        return mse_loss(model(batch[0] + torch.randn(batch[0].shape, generator=generator)), batch[1])

    model, data = torch.nn.Linear(5, 1), (torch.randn(16, 5), torch.randn(16, 1))
    assert check_equivalence(model, noisy, data).causes[0].kind is Kind.DROPOUT
    assert torch.equal(generator.get_state(), before)
