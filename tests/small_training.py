"""A small training with everything that has a state: dropout, shuffled levels, momentum, averages, promotion.

Run as a script it is a process to be interrupted:

    python tests/small_training.py run DIRECTORY                 trains, or goes on with the run that is there
    python tests/small_training.py storm DIRECTORY KILLS SEED    does so again and again under SIGKILL
"""

import json
import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import nn

from dagnn.curriculum import CurriculumConfig
from dagnn.data import BatchIterator
from dagnn.training import CheckpointStore, RunDirectory, Trainer, TrainingInterrupted
from dagnn.training.evaluation import Meter
from dagnn.training.log import read_metrics
from dagnn.training.processes import Processes, process_group
from dagnn.training.run.directory import open_run

NUM_STEPS = 21
_LEVEL_OF_ITEM = [1 + i % 3 for i in range(33)]
_FEATURES = torch.randn(33, 4, generator=torch.Generator().manual_seed(5))
_TARGETS = (_FEATURES @ torch.tensor([[1.0], [-2.0], [0.5], [0.0]])).tanh()


class RunningMean(nn.Module):
    """Moves its input by a buffer that training changes: a checkpoint without buffers would be noticed."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean


class LevelSource:
    """Batches of the open levels; `weigh` changes what is drawn, as an evaluation that finds mistakes would."""

    def __init__(self, processes):
        self.levels = ()
        self.weights = [1.0] * 33
        self.drawn = []
        self._share = {"rank": processes.rank, "world_size": processes.size}

    @property
    def epoch(self):
        return self._order.epoch

    def open(self, levels):
        self.levels = tuple(levels)
        self._renew()

    def weigh(self, item, factor):
        self.weights[item] *= factor
        self._renew()

    def next_batch(self):
        items = self._order.next_batch()
        self.drawn.append(items.tolist())
        return _FEATURES[items], _TARGETS[items]

    def state_dict(self):
        return {"levels": list(self.levels), "weights": self.weights, "order": self._order.state_dict()}

    def load_state_dict(self, state):
        assert tuple(state["levels"]) == self.levels, "the levels are announced before the state is loaded"
        self.weights = list(state["weights"])
        self._renew()
        self._order.load_state_dict(state["order"])

    def _renew(self):
        weights = [w if level in self.levels else 0.0 for w, level in zip(self.weights, _LEVEL_OF_ITEM, strict=True)]
        # 11 items an epoch in batches of 4, 4 and 3: epochs end inside windows, and micro-batches are ragged.
        self._order = BatchIterator(
            _LEVEL_OF_ITEM,
            batch_size=4,
            seed=(7, len(self.levels)),
            item_weights=weights,
            epoch_size=11,
            **self._share,
        )


def small_config(**flags):
    """The configuration of the job; flags by dotted key, with "__" for the dot."""
    given = {
        "max_steps": NUM_STEPS,
        "batch_size": 8,
        "micro_batches": 2,
        "threads": 1,
        "ema_decay": 0.9,
        "eval_every": 4,
        "optimizer.name": "sgd",
        "optimizer.lr": 0.05,
        "schedule.warmup_steps": 4,
        "curriculum.levels": (1, 2, 3),
        "curriculum.order": "progressive",
        "curriculum.threshold": 0.0,
        "curriculum.minimum_steps": 3,
        "curriculum.patience": 2,
        "checkpoint.save_every": 3,
        "checkpoint.keep_last": 3,
    }
    return CurriculumConfig.resolve(
        environment={}, flags={**given, **{key.replace("__", "."): value for key, value in flags.items()}}
    )


def small_trainer(run, config=None, *, during_step=None, during_evaluation=None, wrap=lambda model: model):
    """The job in a run directory (None: without one).

    ``during_step(trainer)`` is called in every forward pass, ``during_evaluation(trainer)`` in every evaluation.
    ``wrap`` takes the model and gives what is trained.
    """
    config = small_config() if config is None else config
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(4, 6), RunningMean(), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, 1))
    processes = Processes()
    source = LevelSource(processes)

    def loss_fn(model, batch):
        if during_step is not None:
            during_step(trainer)
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def evaluate(model, step):
        assert not model.training
        torch.rand(3)  # an evaluation may draw: the training must not notice
        source.weigh(step % 33, 1.5)
        if during_evaluation is not None:
            during_evaluation(trainer)
        mine = slice(processes.rank, None, processes.size)
        errors = nn.functional.mse_loss(model(_FEATURES[mine]), _TARGETS[mine], reduction="none").flatten()
        return {"accuracy": Meter.of((1 - errors).tolist()), "accuracy/1": 1.0, "accuracy/2": 1.0, "accuracy/3": 1.0}

    trainer = Trainer(
        wrap(model),
        loss_fn,
        source,
        config,
        run=run,
        evaluate=evaluate,
        promotion=config.curriculum.promotion(),
        on_promotion=source.open,
        description={"width": 6},
        show_progress=False,
    )
    return trainer


def outcome(directory):
    """All that must be equal between two equal trainings: bytes of the newest checkpoint, score, metrics rows."""
    newest = sorted((Path(directory) / "checkpoints").glob("step-*"))[-1]
    files = {
        path.name: path.read_bytes() for path in newest.iterdir() if path.name not in ("clock.json", "manifest.json")
    }
    rows = [
        {key: value for key, value in row.items() if key != "seconds"}
        for row in read_metrics(Path(directory) / "metrics.jsonl")
    ]
    score = json.loads((newest / "manifest.json").read_bytes())["score"]
    return newest.name, score, files, rows


def begin_or_go_on(directory, **hooks):
    """Train in ``directory`` until the end, from where it stands."""
    processes = Processes()
    begun = processes.by_first(lambda: (Path(directory) / "run.json").exists())
    with open_run(small_config(run_directory=str(directory)), begun, processes) as run:
        trainer = small_trainer(run, **hooks)
        trainer.resume()
        return trainer.fit()


def storm(directory, kills, seed):
    """SIGKILL the job at random moments, saves stretched, until it ends; then anew, until there were enough kills.

    Prints, for every run (``directory/0``, ``1``, ...), the step of its newest checkpoint after each kill.
    """
    warnings.simplefilter("error")  # a damaged checkpoint is passed over with a warning: here that is a failure
    warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)  # Python 3.12: the children are single-threaded
    small_trainer(None).fit()  # what torch loads on first use, the children then have
    fsync = os.fsync
    os.fsync = lambda descriptor: (time.sleep(0.002), fsync(descriptor))[1]
    began = time.monotonic()
    begin_or_go_on(Path(directory) / "unharmed")
    longest = (time.monotonic() - began) / 4
    rng = random.Random(seed)
    found = []
    while sum(map(len, found)) < kills:
        found.append([])
        while (newest := _survive(Path(directory) / str(len(found) - 1), rng.uniform(0.0, longest))) is not None:
            found[-1].append(newest)
    print(json.dumps(found))


def _survive(directory, seconds):
    """Train for so long; the step of the newest checkpoint after the kill, or None when the training ended before."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            begin_or_go_on(directory)
            status = 0
        finally:
            os._exit(status)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        assert status == 0, "a resumed training failed"
        return None
    if not (directory / "run.json").exists():
        return 0
    run = RunDirectory.read(directory)
    newest = CheckpointStore(run.checkpoints_path, run.run_id).latest()
    return newest.step if newest else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "storm":
        storm(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        try:
            with process_group():
                begin_or_go_on(sys.argv[2], during_step=lambda trainer: time.sleep(0.02))
        except TrainingInterrupted as interrupted:
            print(interrupted)
            sys.exit(interrupted.exit_code)
