"""What a run of a loop leaves behind is put back before the next: of the model, and of the loop itself."""

from collections import Counter, defaultdict
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from dagnn.accumulation.check import Kind, check_equivalence, check_loop
from dagnn.accumulation.check.start import KeptNumbers, ModelStart
from dagnn.errors import ConfigError


def model_with_teacher():
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(), nn.Linear(2, 2))
    model[2].requires_grad_(False)
    return model


def test_a_model_is_as_it_was():
    model, before = model_with_teacher(), {}
    before.update({name: p.detach().clone() for name, p in model.named_parameters()})
    model.scale = 2.0
    model[0].register_forward_hook(lambda module, inputs, output: output)
    start = ModelStart(model)

    model.eval()
    model.requires_grad_(True)
    model[2].weight.data.add_(1)
    model.scale, model.made = 3.0, object()
    model[0].register_forward_hook(lambda module, inputs, output: output * 2)
    model[0].weight.register_hook(lambda gradient: gradient * 3)
    model[0].weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(5))
    start.restore()

    assert all(module.training for module in model.modules())
    assert [p.requires_grad for p in model.parameters()] == [True, True, False, False]
    assert torch.equal(model[2].weight, before["2.weight"])
    assert model.scale == 2.0 and not hasattr(model, "made")
    assert len(model[0]._forward_hooks) == 1
    model[0].weight.sum().backward()
    assert torch.equal(model[0].weight.grad, torch.ones(2, 3))


def counting():
    count = 0

    def step():
        nonlocal count
        count += 1
        return count

    return step


class Trainer:
    def __init__(self):
        self.steps, self.seen, self.net = 0, [1], nn.Linear(1, 1)

    def step(self):
        self.steps += 1
        self.seen.append(self.steps)
        self.lazy = "made"
        return self.steps, len(self.seen)


def counting_in(container, key):
    def step():
        container[key] += 1
        return int(container[key])

    return step


def counting_in_numpy():
    count = np.int64(0)

    def step():
        nonlocal count
        count = count + 1
        return int(count)

    return step


def counting_inside():
    state = {"of": {"steps": [0]}}

    def step():
        state["of"]["steps"][0] += 1
        return state["of"]["steps"][0]

    return step


GLOBAL = [0]


def by_global():
    GLOBAL[0] += 1
    return GLOBAL[0]


@pytest.mark.parametrize(
    "loop",
    [
        counting(),
        Trainer().step,
        partial(Trainer().step),
        by_global,
        lambda: by_global(),
        (lambda trainer: lambda: trainer.step())(Trainer()),
        counting_in(Counter({"steps": 2}), "steps"),
        counting_in(defaultdict(int), "steps"),
        counting_in_numpy(),
        counting_inside(),
    ],
    ids=[
        "closure",
        "method",
        "partial",
        "global",
        "function in a function",
        "object in a closure",
        "Counter",
        "defaultdict",
        "NumPy",
        "nested",
    ],
)
def test_numbers_that_a_loop_keeps_are_as_they_were(loop):
    kept = KeptNumbers()
    kept.look_in(loop)

    first = loop()
    loop()
    kept.restore()

    assert loop() == first


def test_a_trainer_is_as_it_was_after_a_check():
    trainer = Trainer()

    def train_step(model, optimizer, micro_batches):
        trainer.step()
        for i, x in enumerate(micro_batches):
            (model(x).square().mean() * len(x) / sum(map(len, micro_batches[i - i % 4 : i - i % 4 + 4]))).backward()
            if (i + 1) % 4 == 0 or i + 1 == len(micro_batches):
                optimizer.step()
                optimizer.zero_grad()

    report = check_loop(train_step, nn.Linear(20, 1), torch.randn(32, 20), loss_fn=lambda m, b: m(b).square().mean())

    assert report.equal
    assert (trainer.steps, trainer.seen, hasattr(trainer, "lazy")) == (0, [1], False)


