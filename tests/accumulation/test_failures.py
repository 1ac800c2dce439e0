"""An error inside backward, swallowed by the caller: never a step of half a window."""

import contextlib

import pytest
import torch
from torch import nn

from dagnn.accumulation import GradientAccumulator
from dagnn.errors import AccumulationError, ConfigError


class Failing(torch.autograd.Function):
    """Passes gradients on, or raises half-way through the backward pass."""

    @staticmethod
    def forward(ctx, x, error):
        ctx.error = error
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.error is not None:
            raise ctx.error
        return gradient, None


class Two(nn.Module):
    """w behind the place of failure, v before it: v has its gradient when the error comes."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.v = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x, error=None):
        return Failing.apply(self.w * x, error) + self.v * x


ERRORS = [RuntimeError("hook"), KeyboardInterrupt(), torch.OutOfMemoryError("out of memory")]


def setup(**options):
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9 if options.get("eager") else 0.0)
    return model, GradientAccumulator(model, optimizer, **options)


@pytest.mark.fault("accumulation", 4)
@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize(
    "options",
    [{}, {"on_nonfinite": "raise"}, {"scaler": True}, {"on_nonfinite": "drop"}],
    ids=["plain", "raise", "scaler", "drop"],
)
def test_no_step_is_made_of_a_window_whose_backward_failed(options, failing, error):
    options = {**options, **({"scaler": torch.amp.GradScaler("cpu")} if "scaler" in options else {})}
    model, accumulator = setup(**options)
    window = next(accumulator.windows([torch.tensor([v]).double() for v in (1.0, 7.0, 3.0)], micro_batches=3))
    with pytest.raises(AccumulationError, match=r"an error inside backward .* in micro-batch"):
        for index, x in enumerate(window):
            try:
                window.backward(model(x, error if index == failing else None).mean())
            except BaseException as caught:
                assert caught is error or isinstance(caught, RuntimeError)
    with pytest.raises(AccumulationError, match="an error inside backward"):
        window.step()
    assert (model.w.item(), model.v.item()) == (0.0, 0.0)
    window.discard()
    window = next(accumulator.windows([torch.tensor([v]).double() for v in (1.0, 3.0)], micro_batches=2))
    for x in window:
        window.backward(model(x).mean())
    assert window.step().weight == 2
    assert (model.w.item(), model.v.item()) == (-2.0, -2.0)


@pytest.mark.fault("accumulation", 4)
def test_a_failed_micro_batch_can_be_dropped_where_it_was_kept_apart():
    model, accumulator = setup(on_nonfinite="drop")
    window = next(accumulator.windows([torch.tensor([v]).double() for v in (1.0, 7.0, 3.0)], micro_batches=3))
    for x in window:
        try:
            window.backward(model(x, RuntimeError("half-way") if float(x) == 7.0 else None).mean())
        except RuntimeError:
            window.drop()
    update = window.step()
    assert (update.weight, update.micro_batches, update.loss) == (2, 2, 0.0)
    assert (model.w.item(), model.v.item()) == (-2.0, -2.0)


@pytest.mark.fault("accumulation", 4)
def test_a_failed_pass_in_the_last_micro_batch_outside_the_loop():
    model, accumulator = setup()
    window = next(accumulator.windows([torch.ones(1).double()] * 2, micro_batches=2))
    try:
        for index, x in enumerate(window):
            window.backward(model(x, RuntimeError("late") if index else None).mean())
    except RuntimeError:
        pass
    with pytest.raises(AccumulationError, match="discard"):
        window.step()
    with pytest.raises(AccumulationError, match="an error inside backward"):
        accumulator.state_dict(inside_window=True)


@pytest.mark.fault("accumulation", 4)
def test_several_losses_and_a_second_pass_of_one_micro_batch():
    model, accumulator = setup()
    window = next(accumulator.windows([torch.ones(1).double()], micro_batches=1))
    with pytest.raises(AccumulationError, match="an error inside backward"):
        for x in window:
            window.backward(model(x).mean(), retain_graph=True)
            with contextlib.suppress(RuntimeError):
                window.backward({"main": model(x).mean(), "aux": model(x, RuntimeError("aux")).mean()})


@pytest.mark.fault("accumulation", 4)
def test_the_manual_form():
    model, accumulator = setup()
    accumulator.backward(model(torch.ones(1).double()).mean(), weight=1)
    with pytest.raises(RuntimeError, match="half-way"):
        accumulator.backward(model(torch.full((1,), 7.0).double(), RuntimeError("half-way")).mean(), weight=1)
    for call in (accumulator.step, accumulator.flush):
        with pytest.raises(AccumulationError, match="an error inside backward"):
            call()
    with pytest.raises(AccumulationError, match="an error inside backward"):
        accumulator.backward(model(torch.ones(1).double()).mean(), weight=1)
    accumulator.discard()
    accumulator.backward(model(torch.ones(1).double()).mean(), weight=1)
    accumulator.step()
    assert model.w.item() == -1.0


@pytest.mark.fault("accumulation", 4)
@pytest.mark.parametrize("before", [0, 1])
def test_a_refused_loss_of_the_manual_form_is_as_if_it_had_not_come(before):
    model, accumulator = setup()
    for _ in range(before):
        accumulator.backward(model(torch.full((1,), 3.0).double()).mean(), weight=3)
    with pytest.raises(AccumulationError, match="must be one number"):
        accumulator.backward(model(torch.ones(2).double()), weight=1)
    with pytest.raises(ConfigError, match="must be finite"):
        accumulator.backward(model(torch.ones(1).double()).mean(), weight=float("nan"))
    accumulator.backward(model(torch.full((1,), 7.0).double()).mean(), weight=1)
    update = accumulator.step()
    assert update.micro_batches == 1 + before
    assert -model.w.item() == (4.0 if before else 7.0)


@pytest.mark.fault("accumulation", 4)
def test_a_refused_mapping_counts_none_of_its_losses():
    model, accumulator = setup()
    window = next(accumulator.windows([torch.ones(1).double()], micro_batches=1))
    for x in window:
        with pytest.raises(ConfigError, match="must be a tensor"):
            window.backward({"main": model(x).mean() + 5, "aux": 3.0})
        window.backward({"main": model(x).mean() + 5, "aux": model(x).mean()})
    assert window.step().losses == {"main": 5.0, "aux": 0.0}


@pytest.mark.fault("accumulation", 4)
@pytest.mark.parametrize("eager", ["momentum", "last"])
def test_an_eager_update_that_failed_half_way_needs_a_checkpoint(eager):
    model, accumulator = setup(eager=eager, on_nonfinite="raise")
    window = next(accumulator.windows([torch.ones(1).double()] * 2, micro_batches=2))
    with pytest.raises(AccumulationError, match="an error inside backward"):
        for index, x in enumerate(window):
            with contextlib.suppress(RuntimeError):
                window.backward(model(x, RuntimeError("half-way") if index else None).mean())
    with pytest.raises(AccumulationError, match="an error inside backward"):
        window.step()
    window.discard()
    with pytest.raises(AccumulationError, match="load the model and the optimizer from a checkpoint"):
        next(accumulator.windows([torch.ones(1).double()], micro_batches=1))
    accumulator.load_state_dict({"version": 1, "updates": 0, "carried": 0, "window": None})
    assert next(accumulator.windows([torch.ones(1).double()], micro_batches=1)) is not None


@pytest.mark.fault("accumulation", 4)
def test_an_error_in_the_second_evaluation_of_a_closure_undoes_the_step():
    model = Two()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=4)
    accumulator = GradientAccumulator(model, optimizer)
    calls = []

    def loss_fn(model, x):
        calls.append(1)
        error = RuntimeError("third") if len(calls) == 3 else None
        return (model(x, error) - 1).square().mean()

    with pytest.raises(RuntimeError, match="third"):
        accumulator.update(torch.ones(2).double(), loss_fn, micro_batch_size=1)
    assert (model.w.item(), model.v.item()) == (0.0, 0.0)
    accumulator.update(torch.ones(2).double(), loss_fn, micro_batch_size=1)
    assert (model.w + model.v).item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.fault("accumulation", 12)
def test_an_update_counts_although_its_scheduler_fails_after_it():
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=1)
    accumulator = GradientAccumulator(model, optimizer, scheduler=scheduler)
    for _ in range(2):
        accumulator.backward(model(torch.ones(1, 1)).mean(), weight=1)
        before = model.weight.item()
        with contextlib.suppress(ValueError):  # past the end of the schedule
            accumulator.step()
        assert model.weight.item() != before
    assert accumulator.updates == 2


def test_a_huge_weight_is_refused():
    model = nn.Linear(1, 1)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="must be a number of items, got int: 1000"):
        next(accumulator.windows([torch.ones(1, 1)], micro_batches=1, weight=lambda batch: 10**400))
