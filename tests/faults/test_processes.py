"""Two processes under torchrun with gloo: the same promises as one, and no process waits for one that is gone."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from faults.two_processes import ITEMS, plain_config, plain_trainer, square, stopping
from small_training import outcome

from dagnn.training import RunDirectory, TrainingInterrupted
from dagnn.training.evaluation import Meter
from dagnn.training.log import read_metrics

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this build of torch has no torch.distributed")


def torchrun(*arguments, restarts=0):
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
    }
    options = ["--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process, seconds=120):
    """Its exit code and what it said; nobody is left behind where it hangs, which is what must not happen."""
    try:
        _, told = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun then ends its processes
        process.communicate(timeout=60)
        raise
    return process.returncode, told[-4000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(folder):
    """name of a case -> its results on rank 0 and rank 1."""
    with RunDirectory.create(folder / "grown", plain_config()) as run:
        trainer = plain_trainer(stopping(lambda: trainer), run=run)
        with pytest.raises(TrainingInterrupted):
            trainer.fit()
    code, told = finished(torchrun(HERE / "two_processes.py", folder), 240)
    assert code == 0, told
    ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    return {name: (ranks[0][name], ranks[1][name]) for name in ranks[0]}


def test_both_ranks_see_the_same_run(results):
    whole, other = results["uninterrupted"]
    assert whole == other
    assert whole[0] == "step-00000021"
    assert [row["step"] for row in whole[3] if row["kind"] == "step"] == list(range(1, 22))
    assert {row["weight"] for row in whole[3] if row["kind"] == "step"} == {7, 8}


def test_model_in_ddp_trains_to_the_same_bytes(results):
    assert results["wrapped_in_ddp"][0] == results["uninterrupted"][0]


def test_signal_to_one_rank_stops_both_at_the_same_step_and_loses_nothing(results):
    for left, found in results["stopped_on_one_rank_only"]:
        assert left == [[10, 143, "step-00000010"], [16, 130, "step-00000016"]]
        assert found == results["uninterrupted"][0]


def test_save_that_fails_ends_both(results):
    (told, wrote), (told_other, wrote_other) = results["full_disk_of_the_one_that_writes"]
    assert told == told_other and "No space left on device" in told
    assert (wrote, wrote_other) == (True, False)


def test_both_refuse_a_step_that_is_not_finite_on_one(results):
    mine, other = results["loss_that_is_not_finite_on_one_rank"]
    assert mine == other
    assert mine[0] == [[3, "the loss is not finite"]] and mine[1] == 8


def test_two_processes_train_as_one(results):
    trainer = plain_trainer(lambda model, batch: model(batch).square().mean())
    lrs = []
    make = trainer._train_step
    trainer._train_step = lambda: (lrs.append(trainer.optimizer.param_groups[0]["lr"]), make())
    loss = trainer.fit().loss
    for weight, lrs_of_rank, loss_of_rank in results["same_as_one_process"]:
        torch.testing.assert_close(torch.tensor(weight, dtype=torch.float64), trainer.model.weight, rtol=1e-12, atol=0)
        assert lrs_of_rank == lrs
        assert loss_of_rank == pytest.approx(loss, rel=1e-12)
    begun_apart = results["weights_that_begin_apart_are_those_of_the_first"]
    assert begun_apart[0] == begun_apart[1] == results["same_as_one_process"][0][0]


def test_sharded_model_goes_on_from_its_distributed_checkpoint(results):
    for whole, again in results["sharded_model_goes_on_from_dcp"]:
        assert whole == again
    assert results["sharded_model_goes_on_from_dcp"][0] == results["sharded_model_goes_on_from_dcp"][1]


def sharded_by_one_process(folder):
    """The lines of examples/sharded_training.py, which makes 10 steps or goes on to them."""
    script = HERE.parents[1] / "examples" / "sharded_training.py"
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_one_process_goes_on_with_the_shards_of_two(results, folder):
    shutil.copytree(folder / "sharded", folder / "shards-of-two")
    went_on = sharded_by_one_process(folder / "shards-of-two")
    assert [line.split()[1] for line in went_on] == ["7", "8", "9", "10"]
    assert sharded_by_one_process(folder / "shards-of-one")[-4:] == went_on


@pytest.fixture(scope="module")
def by_one(folder):
    """The training that one process makes from beginning to end: its weights, and its rows without the clock."""
    with RunDirectory.create(folder / "one", plain_config()) as run:
        trainer = plain_trainer(square, run=run)
        trainer.fit()
    return trainer.model.weight, steps_of(folder / "one")


def steps_of(directory):
    rows = [row for row in read_metrics(directory / "metrics.jsonl") if row["kind"] in ("step", "epoch")]
    return [[value for key, value in row.items() if key != "seconds"] for row in rows]


def check_changed(directory, before, now, weight, by_one):
    """As trained by one process throughout, to rounding, with a row that tells of the change."""
    torch.testing.assert_close(torch.as_tensor(weight, dtype=torch.float64), by_one[0].detach(), rtol=1e-12, atol=0)
    for mine, theirs in zip(steps_of(directory), by_one[1], strict=True):
        assert [pytest.approx(value, rel=1e-12) if isinstance(value, float) else value for value in theirs] == mine
    (row,) = (row for row in read_metrics(directory / "metrics.jsonl") if row["kind"] == "processes")
    assert row == {"kind": "processes", "step": 4, "processes_before": before, "processes": now}


def test_two_processes_go_on_with_the_training_of_one(results, folder, by_one):
    (told, weight, first_draw), (told_other, other, first_draw_other) = results["begun_by_one_process"]
    check_changed(folder / "grown", 1, 2, weight, by_one)
    assert weight == other
    assert len(told) == 1 and "the number of processes was 1 and is 2" in told[0] and told_other == []
    assert first_draw != first_draw_other


def test_one_process_goes_on_with_the_training_of_two(results, folder, by_one):
    assert results["begun_for_one_process"] == (4, 4)
    with RunDirectory.open(folder / "shrunk") as run:
        trainer = plain_trainer(square, run=run)
        with pytest.warns(UserWarning, match="the number of processes was 2 and is 1: .* to rounding, not to the bit"):
            assert trainer.resume()
        trainer.fit()
    check_changed(folder / "shrunk", 2, 1, trainer.model.weight.detach(), by_one)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40])
def test_evaluation_counts_every_example_once_for_any_number_of_processes(size):
    values = torch.rand(ITEMS, generator=torch.Generator().manual_seed(0)).tolist()
    whole = Meter.of([])
    for rank in range(size):
        whole = whole.merged(Meter.of(values[rank::size]))
    assert whole.count == ITEMS
    assert whole.mean == Meter.of(values).mean


@pytest.mark.slow
@pytest.mark.parametrize("killed", [[0], [1], [1, 0]])
def test_killed_rank_is_started_again_and_the_bytes_are_the_same(results, folder, tmp_path, killed):
    """SIGKILL in the first session, and again in the second; torchrun starts both processes again."""
    script = tmp_path / "killed.py"
    script.write_text(
        f"""
