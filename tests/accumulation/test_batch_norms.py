"""BatchNorm inside a window: the warning, and running statistics that move once."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dagnn.accumulation import AccumulationWarning, GradientAccumulator, accumulate


def accumulator_for(model, **options):
    return GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.0), **options)


def run(accumulator, model, loader, micro_batches):
    for window in accumulator.windows(loader, micro_batches=micro_batches):
        for inputs in window:
            window.backward(model(inputs).square().mean())
        window.step()


def test_warning_names_the_layers_once():
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
    accumulator = accumulator_for(model)
    with pytest.warns(AccumulationWarning, match=r"BatchNorm layers in training mode \(1\)") as caught:
        run(accumulator, model, [torch.randn(2, 1) for _ in range(4)], micro_batches=2)
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize("case", ["eval", "one micro-batch", "ignore"])
def test_no_warning_where_nothing_differs_or_it_was_accepted(case):
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2)).train(case != "eval")
    accumulator = accumulator_for(model, batch_norm="ignore" if case == "ignore" else "warn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(accumulator, model, [torch.randn(2, 1)] * 2, micro_batches=1 if case == "one micro-batch" else 2)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_deferred_statistics_are_those_of_the_full_batch(momentum):
    torch.manual_seed(0)
    sizes = (4, 2, 5)
    inputs = [torch.randn(n, 3, 4, dtype=torch.float64) for n in sizes]
    deferred, full = (nn.BatchNorm1d(3, momentum=momentum).double() for _ in range(2))
    accumulator = accumulator_for(deferred, batch_norm="defer")
    with pytest.warns(AccumulationWarning):
        for _ in range(2):
            run(accumulator, deferred, inputs, micro_batches=3)
            full(torch.cat(inputs))
    assert torch.allclose(deferred.running_mean, full.running_mean, rtol=1e-12)
    assert torch.allclose(deferred.running_var, full.running_var, rtol=1e-12)
    assert int(deferred.num_batches_tracked) == 2


def test_an_evaluation_inside_a_window_is_not_collected():
    model = nn.BatchNorm1d(1).double()
    accumulator = accumulator_for(model, batch_norm="defer")
    with pytest.warns(AccumulationWarning):
        for window in accumulator.windows([torch.zeros(2, 1), torch.full((2, 1), 4.0)], micro_batches=2):
            for inputs in window:
                window.backward(model(inputs.double()).square().mean())
                model.eval()
                model(torch.full((9, 1), 100.0).double())
                model.train()
            window.step()
    assert float(model.running_mean) == pytest.approx(0.2, rel=1e-12)


def test_a_discarded_window_leaves_the_statistics_alone():
    model = nn.BatchNorm1d(1)
    accumulator = accumulator_for(model, batch_norm="defer")
    with pytest.warns(AccumulationWarning):
        window = next(accumulator.windows([torch.ones(2, 1), torch.ones(2, 1)], micro_batches=2))
    for inputs in window:
        window.backward(model(inputs).square().mean())
        break
    window.discard()
    assert float(model.running_mean) == 0.0
    model(torch.ones(2, 1))  # the hooks are gone: a plain forward pass moves them again
    assert float(model.running_mean) == pytest.approx(0.1)


def checkpointed(model, inputs, use_reentrant):
    return checkpoint(model, inputs, use_reentrant=use_reentrant)


@pytest.mark.fault("accumulation", 8)
@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("twice", [False, True])
def test_a_pass_that_checkpointing_repeats_does_not_count_again(use_reentrant, twice):
    torch.manual_seed(0)
    inputs = [torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 2, 5)]
    deferred = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()).double()
    full = copy.deepcopy(deferred)
    accumulator = accumulator_for(deferred, batch_norm="defer")
    with pytest.warns(AccumulationWarning):
        for window in accumulator.windows(inputs, micro_batches=3):
            for x in window:
                outer = (lambda x: checkpointed(deferred, x, use_reentrant)) if twice else deferred
                window.backward(checkpointed(outer, x, use_reentrant).square().mean())
            window.step()
    full(torch.cat(inputs))
    for name, buffer in full[1].named_buffers():
        assert torch.allclose(getattr(deferred[1], name), buffer, rtol=1e-12), name


@pytest.mark.fault("accumulation", 8)
def test_the_second_pass_of_a_coupled_loss_does_not_count_again():
    torch.manual_seed(0)
    inputs = torch.randn(11, 3, dtype=torch.float64)
    deferred = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
    full = copy.deepcopy(deferred)
    accumulate(
        deferred, lambda m, x: m(x).square().mean(), inputs, micro_batch_size=4, coupled=True, batch_norm="defer"
    )
    full(inputs)
    for name, buffer in full[1].named_buffers():
        assert torch.allclose(getattr(deferred[1], name), buffer, rtol=1e-12), name


@pytest.mark.fault("accumulation", 8)
@pytest.mark.parametrize("how", ["by hand", "nan", "nan, skipped"])
def test_statistics_leave_out_micro_batches_that_were_left_out(how):
    torch.manual_seed(0)
    inputs = [torch.randn(n, 1, dtype=torch.float64) for n in (4, 2, 5)]
    bad = torch.full((3, 1), float("nan") if how != "by hand" else 9.0, dtype=torch.float64)
    deferred, full = (nn.BatchNorm1d(1).double() for _ in range(2))
    accumulator = accumulator_for(deferred, batch_norm="defer", on_nonfinite="skip" if "skipped" in how else "drop")
    with pytest.warns(AccumulationWarning):
        for window in accumulator.windows([*inputs[:2], bad, inputs[2]], micro_batches=4):
            for x in window:
                loss = deferred(x).square().mean()
                if x is bad and how == "by hand":
                    window.drop()
                else:
                    window.backward(loss)
            window.step()
    full(torch.cat(inputs))
    assert torch.allclose(deferred.running_mean, full.running_mean, rtol=1e-12)
    assert torch.allclose(deferred.running_var, full.running_var, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::dagnn.accumulation.AccumulationWarning")
def test_deferred_statistics_survive_a_stop_inside_the_window():
    torch.manual_seed(0)
    inputs = [torch.randn(n, 1, dtype=torch.float64) + n for n in (4, 2, 5)]
    first, second, full = (nn.BatchNorm1d(1).double() for _ in range(3))
    accumulator = accumulator_for(first, batch_norm="defer")
    window = next(accumulator.windows(inputs, micro_batches=3))
    window.backward(first(next(iter(window))).square().mean())
    state = accumulator.state_dict(inside_window=True)
    accumulator = accumulator_for(second, batch_norm="defer")
    accumulator.load_state_dict(state)
    run(accumulator, second, inputs, micro_batches=3)
    full(torch.cat(inputs))
    assert torch.allclose(second.running_mean, full.running_mean, rtol=1e-12)
    assert torch.allclose(second.running_var, full.running_var, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::dagnn.accumulation.AccumulationWarning")
def test_layers_of_several_models_have_statistics_of_their_own():
    inputs = torch.arange(4.0, dtype=torch.float64)[:, None]
    models = [nn.Sequential(nn.BatchNorm1d(1)).double() for _ in range(2)]
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.0)
    accumulator = GradientAccumulator(models, optimizer, batch_norm="defer")
    for window in accumulator.windows([inputs[:2], inputs[2:]], micro_batches=2):
        for x in window:
            window.backward((models[0](x) + models[1](10 * x)).square().mean())
        window.step()
    assert [model[0].running_mean.item() for model in models] == pytest.approx([0.15, 1.5])
