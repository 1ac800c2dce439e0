"""What happens when a gradient is inf or nan, and when nothing is counted."""

import math

import pytest
import torch
from torch import nn

from dagnn.accumulation import GradientAccumulator, accumulate
from dagnn.errors import AccumulationError, ConfigError


class Weight(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        return self.w * x


def run(means, weights, micro_batches=None, scaler=None, schedule=False, **options):
    """Windows whose micro-batches have the given mean gradients and weights; lr 1."""
    model = Weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) if schedule else None
    accumulator = GradientAccumulator(model, optimizer, scheduler=scheduler, scaler=scaler, **options)
    loader = list(zip(means, weights, strict=True))
    updates = []
    for window in accumulator.windows(loader, micro_batches=micro_batches or len(loader), weight=lambda m: m[1]):
        for mean, _ in window:
            window.backward(model(torch.tensor(mean).double()))
        updates.append(window.step())
    return -float(model.w.detach()), updates


NAN, INF = math.nan, math.inf


def test_skip_leaves_the_window_out_and_the_next_one_is_clean():
    moved, updates = run([1.0, NAN, 3.0, 5.0], [1, 1, 1, 1], micro_batches=2)
    assert moved == 4.0
    assert [u.skipped for u in updates] == ["non-finite", None]
    assert [u.step for u in updates] == [0, 1]
    assert math.isnan(updates[0].grad_norm)


def test_skip_does_not_move_the_schedule():
    _, updates = run([1.0, NAN, 1.0, 1.0], [1] * 4, micro_batches=1, schedule=True)
    assert [u.lr for u in updates] == [1.0, 0.5, 0.5, 0.25]


@pytest.mark.parametrize("bad", [NAN, INF])
def test_drop_leaves_the_micro_batch_and_its_weight_out(bad):
    moved, (update,) = run([1.0, bad, 4.0], [4, 4, 2], on_nonfinite="drop")
    assert moved == pytest.approx(2.0, rel=1e-12)
    assert update.skipped is None
    assert (update.weight, update.micro_batches) == (6, 2)
    assert update.loss == pytest.approx(0.0)


def test_drop_finds_a_gradient_that_is_not_finite_behind_a_finite_loss():
    model = Weight()
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0), on_nonfinite="drop")
    for window in accumulator.windows([torch.tensor([4.0]), torch.tensor([0.0]), torch.tensor([1.0])], micro_batches=3):
        for x in window:
            root = (model(x.double()) + (x == 0) * 0.0 + x).clamp_min(0).sqrt()  # at 0 the slope is infinite
            window.backward(root.sum() if x else (root * 0 + model.w.abs().sqrt()).sum())
        update = window.step()
    assert (update.weight, update.micro_batches) == (2, 2)
    assert -float(model.w.detach()) == pytest.approx((4 / 4 + 1 / 2) / 2, rel=1e-12)


def test_drop_of_everything_is_an_empty_window():
    moved, (update,) = run([NAN, INF], [1, 1], on_nonfinite="drop")
    assert (moved, update.skipped, update.step, update.micro_batches) == (0.0, "empty", 0, 0)


def test_drop_lowers_the_loss_scale_but_steps():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    moved, (update,) = run([1.0, INF, 3.0], [1, 1, 1], on_nonfinite="drop", scaler=scaler)
    assert moved == pytest.approx(2.0)
    assert update.skipped is None
    assert scaler.get_scale() == 4.0


def test_raise_names_the_parameter_and_leaves_it_alone():
    with pytest.raises(AccumulationError, match="the gradient of w is not finite"):
        run([1.0, NAN], [1, 1], on_nonfinite="raise")


def test_after_raise_the_next_window_is_clean():
    model = Weight()
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0), on_nonfinite="raise")
    for x in (NAN, 3.0):
        for window in accumulator.windows([torch.tensor([x]).double()], micro_batches=1):
            for micro in window:
                window.backward(model(micro).mean())
            if math.isnan(x):
                with pytest.raises(AccumulationError, match="not finite"):
                    window.step()
            else:
                window.step()
    assert float(model.w.detach()) == -3.0


