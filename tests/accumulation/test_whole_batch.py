"""accumulate() and GradientAccumulator.update(): a whole batch in one call, and the size that fits into memory."""

import copy
from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from dagnn.accumulation import GradientAccumulator, accumulate
from dagnn.accumulation.whole_batch import activation_bytes, is_out_of_memory, largest_fitting, parse_memory
from dagnn.errors import AccumulationError, ConfigError


def model_and_batch(items=10, seed=0, dropout=0.0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 2)).double()
    return model, {"x": torch.randn(items, 3).double(), "y": torch.randn(items, 2).double()}


def loss_fn(model, batch):
    return mse_loss(model(batch["x"]), batch["y"])


def gradients(model):
    return [p.grad.clone() for p in model.parameters()]


@torch.no_grad()
def relative_error(actual, expected):
    scale = max(float(e.abs().max()) for e in expected)
    return max(float((a - e).abs().max()) for a, e in zip(actual, expected, strict=True)) / scale


def full_batch(model, batch, loss_fn=loss_fn):
    reference = copy.deepcopy(model)
    loss = loss_fn(reference, batch)
    loss.backward()
    return loss.item(), gradients(reference)


@settings(max_examples=25, deadline=None)
@given(items=st.integers(1, 17), size=st.integers(1, 20))
def test_any_micro_batch_size_equals_the_full_batch(items, size):
    model, batch = model_and_batch(items)
    expected_loss, expected = full_batch(model, batch)
    loss = accumulate(model, loss_fn, batch, micro_batch_size=size)
    assert relative_error(gradients(model), expected) <= 1e-12
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    assert (loss.weight, loss.micro_batches) == (items, -(-items // min(size, items)))


def test_gradients_are_added_to_those_that_exist():
    model, batch = model_and_batch()
    accumulate(model, loss_fn, batch, micro_batch_size=3)
    once = gradients(model)
    accumulate(model, loss_fn, batch, micro_batch_size=4)
    assert relative_error(gradients(model), [2 * g for g in once]) <= 1e-12


def test_token_weighted_loss_by_function_or_returned_with_the_loss():
    torch.manual_seed(0)
    model = nn.Linear(3, 4).double()
    labels = torch.tensor([0, 1, -100, -100, 2, -100, 3, 1, 0])
    batch = (torch.randn(9, 3).double(), labels)

    def mean_over_valid(model, micro):
        return cross_entropy(model(micro[0]), micro[1])

    expected_loss, expected = full_batch(model, batch, mean_over_valid)
    loss = accumulate(model, mean_over_valid, batch, micro_batch_size=2, weight=lambda m: (m[1] >= 0).sum())
    assert relative_error(gradients(model), expected) <= 1e-12
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    model.zero_grad()
    loss = accumulate(model, lambda m, b: (mean_over_valid(m, b), (b[1] >= 0).sum()), batch, micro_batch_size=2)
    assert relative_error(gradients(model), expected) <= 1e-12
    assert (loss, loss.weight) == (pytest.approx(expected_loss, rel=1e-12), 6)


def test_micro_batch_without_valid_tokens_adds_nothing():
    torch.manual_seed(0)
    model = nn.Linear(3, 4).double()
    batch = (torch.randn(4, 3).double(), torch.tensor([0, 1, -100, -100]))
    _, expected = full_batch(model, batch, lambda m, b: cross_entropy(m(b[0]), b[1]))
    accumulate(
        model,
        lambda m, b: cross_entropy(m(b[0]), b[1]),  # nan on the second micro-batch
        batch,
        micro_batch_size=2,
        weight=lambda m: (m[1] >= 0).sum(),
    )
    assert relative_error(gradients(model), expected) <= 1e-12


class TestOutOfMemory:
    """Simulated: the loss raises what torch raises when more than ``limit`` items are asked for."""

    def limited(self, limit, calls, metric):
        def loss(model, batch):
            torch.rand(3)  # random numbers of the failed attempt must be given back
            metric.seen += len(batch["x"])
            result = loss_fn(model, batch)
            if len(batch["x"]) > limit:
                raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
            calls.append(len(batch["x"]))
            return result

        return loss

    class Metric:
        def __init__(self):
            self.seen = 0

    @pytest.mark.parametrize("size", ["auto", 16])
    def test_halves_until_it_fits_and_keeps_the_effective_batch(self, size):
        model, batch = model_and_batch(16, dropout=0.5)
        metric, calls = self.Metric(), []
        torch.manual_seed(7)
        reference = copy.deepcopy(model)
        accumulate(reference, self.limited(99, [], self.Metric()), batch, micro_batch_size=2)
        expected, next_random = gradients(reference), torch.rand(1)

        torch.manual_seed(7)
        loss = accumulate(model, self.limited(2, calls, metric), batch, micro_batch_size=size, restore=[metric])
        assert (loss.micro_batch_size, loss.micro_batches, loss.weight) == (2, 8, 16)
        assert metric.seen == 16
        # Bit-equal, dropout masks included, to a run that started with the size that fits.
        assert all(torch.equal(a, b) for a, b in zip(gradients(model), expected, strict=True))
        assert torch.equal(torch.rand(1), next_random)

    def test_buffers_and_earlier_gradients_are_restored(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
        _, batch = model_and_batch(8)
        reference = copy.deepcopy(model)
        accumulate(reference, loss_fn, batch, micro_batch_size=4, batch_norm="ignore")
        accumulate(model, self.limited(4, [], self.Metric()), batch, micro_batch_size="auto", batch_norm="ignore")
        assert all(torch.equal(a, b) for a, b in zip(model.buffers(), reference.buffers(), strict=True))

    def test_one_item_that_does_not_fit_is_an_error_and_keeps_gradients(self):
        model, batch = model_and_batch(4)
        accumulate(model, loss_fn, batch, micro_batch_size=2)
        before = gradients(model)
        with pytest.raises(AccumulationError, match="one item does not fit into memory"):
            accumulate(model, self.limited(0, [], self.Metric()), batch, micro_batch_size="auto")
        assert all(torch.equal(a, b) for a, b in zip(gradients(model), before, strict=True))

    def test_update_remembers_the_size_that_fits(self):
        model, batch = model_and_batch(16)
        calls = []
        accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loss = self.limited(4, calls, self.Metric())
        for _ in range(2):
            update = accumulator.update(batch, loss, micro_batch_size="auto")
            assert (update.weight, update.micro_batches) == (16, 4)
        assert accumulator.updates == 2

    def test_other_errors_pass_through_and_leave_no_window_open(self):
        model, batch = model_and_batch(4)
        accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(ZeroDivisionError):
            accumulator.update(batch, lambda m, b: 1 / 0, micro_batch_size=2)
        assert accumulator.update(batch, loss_fn, micro_batch_size=2).step == 1


def test_memory_budget_chooses_the_largest_micro_batch_that_fits():
    model, batch = model_and_batch(64)
    # Saved per item, in float64: tanh output 6 (x and y exist anyway), prediction-target difference inputs 2.
    sizes = [
        accumulate(model, loss_fn, batch, micro_batch_size="auto", memory=budget).micro_batch_size
        for budget in (1_000, 2_000, 4_000)
    ]
    assert sizes[0] < sizes[1] < sizes[2] < 64
    assert sizes[1] == pytest.approx(2 * sizes[0], abs=1)
    assert accumulate(model, loss_fn, batch, micro_batch_size="auto", memory="1GiB").micro_batch_size == 64


def test_memory_budget_below_one_item_is_an_error():
    model, batch = model_and_batch(64)
    with pytest.raises(AccumulationError, match=r"one item needs .* bytes"):
        accumulate(model, loss_fn, batch, micro_batch_size="auto", memory=8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"micro_batch_size": 0}, "micro_batch_size must be a positive whole number or 'auto'"),
        ({"micro_batch_size": 2.0}, "micro_batch_size must be a positive whole number or 'auto'"),
        ({"micro_batch_size": "auto", "memory": "much"}, "memory must be a size such as"),
        ({"micro_batch_size": 2, "memory": "1GiB"}, "memory= is the budget of micro_batch_size='auto'"),
        ({"micro_batch_size": 2, "batch_norm": "off"}, "batch_norm must be"),
        ({"micro_batch_size": 2, "reduction": "avg"}, "reduction must be"),
    ],
)
def test_bad_argument(arguments, message):
    model, batch = model_and_batch()
    with pytest.raises(ConfigError, match=message):
        accumulate(model, loss_fn, batch, **arguments)


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@pytest.mark.parametrize("make", [dict, OrderedDict, lambda b: Pair(**b), lambda b: (b["x"], [b["y"]])])
def test_containers_keep_their_type(make):
    model, batch = model_and_batch(5)
    seen = []

    def loss(model, micro):
        seen.append(type(micro))
        if isinstance(micro, dict):
            return mse_loss(model(micro["x"]), micro["y"])
        return mse_loss(model(micro[0]), micro[1][0] if isinstance(micro[1], list) else micro[1])

    _, expected = full_batch(model, batch)
    accumulate(model, loss, make(batch), micro_batch_size=2)
    assert relative_error(gradients(model), expected) <= 1e-12
    assert set(seen) == {type(make(batch))}


