"""A run that several tests of the training ask."""

import pytest

from dagnn.curriculum import run
from dagnn.curriculum.config import CurriculumConfig
from dagnn.curriculum.run import train


@pytest.fixture(scope="session")
def learned(tmp_path_factory):
    """A run that has learned sums and products of small numbers in a few seconds, and its evaluation."""
    path = tmp_path_factory.mktemp("learned") / "run"
    config = CurriculumConfig.resolve(
        environment={},
        flags={
            "run_directory": str(path),
            "max_steps": 450,
            "batch_size": 256,
            "threads": 1,
            "ema_decay": 0.98,
            "eval_every": 0,
            "test_samples": 20,
            "curriculum.levels": [1],
            "curriculum.preset": "small",
            "curriculum.samples": [2000],
            "curriculum.certify": False,
            "model.width": 128,
            "optimizer.lr": 4e-3,
            "schedule.warmup_steps": 20,
            "checkpoint.keep_best": 0,
        },
    )
    return path, train(config, note=lambda line: None)


@pytest.fixture(scope="session", autouse=True)
def traced_once():
    """Runs that trace the same samples trace them once: tests/curriculum/test_traces.py shows that it is repeatable."""
    trace, traced = run.collect_neighbourhoods, {}

    def collect(samples, **options):
        key = repr((samples, options))
        if key not in traced:
            traced[key] = trace(samples, **options)
        return traced[key]

    run.collect_neighbourhoods = collect
    yield
    run.collect_neighbourhoods = trace
