"""The checkpoints of one run: save, keep the last and the best, find the newest whole one."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dagnn.errors import CheckpointError, DagnnError, RunError, warn
from dagnn.files import remove_tree, sync_directory
from dagnn.training.run.checkpoint import (
    Checkpoint,
    DamagedCheckpointError,
    Manifest,
    read_checkpoint,
    read_manifest,
    write_checkpoint,
)

_NAME = re.compile(r"step-(\d{8,})")
_SET_ASIDE = "set-aside"
_LEFTOVERS = (".writing", ".replaced", ".removing")


class CheckpointStore:
    """The folder ``checkpoints/`` of a run.

    A save writes a hidden sibling, waits for the disk, renames it in one step, waits again, and only then
    removes what is too many. Killed at any moment, the folder holds the old checkpoints or those and the new
    one. Checkpoints are ordered by step, never by file time. Only those that carry the run's id and their own step are
    the run's: others, which somebody has copied or renamed, are neither counted nor ranked nor touched.

    One process at a time writes (the run's lock sees to it); any number may read.
    """

    def __init__(self, path: Path, run_id: str, *, keep_last: int = 3, keep_best: int = 0, mode: str = "max") -> None:
        """Nothing is read or written yet; the folder is made by the first save.

        Args:
            path: the folder.
            run_id: checkpoints of another run are left alone.
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
        """Steps that have a checkpoint of this run, whole or not, rising."""
        return [step for step in self.all_steps() if not self._is_foreign(step)]

    def all_steps(self) -> list[int]:
        """Steps that have a checkpoint of whatever run, rising."""
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
            if target.exists() and self._is_foreign(checkpoint.step):
                self._set_aside(target)
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
        except DagnnError:
            remove_tree(temporary)
            raise
        remove_tree(replaced)
        self._prune(checkpoint.step)
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
        manifest = read_manifest(path)
        if manifest.run_id != self.run_id:
            raise DamagedCheckpointError(f"{path} belongs to run {manifest.run_id}, this is run {self.run_id}.")
        if manifest.step != step:
            raise DamagedCheckpointError(f"{path} holds step {manifest.step}: it was moved there from elsewhere.")
        return read_checkpoint(path)

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint of the run; None when it has none at all.

        A damaged one is passed over with a warning that names the file; so is one of another run.

        Raises:
            CheckpointError: there are checkpoints and none is whole, or the newest is of a newer format.
        """
        steps = self.steps()
        for step in reversed(self.all_steps()):
            try:
                return self.load(step)
            except DamagedCheckpointError as error:
                warn(f"passing over checkpoint {step}: {error}")
        if steps:
            raise CheckpointError(f"none of the {len(steps)} checkpoints in {self.path} is whole.")
        return None

    def best(self) -> int | None:
        """The step with the best score; None when no checkpoint has one."""
        ranked = self._ranked(self._own())
        return ranked[0] if ranked else None

    def recover(self) -> None:
        """Clear what a killed save has left. Call before the first save, with the run locked."""
        for leftover in self.path.glob(".*-step-*"):
            target = self.path / leftover.name.partition("-")[2]
            if leftover.name.partition("-")[0] not in _LEFTOVERS or not _NAME.fullmatch(target.name):
                continue  # somebody else's
            if leftover.name.startswith(".replaced-") and not target.exists():
                leftover.rename(target)
            else:
                remove_tree(leftover)

    def set_aside_after(self, step: int) -> list[Path]:
        """Move later checkpoints of the run into ``set-aside/``: they are damaged, or it goes on from before them.

        Left in place, the next "latest" would find a future that this run no longer has.

        Raises:
            RunError: one cannot be moved.
        """
        moved = []
        try:
            for path in (self.path_of(later) for later in self.steps() if later > step):
                moved.append(self._set_aside(path))
        except OSError as error:
            raise RunError(f"cannot set aside {path}: {error.strerror or error}.") from error
        return moved

    def _set_aside(self, path: Path) -> Path:
        (self.path / _SET_ASIDE).mkdir(exist_ok=True)
        free = (self.path / _SET_ASIDE / f"{path.name}.{number}" for number in range(1, 1_000_000))
        return path.rename(next(place for place in free if not place.exists()))

    def _is_own(self, manifest: Manifest, step: int) -> bool:
        return (manifest.run_id, manifest.step) == (self.run_id, step)

    def _is_foreign(self, step: int) -> bool:
        """Whether what is in the place of this step is another run's, or of another step; not where it is damaged."""
        try:
            return not self._is_own(read_manifest(self.path_of(step)), step)
        except CheckpointError:
            return False

    @property
    def _path_of(self) -> dict[int, Path]:
        if not self.path.is_dir():
            return {}
        matches = ((_NAME.fullmatch(path.name), path) for path in self.path.iterdir())
        # One name per step: step-000000001 is none of ours.
        return {int(match[1]): path for match, path in matches if match and path == self.path_of(int(match[1]))}

    def _own(self) -> dict[int, Manifest]:
        """The manifests of the run's checkpoints that can be read."""
        found = {}
        for step in self.all_steps():
            with suppress(CheckpointError):
                manifest = read_manifest(self.path_of(step))
                if self._is_own(manifest, step):
                    found[step] = manifest
        return found

    def _ranked(self, manifests: Mapping[int, Manifest]) -> list[int]:
        """Steps with a score, the best first; of equal ones the earlier first."""
        sign = -1.0 if self.mode == "max" else 1.0
        scores = {step: sign * each.score for step, each in manifests.items() if each.score is not None}
        return sorted(scores, key=lambda step: (scores[step], step))

    def _prune(self, newest: int) -> None:
        """Remove what is too many of the run's own up to step ``newest``: later ones are not of this training."""
        own = {step: each for step, each in self._own().items() if step <= newest}
        kept = {*sorted(own)[-self.keep_last :], *self._ranked(own)[: self.keep_best]}
        paths = {step: self.path_of(step) for step in own}
        for step, path in paths.items():
            if step in kept:
                continue
            doomed = self.path / f".removing-{path.name}"
            try:
                # Renamed first: a half-removed checkpoint must not be met as a damaged one.
                path.rename(doomed)
            except OSError as error:
                warn(f"cannot remove the old checkpoint {path}: {error.strerror or error}.")
            remove_tree(doomed)

    def _what_is_left(self) -> str:
        steps = self.steps()
        return f"The checkpoint of step {steps[-1]} is untouched." if steps else "No earlier checkpoint exists."