def test_update_equals_windows():
    ours, batch = model_and_batch(7)
    theirs = copy.deepcopy(ours)
    update = GradientAccumulator(ours, torch.optim.AdamW(ours.parameters(), lr=0.1), max_norm=0.1).update(
        batch, loss_fn, micro_batch_size=3
    )
    accumulator = GradientAccumulator(theirs, torch.optim.AdamW(theirs.parameters(), lr=0.1), max_norm=0.1)
    (other,) = [
        window.step()
        for window in accumulator.windows([batch], micro_batch_size=3)
        if not [window.backward(loss_fn(theirs, micro)) for micro in window].count(1)
    ]
    assert update == other
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.fault("accumulation", 13)
@pytest.mark.parametrize("batch", [{"x": [torch.zeros(3, 8, 8)] * 4}, {"x": 3}, (torch.zeros(4), torch.zeros(3))])
def test_what_cannot_be_cut_is_not_asked_for_a_weight_that_was_given(batch):
    model = nn.Linear(8, 1)
    with pytest.raises(AccumulationError, match=r"cannot be split, with or without weight="):
        accumulate(model, lambda m, b: m(b[0]).mean(), batch, micro_batch_size=2, weight=len)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(AccumulationError, match=r"cannot be split, with or without weight="):
        next(accumulator.windows([batch], micro_batch_size=2, weight=len))