def test_tensors_beside_the_model_are_named_as_not_compared():
    size = torch.zeros(3, requires_grad=True)

    def train_step(model, optimizer, micro_batches):
        own = torch.optim.SGD([*model.parameters(), size], lr=0.1)
        for i, x in enumerate(micro_batches):
            loss = model(x).square().mean() * len(x) / sum(map(len, micro_batches[i - i % 4 : i - i % 4 + 4]))
            (loss + size.sum()).backward()
            if (i + 1) % 4 == 0 or i + 1 == len(micro_batches):
                own.step()
                own.zero_grad()

    report = check_loop(train_step, nn.Linear(20, 1), torch.randn(32, 20), loss_fn=lambda m, b: m(b).square().mean())

    assert report.equal
    assert "not compared: what the optimizers hold beside the model's parameters (1 in all)" in str(report)


def test_a_loss_that_draws_is_said_to_hide_mistakes():
    model = nn.Sequential(nn.Linear(20, 4), nn.Dropout(0.5), nn.Linear(4, 1))

    def train_step(model, optimizer, micro_batches):
        for i, x in enumerate(micro_batches):
            model(x).square().mean().backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

    report = check_loop(train_step, model, torch.randn(32, 20), loss_fn=lambda m, b: m(b).square().mean())

    assert [cause.kind for cause in report.causes] == [Kind.NOT_SCALED]
    assert "nor is a mistake seen that shows only where they differ" in str(report)


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_cannot_be_copied_is_refused_with_a_remedy():
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(20, 1)))
    model(torch.randn(1, 20))

    with pytest.raises(ConfigError, match=r"use torch\.nn\.utils\.parametrizations for weight_norm"):
        check_loop(lambda m, o, b: None, model, torch.randn(32, 20), loss_fn=lambda m, b: m(b).mean())


def test_what_a_loss_keeps_is_no_dropout():
    baseline = [0.0]

    def loss_fn(model, batch):
        loss = (model(batch) * (batch.mean() - baseline[0])).mean()
        baseline[0] = 0.9 * baseline[0] + 0.1 * float(batch.mean()) + 0.1
        return loss

    report = check_equivalence(nn.Linear(3, 1), loss_fn, torch.randn(12, 3))

    assert Kind.BUFFER in [cause.kind for cause in report.causes]
    assert Kind.DROPOUT not in [cause.kind for cause in report.causes]
    assert baseline == [0.0]


def test_a_loop_that_does_not_run_when_it_is_called_is_refused():
    async def later(model, optimizer, micro_batches):
        pass

    with pytest.raises(ConfigError, match="train_step must run when it is called"):
        check_loop(later, nn.Linear(20, 1), torch.randn(32, 20), loss_fn=lambda m, b: m(b).mean())


def test_a_loss_that_takes_no_other_parameters_does_not_end_the_check():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.scale = nn.Linear(20, 1), nn.Parameter(torch.full((3,), 1e-3))

        def forward(self, x):
            return -torch.distributions.Normal(self.mean(x), self.scale, validate_args=True).log_prob(x[:, :3]).mean()

    def train_step(model, optimizer, micro_batches):
        for i, x in enumerate(micro_batches):
            (model(x) * len(x) / sum(map(len, micro_batches[i - i % 4 : i - i % 4 + 4]))).backward()
            if (i + 1) % 4 == 0 or i + 1 == len(micro_batches):
                optimizer.step()
                optimizer.zero_grad()

    torch.manual_seed(0)
    assert check_loop(train_step, Scaled(), torch.randn(32, 20), loss_fn=lambda m, b: m(b)).equal


def test_a_large_list_that_a_loop_holds_is_not_copied():
    kept, rows = KeptNumbers(), list(range(20_000))
    kept.look_in(lambda: rows)

    rows.append(1)
    kept.restore()

    assert len(rows) == 20_001
