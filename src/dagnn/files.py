"""Files that survive a crash: written under a hidden name, flushed to the disk, and moved into place in one step."""

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write ``path`` so that a reader, or a crash, finds the old content or the new, never a part.

    Raises an OSError where the disk is full, there is no such folder, ...; ``path`` then holds what it held before.
    """
    with replaced_file(path) as temporary:
        temporary.write_bytes(content)


def replaced_file(target: Path) -> AbstractContextManager[Path]:
    """As `replace_file`, for content that comes in pieces or from another library's writer.

    The ``with`` block gets a hidden path and writes a file there. When the block ends, that file becomes ``target`` in
    one step. After an error ``target`` is as it was, and the hidden file is gone.
    """
    return _moved_into_place(target, Path.replace)


def new_file(target: Path) -> AbstractContextManager[Path]:
    """As `replaced_file`, but an existing ``target`` is never overwritten: FileExistsError."""
    # Not a rename: a link fails where the name is taken, even just now.
    return _moved_into_place(target, os.link)


@contextmanager
def _moved_into_place(target: Path, move: Callable[[Path, Path], object]) -> Iterator[Path]:
    # Every writer has a name of its own: two at once must not write into each other's file.
    temporary = target.with_name(f".writing-{secrets.token_hex(4)}-{target.name}")
    try:
        yield temporary
        with temporary.open("r+b") as file:  # not "rb": Windows flushes only files that were opened for writing
            os.fsync(file.fileno())
        move(temporary, target)
        sync_directory(target.parent)
    except OSError as error:
        if error.filename == str(temporary):
            error.filename = str(target)  # the name that the user gave
            if error.filename2 is not None:
                del error.filename2  # of None the message would say "-> None"
        raise
    finally:
        with suppress(OSError):  # it would hide the error that led here
            temporary.unlink(missing_ok=True)


def write_all(files: Mapping[Path, bytes], *, overwrite: bool) -> list[Path]:
    """Write all of the files, or none of those that were not there.

    FileExistsError where one exists, and ``overwrite`` is False; another OSError where one cannot be written.
    """
    taken = [] if overwrite else [path for path in files if path.exists()]
    if taken:
        raise FileExistsError(errno.EEXIST, "exists already: choose another path, or set overwrite", str(taken[0]))
    new, written = [path for path in files if not path.exists()], list[Path]()
    try:
        for path, content in files.items():
            replace_file(path, content)
            written.append(path)
    except OSError:
        for path in written:
            if path in new:
                path.unlink(missing_ok=True)
        raise
    return written


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
