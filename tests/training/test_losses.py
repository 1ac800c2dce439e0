"""What a loss function may return, and what the steps, epochs and rows make of it."""

import numpy as np
import pytest
import torch
from plain_training import Cycle, config, data, linear, mse
from torch import nn

from dagnn.data import BatchIterator
from dagnn.errors import ConfigError
from dagnn.training import MappedLoader, RunDirectory, Trainer
from dagnn.training.log import read_metrics
from dagnn.training.step import Returned

SETTINGS = {"micro_batches": 2, "max_steps": 3}


def penalty(model):
    return 0.1 * model.weight.square().sum()


def trained(loss_fn, source=None, run=None, **options):
    model = linear().double()
    source = doubles(Cycle(data(4, 2, 3))) if source is None else source
    trainer = Trainer(model, loss_fn, source, config(**SETTINGS), run=run, show_progress=False, **options)
    return model, trainer.fit()


def doubles(source):
    return MappedLoader(source, lambda batch: tuple(each.double() for each in batch))


@pytest.mark.fault("training_and_command", 8)
def test_losses_by_name_are_added_and_each_is_logged(tmp_path):
    plain, result = trained(lambda m, b: mse(m, b) + penalty(m))
    with RunDirectory.create(tmp_path / "run", config(**SETTINGS)) as run:
        named, same = trained(lambda m, b: {"fit": mse(m, b), "penalty": penalty(m)}, run=run)
        rows = read_metrics(run.metrics_path)
    torch.testing.assert_close(named.weight, plain.weight, rtol=0, atol=1e-12)
    assert same.loss == pytest.approx(result.loss, abs=1e-12)
    assert [list(row)[-5:] for row in rows] == [["loss/fit", "loss/penalty", "level", "skipped", "seconds"]] * 3
    assert all(row["loss"] == pytest.approx(row["loss/fit"] + row["loss/penalty"]) for row in rows)


@pytest.mark.fault("training_and_command", 8)
@pytest.mark.parametrize("kind", [float, int, np.float32, np.int64, torch.tensor])
def test_a_loss_with_its_weight_is_the_mean_over_all_weights(kind):
    """Micro-batches of 4 and 2, weighted by a number that only the loss function knows."""
    expected, _ = trained(mse, weight=lambda batch: 3 * len(batch[0]) + 1)
    for returned in (
        lambda m, b: (mse(m, b), kind(3 * len(b[0]) + 1)),
        lambda m, b: ({"a": 0.75 * mse(m, b), "b": 0.25 * mse(m, b)}, kind(3 * len(b[0]) + 1)),
        lambda m, b: {
            "a": (0.75 * mse(m, b), kind(3 * len(b[0]) + 1)),
            "b": (0.25 * mse(m, b), kind(3 * len(b[0]) + 1)),
        },
    ):
        found, _ = trained(returned)
        torch.testing.assert_close(found.weight, expected.weight, rtol=0, atol=1e-12)


@pytest.mark.fault("training_and_command", 8)
def test_losses_with_denominators_of_their_own_are_means_of_their_own():
    """Micro-batches of 4 and 2 items; ``b`` is a mean over their first 1 and 2."""
    model = linear().double()
    (x, y), (u, v) = ([each.double() for each in batch] for batch in data(4, 2))
    whole = mse(model, (torch.cat([x, u]), torch.cat([y, v]))) + mse(
        model, (torch.cat([x[:1], u]), torch.cat([y[:1], v]))
    )
    whole.backward()
    first = {4: 1, 2: 2}
    found = linear().double()
    Trainer(
        found,
        lambda m, b: {"a": mse(m, b), "b": mse(m, (b[0][: first[len(b[0])]], b[1][: first[len(b[0])]]))},
        doubles(Cycle(data(4, 2))), config(micro_batches=2, max_steps=1),
        weight=lambda b: {"a": len(b[0]), "b": first[len(b[0])]}, show_progress=False,
    ).fit()  # fmt: skip
    torch.testing.assert_close(found.weight, model.weight - 0.1 * model.weight.grad, rtol=0, atol=1e-12)


def test_epochs_have_the_mean_of_named_losses(tmp_path):
    """9 items in batches of 4, 4 and 1: the row of an epoch is the mean over items, each loss by its denominator."""
    numbers = torch.arange(9.0)
    source = MappedLoader(BatchIterator([1] * 9, batch_size=4, seed=0), lambda items: numbers[items])

    class Zero(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

    def loss_fn(model, batch):
        return {"a": batch.mean() + 0 * model.weight.sum(), "b": 2 * batch.mean() + 0 * model.weight.sum()}

    settings = config(max_steps=3)
    for number, weight in enumerate((None, lambda batch: {"a": len(batch), "b": 10 * len(batch)})):
        with RunDirectory.create(tmp_path / str(number), settings) as run:
            Trainer(Zero(), loss_fn, source, settings, run=run, weight=weight, show_progress=False).fit()
            (row,) = [row for row in read_metrics(run.metrics_path) if row["kind"] == "epoch"]
        assert row["loss"] == pytest.approx(12.0) and row["weight"] == 9


def test_weights_that_differ_must_be_known_before():
    loss = torch.tensor(1.0, requires_grad=True)
    with pytest.raises(ConfigError, match=r"losses with weights of their own .* give Trainer\(weight="):
        Returned.of({"a": (loss, 1), "b": (loss, 2)})
    with pytest.raises(ConfigError, match="losses with weights of their own"):
        Returned.of({"a": (loss, 1), "b": loss})
    with pytest.raises(ConfigError, match="weight must be a number of items, got str: 'x'"):
        Returned.of({"a": (loss, "x")})
    assert Returned.of({"a": (loss, None)}) == ({"a": loss}, None)
    with pytest.raises(ConfigError, match="loss must be a tensor, got float"):
        trained(lambda m, b: mse(m, b).item())
    with pytest.raises(ConfigError, match="loss 'b' must be a tensor, got float"):
        trained(lambda m, b: {"a": mse(m, b), "b": 1.0})


def test_no_loss_at_all_is_refused():
    with pytest.raises(ConfigError, match="the losses are an empty mapping"):
        trained(lambda model, batch: {})


def test_names_that_are_the_same_text_are_refused():
    with pytest.raises(ConfigError, match="the losses have the names 1 and '1', which are the same text"):
        trained(lambda m, b: {1: mse(m, b), "1": penalty(m)})
    named, _ = trained(lambda m, b: {1: mse(m, b), 2: penalty(m)})
    texts, _ = trained(lambda m, b: {"1": mse(m, b), "2": penalty(m)})
    assert torch.equal(named.weight, texts.weight)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"model": "x"}, "model must be an nn.Module, got str"),
        ({"loss_fn": None}, "loss_fn must be a function, got NoneType"),
        ({"evaluate": "x"}, "evaluate must be a function, got str: 'x'"),
        ({"weight": 3}, "weight must be a function, got int: 3"),
    ],
)
def test_parts_of_a_wrong_kind_are_refused_before_the_training(parts, told):
    given = {"model": linear(), "loss_fn": mse, "loader": Cycle(data(4)), "config": config(**SETTINGS), **parts}
    with pytest.raises(ConfigError, match=told):
        Trainer(**given)
