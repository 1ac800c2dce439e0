"""16-bit gradients, loss scaling, autocast, norms."""

import copy
from unittest import mock

import pytest
import torch
from torch import nn

from dagnn.accumulation import GradientAccumulator, accumulate, loss_scale
from dagnn.accumulation.sums import wide_dtype
from dagnn.errors import AccumulationError, AccumulationWarning, ConfigError


def one_weight(dtype, value=1.0):
    model = nn.Linear(1, 1, bias=False).to(dtype)
    with torch.no_grad():
        model.weight.fill_(value)
    return model


def gradient_of(model, inputs, accumulate_dtype="auto", reduction="sum"):
    """Gradient of the summed loss w * x over micro-batches of one item each, times the number of items."""
    accumulator = GradientAccumulator(
        model, torch.optim.SGD(model.parameters(), lr=0.0), accumulate_dtype=accumulate_dtype
    )
    window = next(accumulator.windows(inputs, micro_batches=len(inputs)))
    for x in window:
        window.backward(model(x).sum(), reduction=reduction)
    return model.weight.grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_4096_gradients_of_one_sum_to_4096(dtype):
    model = one_weight(dtype)
    window_of_4096 = [torch.ones(1, 1, dtype=dtype)] * 4096
    gradient = gradient_of(model, window_of_4096)
    assert gradient.dtype == torch.float32
    assert float(gradient) * 4096 == 4096.0


def test_a_16_bit_loss_keeps_its_exact_share():
    # 1/3 in bfloat16 is 0.3340: without care each gradient would be off by 0.2 %.
    for sizes in ([1, 1, 1], [1, 2, 4]):
        model = one_weight(torch.bfloat16)
        gradient = gradient_of(model, [torch.ones(n, 1, dtype=torch.bfloat16) for n in sizes])
        assert float(gradient) == pytest.approx(1.0, rel=1e-6)


def test_float32_sums_are_as_good_as_the_full_batch_and_bfloat16_sums_are_not():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8)).bfloat16()
    inputs = torch.randn(256, 32).bfloat16()

    def loss_fn(model, x):
        return model(x).float().square().mean()

    exact = copy.deepcopy(model).double()
    loss_fn_64 = lambda m, x: m(x).square().mean()  # noqa: E731
    loss_fn_64(exact, inputs.double()).backward()

    def error(accumulate_dtype, size):
        copied = copy.deepcopy(model)
        accumulate(copied, loss_fn, inputs, micro_batch_size=size, accumulate_dtype=accumulate_dtype)
        pairs = [(p.grad.double(), e.grad) for p, e in zip(copied.parameters(), exact.parameters(), strict=True)]
        return float(
            torch.stack([(p - e).norm() for p, e in pairs]).norm() / torch.stack([e.norm() for _, e in pairs]).norm()
        )

    full = error("auto", 256)
    assert error("auto", 1) <= 2 * full
    assert error(None, 1) >= 3 * full


def test_gradients_return_to_the_dtype_of_the_parameter_for_the_optimizer():
    model = nn.Linear(4, 4).bfloat16()
    seen = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: seen.extend(p.grad.dtype for p in model.parameters()))
    accumulator = GradientAccumulator(model, optimizer)
    for window in accumulator.windows([torch.ones(2, 4).bfloat16()] * 2, micro_batches=2):
        for x in window:
            window.backward(model(x).float().square().mean())
        window.step()
    assert seen == [torch.bfloat16] * 2
    # After the window the parameters take plain gradients again.
    model(torch.ones(2, 4).bfloat16()).sum().backward()
    assert model.weight.grad.dtype == torch.bfloat16


def test_accumulate_in_float64_or_as_they_come():
    for accumulate_dtype, dtype in ((torch.float64, torch.float64), (None, torch.float16)):
        model = one_weight(torch.float16)
        assert gradient_of(model, [torch.ones(1, 1).half()] * 2, accumulate_dtype).dtype == dtype


def test_bfloat16_autocast_equals_the_same_micro_batches_by_hand():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    loader = [torch.randn(n, 8) for n in (4, 2, 3)]
    by_hand = copy.deepcopy(model)
    magnitudes = [torch.zeros_like(p) for p in model.parameters()]
    for x in loader:
        with torch.autocast("cpu", torch.bfloat16):
            loss = by_hand(x).float().square().mean()
        gradients = torch.autograd.grad(loss * len(x) / 9, list(by_hand.parameters()))
        for p, gradient, magnitude in zip(by_hand.parameters(), gradients, magnitudes, strict=True):
            p.grad = gradient if p.grad is None else p.grad + gradient
            magnitude += gradient.abs()
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    window = next(accumulator.windows(loader, micro_batches=3))
    for x in window:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean()
        window.backward(loss)
    unit = torch.finfo(torch.bfloat16).eps  # of what autocast rounds; the scale of the loss may come before or after
    for ours, theirs, magnitude in zip(model.parameters(), by_hand.parameters(), magnitudes, strict=True):
        assert ours.grad.dtype == torch.float32
        assert ((ours.grad - theirs.grad).abs() <= 2 * unit * magnitude.max()).all()


