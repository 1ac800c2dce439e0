"""What decides how a training goes on is saved whole, or refused before the first step."""

import itertools
import json

import numpy as np
import pytest
import torch
from plain_training import Cycle, config, data, fit_until, linear, mse
from safetensors.torch import load_file
from torch import nn

from dagnn.errors import ConfigError, RunError
from dagnn.training import RunDirectory, Trainer
from dagnn.training.run.checkpoint_commands import export_weights
from dagnn.training.run.checkpoints import read_checkpoint
from dagnn.training.run.tensors import flags_of, load_weights


def fresh(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def state_of(trainer):
    model = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    slots = [trainer.optimizer.state.get(each, {}) for each in trainer.model.parameters()]
    moments = [each[name].clone() for each in slots for name in sorted(each) if isinstance(each[name], torch.Tensor)]
    return [*model.values(), *moments]


def stopped_and_not(tmp_path, make, stop_at, steps=8):
    """Outcomes of a training stopped after each of the steps ``stop_at`` and resumed, and of one never stopped."""
    settings = config(max_steps=steps, checkpoint__save_every=0, ema_decay=0.9)
    outcomes = []
    for name, stops in (("stopped", stop_at), ("whole", ())):
        path = tmp_path / f"{name}-{'-'.join(map(str, stop_at))}"
        for number, limit in enumerate((*stops, None)):
            run = RunDirectory.open(path) if number else RunDirectory.create(path, settings)
            with run:
                trainer = make(run, settings)
                trainer.resume()
                fit_until(trainer, limit)
        outcomes.append((state_of(trainer), flags_of(trainer.model)))
    return outcomes


def is_same(stopped, whole):
    return stopped[1] == whole[1] and all(torch.equal(a, b) for a, b in zip(stopped[0], whole[0], strict=True))


@pytest.mark.fault("training_and_command", 3)
@pytest.mark.parametrize("stop_at", [(2,), (3,), (5,), (3, 4, 6)], ids=str)
@pytest.mark.parametrize("change", ["unfreeze", "freeze", "add a group", "evaluate"])
def test_flags_and_groups_that_change_while_training_are_resumed(tmp_path, change, stop_at):
    """At step 3: a layer unfrozen, frozen, or unfrozen and given to the optimizer; batch norm put in eval mode."""

    def make(run, settings):
        model = fresh()
        optimizer = None
        if change in ("unfreeze", "add a group"):
            model[0].requires_grad_(False)
        if change == "unfreeze":
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

        class Source(Cycle):
            def next_batch(self):
                if trainer.step == 3:  # between two windows
                    if change == "evaluate":
                        model[1].eval()
                    else:
                        model[0].requires_grad_(change != "freeze")
                    if change == "add a group" and len(trainer.optimizer.param_groups) == 1:
                        trainer.optimizer.add_param_group({"params": model[0].named_parameters(), "lr": 0.02})
                return super().next_batch()

        source = Source(data(4, 4, 4))
        trainer = Trainer(model, mse, source, settings, run=run, optimizer=optimizer, show_progress=False)
        return trainer

    assert is_same(*stopped_and_not(tmp_path, make, stop_at))


@pytest.mark.fault("training_and_command", 1)
def test_tied_weights_are_exported_averaged_and_resumed(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.head = nn.Linear(3, 3), nn.Linear(3, 3)
            self.head.weight = self.emb.weight

        def forward(self, x):
            return self.head(self.emb(x)).sum(1, keepdim=True)

    def make(run, settings):
        torch.manual_seed(0)
        return Trainer(Tied(), mse, Cycle(data(4, 4, 4)), settings, run=run, show_progress=False)

    assert is_same(*stopped_and_not(tmp_path, make, (2, 5)))
    path = tmp_path / "whole-2-5"
    with RunDirectory.open(path) as run:
        trainer = make(run, run.config())
        trainer.resume()
    with trainer.averaged() as model:
        expected = {name: value.clone() for name, value in model.state_dict().items()}
    export_weights(path, tmp_path / "weights.safetensors")
    exported = load_file(tmp_path / "weights.safetensors")
    used = Tied()
    load_weights(used, read_checkpoint(trainer._store.path_of(8)).tensors)
    assert exported.keys() == expected.keys() == used.state_dict().keys()
    for name, value in expected.items():
        assert torch.equal(exported[name], value) and torch.equal(used.state_dict()[name], value)


class Counting(nn.Module):
    """A model whose extra state is what ``kept`` says, and changes with every step."""

    def __init__(self, kept):
        super().__init__()
        self.linear, self.kept, self.calls = nn.Linear(3, 1), kept, 0

    def forward(self, x):
        self.calls += self.training
        return self.linear(x) * (1 + 0.01 * self.calls)

    def get_extra_state(self):
        return self.kept(self.calls)

    def set_extra_state(self, state):
        self.state = state
        self.calls = int(state["calls"] if isinstance(state, dict) else state if np.ndim(state) == 0 else len(state))


@pytest.mark.fault("training_and_command", 5)
@pytest.mark.parametrize(
    "kept",
    [
        lambda calls: {"calls": calls, "inside": [(1, 2.5), {3, 4}, float("nan"), b"x", None]},
        lambda calls: torch.tensor(calls),
        lambda calls: torch.ones(calls),
        lambda calls: list(range(calls)),
        lambda calls: np.int64(calls),
        lambda calls: {"calls": np.array(calls), 3: torch.ones(2, dtype=torch.complex128)},
    ],
)
def test_extra_state_is_resumed(tmp_path, kept):
    def make(run, settings):
        torch.manual_seed(0)
        return Trainer(Counting(kept), mse, Cycle(data(4, 4)), settings, run=run, show_progress=False)

    settings = config(max_steps=6, checkpoint__save_every=0)
    weights, calls = [], []
    for stops in ((3, None), (None,)):
        path = tmp_path / str(len(stops))
        for number, limit in enumerate(stops):
            with RunDirectory.open(path) if number else RunDirectory.create(path, settings) as run:
                trainer = make(run, settings)
                trainer.resume()
                fit_until(trainer, limit)
        weights.append(trainer.model.linear.weight)
        calls.append(trainer.model.calls)
    assert torch.equal(*weights) and calls == [6, 6]


class Odd(nn.Module):
    """A model with one more entry in its state dict."""

    def __init__(self, entry):
        super().__init__()
        self.linear = linear()
        if isinstance(entry, nn.Parameter):
            self.odd = entry
        else:
            self.register_buffer("odd", entry)

    def forward(self, x):
        return self.linear(x)


@pytest.mark.fault("training_and_command", 5)
@pytest.mark.parametrize("average", [0.0, 0.9])
def test_a_complex128_parameter_is_trained_saved_and_resumed(tmp_path, average):
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(3, 1, dtype=torch.complex128))
            self.register_buffer("turned", torch.randn(2, dtype=torch.complex128).conj())

        def forward(self, x):
            return (x.to(torch.complex128) @ self.weight).abs().float()

    settings = config(max_steps=4, checkpoint__save_every=2, ema_decay=average)
    with RunDirectory.create(tmp_path / "run", settings) as run:
        trainer = Trainer(Complex(), mse, Cycle(data(4, 4)), settings, run=run, show_progress=False)
        trainer.fit()
        again = Trainer(Complex(), mse, Cycle(data(4, 4)), settings, run=run, show_progress=False)
        again.resume(2)
        again.fit()
    assert torch.equal(again.model.weight, trainer.model.weight)
    with again.averaged(), trainer.averaged():
        assert torch.equal(again.model.weight, trainer.model.weight)
    target = tmp_path / "weights.safetensors"
    with pytest.raises(RunError, match=r"a safetensors file cannot hold torch.complex128 \(turned, weight\)"):
        export_weights(tmp_path / "run", target)
    assert not target.exists()


@pytest.mark.fault("training_and_command", 5)
@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (torch.eye(2).to_sparse(), "the model's odd is a tensor of torch.float32 .*sparse_coo"),
        (torch.empty(2, device="meta"), "the model's odd is a tensor of torch.float32 .*on the device meta"),
        (nn.UninitializedParameter(), "the model's odd is not initialised yet"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_the_first_step(tmp_path, entry, told):
    refused(tmp_path, told, model=Odd(entry))


def test_a_sparse_buffer_beside_averages_is_refused_before_the_first_step(tmp_path):
    refused(tmp_path, "the model's odd is a tensor .*sparse_coo", model=Odd(torch.eye(2).to_sparse()), average=0.9)


@pytest.mark.fault("training_and_command", 5)
def test_values_that_cannot_be_kept_are_refused_before_the_first_step(tmp_path):
    class Source(Cycle):
        def state_dict(self):
            return {"position": self.position, "inside": [1, {"deep": object()}]}

    refused(tmp_path / "1", r"the state of the loader\['inside'\]\[1\]\['deep'\] is a object", source=Source(data(4)))
    refused(tmp_path / "2", "the model's _extra_state is a Counting", model=Counting(lambda calls: Counting(None)))
    refused(tmp_path / "3", "the description is <object.* of the type object", description=object())
    refused(tmp_path / "4", "the checkpoint's description is no JSON", description={"width": float("nan")})
    foreign = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    refused(tmp_path / "5", "the optimizer has a parameter that is not the model's", optimizer=foreign)


def refused(path, told, *, model=None, source=None, average=0.0, **options):
    made = []
    settings = config(max_steps=5, ema_decay=average)
    model = linear() if model is None else model

    def loss_fn(model, batch):
        made.append(batch)
        return mse(model, batch)

    path.mkdir(exist_ok=True)
    with RunDirectory.create(path / "run", settings) as run:
        source = Cycle(data(4)) if source is None else source
        with pytest.raises((RunError, ConfigError), match=told):
            Trainer(model, loss_fn, source, settings, run=run, show_progress=False, **options).fit()
    assert made == []


@pytest.mark.fault("training_and_command", 5)
def test_an_optimizer_whose_state_cannot_be_kept_is_refused_after_the_first_step(tmp_path):
    class Hoarder(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            self.state[self.param_groups[0]["params"][0]]["seen"] = object()

    settings = config(max_steps=50)
    model = linear()
    with RunDirectory.create(tmp_path / "run", settings) as run:
        optimizer = Hoarder(model.parameters(), lr=0.1)
        trainer = Trainer(model, mse, Cycle(data(4)), settings, run=run, optimizer=optimizer, show_progress=False)
        with pytest.raises(RunError, match="the optimizer's seen is a object"):
            trainer.fit()
    assert trainer.step == 1


@pytest.mark.fault("training_and_command", 5)
def test_values_of_numpy_in_a_source_and_a_description_are_kept(tmp_path):
    class Source(Cycle):
        def state_dict(self):
            return {"position": np.int64(self.position), "seen": (1, np.float32(0.5)), "order": np.arange(3)}

        def load_state_dict(self, state):
            assert type(state["seen"]) is tuple and type(state["seen"][1]) is np.float32
            assert state["order"].dtype == np.int64
            self.position = state["position"]

    settings = config(max_steps=4, checkpoint__save_every=2)
    with RunDirectory.create(tmp_path / "run", settings) as run:
        described = {"width": np.int64(3), "sizes": (np.float32(0.5), torch.tensor(2))}
        trainer = Trainer(
            linear(), mse, Source(data(4, 4)), settings, run=run, description=described, show_progress=False
        )
        trainer.fit()
        again = Trainer(linear(), mse, Source(data(4, 4)), settings, run=run, show_progress=False)
        assert again.resume(2)
        again.fit()
        checkpoint = read_checkpoint(run.checkpoints_path / "step-00000004")
    assert torch.equal(again.model.weight, trainer.model.weight)
    assert checkpoint.state["description"] is None
    state = json.loads((tmp_path / "run/checkpoints/step-00000002/state.json").read_bytes())
    assert state["description"] == {"width": 3, "sizes": [0.5, 2]}


@pytest.mark.fault("training_and_command", 2)
def test_a_training_beside_a_foreign_checkpoint_keeps_and_resumes_its_own(tmp_path):
    settings = config(max_steps=4, checkpoint__save_every=1, checkpoint__keep_last=1, checkpoint__keep_best=1)
    settings = settings.changed({"eval_every": 1})
    scores = itertools.count()

    def make(run):
        return Trainer(
            linear(), mse, Cycle(data(4)), settings, run=run, evaluate=lambda m, s: {"accuracy": next(scores) / 10},
            show_progress=False,
        )  # fmt: skip

    with RunDirectory.create(tmp_path / "other", settings.changed({"max_steps": 5000})) as other:
        trainer = make(other)
        trainer._counters.step = 4999
        trainer.config = settings.changed({"max_steps": 5000})
        trainer.fit()
    with RunDirectory.create(tmp_path / "run", settings) as run:
        run.checkpoints_path.mkdir()
        (other.checkpoints_path / "step-00005000").rename(run.checkpoints_path / "step-00005000")
        result = make(run).fit()
        assert result.checkpoint.exists() and result.checkpoint.name == "step-00000004"
        again = make(run)
        with pytest.warns(UserWarning, match="passing over checkpoint 5000: .* belongs to run"):
            assert again.resume()
        assert again.step == 4
        assert (run.checkpoints_path / "step-00005000" / "manifest.json").exists()


@pytest.mark.fault("training_and_command", 5)
def test_a_buffer_whose_elements_are_one_is_resumed(tmp_path):
    class Expanded(nn.Linear):
        def __init__(self):
            super().__init__(3, 1)
            self.register_buffer("scale", torch.full((1,), 2.0).expand(5))

    settings = config(max_steps=2)
    with RunDirectory.create(tmp_path / "run", settings) as run:
        Trainer(Expanded(), mse, Cycle(data(4)), settings, run=run, show_progress=False).fit()
    with RunDirectory.open(tmp_path / "run") as run:
        trainer = Trainer(Expanded(), mse, Cycle(data(4)), settings, run=run, show_progress=False)
        assert trainer.resume()
    assert trainer.model.scale.tolist() == [2.0] * 5
