"""Text as a chain of characters."""

import regex

from dagnn.errors import DtypeError


def grapheme_clusters(string: str) -> tuple[str, ...]:
    """The characters of ``string`` as a reader sees them: "e" with a combining accent is one."""
    if not isinstance(string, str):
        raise DtypeError(f"the text must be a str, got {type(string).__name__}.")
    return tuple(regex.findall(r"\X", string))