@pytest.mark.fault("accumulation", 7)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_images_and_their_targets_stay_together(size):
    torch.manual_seed(0)
    model = nn.Linear(5, 1).double()
    images = torch.randn(4, 5).double()
    targets = [{"boxes": torch.randn(4, 2).double(), "id": i} for i in range(4)]

    def loss_fn(model, batch):
        return torch.stack([(model(x) - t["boxes"].sum()).square() for x, t in zip(*batch, strict=True)]).mean()

    loss = accumulate(model, loss_fn, (images, targets), micro_batch_size=size)
    accumulated = model.weight.grad.clone()
    model.zero_grad()
    whole = loss_fn(model, (images, targets))
    whole.backward()
    assert loss.weight == 4
    assert loss == pytest.approx(whole.item(), rel=1e-12)
    assert torch.allclose(accumulated, model.weight.grad, rtol=1e-12)


@pytest.mark.fault("accumulation", 16)
@pytest.mark.parametrize("options", [{}, {"micro_batch_size": "auto"}, {"coupled": True}])
@pytest.mark.parametrize("make", [lambda: nn.Linear(2, 2).requires_grad_(False), nn.Tanh])
def test_a_model_with_nothing_to_train_says_so(make, options):
    with pytest.raises(AccumulationError, match="there is nothing to train"):
        accumulate(make(), lambda m, x: m(x).mean(), torch.ones(4, 2), **{"micro_batch_size": 2, **options})
    model = nn.Linear(2, 2).requires_grad_(False)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(AccumulationError, match="there is nothing to train"):
        for window in accumulator.windows([torch.ones(4, 2)], micro_batches=1):
            for x in window:
                window.backward(model(x).mean())


