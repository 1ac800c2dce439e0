"""Early stopping, epochs, profiles, bfloat16, compiled models and exported ones."""

import json
import math

import pytest
import torch
from small_training import NUM_STEPS, begin_or_go_on, outcome, small_config, small_trainer
from torch import nn

from dagnn.data import BatchIterator
from dagnn.errors import ConfigError
from dagnn.training import MappedLoader, RunDirectory, Trainer, TrainingInterrupted
from dagnn.training.counters import Counters
from dagnn.training.evaluation import Meter
from dagnn.training.log import StepProfiler, read_metrics
from dagnn.training.step import EpochMeans, Share

FEATURES = torch.randn(10, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def square(model, batch):
    return model(batch).square().mean()


def trainer_of(run=None, *, evaluate=None, model=None, source=None, **flags):
    plain = {"eval_every": 1, "curriculum.order": "mixed", "ema_decay": 0.0, "schedule.name": "constant"}
    config = small_config(**{**plain, **{key.replace("__", "."): value for key, value in flags.items()}})
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double() if model is None else model
    if source is None:
        order = BatchIterator([1] * 10, batch_size=4, seed=0)
        source = MappedLoader(order, lambda items: FEATURES[items])
    return Trainer(model, square, source, config, run=run, evaluate=evaluate, show_progress=False)


# ---- early stopping ----

SCORES = [0.1, 0.5, 0.4, math.nan, 0.6, 0.6, 0.605, 0.59, 0.7, 0.8]


def stopping(run, *, stop_at=None, **flags):
    def evaluate(model, step):
        if step == stop_at:
            trainer.stop.request()
        return {"accuracy": SCORES[step - 1]}

    trainer = trainer_of(run, evaluate=evaluate, max_steps=10, **flags)
    return trainer


@pytest.mark.parametrize(
    ("patience", "min_delta", "step"), [(0, 0.0, 10), (1, 0.0, 3), (2, 0.0, 4), (3, 0.0, 10), (3, 0.01, 8)]
)
def test_training_ends_when_the_monitor_has_not_got_better(patience, min_delta, step):
    trainer = stopping(None, early_stopping__patience=patience, early_stopping__min_delta=min_delta)
    result = trainer.fit()
    assert (result.step, result.stopped_early) == (step, step < 10)
    assert trainer.fit().step == step


@pytest.mark.parametrize("stop_at", range(1, 8))
def test_an_interruption_does_not_start_the_waiting_again(tmp_path, stop_at):
    flags = {"early_stopping__patience": 3, "early_stopping__min_delta": 0.01}
    with RunDirectory.create(tmp_path / "run", stopping(None, **flags).config) as run:
        with pytest.raises(TrainingInterrupted):
            stopping(run, stop_at=stop_at, **flags).fit()
        trainer = stopping(run, **flags)
        trainer.resume()
        result = trainer.fit()
    assert (result.step, result.stopped_early, result.best_score, result.best_step) == (8, True, 0.605, 7)
    assert result.checkpoint.name == "step-00000008"


def test_a_score_that_falls_may_be_better_and_none_at_all_is_not():
    counters = Counters()
    for score, waited in [(math.nan, 1), (0.5, 0), (0.4, 0), (0.4, 1), (math.inf, 2), (0.3, 0)]:
        counters.wait(score, "min", 0.0)
        assert counters.waited == waited


def test_early_stopping_needs_evaluations_and_its_monitor():
    with pytest.raises(ConfigError, match=r"eval_every = 0: allowed is at least 1 with early_stopping\.patience"):
        trainer_of(eval_every=0, early_stopping__patience=2)
    trainer = trainer_of(
        evaluate=lambda model, step: {"loss": 1.0}, early_stopping__patience=1, checkpoint__keep_best=0
    )
    with pytest.raises(ConfigError, match="monitor = accuracy: the evaluation returned loss"):
        trainer.fit()


# ---- epochs and tallies ----


def test_epoch_mean_is_that_of_a_full_pass(tmp_path):
    """10 items in batches of 4, two a window: epochs end inside windows. With a rate of 0 every pass has one mean."""
    frozen = {"optimizer__lr": 1e-300, "max_steps": 6, "eval_every": 0, "max_norm": 0.0}
    config = trainer_of(**frozen).config
    with RunDirectory.create(tmp_path / "run", config) as run:
        trainer = trainer_of(run, **frozen)
        trainer.fit()
    rows = [row for row in read_metrics(run.metrics_path) if row["kind"] == "epoch"]
    assert [(row["epoch"], row["step"], row["weight"]) for row in rows] == [
        (0, 2, 10),
        (1, 3, 10),
        (2, 5, 10),
        (3, 6, 10),
    ]
    whole = float(square(trainer.model, FEATURES).detach())
    assert all(row["loss"] == pytest.approx(whole, rel=1e-12) for row in rows)


def test_small_job_has_an_epoch_row_for_every_epoch_that_ended(tmp_path):
    begin_or_go_on(tmp_path / "run")
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    # An epoch is 3 batches, and each evaluation, after 8 of them, weighs the items anew and so begins another order.
    assert [row["epoch"] for row in rows if row["kind"] == "epoch"] == [0, 1] * 5


def test_refused_steps_end_epochs_and_count_for_nothing():
    means = EpochMeans()
    assert means.add([[Share(0, 6.0, 3.0, False), Share(0, 1.0, 1.0, True)]], made=False)[0]["weight"] == 0
    shares = [[Share(1, 6.0, 3.0, False)], [Share(1, 2.0, 1.0, False)]]
    assert means.add(shares, made=True) == []
    again = EpochMeans.from_json(json.loads(json.dumps(means.to_json())))
    assert again.add([[Share(1, 0.0, 0.0, True)], [Share(1, 4.0, 2.0, True)]], made=True) == [
        {"epoch": 1, "loss": 2.0, "weight": 6.0}
    ]
    assert EpochMeans().add([[Share(None, 1.0, 1.0, False)]], made=True) == []


def test_last_small_batch_counts_for_what_it_holds():
    values = torch.rand(10, dtype=torch.float64).tolist()
    batches = [values[:4], values[4:8], values[8:]]
    meter = Meter.of([sum(batch) / len(batch) for batch in batches], weights=map(len, batches))
    assert meter.mean == pytest.approx(sum(values) / 10, rel=1e-12)


def test_tally_of_what_is_not_finite_or_empty_shows_it():
    assert math.isnan(Meter.of([]).mean)
    assert math.isnan(Meter.of([1.0, math.nan, 2.0]).mean)
    assert Meter.of([1.0, math.inf]).merged(Meter.of([2.0])).mean == math.inf


# ---- profile, precision, compiled, exported ----


def test_profile_is_a_trace_and_changes_no_byte(tmp_path):
    begin_or_go_on(tmp_path / "plain")
    config = small_config(profile_steps=2)
    with RunDirectory.create(tmp_path / "run", config) as run:
        small_trainer(run, config).fit()
    events = json.loads((tmp_path / "run" / "profile.json").read_text())["traceEvents"]
    assert any("addmm" in event.get("name", "") for event in events)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "plain")
    assert not (tmp_path / "plain" / "profile.json").exists()


