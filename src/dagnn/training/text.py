"""Text for a terminal, a file or a pipe: safe to print, and no reason to stop where it cannot be written."""

from typing import TextIO


def printable(text: str) -> str:
    r"""The text with every control character as its escape; on one line.

    A name in a stranger's file must not move the cursor or colour the screen.

    >>> print(printable("weight\x1b[2J\nnext"))
    weight\x1b[2J\nnext
    """
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def write_line(text: str, stream: TextIO | None) -> bool:
    """Writes a line in the stream's encoding, what it lacks as escapes; False where nobody can read it any more.

    The reader of a pipe may have gone, a terminal may be closed, a program without a console has no streams at all.
    """
    if stream is None:
        return False
    try:
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()
    except (OSError, ValueError):  # gone; closed
        return False
    return True
