"""The main job in small: seconds instead of minutes, and what two equal trainings must have in common."""

from dagnn.curriculum.config import CurriculumConfig
from dagnn.training.log import read_metrics

SMALL = {
    "max_steps": 24,
    "batch_size": 32,
    "micro_batches": 2,
    "threads": 1,
    "eval_every": 12,
    "eval_samples": 2,
    "test_samples": 3,
    "curriculum.preset": "small",
    "curriculum.samples": [30, 20, 20, 2, 20, 20, 20],
    "curriculum.certify": "false",
    "model.width": 32,
    "optimizer.lr": 1e-2,
    "schedule.warmup_steps": 5,
    "checkpoint.save_every": 5,
}


def config_of(path, **changes) -> CurriculumConfig:
    given = {**SMALL, "run_directory": str(path), **{key.replace("__", "."): value for key, value in changes.items()}}
    return CurriculumConfig.resolve(environment={}, flags=given)


def last_bytes(path) -> dict[str, bytes]:
    """The newest checkpoint's files, but for the clock and the manifest, which holds the run's random id."""
    newest = sorted((path / "checkpoints").glob("step-*"))[-1]
    return {
        file.name: file.read_bytes()
        for file in sorted(newest.iterdir())
        if file.name not in ("clock.json", "manifest.json")
    }


def rows_without_clock(path) -> list[dict]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in read_metrics(path / "metrics.jsonl")]
