"""The checkpoints of one run: save, keep the last and the best, find the newest whole one."""

import re
import warnings
from contextlib import suppress
from pathlib import Path

from dagnn.errors import CheckpointError, RunError
from dagnn.training.checkpoint import (
    Checkpoint,
    DamagedCheckpointError,
    read_checkpoint,
    read_manifest,
    write_checkpoint,
)
from dagnn.training.durable import remove_tree, sync_directory

_NAME = re.compile(r"step-(\d{8,})")
_SET_ASIDE = "set-aside"


class CheckpointStore:
    """The folder ``checkpoints/`` of a run.

    A save writes a hidden sibling, waits for the disk, renames it in one step, waits again, and only then
    removes what is too many. Killed at any moment, the folder holds the old checkpoints or those and the new
    one. Checkpoints are ordered by step, never by file time.

    One process at a time writes (the run's lock sees to it); any number may read.
    """

    def __init__(self, path: Path, run_id: str, *, keep_last: int = 3, keep_best: int = 0, mode: str = "max") -> None:
        """Nothing is read or written yet; the folder is made by the first save.

        Args:
            path: the folder.
            run_id: checkpoints of another run are refused.
            keep_last: newest checkpoints to keep, at least 1.
            keep_best: checkpoints with the best scores to keep beside them.
            mode: "max" when a larger score is better, else "min".
        """
        self.path = path
        self.run_id = run_id
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.mode = mode

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, whole or not, rising."""
        return sorted(self._path_of)

    def path_of(self, step: int) -> Path:
        """Where the checkpoint of this step is, or would be."""
        return self.path / f"step-{step:08d}"

    def save(self, checkpoint: Checkpoint) -> Path:
        """Put the checkpoint on the disk, then remove those that are no longer to be kept.

        Raises:
            RunError: the disk is full, the folder cannot be written, ...; names the path. Every earlier
                checkpoint is as it was.
        """
        target = self.path_of(checkpoint.step)
        temporary = self.path / f".writing-{target.name}"
        replaced = self.path / f".replaced-{target.name}"
        try:
            self.path.mkdir(exist_ok=True)
            remove_tree(temporary)
            write_checkpoint(temporary, checkpoint)
            if target.exists():
                # A folder cannot be renamed over another. Killed between the two renames, `recover` takes it back.
                target.rename(replaced)
            temporary.rename(target)
            sync_directory(self.path)
        except OSError as error:
            with suppress(OSError):
                if replaced.exists() and not target.exists():
                    replaced.rename(target)
            remove_tree(temporary)
            raise RunError(
                f"cannot write the checkpoint {target}: {error.strerror or error}. {self._what_is_left()}"
            ) from error
        remove_tree(replaced)
        self._prune()
        return target

    def load(self, step: int) -> Checkpoint:
        """The checkpoint of this step, verified.

        Raises:
            CheckpointError: it is missing, damaged, of a newer format, or belongs to another step or run.
        """
        path = self.path_of(step)
        if step not in self._path_of:
            had = ", ".join(map(str, self.steps())) or "none"
            raise CheckpointError(f"{self.path} has no checkpoint of step {step}: it has {had}.")
        checkpoint = read_checkpoint(path)
        if checkpoint.step != step:
            raise DamagedCheckpointError(f"{path} holds step {checkpoint.step}: it was moved there from elsewhere.")
        if checkpoint.run_id != self.run_id:
            raise DamagedCheckpointError(f"{path} belongs to run {checkpoint.run_id}, this is run {self.run_id}.")
        return checkpoint

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint; None when there are none at all.

        A damaged one is passed over with a warning that names the file.

        Raises:
            CheckpointError: there are checkpoints and none is whole, or the newest is of a newer format.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                return self.load(step)
            except DamagedCheckpointError as error:
                warnings.warn(f"passing over checkpoint {step}: {error}", stacklevel=2)
        if steps:
            raise CheckpointError(f"none of the {len(steps)} checkpoints in {self.path} is whole.")
        return None

    def best(self) -> int | None:
        """The step with the best score; None when no checkpoint has one."""
        ranked = self._ranked()
        return ranked[0] if ranked else None

    def recover(self) -> None:
        """Clear what a killed save has left. Call before the first save, with the run locked."""
        for leftover in self.path.glob(".*-step-*"):
            target = self.path / leftover.name.partition("-")[2]
            if leftover.name.startswith(".replaced-") and not target.exists():
                leftover.rename(target)
            else:
                remove_tree(leftover)

    def set_aside_after(self, step: int) -> list[Path]:
        """Move later checkpoints into ``set-aside/``: they are damaged, or the run goes on from before them.

        Left in place, the next "latest" would find a future that this run no longer has.

        Raises:
            RunError: one cannot be moved.
        """
        moved = []
        try:
            for later, path in sorted(self._path_of.items()):
                if later > step:
                    (self.path / _SET_ASIDE).mkdir(exist_ok=True)
                    free = (self.path / _SET_ASIDE / f"{path.name}.{number}" for number in range(1, 1_000_000))
                    moved.append(path.rename(next(place for place in free if not place.exists())))
        except OSError as error:
            raise RunError(f"cannot set aside {path}: {error.strerror or error}.") from error
        return moved

    @property
    def _path_of(self) -> dict[int, Path]:
        if not self.path.is_dir():
            return {}
        matches = ((_NAME.fullmatch(path.name), path) for path in self.path.iterdir())
        # One name per step: step-000000001 is none of ours.
        return {int(match[1]): path for match, path in matches if match and path == self.path_of(int(match[1]))}

    def _ranked(self) -> list[int]:
        """Steps with a score, the best first; of equal ones the earlier first."""
        scores = {}
        for step, path in self._path_of.items():
            with suppress(CheckpointError):
                score = read_manifest(path).score
                if score is not None:
                    scores[step] = -score if self.mode == "max" else score
        return sorted(scores, key=lambda step: (scores[step], step))

    def _prune(self) -> None:
        paths = self._path_of
        kept = {*sorted(paths)[-self.keep_last :], *self._ranked()[: self.keep_best]}
        for step, path in paths.items():
            if step in kept:
                continue
            doomed = self.path / f".removing-{path.name}"
            try:
                # Renamed first: a half-removed checkpoint must not be met as a damaged one.
                path.rename(doomed)
            except OSError as error:
                warnings.warn(f"cannot remove the old checkpoint {path}: {error.strerror or error}.", stacklevel=3)
            remove_tree(doomed)

    def _what_is_left(self) -> str:
        steps = self.steps()
        return f"The checkpoint of step {steps[-1]} is untouched." if steps else "No earlier checkpoint exists."
