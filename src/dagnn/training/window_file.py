"""The windows that a run trains on, kept in its directory: collected once, read again by a resume or an evaluation."""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from dagnn._version import __version__
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.traces import WindowSet
from dagnn.errors import RunError
from dagnn.training.durable import replace_file

FILE_NAME = "windows.safetensors"


@dataclass(frozen=True)
class Cost:
    """What collecting the windows took.

    Attributes:
        seconds: wall-clock time.
        cpu_seconds: CPU time of all processes together.
    """

    seconds: float
    cpu_seconds: float


def write_windows(directory: Path, windows: WindowSet, cost: Cost) -> None:
    """Keeps the windows in a run's directory, replacing what was there in one step. Raises RunError."""
    tokens, offsets = _joined(windows.windows)
    replacements, replacement_offsets = _joined(windows.replacements)
    arrays: dict[str, NDArray[Any]] = {
        "counts": windows.counts,
        "levels": np.array(windows.levels, np.int64),
        "windows": tokens,
        "window_offsets": offsets,
        "replacements": replacements,
        "replacement_offsets": replacement_offsets,
    }
    told = {"cost": json.dumps([cost.seconds, cost.cpu_seconds]), "labels": _labels()}
    path = directory / FILE_NAME
    try:
        replace_file(path, safetensors.numpy.save(arrays, metadata=told))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}.") from error


def read_windows(directory: Path) -> tuple[WindowSet, Cost] | None:
    """The windows of a run; None when there are none, or none that this version can use."""
    path = directory / FILE_NAME
    try:
        with safe_open(path, "numpy") as file:
            told = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        if told.get("labels") != _labels():
            return None
        seconds, cpu_seconds = json.loads(told["cost"])
        windows = WindowSet(
            _parted(arrays["windows"], arrays["window_offsets"]),
            _parted(arrays["replacements"], arrays["replacement_offsets"]),
            arrays["counts"],
            tuple(arrays["levels"].tolist()),
        )
    except (OSError, SafetensorError, KeyError, ValueError):
        # Windows are a pure function of the configuration: collecting them again gives the same ones.
        return None
    return windows, Cost(seconds, cpu_seconds)


def _labels() -> str:
    """What the tokens mean, and the version whose rules made them: of another one they are traced anew."""
    shown = " ".join(f"{each.name}/{each.arity}/{each.window_depth}" for each in SIGNATURE.shown)
    return f"{__version__} {shown}"


def _joined(sequences: list[tuple[int, ...]]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    offsets = np.cumsum([0, *map(len, sequences)], dtype=np.int64)
    return np.fromiter((token for sequence in sequences for token in sequence), np.int16, int(offsets[-1])), offsets


def _parted(tokens: NDArray[np.int16], offsets: NDArray[np.int64]) -> list[tuple[int, ...]]:
    flat, ends = tokens.tolist(), offsets.tolist()
    return [tuple(flat[first:last]) for first, last in pairwise(ends)]