class TestLossScaling:
    def train(self, losses, scaler, *, max_norm=None, parameter=0.0, **options):
        """One window per list in ``losses``, micro-batch gradients as given; returns parameter and updates."""
        weight = nn.Parameter(torch.full((), parameter))
        model = nn.Module()
        model.weight = weight
        accumulator = GradientAccumulator(
            model, torch.optim.SGD([weight], lr=1.0), scaler=scaler, max_norm=max_norm, **options
        )
        updates = []
        for window_losses in losses:
            for window in accumulator.windows(torch.tensor(window_losses)[:, None], micro_batches=len(window_losses)):
                for x in window:
                    window.backward(weight * x.squeeze())
                updates.append(window.step())
        return weight.detach(), updates

    def scaler(self, scale=65536.0):
        return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)

    def test_norm_and_clipping_see_unscaled_gradients(self):
        weight, (update,) = self.train([[1.0, 3.0]], self.scaler(), max_norm=1.0)
        assert update.grad_norm == pytest.approx(2.0)
        assert float(weight) == pytest.approx(-1.0, rel=1e-5)

    def test_scale_grows_and_shrinks_as_with_the_scaler_alone(self):
        scaler = self.scaler(4.0)
        self.train([[1.0], [1.0]], scaler)
        assert scaler.get_scale() == 8.0
        weight, updates = self.train([[1.0, float("inf"), 1.0], [2.0, 4.0]], scaler, parameter=5.0)
        assert scaler.get_scale() == 4.0
        assert [u.skipped for u in updates] == ["non-finite", None]
        assert float(weight) == pytest.approx(5.0 - 3.0)

    def test_float16_parameters_which_the_scaler_alone_refuses(self):
        model = one_weight(torch.float16)
        scaler = self.scaler(1024.0)
        accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0), scaler=scaler)
        for window in accumulator.windows([torch.full((1, 1), 2.0**-20).half()] * 2, micro_batches=2):
            for x in window:
                window.backward(model(x).float().sum() * 2.0**-6)  # vanishes in float16 without the scale
            update = window.step()
        assert update.grad_norm == pytest.approx(2.0**-26, rel=1e-3)

    def test_disabled_scaler_changes_nothing(self):
        weight, _ = self.train([[1.0, 3.0]], torch.amp.GradScaler("cpu", enabled=False))
        assert float(weight) == -2.0

    def test_empty_window_leaves_the_scale_alone(self):
        scaler = self.scaler(4.0)
        weight = nn.Parameter(torch.ones(()))
        model = nn.Module()
        model.weight = weight
        accumulator = GradientAccumulator(model, torch.optim.SGD([weight], lr=1.0), scaler=scaler)
        for window in accumulator.windows([torch.ones(1)] * 4, micro_batches=1, weight=lambda x: 0):
            for x in window:
                window.backward(weight * x.mean())
            assert window.step().skipped == "empty"
        assert scaler.get_scale() == 4.0

    def test_unscaling_by_hand_is_a_named_error(self):
        model, scaler = one_weight(torch.float32), self.scaler()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        window = next(GradientAccumulator(model, optimizer, scaler=scaler).windows([torch.ones(1, 1)], micro_batches=1))
        for x in window:
            window.backward(model(x).mean())
        scaler.scale(torch.ones(()))
        scaler.unscale_(optimizer)
        with pytest.raises(AccumulationError, match=r"scaler.unscale_\(optimizer\) was called inside a window"):
            window.step()


class TestNorm:
    def stepped(self, gradients, dtype, max_norm, accumulate_dtype="auto"):
        parameters = [nn.Parameter(torch.zeros(len(g), dtype=dtype)) for g in gradients]
        model = nn.Module()
        model.parameters_ = nn.ParameterList(parameters)
        optimizer = torch.optim.SGD(parameters, lr=1.0)
        accumulator = GradientAccumulator(model, optimizer, max_norm=max_norm, accumulate_dtype=accumulate_dtype)
        window = next(accumulator.windows([torch.ones(1)], micro_batches=1))
        for _ in window:
            terms = [(p * torch.tensor(g, dtype=dtype)).sum() for p, g in zip(parameters, gradients, strict=True)]
            window.backward(sum(terms[1:], terms[0]))
        update = window.step()
        return update, [(-p.detach()).tolist() for p in parameters]

    @pytest.mark.parametrize("accumulate_dtype", ["auto", None])
    def test_float16_norm_does_not_overflow(self, accumulate_dtype):
        update, moved = self.stepped([[60000.0, 60000.0]], torch.float16, 1.0, accumulate_dtype)
        assert update.grad_norm == pytest.approx(84852.8, rel=1e-3)
        assert moved[0] == pytest.approx([0.7071, 0.7071], abs=1e-3)

    def test_float32_norm_does_not_overflow(self):
        update, moved = self.stepped([[3e30, 4e30]], torch.float32, 1.0)
        assert update.grad_norm == pytest.approx(5e30)
        assert moved[0] == pytest.approx([0.6, 0.8])

    @pytest.mark.parametrize("accumulate_dtype", ["auto", None])
    def test_bfloat16_norm_is_summed_in_float32(self, accumulate_dtype):
        update, _ = self.stepped([[1.0] * 1003], torch.bfloat16, None, accumulate_dtype)
        assert update.grad_norm == pytest.approx(31.670, abs=1e-3)


