"""The trainer: it learns, it accumulates exactly, it refuses what is not finite, it records what happened."""

import math
import re

import pytest
import torch
from plain_training import Cycle, config, data, linear, mse
from small_training import NUM_STEPS, small_config, small_trainer
from torch import nn

from dagnn.errors import ConfigError, RunError
from dagnn.training import BatchLoader, MappedLoader, RunDirectory, Trainer, TrainingInterrupted
from dagnn.training.log import read_metrics


def rows_of(run, kind):
    return [row for row in read_metrics(run.metrics_path) if row["kind"] == kind]


def test_loss_falls_and_every_weight_changes():
    trainer = small_trainer(None, small_config(max_steps=150, optimizer__lr=0.1))
    before = [each.clone() for each in trainer.model.parameters()]
    result = trainer.fit()
    assert result.step == trainer.step == 150
    assert result.evaluation["accuracy"] > 0.9
    assert result.best_score >= result.evaluation["accuracy"]
    assert result.checkpoint is None
    assert not any(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


def test_micro_batches_of_any_sizes_equal_the_full_batch():
    parts = data(4, 1, 3)
    whole = [tuple(torch.cat(each) for each in zip(*parts, strict=True))]
    models = [linear().double() for _ in range(2)]
    for model, batches, count in ((models[0], parts, 3), (models[1], whole, 1)):
        source = MappedLoader(Cycle(batches), lambda batch: tuple(each.double() for each in batch))
        settings = config(micro_batches=count, batch_size=12, max_norm=0.5, optimizer__momentum=0.9)
        Trainer(model, mse, source, settings, show_progress=False).fit()
    torch.testing.assert_close(models[0].weight, models[1].weight, rtol=0, atol=1e-12)


def test_weight_of_a_micro_batch_may_be_given():
    parts = data(2, 2)
    model, expected = linear(), linear()
    Trainer(
        model, mse, Cycle(parts), config(micro_batches=2, max_steps=1), weight=lambda b: 3.0 if b is parts[0] else 1.0,
        show_progress=False,
    ).fit()  # fmt: skip
    (0.75 * mse(expected, parts[0]) + 0.25 * mse(expected, parts[1])).backward()
    torch.testing.assert_close(model.weight, expected.weight - 0.1 * expected.weight.grad)


def test_rates_follow_the_schedule_and_gradients_are_clipped(tmp_path):
    settings = config(schedule__name="warmup", schedule__warmup_steps=4, max_norm=0.01)
    with RunDirectory.create(tmp_path / "run", settings) as run:
        model = linear()
        before = model.weight.detach().clone(), model.bias.detach().clone()
        Trainer(
            model, mse, Cycle(data(4)), settings.changed({"optimizer.momentum": 0}), run=run, show_progress=False
        ).fit()
        rows = rows_of(run, "step")
    assert [row["lr"] for row in rows] == [0.1 * part for part in (0.25, 0.5, 0.75, 1.0, 1.0)]
    assert all(row["grad_norm"] > 0.01 for row in rows)
    moved = torch.cat([(model.weight - before[0]).flatten(), model.bias - before[1]]).norm().item()
    assert moved <= 0.01 * 0.1 * 3.5 * (1 + 1e-5)


def test_rows_have_the_documented_keys(tmp_path):
    settings = small_config()
    with RunDirectory.create(tmp_path / "run", settings) as run:
        result = small_trainer(run, settings).fit()
        rows = read_metrics(run.metrics_path)
    keys = {row["kind"]: " ".join(row) for row in rows}
    assert keys == {
        "step": "kind step loss grad_norm lr weight micro_batches level skipped seconds",
        "evaluation": "kind step accuracy accuracy/1 accuracy/2 accuracy/3 seconds",
        "promotion": "kind step level active",
        "epoch": "kind step epoch loss weight",
    }
    assert [(row["step"], row["active"]) for row in rows if row["kind"] == "promotion"] == [
        (8, [1, 2]),
        (16, [1, 2, 3]),
    ]
    seconds = [row["seconds"] for row in rows if "seconds" in row]
    assert seconds == sorted(seconds)
    assert 0 < seconds[-1] <= result.seconds + 1e-3
    assert result.checkpoint == tmp_path / "run" / "checkpoints" / f"step-{NUM_STEPS:08d}"


@pytest.mark.parametrize("kind", ["loss", "gradient", "hidden"])
def test_step_that_is_not_finite_is_refused_shown_and_counted(tmp_path, kind):
    """Window 3 of 6 is broken: weights, averages, momentum and rate are as if it had not been there."""

    def broken(model, batch):
        loss = mse(model, batch)
        if batch is batches[2]:
            # nan loss; finite loss with an infinite gradient; infinite loss with a finite gradient
            return {
                "loss": loss * math.nan,
                "gradient": loss + (model.weight.sum() * 0).sqrt(),
                "hidden": loss + torch.tensor(math.inf),
            }[kind]
        return loss

    batches = data(4, 4, 4, 4, 4, 4)
    settings = config(optimizer__momentum=0.9, ema_decay=0.5, schedule__name="exponential")
    model, expected = linear(), linear()
    with RunDirectory.create(tmp_path / "run", settings) as run:
        trainer = Trainer(model, broken, Cycle(batches), settings, run=run, show_progress=False)
        result = trainer.fit()
        (row,) = rows_of(run, "refused")
        steps = rows_of(run, "step")
    assert row["step"] == 2 and row["skipped"] == 1
    assert row["loss"] == {"loss": "nan", "hidden": "inf"}.get(kind, row["loss"])
    assert (result.step, result.skipped) == (5, 1)
    assert [each["skipped"] for each in steps] == [0, 0, 1, 1, 1]
    assert [each["lr"] for each in steps] == [0.1 * 0.5**step for step in range(5)]
    other = Trainer(expected, mse, Cycle([b for i, b in enumerate(batches) if i != 2]), settings, show_progress=False)
    other.fit()
    assert torch.equal(model.weight, expected.weight)
    with trainer.averaged(), other.averaged():
        assert torch.equal(model.weight, expected.weight)


def test_policy_stop_ends_at_the_first_refusal_and_keeps_the_last_checkpoint(tmp_path):
    settings = config(non_finite="stop", checkpoint__save_every=1)
    batches = data(4, 4, 4)
    batches[2][0].fill_(math.nan)
    with RunDirectory.create(tmp_path / "run", settings) as run:
        trainer = Trainer(linear(), mse, Cycle(batches), settings, run=run, show_progress=False)
        with pytest.raises(
            RunError, match=r"step 3 was refused: the loss is not finite \(loss nan\), and non_finite = stop"
        ):
            trainer.fit()
        assert [row["loss"] for row in rows_of(run, "refused")] == ["nan"]
        assert sorted(path.name for path in run.checkpoints_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_refusals_without_end_stop_the_training():
    batches = data(4)
    batches[0][0].fill_(math.inf)
    trainer = Trainer(linear(), mse, Cycle(batches), config(), show_progress=False)
    with pytest.raises(RunError, match=r"20 in a row: lower optimizer\.lr, or look at the data"):
        trainer.fit()


def test_evaluation_leaves_no_trace():
    """The same bytes with and without evaluations that draw, switch modes and use the averages."""

    def evaluate(model, step):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        torch.randn(5)
        model(torch.randn(2, 3))
        return {"loss": 1.0}

    def make(evaluate):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1))
        frozen = nn.Dropout(0.9).eval()
        model.append(frozen)
        settings = config(eval_every=1, ema_decay=0.9, max_steps=8, monitor="loss")
        Trainer(model, mse, Cycle(data(4, 4)), settings, evaluate=evaluate, show_progress=False).fit()
        return model[1].weight

    assert torch.equal(make(evaluate), make(None))


