"""What `dagnn checkpoint` does: verify and list checkpoints, take weights out, bring foreign ones in."""

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor

from dagnn.errors import CheckpointError, RunError
from dagnn.training.checkpoint import Checkpoint, read_manifest, verify_checkpoint
from dagnn.training.checkpoint_store import CheckpointStore
from dagnn.training.durable import new_file
from dagnn.training.foreign import read_foreign
from dagnn.training.resume import find_run
from dagnn.training.run_directory import RunDirectory
from dagnn.training.tensor_state import averaged_tensors
from dagnn.training.text import printable


def verify(path: str | Path) -> list[str]:
    """Compares every byte of a checkpoint, or of all checkpoints of a run, with its manifest.

    Args:
        path: a run directory or a checkpoint; the latter may stand alone, away from its run.

    Returns:
        A line for each checkpoint.

    Raises:
        CheckpointError: one is damaged, foreign, or of another run; the message names every such file.
        RunError: there is no run.
    """
    lines, problems = [], []
    for place, run_id in _checkpoints(Path(path)):
        try:
            manifest = verify_checkpoint(place)
            if run_id is not None and manifest.run_id != run_id:
                raise CheckpointError(f"{place} belongs to run {manifest.run_id}, this is run {run_id}.")
            if run_id is not None and place.name != f"step-{manifest.step:08d}":
                raise CheckpointError(f"{place} holds step {manifest.step}: it was moved there from elsewhere.")
        except CheckpointError as error:
            problems.append(printable(str(error)))
        else:
            size = sum(num_bytes for num_bytes, _ in manifest.files.values())
            lines.append(f"step {manifest.step:,} is whole: {len(manifest.files)} files, {size:,} bytes")
    if problems:
        raise CheckpointError(" ".join(problems))
    return lines or ["no checkpoint yet"]


def list_checkpoints(path: str | Path) -> list[str]:
    """One line per checkpoint of a run, by step: score, size, and whether it is the newest or the best.

    Only manifests are read: a flipped bit elsewhere is `verify`'s to find.

    Raises:
        RunError: there is no run.
    """
    run = RunDirectory.read(path)
    config = run.config()
    store = CheckpointStore(run.checkpoints_path, run.run_id, mode=config.monitor_mode)
    steps, best = store.steps(), store.best()
    lines = []
    for step in store.all_steps():
        try:
            manifest = read_manifest(store.path_of(step))
        except CheckpointError as error:
            lines.append(f"step {step:,}  damaged: {printable(str(error))}")
            continue
        if step not in steps:
            lines.append(f"step {step:,}  foreign: step {manifest.step:,} of run {printable(manifest.run_id)}")
            continue
        size = sum(num_bytes for num_bytes, _ in manifest.files.values())
        score = "" if manifest.score is None else f"  {printable(config.monitor)} {manifest.score:.4f}"
        marks = "  newest" * (step == steps[-1]) + "  best" * (step == best)
        lines.append(f"step {step:,}{score}  {size:,} bytes{marks}")
    return lines or ["no checkpoint yet"]


def export_weights(path: str | Path, target: str | Path, *, averaged: bool = True) -> int:
    """Writes the weights of a checkpoint as one safetensors file, which many programs read.

    Args:
        path: a run directory (its newest whole checkpoint), or one of its checkpoints.
        target: a new file.
        averaged: the averaged weights, where there are any; else those of the last step.

    Returns:
        How many tensors it has.

    Raises:
        CheckpointError: there is no whole checkpoint.
        RunError: there is no run, or the file exists or cannot be written.
    """
    checkpoint = checkpoint_of(path)
    state = averaged_tensors(checkpoint.tensors) if averaged else checkpoint.tensors["model"]
    # Extra state that is no tensor is none of the weights.
    weights = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    told = {"run": checkpoint.run_id, "step": str(checkpoint.step), "averaged": str(averaged).lower()}
    write_weights(Path(target), weights, told)
    return len(weights)


def checkpoint_of(path: str | Path) -> Checkpoint:
    """The newest whole checkpoint of a run directory, or the one that ``path`` names. Errors as of `export_weights`."""
    directory, step = find_run(path)
    run = RunDirectory.read(directory)
    store = CheckpointStore(run.checkpoints_path, run.run_id)
    checkpoint = store.latest() if step is None else store.load(step)
    if checkpoint is None:
        raise CheckpointError(f"{run.checkpoints_path} holds no checkpoint yet: let the run train until its first.")
    return checkpoint


def import_weights(source: str | Path, target: str | Path, *, key: str | None = None) -> int:
    """Writes the tensors of a foreign ``.pt`` file as a safetensors file; see `dagnn.training.foreign`.

    Args:
        source: the ``.pt`` file.
        target: a new file.
        key: which part of the file, where it is a mapping of several things.

    Returns:
        How many tensors it has.

    Raises:
        CheckpointError: the file cannot be read safely.
        RunError: the target exists or cannot be written.
    """
    weights = read_foreign(source, key=key)
    write_weights(Path(target), weights, {})
    return len(weights)


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name, such as `export_weights` writes. Raises CheckpointError."""
    try:
        if Path(path).is_symlink():
            raise CheckpointError(f"{path} is a symbolic link: name the file itself.")
        return safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"cannot read the weights in {path}: {error}.") from error


def write_weights(target: Path, weights: Mapping[str, Tensor], told: dict[str, str]) -> None:
    """A new safetensors file, on the disk when it returns; never over an old one. Raises RunError."""
    try:
        separate = {name: tensor.detach().contiguous().clone() for name, tensor in weights.items()}
        with new_file(target) as temporary:
            safetensors.torch.save_file(separate, temporary, metadata=told)
    except KeyError as error:  # a dtype that safetensors has no word for
        odd = ", ".join(sorted(name for name, each in weights.items() if str(each.dtype) in str(error)))
        raise RunError(f"cannot write {target}: a safetensors file cannot hold {error.args[0]} ({odd}).") from error
    except (OSError, safetensors.SafetensorError) as error:
        told_error = getattr(error, "strerror", None) or error
        raise RunError(f"cannot write {target}: {told_error}.") from error


def _checkpoints(path: Path) -> list[tuple[Path, str | None]]:
    """The checkpoints to look at, each with the id of the run that it must belong to (None: any)."""
    directory, step = find_run(path)
    if step is None and (path / "manifest.json").exists():
        return [(path, None)]
    if step is not None and not (directory / "run.json").exists():
        return [(path, None)]
    run = RunDirectory.read(directory)
    if step is not None:
        return [(path, run.run_id)]
    store = CheckpointStore(run.checkpoints_path, run.run_id)
    return [(store.path_of(each), run.run_id) for each in store.all_steps()]