def test_drop_by_hand_in_place_of_backward():
    model = Weight()
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0))
    for window in accumulator.windows([torch.tensor([x]).double() for x in (2.0, 50.0, 4.0)], micro_batches=3):
        for x in window:
            if float(x) > 10:
                window.drop()
            else:
                window.backward(model(x).mean())
        update = window.step()
    assert (-float(model.w.detach()), update.weight, update.micro_batches) == (3.0, 2, 2)


def test_a_second_loss_does_not_bring_a_dropped_micro_batch_back():
    model = Weight()
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0), on_nonfinite="drop")
    for window in accumulator.windows([torch.tensor([x]).double() for x in (2.0, NAN, 4.0)], micro_batches=3):
        for x in window:
            window.backward(model(x).mean())
            window.backward(model(x.nan_to_num()).mean())
        update = window.step()
    assert (-float(model.w.detach()), update.weight, update.micro_batches) == (6.0, 2, 2)


def test_backward_after_drop_by_hand_adds_nothing():
    model = Weight()
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0))
    for window in accumulator.windows([torch.tensor([x]).double() for x in (2.0, 50.0, 4.0)], micro_batches=3):
        for x in window:
            if float(x) > 10:
                window.drop()
            window.backward(model(x).mean())
        update = window.step()
    assert (-float(model.w.detach()), update.weight, update.micro_batches) == (3.0, 2, 2)


def test_drop_by_hand_after_backward_needs_the_policy():
    model = Weight()
    window = next(
        GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0)).windows(
            [torch.ones(1).double()], micro_batches=1
        )
    )
    with pytest.raises(AccumulationError, match=r"drop\(\) after backward needs"):
        for x in window:
            window.backward(model(x).mean())
            window.drop()


def test_dropping_with_denominators_that_shrink_differently_is_an_error():
    model = Weight()
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0), on_nonfinite="drop")
    loader = [torch.ones(1).double(), torch.full((3,), NAN).double()]
    window = next(accumulator.windows(loader, micro_batches=2, weight=lambda x: {"main": len(x), "aux": 1}))
    with pytest.raises(AccumulationError, match="different denominators"):
        for x in window:
            window.backward({"main": model(x).mean(), "aux": model(x).mean()})


class TestNothingCounted:
    def test_micro_batches_of_weight_zero_add_nothing_even_if_their_loss_is_nan(self):
        moved, (update,) = run([2.0, 2.0, 2.0, 2.0, NAN], [1, 1, 1, 1, 0])
        assert moved == 2.0
        assert (update.weight, update.loss) == (4, 0.0)

    def test_an_empty_window_leaves_parameters_bit_equal_and_says_so(self):
        moved, updates = run([NAN, NAN, 6.0, 2.0], [0, 0, 1, 3], micro_batches=2, schedule=True)
        assert moved == 3.0
        assert [u.skipped for u in updates] == ["empty", None]
        assert updates[0].weight == 0 and math.isnan(updates[0].loss) and math.isnan(updates[0].grad_norm)
        assert [u.lr for u in updates] == [1.0, 1.0]

    def test_weight_decay_does_not_move_parameters_of_an_empty_window(self):
        model = nn.Linear(2, 2)
        before = [p.detach().clone() for p in model.parameters()]
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        for window in GradientAccumulator(model, optimizer).windows(
            [torch.ones(1, 2)], micro_batches=1, weight=lambda x: 0
        ):
            for x in window:
                window.backward(model(x).mean())
            window.step()
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.fault("accumulation", 9)
class TestNanLossWithoutGradient:
    """All targets of one micro-batch are ignored, or a loss overflows, while its gradient is 0."""

    @pytest.fixture(params=["nan", "inf"])
    def offset(self, request):
        return float(request.param)

    def windows(self, offset, **options):
        model = Weight()
        accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0), **options)
        updates = []
        for window in accumulator.windows([2.0, 0.0, 4.0, 4.0], micro_batches=2, weight=lambda x: 1):
            for x in window:
                window.backward(model(x) + (0.0 if x else offset))
            updates.append(window.step())
        return model.w.item(), updates

    def test_skip(self, offset):
        moved, updates = self.windows(offset)
        assert moved == -4.0
        assert [u.skipped for u in updates] == ["non-finite", None]

    def test_raise(self, offset):
        with pytest.raises(AccumulationError, match=r"the mean loss of the window .* is not finite"):
            self.windows(offset, on_nonfinite="raise")

    def test_drop(self, offset):
        moved, updates = self.windows(offset, on_nonfinite="drop")
        assert moved == -6.0
        assert [u.weight for u in updates] == [1, 2]

    def test_a_real_loss_with_all_targets_ignored(self):
        model = nn.Linear(2, 3)
        before = model.weight.detach().clone()
        accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0))
        loader = [(torch.ones(2, 2), torch.tensor(t)) for t in ([0, 1], [-100, -100])]
        for window in accumulator.windows(loader, micro_batches=2):
            for x, y in window:
                window.backward(nn.functional.cross_entropy(model(x), y))
            assert window.step().skipped == "non-finite"
        assert torch.equal(model.weight, before)

    def test_the_loss_scale_follows_gradients_alone(self, offset):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        self.windows(offset, scaler=scaler)
        assert scaler.get_scale() == 8.0

    @pytest.mark.parametrize("eager", ["momentum", "last"])
    def test_eager_updates_stop_before_the_pass(self, offset, eager):
        model = Weight()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
        accumulator = GradientAccumulator(model, optimizer, on_nonfinite="raise", eager=eager)
        window = next(accumulator.windows([1.0], micro_batches=1, weight=lambda x: 1))
        with pytest.raises(AccumulationError, match="the loss is not finite"):
            for x in window:
                window.backward(model(x) + offset)
        with pytest.raises(AccumulationError, match="discard"):
            window.step()
        assert model.w.item() == 0.0