import os, signal, sys
sys.path.insert(0, {str(HERE.parent)!r})
import torch
from small_training import begin_or_go_on
from dagnn.training.processes import process_group

killed, session = {killed}, int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def during_step(trainer):
    due = session < len(killed) and killed[session] == int(os.environ["RANK"])
    if due and trainer.step == 7 + 6 * session:
        os.kill(os.getpid(), signal.SIGKILL)

torch.set_num_threads(1)
with process_group():
    begin_or_go_on({str(tmp_path / "run")!r}, during_step=during_step)
"""
    )
    code, told = finished(torchrun(script, restarts=2))
    assert code == 0, told
    assert outcome(tmp_path / "run") == outcome(folder / "whole")


@pytest.mark.slow
def test_killed_in_a_sharded_save_it_goes_on_from_the_one_before(results, folder, tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(
        f"""
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(HERE.parents[1] / "examples")!r})
import sharded_training
rename, calls = Path.rename, []

def killed(path, target):
    calls.append(path)
    if len(calls) == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(path, target)

Path.rename = killed
sharded_training.main()
"""
    )
    code, told = finished(torchrun(script, tmp_path / "sharded", restarts=1))
    assert code == 0, told
    names = [f"step-{step:08d}" for step in (2, 4, 6, 8, 10)]
    assert sorted(path.name for path in (tmp_path / "sharded").iterdir()) == names
    for name in names[2:]:
        shutil.rmtree(tmp_path / "sharded" / name)
    assert sharded_by_one_process(tmp_path / "sharded") == sharded_by_one_process(tmp_path / "never-killed")[-6:]


@pytest.mark.slow
def test_sigterm_to_torchrun_saves_and_the_next_start_goes_on(results, folder, tmp_path):
    process = torchrun(HERE.parent / "small_training.py", "run", tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 5):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert finished(process)[0] != 0
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
    code, told = finished(torchrun(HERE.parent / "small_training.py", "run", tmp_path / "run"))
    assert code == 0, told
    assert outcome(tmp_path / "run") == outcome(folder / "whole")


@pytest.mark.slow
def test_the_command_trains_in_two_processes_and_repeats_itself(tmp_path):
    small = {"max_steps": 24, "batch_size": 32, "micro_batches": 2, "threads": 1, "eval_every": 10, "eval_samples": 3}
    settings = [f"{key} = {value}" for key, value in (small | {"test_samples": 3}).items()]
    settings += ["[model]", "width = 32", "[schedule]", "warmup_steps = 5", "[checkpoint]", "save_every = 5"]
    settings += ["[curriculum]", 'preset = "small"', "samples = [30, 20, 20, 2, 20, 20, 20]", "certify = false"]
    (tmp_path / "small.toml").write_text("\n".join(settings))
    for name in ("a", "b"):
        line = ["train", "--config", tmp_path / "small.toml", "--run-directory", tmp_path / name]
        code, told = finished(torchrun("-m", "dagnn.cli", *line), 200)
        assert code == 0, told
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
    assert outcome(tmp_path / "a")[0] == "step-00000024"
