"""Docstrings as the site's parser wants them: examples as code, one entry per name.

In the sources an example stands as doctest takes it, and one line may describe several arguments.
"""

import re

import griffe

_ENTRY = re.compile(r"^( +)(\*{0,2}\w+(?:, \*{0,2}\w+)+): (.*)$")


class ReadableDocstrings(griffe.Extension):
    """Changes the text of every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _with_code(_with_trees(_with_single_entries(obj.docstring.value)))


def _with_code(text: str) -> str:
    """Examples between fences, up to the blank line after them."""
    lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        if not inside and line.lstrip().startswith(">>> "):
            inside = True
            if lines and lines[-1].strip():
                lines.append("")
            lines.append(line[: len(line) - len(line.lstrip())] + "```pycon")
        if inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


def _with_trees(text: str) -> str:
    """A tree between fences, with its root; and what ``::`` announces is known by its indentation."""
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        if re.search(r"^\s*[├└]", paragraph, re.MULTILINE):
            paragraph = f"```text\n{paragraph}\n```"
        elif paragraph.strip() == "::":
            continue
        lines.append(re.sub(r"::$", ":", paragraph))
    return "\n\n".join(lines)


def _with_single_entries(text: str) -> str:
    """``    a, b: what`` as two entries, each with what is said of both."""
    lines = text.split("\n")
    found: list[str] = []
    number = 0
    while number < len(lines):
        match = _ENTRY.match(lines[number])
        end = number + 1
        if match:
            while end < len(lines) and lines[end].startswith(match[1] + " "):
                end += 1
            for name in match[2].split(", "):
                found += [f"{match[1]}{name}: {match[3]}", *lines[number + 1 : end]]
        else:
            found += lines[number:end]
        number = end
    return "\n".join(found)
