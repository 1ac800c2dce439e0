"""Checkpoints: tensors as safetensors, the rest as JSON, a manifest that proves them whole; and the store of a run's.

    step-00001234/
        model.safetensors       parameters, buffers and extra state by name
        optimizer.safetensors   moments by "<parameter name>/<slot>"
        ema.safetensors         the model's averaged tensors by name, tied ones under each, when there are any
        state.json              everything else that decides how training goes on
        clock.json              seconds spent: the one part that differs between two equal runs
        manifest.json           format, run, step, score, and size and sha256 of every other file

Nothing here is pickled, and no name in a file is imported or becomes a path: file names are a closed list.
The manifest is written last and carries its own sha256, so a checkpoint is whole exactly when it verifies.
safetensors refuses a truncated file, but silently loads a flipped bit: hence the hashes.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from dagnn import __version__
from dagnn.errors import CheckpointError, DagnnError, RunError, warn
from dagnn.files import remove_tree, sync_directory, write_new
from dagnn.training.run.values import tensor_file, tensors_in_file

FORMAT = 1
TENSOR_GROUPS = ("model", "optimizer", "ema")
_MANIFEST = "manifest.json"
_JSON_FILES = ("state.json", "clock.json")
_TENSOR_FILES = tuple(f"{group}.safetensors" for group in TENSOR_GROUPS)
_MAX_MANIFEST_BYTES = 1 << 20
# A pipe in the place of a file is not waited for; Windows would else take \r\n for \n.
_UNALTERED = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class DamagedCheckpointError(CheckpointError):
    """Not whole: an older checkpoint of the run may still be."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        run_id: the run that it belongs to.
        step: optimizer steps made.
        score: the monitored metric at this very step, or None when it was not evaluated (or not finite).
        tensors: group (of `TENSOR_GROUPS`) -> name -> tensor; in "model" also extra state that is no tensor.
        state: JSON values, finite numbers only.
        clock: ``seconds`` and ``cpu_seconds`` of training so far.

    >>> Checkpoint("a-run", step=3, score=None, tensors={}, state={}).clock
    {}
    """

    run_id: str
    step: int
    score: float | None
    tensors: Mapping[str, Mapping[str, Any]]
    state: Mapping[str, Any]
    clock: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """The head of a checkpoint, proved by its own hash; the files are not looked at."""

    run_id: str
    step: int
    score: float | None
    files: Mapping[str, tuple[int, str]]


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write into the new directory ``path``, every file on the disk when it returns, the manifest last.

    Raises:
        OSError: as the system says; ``path`` is then a part of a checkpoint that does not verify.
        RunError: a tensor or value cannot be kept.
    """
    path.mkdir()
    listed = {}
    for name, content in _file_contents(checkpoint):
        write_new(path / name, content)
        listed[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = {
        "format": FORMAT,
        "dagnn": __version__,
        "run": checkpoint.run_id,
        "step": checkpoint.step,
        "score": checkpoint.score,
        "files": listed,
    }
    write_new(path / _MANIFEST, _manifest_bytes(manifest))
    sync_directory(path)


def read_manifest(path: Path) -> Manifest:
    """The verified manifest of a checkpoint; CheckpointError if damaged, missing, a link, or of a newer format."""
    if path.is_symlink():
        raise CheckpointError(f"{path} is a symbolic link: a checkpoint is a directory of its own.")
    content = _read(path, _MANIFEST, _MAX_MANIFEST_BYTES)
    manifest = _parse_json(path, _MANIFEST, content)
    # Written again it must give the same bytes, hash included: no byte of the file is left unproved.
    if not isinstance(manifest, dict) or content != _rewritten(manifest):
        raise DamagedCheckpointError(f"{path / _MANIFEST} is damaged: its own sha256 does not match.")
    written = manifest.get("format")
    if type(written) is not int or written < 1:
        raise CheckpointError(f"{path / _MANIFEST} is no manifest of dagnn: its format is {written!r}.")
    if written > FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {written} (dagnn {manifest.get('dagnn')}), this is dagnn "
            f"{__version__} with format {FORMAT}: update dagnn to read it."
        )
    try:
        score = None if manifest["score"] is None else float(manifest["score"])
        files = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in manifest["files"].items()}
        found = Manifest(str(manifest["run"]), int(manifest["step"]), score, files)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise CheckpointError(f"{path / _MANIFEST} is no manifest of dagnn: {error!r}.") from error
    unknown = set(files) - {*_JSON_FILES, *_TENSOR_FILES}
    if unknown or not set(_JSON_FILES) <= set(files):
        raise CheckpointError(f"{path / _MANIFEST} lists the wrong files: {', '.join(sorted(files))}.")
    return found


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in ``path``, every byte verified before any is interpreted.

    Raises:
        CheckpointError: a file is missing, damaged, a symbolic link, or of a newer format; names the file.

    >>> import tempfile
    >>> write_checkpoint(path := Path(tempfile.mkdtemp(), "new"), Checkpoint("a-run", 3, 0.5, {}, {}))
    >>> read_checkpoint(path).score
    0.5
    """
    manifest = read_manifest(path)
    contents = {name: _verified(path, name, *entry) for name, entry in manifest.files.items()}
    tensors = {}
    for group, name in zip(TENSOR_GROUPS, _TENSOR_FILES, strict=True):
        if name in contents:
            try:
                tensors[group] = tensors_in_file(contents[name])
            except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
                raise DamagedCheckpointError(f"{path / name} cannot be read: {error}.") from error
    state, clock = (_parse_json(path, name, contents[name]) for name in _JSON_FILES)
    return Checkpoint(manifest.run_id, manifest.step, manifest.score, tensors, state, clock)


def verify_checkpoint(path: Path) -> Manifest:
    """The manifest, after every file was compared with it, and nothing else is there. Raises as `read_checkpoint`.

    >>> import tempfile
    >>> write_checkpoint(path := Path(tempfile.mkdtemp(), "new"), Checkpoint("a-run", 3, 0.5, {}, {}))
    >>> sorted(verify_checkpoint(path).files)
    ['clock.json', 'state.json']
    """
    manifest = read_manifest(path)
    for name, entry in manifest.files.items():
        _verified(path, name, *entry)
    foreign = sorted({each.name for each in path.iterdir()} - {_MANIFEST, *manifest.files})
    if foreign:
        raise CheckpointError(f"{path / foreign[0]} is not in the manifest: a checkpoint holds nothing else.")
    return manifest


def json_bytes(value: Any) -> bytes:
    """Strict JSON (no NaN), one form for equal values."""
    return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _file_contents(checkpoint: Checkpoint) -> list[tuple[str, bytes]]:
    given = [group for group in TENSOR_GROUPS if group in checkpoint.tensors]
    tensors = [(f"{group}.safetensors", tensor_file(checkpoint.tensors[group], f"the {group}'s")) for group in given]
    return [*tensors, ("state.json", json_bytes(checkpoint.state)), ("clock.json", json_bytes(checkpoint.clock))]


def _manifest_bytes(manifest: dict[str, Any]) -> bytes:
    digest = hashlib.sha256(json_bytes(manifest)).hexdigest()
    return json_bytes({**manifest, "sha256": digest})


def _rewritten(manifest: dict[str, Any]) -> bytes | None:
    """The bytes that this version would have written; None where JSON cannot express a value."""
    try:
        return _manifest_bytes({key: value for key, value in manifest.items() if key != "sha256"})
    except ValueError:
        return None


def _verified(path: Path, name: str, num_bytes: int, sha256: str) -> bytes:
    content = _read(path, name, num_bytes, exactly=True)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DamagedCheckpointError(f"{path / name} is damaged: its sha256 is not the manifest's.")
    return content


def _read(path: Path, name: str, num_bytes: int, *, exactly: bool = False) -> bytes:
    """The bytes of a plain file of at most (or exactly) ``num_bytes``.

    The size is checked before anything is read: neither a huge file nor a lying manifest fills the memory.
    """
    try:
        # Not followed, not waited for: a link or a pipe in the place of a file is refused.
        descriptor = os.open(path / name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | _UNALTERED)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path / name} is not a plain file: a checkpoint holds no links.")
            if status.st_size > num_bytes or (exactly and status.st_size != num_bytes):
                expected = f"the manifest says {num_bytes}" if exactly else f"at most {num_bytes} are allowed"
                raise DamagedCheckpointError(f"{path / name} is damaged: {status.st_size} bytes, {expected}.")
            return file.read(status.st_size)
    except OSError as error:
        if (path / name).is_symlink():
            raise CheckpointError(f"{path / name} is not a plain file: a checkpoint holds no links.") from error
        raise DamagedCheckpointError(f"cannot read {path / name}: {error.strerror or error}.") from error


def _parse_json(path: Path, name: str, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpointError(f"{path / name} is damaged: {error}.") from error


_NAME = re.compile(r"step-(\d{8,})")
_SET_ASIDE = "set-aside"
_LEFTOVERS = (".writing", ".replaced", ".removing")


class CheckpointStore:
    """The folder ``checkpoints/`` of a run.

    A save writes a hidden sibling, waits for the disk, renames it in one step, waits again, and only then
    removes the surplus. Killed at any moment, the folder holds the old checkpoints or those and the new
    one. Checkpoints are ordered by step, never by file time. Only those that carry the run's id and their own step are
    the run's: others, which somebody has copied or renamed, are neither counted nor ranked nor touched.

    One process at a time writes (the run's lock sees to it); any number may read.

    >>> import tempfile
    >>> store = CheckpointStore(Path(tempfile.mkdtemp(), "checkpoints"), "a-run")
    >>> store.save(Checkpoint("a-run", 3, 0.5, {}, {})).name, store.steps()
    ('step-00000003', [3])
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
        self.path, self.run_id = path, run_id
        self.keep_last, self.keep_best, self.mode = keep_last, keep_best, mode

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
        for path in (self.path_of(step) for step in own if step not in kept):
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
