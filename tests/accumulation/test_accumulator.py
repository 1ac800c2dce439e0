"""GradientAccumulator: windows, the manual form, misuse, state."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import mse_loss

from dagnn.accumulation import GradientAccumulator
from dagnn.errors import AccumulationError, ConfigError


def small_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def batches(sizes, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(n, 3, dtype=torch.float64, generator=generator),
            torch.randn(n, 2, dtype=torch.float64, generator=generator),
        )
        for n in sizes
    ]


def joined(window_batches):
    return torch.cat([x for x, _ in window_batches]), torch.cat([y for _, y in window_batches])


@torch.no_grad()
def relative_error(actual, expected):
    scale = max(float(p.abs().max()) for p in expected) or 1.0
    return max(float((a - e).abs().max()) for a, e in zip(actual, expected, strict=True)) / scale


def full_batch_gradients(model, inputs, targets):
    model.zero_grad()
    loss = mse_loss(model(inputs), targets)
    loss.backward()
    return loss.item(), [p.grad.clone() for p in model.parameters()]


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=9), k=st.integers(1, 5))
def test_ragged_and_tail_windows_equal_the_full_batch(sizes, k):
    model = small_model()
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = batches(sizes)
    for index, window in enumerate(accumulator.windows(loader, micro_batches=k)):
        for inputs, targets in window:
            window.backward(mse_loss(model(inputs), targets))
        gradients = [p.grad.clone() for p in model.parameters()]
        own = loader[index * k : (index + 1) * k]
        expected_loss, expected = full_batch_gradients(copy.deepcopy(model), *joined(own))
        update = window.step()
        assert relative_error(gradients, expected) <= 1e-12
        assert update.loss == pytest.approx(expected_loss, rel=1e-12)
        assert update.grad_norm == pytest.approx(float(sum((g**2).sum() for g in expected)) ** 0.5, rel=1e-12)
        assert update.weight == sum(len(x) for x, _ in own)
        assert update.micro_batches == len(own)
    assert accumulator.updates == -(-len(sizes) // k)


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5), size=st.integers(1, 4))
def test_cutting_each_batch_by_items_equals_the_full_batch(sizes, size):
    model = small_model()
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = batches(sizes)
    for batch, window in zip(loader, accumulator.windows(loader, micro_batch_size=size), strict=True):
        assert len(window) == -(-len(batch[0]) // size)
        for inputs, targets in window:
            window.backward(mse_loss(model(inputs), targets))
        gradients = [p.grad.clone() for p in model.parameters()]
        _, expected = full_batch_gradients(copy.deepcopy(model), *batch)
        window.step()
        assert relative_error(gradients, expected) <= 1e-12


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    known=st.booleans(),
)
def test_every_reduction_and_either_time_of_weighing_gives_the_same_mean(sizes, reduction, known):
    model = small_model()
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = batches(sizes)
    window = next(accumulator.windows(loader, micro_batches=len(sizes)))
    for inputs, targets in window:
        per_item = (model(inputs) - targets).square().mean(dim=1)
        loss = {"mean": per_item.mean, "sum": per_item.sum, "none": lambda: per_item}[reduction]()  # noqa: B023
        window.backward(loss, None if known else len(inputs), reduction)
    gradients = [p.grad.clone() for p in model.parameters()]
    expected_loss, expected = full_batch_gradients(copy.deepcopy(model), *joined(loader))
    update = window.step()
    assert relative_error(gradients, expected) <= 1e-12
    assert update.loss == pytest.approx(expected_loss, rel=1e-12)
    assert update.weight == sum(sizes)


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_training_equals_a_full_batch_loop_with_clipping_and_schedule(optimizer_class):
    loader = batches([4, 4, 1, 3, 5, 2, 2])
    ours, theirs = small_model(), small_model()
    own, other = (optimizer_class(m.parameters(), lr=0.05) for m in (ours, theirs))
    schedules = [torch.optim.lr_scheduler.StepLR(o, 1, 0.7) for o in (own, other)]
    accumulator = GradientAccumulator(ours, own, max_norm=0.5, scheduler=schedules[0])
    for index, window in enumerate(accumulator.windows(loader, micro_batches=3)):
        for inputs, targets in window:
            window.backward(mse_loss(ours(inputs), targets))
        update = window.step()
        other.zero_grad()
        inputs, targets = joined(loader[3 * index : 3 * index + 3])
        mse_loss(theirs(inputs), targets).backward()
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        assert update.lr == other.param_groups[0]["lr"]
        other.step()
        schedules[1].step()
        assert update.grad_norm == pytest.approx(float(norm), rel=1e-12)
        assert relative_error(list(ours.parameters()), list(theirs.parameters())) <= 1e-12


def test_gradients_are_none_after_a_step_and_exact_before_it():
    model = small_model()
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    window = next(accumulator.windows(batches([2, 3]), micro_batches=2))
    for inputs, targets in window:
        window.backward(mse_loss(model(inputs), targets))
    assert all(p.grad is not None for p in model.parameters())
    window.step()
    assert all(p.grad is None for p in model.parameters())


def test_zero_grad_and_foreign_backward_inside_a_window_disturb_nothing():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = batches([2, 3])
    window = next(GradientAccumulator(model, optimizer).windows(loader, micro_batches=2))
    for inputs, targets in window:
        window.backward(mse_loss(model(inputs), targets))
        model.eval()
        mse_loss(model(inputs), targets).backward()  # say, input attributions in an evaluation loop
        optimizer.zero_grad()
        optimizer.step()
        model.train()
    gradients = [p.grad.clone() for p in model.parameters()]
    _, expected = full_batch_gradients(copy.deepcopy(model), *joined(loader))
    assert relative_error(gradients, expected) <= 1e-12


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6))
def test_manual_form_equals_the_full_batch(sizes):
    model = small_model()
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = batches(sizes)
    expected_loss, _ = full_batch_gradients(copy.deepcopy(model), *joined(loader))
    reference = copy.deepcopy(model)
    _, expected = full_batch_gradients(reference, *joined(loader))
    for inputs, targets in loader:
        accumulator.backward(mse_loss(model(inputs), targets), weight=len(inputs))
    update = accumulator.step()
    moved = [(r - p).detach() / 0.1 for r, p in zip(reference.parameters(), model.parameters(), strict=True)]
    assert relative_error(moved, expected) <= 1e-12
    assert update.loss == pytest.approx(expected_loss, rel=1e-12)
    assert (update.step, update.weight, update.micro_batches) == (1, sum(sizes), len(sizes))


def test_flush_steps_only_when_something_was_summed():
    model = small_model()
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert accumulator.flush() is None
    inputs, targets = batches([2])[0]
    accumulator.backward(mse_loss(model(inputs), targets), weight=2)
    assert accumulator.flush().step == 1
    assert accumulator.flush() is None


class TestMisuse:
    @pytest.fixture
    def model(self):
        return small_model()

    @pytest.fixture
    def accumulator(self, model):
        return GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def loss(self, model, batch):
        return mse_loss(model(batch[0]), batch[1])

    def test_window_left_unstepped(self, model, accumulator):
        with pytest.raises(AccumulationError, match=r"left without window.step\(\)"):
            for window in accumulator.windows(batches([2, 2]), micro_batches=1):
                for batch in window:
                    window.backward(self.loss(model, batch))

    def test_window_left_by_break(self, model, accumulator):
        for window in accumulator.windows(batches([2, 2]), micro_batches=1):
            for batch in window:
                window.backward(self.loss(model, batch))
            break
        with pytest.raises(AccumulationError, match="while a window is open"):
            accumulator.windows([], micro_batches=1)
        accumulator.discard()
        assert list(accumulator.windows([], micro_batches=1)) == []

    def test_double_step(self, model, accumulator):
        window = next(accumulator.windows(batches([2]), micro_batches=1))
        for batch in window:
            window.backward(self.loss(model, batch))
        window.step()
        with pytest.raises(AccumulationError, match="stepped already"):
            window.step()

    def test_step_too_early(self, model, accumulator):
        window = next(accumulator.windows(batches([2, 2]), micro_batches=2))
        for batch in window:
            window.backward(self.loss(model, batch))
            with pytest.raises(AccumulationError, match=r"step\(\) after 0 of 2 micro-batches"):
                window.step()
            break

    def test_step_inside_the_last_micro_batch_is_the_whole_window(self, model, accumulator):
        for window in accumulator.windows(batches([2, 2]), micro_batches=2):
            for index, batch in enumerate(window):
                window.backward(self.loss(model, batch))
                if index == 1:
                    assert window.step().weight == 4

    def test_backward_outside_a_micro_batch(self, model, accumulator):
        window = next(accumulator.windows(batches([2]), micro_batches=1))
        with pytest.raises(AccumulationError, match="outside a micro-batch"):
            window.backward(self.loss(model, batches([2])[0]))
        for batch in window:
            window.backward(self.loss(model, batch))
        with pytest.raises(AccumulationError, match="outside a micro-batch"):
            window.backward(self.loss(model, batches([2])[0]))

    def test_micro_batch_without_backward(self, accumulator):
        window = next(accumulator.windows(batches([2, 2]), micro_batches=2))
        with pytest.raises(AccumulationError, match=r"micro-batch 0 of 2 had no window.backward"):
            for _ in window:
                pass

    def test_iterating_twice(self, model, accumulator):
        window = next(accumulator.windows(batches([2]), micro_batches=1))
        for batch in window:
            window.backward(self.loss(model, batch))
        with pytest.raises(AccumulationError, match="a window runs once"):
            list(window)

    def test_weight_for_some_micro_batches_only(self, model, accumulator):
        window = next(accumulator.windows(batches([2, 3]), micro_batches=2))
        with pytest.raises(AccumulationError, match="some micro-batches of this window got weight"):
            for index, batch in enumerate(window):
                window.backward(self.loss(model, batch), weight=2 if index else None)

    def test_weight_given_twice_and_different(self, model, accumulator):
        window = next(accumulator.windows(batches([2]), micro_batches=1, weight=lambda batch: 2))
        with pytest.raises(AccumulationError, match="was counted as 2 by windows"):
            for batch in window:
                window.backward(self.loss(model, batch), weight=3)

    def test_items_that_cannot_be_counted(self, accumulator):
        window = next(accumulator.windows([{"text": "abc"}], micro_batches=1))
        with pytest.raises(AccumulationError, match=r"pass weight=\.\.\. to backward"):
            for _ in window:
                window.backward(torch.zeros((), requires_grad=True))

    def test_manual_form_needs_a_weight(self, model, accumulator):
        with pytest.raises(AccumulationError, match=r"pass weight=\.\.\. to backward"):
            accumulator.backward(self.loss(model, batches([2])[0]))

    def test_manual_step_without_backward(self, accumulator):
        with pytest.raises(AccumulationError, match=r"step\(\) without a backward"):
            accumulator.step()

    def test_manual_backward_inside_a_window(self, model, accumulator):
        for window in accumulator.windows(batches([2]), micro_batches=1):
            for batch in window:
                with pytest.raises(AccumulationError, match=r"use window.backward\(\)"):
                    accumulator.backward(self.loss(model, batch), weight=2)
                window.backward(self.loss(model, batch))
            window.step()

    def test_discard_leaves_parameters_and_gradients_alone(self, model, accumulator):
        before = [p.clone() for p in model.parameters()]
        for window in accumulator.windows(batches([2, 2]), micro_batches=2):
            for batch in window:
                window.backward(self.loss(model, batch))
            window.discard()
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert all(p.grad is None for p in model.parameters())
        assert accumulator.updates == 0

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"model": 3}, "model must be an nn.Module"),
            ({"model": []}, "model is an empty list"),
            ({"optimizer": 3}, "optimizer must be a torch.optim.Optimizer"),
            ({"optimizer": []}, "optimizer is an empty list"),
            ({"max_norm": 0}, "max_norm must be a positive number"),
            ({"max_norm": float("nan")}, "max_norm must be a positive number"),
            ({"on_nonfinite": "ignore"}, "on_nonfinite must be"),
            ({"accumulate_dtype": torch.float16}, "accumulate_dtype must be"),
            ({"scheduler": 3}, r"scheduler must have a step\(\) method"),
            ({"ema": 3}, "ema must have update_parameters"),
        ],
    )
    def test_bad_constructor_argument(self, model, arguments, message):
        arguments = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)} | arguments
        with pytest.raises(ConfigError, match=message):
            GradientAccumulator(arguments.pop("model"), arguments.pop("optimizer"), **arguments)


class TestState:
    def test_update_counter_survives(self):
        model = small_model()
        accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for window in accumulator.windows(batches([2, 2, 2]), micro_batches=2):
            for inputs, targets in window:
                window.backward(mse_loss(model(inputs), targets))
            window.step()
        state = accumulator.state_dict()
        other = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
        other.load_state_dict(state)
        assert other.updates == 2

    def test_carried_batches_must_come_back(self):
        model = small_model()
        loader = batches([2, 2, 2])
        accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert list(accumulator.windows(loader, micro_batches=4, tail="carry")) == []
        state = accumulator.state_dict()
        other = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(ConfigError, match="3 carried batches were saved, got 0"):
            other.load_state_dict(state)
        other.load_state_dict(state, carried=loader)
        assert len(next(other.windows(batches([2]), micro_batches=4))) == 4

    def test_foreign_state_is_refused(self):
        model = small_model()
        accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(ConfigError, match="not the state of a GradientAccumulator"):
            accumulator.load_state_dict({"step": 3})

    def test_open_window_refuses(self):
        model = small_model()
        accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
        next(accumulator.windows(batches([2]), micro_batches=1))
        with pytest.raises(AccumulationError, match="while a window is open"):
            accumulator.state_dict()