def half_loss(model, x):
    return model(x).sum()


def float_loss(model, x):
    return model(x).float().sum()


def autocast_loss(model, x):
    with torch.autocast("cpu", torch.float16):
        y = model(x.float())
    return y.float().sum()


@pytest.mark.fault("accumulation", 5)
@pytest.mark.parametrize("loss_fn", [half_loss, float_loss, autocast_loss])
@pytest.mark.parametrize("weights", ["equal", "ragged", "one large", "late"])
def test_float16_gradients_do_not_vanish_in_long_windows(loss_fn, weights):
    k, small = 1024, 2.0**-15
    model = one_weight(torch.float32 if loss_fn is autocast_loss else torch.float16)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.0))
    counts = {"ragged": [1 + i % 7 for i in range(k)], "one large": [k] + [1] * (k - 1)}.get(weights, [1] * k)
    loader = [(torch.full((1, 1), small).half(), count) for count in counts]
    late = weights == "late"
    window = next(accumulator.windows(loader, micro_batches=k, weight=None if late else lambda b: b[1]))
    for x, count in window:
        window.backward(loss_fn(model, x), weight=count if late else None)
    assert float(model.weight.grad) == pytest.approx(small, rel=1e-4)
    assert window.step().grad_norm == pytest.approx(small, rel=1e-4)


@pytest.mark.fault("accumulation", 5)
def test_several_float16_losses_do_not_vanish_either():
    k, small = 1024, 2.0**-15
    model = one_weight(torch.float16)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loader = [torch.full((1, 1), small).half()] * k
    weight = lambda x: {"main": 3, "aux": 5, "other": 1}  # noqa: E731
    window = next(accumulator.windows(loader, micro_batches=k, weight=weight))
    for x in window:
        y = model(x).sum()
        window.backward({"main": y, "aux": y.float(), "other": 2 * y})
    assert float(model.weight.grad) == pytest.approx(4 * small, rel=1e-4)


@pytest.mark.fault("accumulation", 10)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("parameter", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("sizes", [[1, 1, 1], [3, 5, 7], [1, 2, 4], [1000, 1, 1]])
@pytest.mark.parametrize("on_nonfinite", ["skip", "drop"])
def test_a_16_bit_loss_of_any_weights_keeps_its_exact_share(dtype, parameter, sizes, on_nonfinite):
    model = one_weight(parameter)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.0), on_nonfinite=on_nonfinite)
    window = next(accumulator.windows(sizes, micro_batches=len(sizes), weight=float))
    for size in window:
        window.backward((model.weight.sum() * size).to(dtype))
    assert float(model.weight.grad) == pytest.approx(sum(n * n for n in sizes) / sum(sizes), rel=1e-6)


@pytest.mark.fault("accumulation", 10)
@pytest.mark.parametrize("eager", [None, "momentum", "last"])
def test_several_16_bit_losses_and_eager_updates_keep_their_exact_shares(eager):
    model = one_weight(torch.float32, 0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    accumulator = GradientAccumulator(model, optimizer, on_nonfinite="raise", eager=eager)
    weights = [{"main": 1, "aux": n} for n in (3, 5, 6)]
    names = ("main",) if eager == "last" else ("main", "aux")
    for window in accumulator.windows(weights, micro_batches=3, weight=dict):
        for micro in window:
            value = model.weight.sum().bfloat16()
            window.backward({name: value * micro[name] for name in names})
        window.step()
    right = 1.0 + (9 + 25 + 36) / 14 * ("aux" in names)
    assert -model.weight.item() == pytest.approx(right, rel=1e-6)


@pytest.mark.fault("accumulation", 5)
@pytest.mark.parametrize("eager", ["momentum", "last"])
def test_eager_sums_in_16_bits_are_refused_unless_asked_for(eager):
    model = one_weight(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    with pytest.raises(ConfigError, match="where 16 bits lose small ones"):
        GradientAccumulator(model, optimizer, eager=eager, on_nonfinite="raise")
    GradientAccumulator(model, optimizer, eager=eager, on_nonfinite="raise", accumulate_dtype=None)


def test_the_reported_loss_of_16_bit_items_does_not_overflow():
    model = one_weight(torch.float16)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.0))
    window = next(accumulator.windows([torch.full((4, 1), 60000.0).half()] * 2, micro_batches=2))
    for x in window:
        window.backward(model(x)[:, 0], reduction="none")
    assert window.step().loss == 60000.0


