"""A run on disk: one directory, used by one process at a time.

runs/curriculum/
    run.json         the run's id and the version that began it
    config.toml      the resolved configuration; running it again gives the same bytes
    metrics.jsonl    one row per optimizer step, evaluation, promotion
    checkpoints/     step-00000500/, ...
    lock             held while a process trains here
"""

import json
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

from dagnn import __version__
from dagnn.errors import ConfigError, RunError, warn
from dagnn.files import replace_file
from dagnn.training.config import Config, TrainingConfig
from dagnn.training.run.checkpoints import CheckpointStore, json_bytes

try:
    import fcntl
except ImportError:  # Windows has no flock: two processes on one run are not noticed there
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from dagnn.training.processes import Processes

_LOCK, _RUN, _CONFIG, _CHECKPOINTS = "lock", "run.json", "config.toml", "checkpoints"


# Locks of this process. Those that it forks, such as workers that load data, must not keep a run locked after it died.
_held: set[int] = set()


def _let_go_in_child() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


class RunDirectory:
    """The places of a run's files, and the lock on them.

    `create` begins a run, `open` continues one, `read` only reads it. The first two hold the lock until `close`
    (or the end of a ``with`` block); the system drops it when the process dies, however it dies.

    A run holds no links: writing through the links of a stranger's run would overwrite files elsewhere.

    Attributes:
        path: the directory.
        run_id: random; every checkpoint of the run carries it.

    >>> import tempfile
    >>> with RunDirectory.create(Path(tempfile.mkdtemp(), "run"), TrainingConfig(seed=3)) as run:
    ...     run.config().seed
    3
    """

    def __init__(self, path: Path, run_id: str, lock: int | None) -> None:
        """Use `create`, `open` or `read`."""
        self.path = path
        self.run_id = run_id
        self._lock = lock

    @classmethod
    def create(cls, path: str | Path, config: TrainingConfig) -> Self:
        """Begin a run in a new or empty directory, and store its configuration.

        Raises:
            RunError: the directory is not empty, another process is taking it right now, or it cannot be written.
        """
        path = Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            _refuse_links(path)
            lock = _locked(path)
        except OSError as error:
            raise RunError(f"cannot make the run directory {path}: {error.strerror or error}.") from error
        try:
            _refuse_used(path)
            run = cls(path, secrets.token_hex(8), lock)
            run.store_config(config)
            # Last: a directory with run.json is a run.
            replace_file(path / _RUN, json_bytes({"run": run.run_id, "dagnn": __version__}))
        except OSError as error:
            _let_go(lock)
            raise RunError(f"cannot write the run directory {path}: {error.strerror or error}.") from error
        except RunError:
            _let_go(lock)
            raise
        return run

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Go on with the run in ``path``.

        Raises:
            RunError: there is no run, another process is using it, or it cannot be written.
        """
        path = Path(path)
        run_id = _run_id(path)
        try:
            return cls(path, run_id, _locked(path))
        except OSError as error:
            raise RunError(f"cannot use the run directory {path}: {error.strerror or error}.") from error

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Look at the run in ``path`` without taking it; it may be training. Raises RunError: there is no run."""
        return cls(Path(path), _run_id(Path(path)), None)

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints_path(self) -> Path:
        return self.path / _CHECKPOINTS

    @overload
    def config(self) -> TrainingConfig: ...
    @overload
    def config(self, kind: type[Config]) -> Config: ...
    def config(self, kind: type[TrainingConfig] = TrainingConfig) -> TrainingConfig:
        """The stored configuration.

        Args:
            kind: the class of the run's configuration. `TrainingConfig` itself reads the settings that every run has
                and ignores those that a derived class adds.

        Raises:
            ConfigError: it cannot be read or holds a wrong setting.
        """
        path = self.path / _CONFIG
        if kind is TrainingConfig:
            return kind.part_of(path)
        try:
            return kind.resolve(path, environment={})
        except ConfigError as error:
            if "setting task." in str(error) and not hasattr(kind, "task"):
                raise ConfigError(
                    f"{self.path} is the run of a task of its user's own: dagnn train and dagnn evaluate need its "
                    "--task MODULE:NAME; dagnn metrics shows its numbers."
                ) from None
            raise

    def store_config(self, config: TrainingConfig) -> None:
        """Replace the stored configuration, in one step. Raises RunError."""
        path = self.path / _CONFIG
        try:
            replace_file(path, config.to_toml().encode())
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror or error}.") from error

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._lock is not None:
            _let_go(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_run(config: TrainingConfig, resume: bool, processes: "Processes") -> RunDirectory:
    """The run in ``config.run_directory``, which the first process creates or opens and the others read.

    Raises:
        RunError: as `RunDirectory.create` or `RunDirectory.open` in the first process; then in all of them.

    >>> import tempfile
    >>> from dagnn.training import Processes
    >>> config = TrainingConfig(run_directory=f"{tempfile.mkdtemp()}/run")
    >>> with open_run(config, resume=False, processes=Processes()) as run:
    ...     run.path.name
    'run'
    """
    path = config.run_directory
    taken: list[RunDirectory] = []
    processes.by_first(lambda: taken.append(RunDirectory.open(path) if resume else RunDirectory.create(path, config)))
    return taken[0] if taken else RunDirectory.read(path)


def open_checkpoints(run: RunDirectory, config: TrainingConfig) -> CheckpointStore:
    """The checkpoints of a run, kept as its configuration says."""
    return CheckpointStore(
        run.checkpoints_path,
        run.run_id,
        keep_last=config.checkpoint.keep_last,
        keep_best=config.checkpoint.keep_best,
        mode=config.monitor_mode,
    )


def _run_id(path: Path) -> str:
    _refuse_links(path)
    try:
        run: Any = json.loads((path / _RUN).read_bytes())
        run_id = str(run["run"])
        by = str(run.get("dagnn", __version__))
    except FileNotFoundError:
        advice = "name the directory of a trained run, or train one: dagnn train."
        raise RunError(f"{path} holds no run: {path / _RUN} is missing; {advice}") from None
    except OSError as error:
        raise RunError(f"cannot read {path / _RUN}: {error.strerror or error}.") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RunError(f"{path / _RUN} is damaged: {error}.") from error
    if _release(by) > _release(__version__):
        warn(f"{path} was begun by dagnn {by}, this is {__version__}: what is new there may be misread. Update dagnn.")
    return run_id


def _release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, which say what its files hold; a text without them is as old as any."""
    found = re.match(r"(\d+)(?:\.(\d+))?", version)
    return () if found is None else tuple(int(part or 0) for part in found.groups())


def _refuse_links(path: Path) -> None:
    """Links in a stranger's run may lead elsewhere: writing through one would overwrite a file of the user's."""
    for folder in (path, path / _CHECKPOINTS):
        try:
            with os.scandir(folder) as entries:
                for each in entries:
                    # Asked of the entry, not of the file: a running training renames and removes some.
                    if not each.is_file(follow_symlinks=False) and not each.is_dir(follow_symlinks=False):
                        raise RunError(
                            f"{each.path} is a link or no plain file: a run holds files of its own (the run directory "
                            "itself may be a link)."
                        )
        except FileNotFoundError:
            return
        except OSError as error:
            raise RunError(f"cannot read {folder}: {error.strerror or error}.") from error


def _refuse_used(path: Path) -> None:
    if (path / _RUN).exists():
        raise RunError(f"{path} already holds a run: go on with --resume {path}, or choose another run_directory.")
    # Without run.json, our other files are left from a process killed at the start: the run may begin again.
    foreign = sorted(
        each.name
        for each in path.iterdir()
        if each.name not in (_LOCK, _CONFIG)
        and not (each.name.startswith(".writing-") and each.name.endswith((_CONFIG, _RUN)))
    )
    if foreign:
        raise RunError(f"{path} is not empty (it holds {foreign[0]}): choose another run_directory.")


def _locked(path: Path) -> int:
    """A descriptor that holds the run's lock; RunError where another process holds it, OSError as `os.open`."""
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if not isinstance(error, BlockingIOError):
            raise
        raise RunError(
            f"another process is using the run in {path}: wait for it, or choose another run_directory."
        ) from None
    _held.add(descriptor)
    return descriptor


def _let_go(descriptor: int) -> None:
    if descriptor in _held:  # else a child's, closed already
        _held.discard(descriptor)
        if fcntl is not None:
            # Closing drops the lock only when every copy is closed, and a child that was forked this moment has one.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
