"""Model and optimizer state by name: exact round trips, and refusals that change nothing."""

import copy
import json

import pytest
import torch
from torch import nn

from dagnn.errors import CheckpointError, RunError
from dagnn.graph import Dag
from dagnn.nn import DagNN
from dagnn.training.config import OPTIMIZERS, OptimizerConfig
from dagnn.training.optimizers import make_optimizer
from dagnn.training.run.tensors import (
    flags_of,
    load_flags,
    load_model,
    load_optimizer,
    load_weights,
    model_tensors,
    names_of_groups,
    optimizer_state,
    unwrapped,
)


class Reversed(nn.Module):
    """The parameters of `Straight`, in another order."""

    def __init__(self):
        super().__init__()
        self.second = nn.Linear(3, 1)
        self.first = nn.Linear(2, 3)

    def forward(self, x):
        return self.second(self.first(x))


class Straight(Reversed):
    def __init__(self):
        super().__init__()
        second = self.second
        del self.second
        self.second = second


def train(model, optimizer, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 2, generator=generator)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("other", [Straight, Reversed])
def test_optimizer_goes_on_exactly_even_when_parameters_come_in_another_order(name, other):
    torch.manual_seed(0)
    model = Straight()
    optimizer = make_optimizer(model, OptimizerConfig(name=name, lr=0.01))
    train(model, optimizer, 3)
    tensors, state = optimizer_state(optimizer, model)
    tensors = {key: tensor.clone() for key, tensor in tensors.items()}
    state = json.loads(json.dumps(state, allow_nan=False))

    again = other()
    load_model(again, model_tensors(model))
    resumed = make_optimizer(again, OptimizerConfig(name=name, lr=0.5))
    load_optimizer(resumed, again, tensors, state)
    assert resumed.param_groups[0]["lr"] == 0.01
    assert type(resumed.param_groups[0].get("betas", ())) is tuple
    train(model, optimizer, 3, seed=1)
    train(again, resumed, 3, seed=1)
    for key, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[key])


def test_state_before_the_first_step_is_empty():
    model = Straight()
    tensors, state = optimizer_state(make_optimizer(model, OptimizerConfig()), model)
    assert tensors == {}
    load_optimizer(make_optimizer(model, OptimizerConfig()), model, tensors, state)


def test_two_groups_keep_their_options():
    model = Straight()
    groups = [{"params": model.first.parameters(), "lr": 0.1}, {"params": model.second.parameters(), "lr": 0.2}]
    optimizer = torch.optim.Adam(groups)
    train(model, optimizer, 2)
    tensors, state = optimizer_state(optimizer, model)
    fresh = torch.optim.Adam([{"params": model.first.parameters()}, {"params": model.second.parameters()}])
    load_optimizer(fresh, model, tensors, state)
    assert [group["lr"] for group in fresh.param_groups] == [0.1, 0.2]


def test_other_optimizer_or_parameters_are_refused():
    model = Straight()
    optimizer = make_optimizer(model, OptimizerConfig(name="adam"))
    train(model, optimizer, 1)
    tensors, state = optimizer_state(optimizer, model)
    with pytest.raises(CheckpointError, match="another kind of optimizer"):
        load_optimizer(make_optimizer(model, OptimizerConfig(name="sgd")), model, tensors, state)
    with pytest.raises(CheckpointError, match="over other parameters"):
        load_optimizer(torch.optim.Adam(model.first.parameters()), model, tensors, state)
    with pytest.raises(CheckpointError, match=r"state for third\.weight, which is no parameter here"):
        load_optimizer(optimizer, model, {"third.weight/exp_avg": torch.zeros(1)}, state)
    with pytest.raises(RunError, match="a parameter that is not the model's"):
        optimizer_state(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), model)


def test_option_that_is_no_number_is_refused():
    model = Straight()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["hook"] = print
    with pytest.raises(RunError, match="the optimizer's hook is a builtin_function_or_method"):
        optimizer_state(optimizer, model)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda tensors: tensors.pop("first.bias"), "the checkpoint lacks first.bias"),
        (lambda tensors: tensors.update(extra=torch.zeros(1)), "only the checkpoint has extra"),
        (lambda tensors: tensors.update({"first.bias": torch.zeros(4)}), r"first.bias is torch.float32 \[4\] there"),
        (lambda tensors: tensors.update({"first.bias": torch.zeros(3).double()}), r"first.bias is torch.float64 \[3\]"),
    ],
)
def test_other_model_is_refused_and_nothing_changes(change, told):
    model = Straight()
    tensors = {name: torch.full_like(each, 7) for name, each in model.state_dict().items()}
    change(tensors)
    before = copy.deepcopy(model.state_dict())
    for load in (lambda: load_model(model, tensors), lambda: load_weights(model, {"model": tensors})):
        with pytest.raises(CheckpointError, match=f"the checkpoint is of another model: {told}"):
            load()
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())