@pytest.mark.fault("accumulation", 9)
@pytest.mark.parametrize("bad", [NAN, INF, -1.0])
def test_a_weight_that_is_no_number_of_items_is_refused(bad):
    with pytest.raises(ConfigError, match="must be finite and at least 0"):
        run([1.0, 1.0], [1, bad])


def sparse_and_dense(model, x):
    """Micro-batches with x = 0 go through a sparse embedding, the others through its weight."""
    return model(torch.tensor([0, 2])).sum() if not x else x * model.weight.sum()


@pytest.mark.fault("accumulation", 11)
@pytest.mark.parametrize("policy", ["skip", "drop", "raise"])
@pytest.mark.parametrize("order", [(0, 1, 1), (1, 0, 1), (0, 0, 1), (1, 1, 0), (0, 0, 0)])
@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_sparse_and_dense_gradients_add_in_any_order(policy, order, max_norm):
    model = nn.Embedding(3, 2, sparse=True).double()
    before = model.weight.detach().clone()
    accumulator = GradientAccumulator(
        model, torch.optim.SGD(model.parameters(), lr=1.0), on_nonfinite=policy, max_norm=max_norm
    )
    window = next(accumulator.windows(order, micro_batches=3, weight=lambda x: 1))
    for x in window:
        window.backward(sparse_and_dense(model, x))
    update = window.step()
    right = torch.tensor([[1.0], [0.0], [1.0]]).double() * order.count(0) / 3 + sum(order) / 3
    right = right.expand(3, 2)
    norm = float(right.norm())
    assert update.grad_norm == pytest.approx(norm, rel=1e-12)
    moved = before - model.weight.detach()
    assert torch.allclose(moved, right * (1.0 if max_norm is None else max_norm / (norm + 1e-6)), rtol=1e-12)


@pytest.mark.fault("accumulation", 11)
@pytest.mark.parametrize("first", [0, 1])
def test_accumulate_adds_to_sparse_and_dense_gradients_that_are_there(first):
    model = nn.Embedding(3, 2, sparse=True).double()
    sparse_and_dense(model, first).backward()
    accumulate(model, lambda m, x: sparse_and_dense(m, int(x[0])), torch.tensor([1 - first]), micro_batch_size=1)
    assert model.weight.grad.to_dense().tolist() == [[2.0, 2.0], [1.0, 1.0], [2.0, 2.0]]
