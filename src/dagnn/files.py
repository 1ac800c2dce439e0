"""Files that survive a crash: written, flushed to the disk, and moved into place in one step."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_new(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it. Its name is safe only after `sync_directory`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o644)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Write ``path`` so that a reader, or a crash, meets the old content or the new, never a part."""
    temporary = path.with_name(f".writing-{path.name}")
    try:
        write_new(temporary, content)
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Inside, a hidden place to write; afterwards the file is ``target``, on the disk, and never in the place of an
    old one. After an error there is neither. Raises OSError."""
    temporary = target.with_name(f".writing-{os.getpid()}-{target.name}")
    try:
        yield temporary
        with temporary.open("r+b") as file:  # Windows waits for what was opened to be written only
            os.fsync(file.fileno())
        # Not a rename: a link fails where the name is taken, even just now.
        os.link(temporary, target)
        sync_directory(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Wait until the disk has the directory's entries: renames and new names. Windows has nothing to wait for."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Remove a directory, or do nothing when it is not there; what cannot be removed stays."""
    shutil.rmtree(path, ignore_errors=True)