@pytest.mark.fault("accumulation", 16)
def test_lazy_models_work_or_say_what_to_do():
    x = torch.ones(4, 3)
    model = nn.LazyLinear(2)
    accumulate(model, lambda m, x: m(x).mean(), x, micro_batch_size=2)
    assert model.weight.grad.sum() == pytest.approx(3.0)
    for lazy, options in ((nn.LazyLinear(2), {"memory": "1GiB"}), (nn.LazyBatchNorm1d(), {})):
        options = {"micro_batch_size": "auto", "batch_norm": "ignore", **options}
        with pytest.raises(ConfigError, match="a lazy module of the model has no shape yet"):
            accumulate(lazy, lambda m, x: m(x).mean(), x, **options)
        lazy(x)
        accumulate(lazy, lambda m, x: m(x).mean(), x, **options)


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2 * 2**30), ("500MB", 500 * 10**6), ("1.5 k", 1500), ("64", 64), (64, 64), ("3 tib", 3 * 2**40)],
)
def test_sizes(text, size):
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "2 GG", 0, -3, True, "0MB"])
def test_bad_sizes(text):
    with pytest.raises(ConfigError, match="memory must be a size such as"):
        parse_memory(text)


@given(fixed=st.integers(0, 1000), slope=st.integers(1, 100), items=st.integers(1, 500), budget=st.integers(1, 50_000))
def test_search_finds_the_largest_size_with_few_measurements(fixed, slope, items, budget):
    measured = []

    def measure(n):
        measured.append(n)
        return fixed + slope * n

    best = min(items, (budget - fixed) // slope)
    if best < 1:
        with pytest.raises(AccumulationError, match="one item needs"):
            largest_fitting(measure, budget, items)
    else:
        assert largest_fitting(measure, budget, items) == best
    assert len(measured) <= 6


@given(steps=st.lists(st.integers(0, 50), min_size=1, max_size=60), budget=st.integers(1, 1000))
def test_search_ends_on_memory_that_does_not_grow_evenly(steps, budget):
    used = [1 + sum(steps[: n + 1]) for n in range(len(steps))]
    if used[0] <= budget:
        found = largest_fitting(lambda n: used[n - 1], budget, len(used))
        assert used[found - 1] <= budget
        assert found == len(used) or used[found] > budget


def test_bytes_that_a_forward_pass_keeps():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    x = torch.randn(10, 4).double()
    # Of what backward needs, only the output of tanh is new: 10 items of 8 numbers of 8 bytes.
    assert activation_bytes(lambda: model(x).sum(), [*model.parameters(), x]) == 10 * 8 * 8


def test_errors_of_an_allocation_that_failed():
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_update_measures_once_per_budget():
    model = nn.Linear(4, 4)
    calls = []

    def loss_fn(model, x):
        calls.append(len(x))
        return model(x).tanh().square().mean()

    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    first = accumulator.update(torch.randn(32, 4), loss_fn, micro_batch_size="auto", memory=400)
    probes = len(calls) - first.micro_batches
    calls.clear()
    second = accumulator.update(torch.randn(32, 4), loss_fn, micro_batch_size="auto", memory=400)
    assert probes > 0
    assert len(calls) == second.micro_batches == first.micro_batches > 1