def test_evaluation_sees_the_averaged_weights():
    seen = []
    model = linear()
    settings = config(ema_decay=0.5, eval_every=1, max_steps=3)
    trainer = Trainer(
        model,
        mse,
        Cycle(data(4)),
        settings,
        evaluate=lambda m, s: seen.append(m.weight.clone()) or {},
        show_progress=False,
    )
    trainer.fit()
    with trainer.averaged() as averaged:
        assert torch.equal(averaged.weight, seen[-1])
    assert not torch.equal(model.weight, seen[-1])
    assert model.training


def test_best_checkpoint_is_kept(tmp_path):
    scores = {2: 0.3, 4: 0.9, 6: float("nan"), 8: 0.5, 10: 0.6}
    settings = config(
        max_steps=10, eval_every=2, checkpoint__keep_best=1, checkpoint__keep_last=1, checkpoint__save_every=0
    )
    with RunDirectory.create(tmp_path / "run", settings) as run:
        evaluate = lambda model, step: {"accuracy": scores[step]}  # noqa: E731
        result = Trainer(linear(), mse, Cycle(data(4)), settings, run=run, evaluate=evaluate, show_progress=False).fit()
        assert sorted(path.name for path in run.checkpoints_path.iterdir()) == ["step-00000004", "step-00000010"]
        assert [row["accuracy"] for row in rows_of(run, "evaluation")] == [0.3, 0.9, "nan", 0.5, 0.6]
    assert (result.best_score, result.best_step) == (0.9, 4)