@pytest.mark.fault("accumulation", 5)
@pytest.mark.parametrize("operations", [0, 5])  # after the layer, the same in every micro-batch
def test_float16_in_later_micro_batches_only(operations):
    model = one_weight(torch.float32)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.0))
    window = next(accumulator.windows([torch.full((1, 1), 2.0**-15)] * 2048, micro_batches=2048))
    for number, x in enumerate(window):
        y = model(x) if number == 0 else nn.functional.linear(x.half(), model.weight.half()).float()
        for _ in range(operations):
            y = y * 1.0
        window.backward(y.mean())
    assert model.weight.grad.item() == pytest.approx(2.0**-15, rel=1e-6)


def test_graphs_that_all_differ_are_looked_into_a_few_times():
    model, looked_into = one_weight(torch.float32), []
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.0))
    with mock.patch.object(loss_scale, "_holds_float16", lambda loss: looked_into.append(loss) or False):
        for window in accumulator.windows([torch.ones(1, 1)] * 20, micro_batches=20):
            for number, y in enumerate(window):
                for _ in range(6 + number):
                    y = y * model.weight
                window.backward(y.mean())
            window.discard()
    assert 1 <= len(looked_into) <= 5


def test_a_complex_loss_is_refused():
    model = nn.Linear(1, 1, bias=False, dtype=torch.complex64)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for window in accumulator.windows([torch.ones(1, 1, dtype=torch.complex64)], micro_batches=1):
        for x in window:
            with pytest.raises(AccumulationError, match=r"loss is complex .* pass its real part"):
                window.backward(model(x).mean())
            window.backward(model(x).abs().mean())
        window.step()


def test_a_loss_that_is_scaled_by_hand_warns():
    model = one_weight(torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), scaler=scaler)
    for window in accumulator.windows([torch.ones(1, 1)], micro_batches=1):
        for x in window:
            with pytest.warns(AccumulationWarning, match="multiplied by 4, the scale of the GradScaler"):
                window.backward(scaler.scale(model(x).mean()))
        window.discard()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("accumulate_dtype", ["auto", torch.float64])
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64])
def test_small_gradients_of_complex_parameters_do_not_vanish_in_the_sum(dtype, accumulate_dtype):
    weight = nn.Parameter(torch.zeros(1, dtype=dtype))
    model = nn.ParameterList([weight])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    accumulator = GradientAccumulator(model, optimizer, accumulate_dtype=accumulate_dtype)
    for window in accumulator.windows([torch.ones(1)] * 2048, micro_batches=2048):
        for x in window:
            window.backward((weight.real.float() * 2**-15 * x).mean())
        assert window.step().grad_norm == 2**-15
    assert weight.item() == -(2**-15)
    assert weight.dtype == weight.grad_dtype == dtype


@pytest.mark.parametrize(
    ("dtype", "accumulate_dtype", "wide"),
    [
        (torch.complex32, "auto", torch.complex64),
        (torch.complex32, torch.float64, torch.complex128),
        (torch.complex64, "auto", None),
        (torch.complex64, torch.float64, torch.complex128),
        (torch.complex128, torch.float64, None),
        (torch.complex32, None, None),
        (torch.bfloat16, torch.float64, torch.float64),
        (torch.float32, "auto", None),
    ],
)
def test_sums_are_as_wide_for_complex_numbers_as_for_real_ones(dtype, accumulate_dtype, wide):
    assert wide_dtype(dtype, accumulate_dtype) == wide


@pytest.mark.parametrize("change", [nn.Module.double, nn.Module.half])
def test_a_model_that_is_converted_inside_a_window_is_refused(change):
    model = nn.Linear(1, 1)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0))
    window = next(accumulator.windows([torch.ones(1, 1)] * 2, micro_batches=2))
    with pytest.raises(AccumulationError, match=r"now, but its gradient so far is torch.float32 on cpu: convert"):
        for x in window:
            window.backward(model(x.to(model.weight.dtype)).mean())
            change(model)
    window.discard()
    run = next(accumulator.windows([torch.ones(1, 1, dtype=model.weight.dtype)], micro_batches=1))
    for x in run:
        run.backward(model(x).mean())
    assert run.step().skipped is None
