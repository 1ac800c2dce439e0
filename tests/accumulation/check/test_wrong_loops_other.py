"""Wrong loops: clipping, precision, parameters left out."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

K = 4


def items_of_window(micro_batches, i):
    return sum(len(x) for x, _ in micro_batches[i - i % K : i - i % K + K])


def ends(micro_batches, i):
    return (i + 1) % K == 0 or i + 1 == len(micro_batches)


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


def test_forward_in_bfloat16_autocast(kinds):
    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            with torch.autocast("cpu", torch.bfloat16):
                output = model(x.float())  # cannot run in float64: the check falls back to float32
            (mse_loss(output.float(), y.float()) * len(x) / items_of_window(micro_batches, i)).backward()
            if ends(micro_batches, i):
                optimizer.step()
                optimizer.zero_grad()

    assert kinds(train_step) == ["low precision"]


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