def test_monitor_that_no_evaluation_returns_is_an_error():
    settings = config(eval_every=1, checkpoint__keep_best=1)
    trainer = Trainer(linear(), mse, Cycle(data(4)), settings, evaluate=lambda m, s: {"loss": 1.0}, show_progress=False)
    with pytest.raises(ConfigError, match="monitor = accuracy: the evaluation returned loss"):
        trainer.fit()


def test_full_disk_ends_the_training_with_the_path_and_the_last_checkpoint(tmp_path, monkeypatch):
    settings = config(checkpoint__save_every=2)
    with RunDirectory.create(tmp_path / "run", settings) as run:
        trainer = Trainer(linear(), mse, Cycle(data(4)), settings, run=run, show_progress=False)
        from dagnn.training.run import checkpoints as module

        real = module.write_new

        def full(path, content):
            if "step-00000004" in str(path) and path.name == "state.json":
                raise OSError(28, "No space left on device")
            real(path, content)

        monkeypatch.setattr(module, "write_new", full)
        told = rf"cannot write .*{re.escape(str(run.checkpoints_path))}/step-00000004: No space left on device"
        with pytest.raises(RunError, match=told):
            trainer.fit()
        monkeypatch.undo()
        assert [path.name for path in run.checkpoints_path.iterdir()] == ["step-00000002"]
        again = Trainer(linear(3), mse, Cycle(data(4)), settings, run=run, show_progress=False)
        assert again.resume() and again.step == 2
        assert again.fit().step == 5


def test_without_a_run_there_is_nothing_to_resume_and_an_interrupt_says_so():
    trainer = Trainer(linear(), mse, Cycle(data(4)), config(), show_progress=False)
    with pytest.raises(RunError, match="nothing to resume"):
        trainer.resume()
    trainer.stop.request()
    with pytest.raises(TrainingInterrupted, match="not saved: there is no run directory"):
        trainer.fit()


def test_resume_without_a_checkpoint_starts_from_the_beginning(tmp_path):
    with RunDirectory.create(tmp_path / "run", config()) as run:
        trainer = Trainer(linear(), mse, Cycle(data(4)), config(), run=run, show_progress=False)
        assert not trainer.resume()
        assert trainer.fit().step == 5


def test_fit_again_after_the_end_does_nothing():
    trainer = Trainer(linear(), mse, Cycle(data(4)), config(), show_progress=False)
    weight = trainer.fit() and trainer.model.weight.clone()
    assert trainer.fit().step == 5
    assert torch.equal(weight, trainer.model.weight)


def test_given_optimizer_is_used_and_threads_are_put_back():
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    before = torch.get_num_threads()
    seen = []
    trainer = Trainer(
        model, lambda m, b: seen.append(torch.get_num_threads()) or mse(m, b), Cycle(data(4)),
        config(threads=before + 1, max_steps=1), optimizer=optimizer, show_progress=False,
    )  # fmt: skip
    start = model.weight.detach().clone()
    trainer.fit()
    assert trainer.optimizer is optimizer
    torch.testing.assert_close(model.weight, start - 0.2 * _gradient(start, trainer))
    assert (seen, torch.get_num_threads()) == ([before + 1], before)


def _gradient(weight, trainer):
    fresh = linear()
    assert torch.equal(fresh.weight, weight)
    mse(fresh, trainer.loader.batches[0]).backward()
    return fresh.weight.grad


def test_progress_goes_to_stderr(capsys):
    Trainer(linear(), mse, Cycle(data(4)), config(max_steps=2)).fit()
    told = capsys.readouterr()
    assert told.out == ""
    assert [line.split()[1] for line in told.err.splitlines()] == ["1/2", "2/2"]


def test_a_source_that_ends_is_named():
    class Ending(Cycle):
        def next_batch(self):
            return next(self.batches)

    trainer = Trainer(linear(), mse, Ending(iter(data(4, 4))), config(max_steps=3), show_progress=False)
    with pytest.raises(RunError, match=r"the loader, Ending, is at its end, .* must begin again"):
        trainer.fit()
    assert trainer.step == 2


def test_batch_source_protocol():
    assert isinstance(Cycle([]), BatchLoader)
    mapped = MappedLoader(Cycle([1, 2]), lambda number: -number)
    assert isinstance(mapped, BatchLoader)
    assert [mapped.next_batch(), mapped.next_batch(), mapped.state_dict()] == [-1, -2, {"position": 2}]
    mapped.load_state_dict({"position": 1})
    assert mapped.next_batch() == -2