def test_weights_for_use_are_the_averaged_ones():
    model = Straight()
    tensors = {name: torch.zeros_like(each) for name, each in model.state_dict().items()}
    load_weights(model, {"model": tensors, "ema": {"first.weight": torch.ones(3, 2)}})
    assert model.first.weight.eq(1).all()
    assert model.second.weight.eq(0).all()


def test_state_that_is_no_tensor_belongs_to_the_model():
    class Extra(nn.Linear):
        seen = 1

        def get_extra_state(self):
            return {"seen": self.seen}

        def set_extra_state(self, state):
            self.seen = state["seen"]

    model, again = Extra(1, 1), Extra(1, 1)
    model.seen = 7
    load_model(again, model_tensors(model))
    assert again.seen == 7


def test_flags_come_back_and_those_of_another_model_are_refused():
    model, again = Straight(), Straight()
    model.first.bias.requires_grad_(False)
    model.second.eval()
    flags = flags_of(model)
    assert flags == {"frozen": ["first.bias"], "evaluating": ["second"]}
    again.second.weight.requires_grad_(False)
    load_flags(again, flags)
    assert flags_of(again) == flags
    with pytest.raises(CheckpointError, match="only the checkpoint has third"):
        load_flags(again, {"frozen": ["third"], "evaluating": []})


def test_groups_that_were_added_while_training_are_made_again():
    """The optimizer of a resumed training has the groups of the beginning; the checkpoint has those of its moment."""
    model = Straight()
    optimizer = torch.optim.Adam(model.first.parameters(), lr=0.1)
    begun = names_of_groups(optimizer, model)
    train(model, optimizer, 2)
    optimizer.add_param_group({"params": model.second.parameters(), "lr": 0.01, "betas": (0.5, 0.6)})
    train(model, optimizer, 2)
    tensors, state = optimizer_state(optimizer, model, begun)
    again = Straight()
    load_model(again, model_tensors(model))
    resumed = torch.optim.Adam(again.first.parameters(), lr=0.1)
    load_optimizer(resumed, again, {key: each.clone() for key, each in tensors.items()}, json.loads(json.dumps(state)))
    assert [group["lr"] for group in resumed.param_groups] == [0.1, 0.01]
    assert [group["betas"] for group in resumed.param_groups] == [(0.9, 0.999), (0.5, 0.6)]
    train(model, optimizer, 2, seed=1)
    train(again, resumed, 2, seed=1)
    assert all(torch.equal(each, again.state_dict()[name]) for name, each in model.state_dict().items())
    with pytest.raises(CheckpointError, match="over other parameters"):
        load_optimizer(torch.optim.Adam([again.first.weight]), again, tensors, state)


def test_a_rate_that_is_a_tensor_stays_one():
    model = Straight()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1))
    train(model, optimizer, 1)
    _, state = optimizer_state(optimizer, model)
    fresh = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.7))
    load_optimizer(fresh, model, {}, json.loads(json.dumps(state)))
    assert torch.equal(fresh.param_groups[0]["lr"], torch.tensor(0.1))


def test_names_are_those_of_the_module_inside():
    inside = nn.Linear(2, 1)
    assert unwrapped(torch.compile(inside, backend="eager")) is inside
    assert model_tensors(torch.compile(inside, backend="eager")).keys() == {"weight", "bias"}

    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(1, 1)

    holder = Holder()
    assert unwrapped(holder) is holder


@pytest.mark.fault("graphs_and_networks", 5)
def test_a_checkpoint_knows_whose_edges_its_weights_are_and_an_earlier_one_is_taken():
    def model(edges):
        return nn.Sequential(DagNN(Dag(edges)), nn.Linear(1, 1))

    one, other = model([("a", "h"), ("b", "h"), ("h", "y")]), model([("a", "h"), ("h", "y"), ("b", "y")])
    tensors = model_tensors(one)
    before = copy.deepcopy(model_tensors(other))
    with pytest.raises(CheckpointError, match="only the state dict has the edge 'b' -> 'h'"):
        load_model(other, tensors)
    assert all(torch.equal(value, before[name]) for name, value in model_tensors(other).items())
    del tensors["0._extra_state"]
    twin = model([("h", "y"), ("b", "h"), ("a", "h")])
    load_model(twin, tensors)
    assert twin[0].edge_weights() == one[0].edge_weights()