def test_profile_says_where_it_is_and_a_plain_flag_is_enough(tmp_path):
    from dagnn.commands.train import _job, _parsed, _plan

    def steps(*arguments):
        given = ["--run-directory", str(tmp_path), *arguments]
        job = _job(given)
        return _plan(*_parsed(given, job), job)[0].profile_steps

    assert (steps(), steps("--profile"), steps("--profile", "--profile-steps", "3")) == (0, 20, 3)
    notes = []
    profiler = StepProfiler(tmp_path / "profile.json", 1, notes.append)
    with profiler.running():
        profiler.step()
        profiler.step()
    assert notes == [f"profile in {tmp_path / 'profile.json'}: open it in https://ui.perfetto.dev or chrome://tracing"]


def test_bfloat16_computes_in_it_and_keeps_the_weights_in_float32():
    seen = []
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    source = MappedLoader(BatchIterator([1] * 10, batch_size=4, seed=0), lambda items: FEATURES[items].float())
    before = model[0].weight.detach().clone()
    trainer = trainer_of(model=model, source=source, precision="bfloat16", max_steps=3, eval_every=0)
    trainer.fit()
    assert set(seen) == {torch.bfloat16}
    assert model[0].weight.dtype == torch.float32
    assert not torch.equal(before, model[0].weight)


def test_compile_computes_the_same_and_keeps_the_model_plain(tmp_path, monkeypatch):
    """With torch's own operations as the backend: what dagnn does about it, without the C++ compiler."""
    compiled, compile = [], torch.compile

    def eager(function, **given):
        compiled.append(given)
        return compile(function, backend="eager", **given)

    monkeypatch.setattr(torch, "compile", eager)
    begin_or_go_on(tmp_path / "plain")
    assert compiled == []
    config = small_config(compile=True)
    with RunDirectory.create(tmp_path / "run", config) as run:
        trainer = small_trainer(run, config, during_evaluation=lambda t: t.step == 12 and t.stop.request())
        with pytest.raises(TrainingInterrupted):
            trainer.fit()
        again = small_trainer(run, config)
        again.resume()
        again.fit()
    assert compiled == [{"dynamic": True}] * 2
    assert outcome(tmp_path / "run") == outcome(tmp_path / "plain")


def test_without_a_compiler_compile_is_an_error_in_words(monkeypatch):
    def fails(function, **given):
        def call(*arguments):
            raise torch._dynamo.exc.TorchDynamoException("No working C++ compiler found\nmore")

        return call

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.raises(
        ConfigError, match=r"compile = true: torch.compile cannot .* \(No working C\+\+ compiler found\)"
    ):
        trainer_of(compile=True, max_steps=1, eval_every=0).fit()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, loaded with its compiler
def test_compiled_training_goes_on_after_a_stop_and_is_near_the_plain_one(tmp_path):
    def trained(name, *, stop_at=None, **flags):
        given = {"max_steps": 6, "eval_every": 0, **flags}
        with RunDirectory.create(tmp_path / name, trainer_of(**given).config) as run:
            if stop_at is not None:
                trainer = trainer_of(run, **given)
                write = trainer._write
                trainer._write = lambda *row: (write(*row), trainer.step == stop_at and trainer.stop.request())
                with pytest.raises(TrainingInterrupted):
                    trainer.fit()
            trainer = trainer_of(run, **given)
            trainer.resume()
            trainer.fit()
        return [row["loss"] for row in read_metrics(run.metrics_path) if row["kind"] == "step"]

    whole = trained("whole", compile=True)
    assert trained("stopped", compile=True, stop_at=3) == whole
    assert whole == pytest.approx(trained("plain"), rel=1e-12)


def test_compiled_model_saves_its_own_names_and_loads_into_a_plain_one(tmp_path):
    def compiled(model):
        return torch.compile(model, backend="eager")  # the compiler's part only: no C++ compiler is needed

    begin_or_go_on(tmp_path / "plain")
    config = small_config()
    with RunDirectory.create(tmp_path / "run", config) as run:
        trainer = small_trainer(run, config, wrap=compiled, during_step=lambda t: t.step == 9 and t.stop.request())
        with pytest.raises(TrainingInterrupted):
            trainer.fit()
        plain = small_trainer(run, config)
        plain.resume()
        plain.fit()
    assert outcome(tmp_path / "run") == outcome(tmp_path / "plain")
    with RunDirectory.open(tmp_path / "plain") as run:
        again = small_trainer(run, config, wrap=compiled)
        assert again.resume() and again.step == NUM_STEPS


def test_trained_model_is_exported_and_computes_the_same(tmp_path):
    trainer = small_trainer(None)
    trainer.fit()
    x = torch.randn(5, 4)
    with trainer.averaged() as model, torch.no_grad():
        program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
        torch.export.save(program, tmp_path / "model.pt2")
        expected = model(x[:3])
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    assert torch.equal(loaded(x[:3]), expected)
