"""Settings: typed, range-checked fields of nested frozen dataclasses, addressed by dotted keys.

`dagnn.training.config` says which settings exist. This file knows how one is declared, converted from
text, checked and written, and how all problems of a configuration are told at once.
"""

import difflib
import json
import math
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from dagnn.errors import ConfigError

# Words of other libraries -> ours, for suggestions only.
_ALSO_CALLED = {"learning_rate": "lr", "clip": "max_norm", "accumulate": "micro_batches", "num_steps": "max_steps"}


@dataclass(frozen=True)
class Setting:
    """One leaf of a configuration.

    Attributes:
        key: dotted path, such as ``optimizer.lr``; also the flag and the TOML key.
        type: ``int``, ``float``, ``bool``, ``str`` or ``tuple[int, ...]`` and the like.
        allowed: the permitted values in words, as printed in errors and in ``--help``.
        accepts: whether a value of the right type is permitted.
        help: one line for ``--help``.
    """

    key: str
    type: Any
    default: Any
    allowed: str
    accepts: Callable[[Any], bool]
    help: str

    @property
    def environment_name(self) -> str:
        """``optimizer.lr`` -> ``DAGNN_OPTIMIZER_LR``."""
        return "DAGNN_" + self.key.upper().replace(".", "_")


def setting(default: Any, help: str, *, allowed: str, accepts: Callable[[Any], bool]) -> Any:
    """A dataclass field with its range: to be used as ``lr: float = setting(1e-3, ...)``."""
    return field(default=default, metadata={"help": help, "allowed": allowed, "accepts": accepts})


def at_least(smallest: float) -> dict[str, Any]:
    """Keyword arguments of `setting` for numbers ``>= smallest``."""
    return {"allowed": f"a number of at least {smallest}", "accepts": lambda value: value >= smallest}


def above(bound: float) -> dict[str, Any]:
    """Keyword arguments of `setting` for numbers ``> bound``."""
    return {"allowed": f"a number above {bound}", "accepts": lambda value: value > bound}


def within(low: float, high: float) -> dict[str, Any]:
    """Keyword arguments of `setting` for numbers ``low <= value <= high``."""
    return {"allowed": f"a number from {low} to {high}", "accepts": lambda value: low <= value <= high}


def one_of(*choices: str) -> dict[str, Any]:
    """Keyword arguments of `setting` for a closed list of names."""
    return {"allowed": "one of " + ", ".join(choices), "accepts": lambda value: value in choices}


def settings_of(config: type, prefix: str = "") -> dict[str, Setting]:
    """Every leaf of a nested dataclass, by dotted key, in the order of declaration."""
    found: dict[str, Setting] = {}
    hints = typing.get_type_hints(config)
    for each in fields(config):
        key, kind = prefix + each.name, hints[each.name]
        if is_dataclass(kind):
            found |= settings_of(typing.cast(type, kind), key + ".")
        else:
            told = dict(each.metadata)
            if kind is int:
                told["allowed"] = told["allowed"].replace("a number", "a whole number")
            found[key] = Setting(key, kind, each.default, **told)
    return found


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """The values of a nested dataclass, by dotted key."""
    values: dict[str, Any] = {}
    for each in fields(config):
        value = getattr(config, each.name)
        values |= flatten(value, f"{prefix}{each.name}.") if is_dataclass(value) else {prefix + each.name: value}
    return values


def build(config: type, values: Mapping[str, Any], prefix: str = "") -> Any:
    """The nested dataclass with these values by dotted key; the rest keeps its default."""
    hints = typing.get_type_hints(config)
    arguments = {}
    for each in fields(config):
        key, kind = prefix + each.name, hints[each.name]
        if is_dataclass(kind):
            arguments[each.name] = build(typing.cast(type, kind), values, key + ".")
        elif key in values:
            arguments[each.name] = values[key]
    return config(**arguments)


def convert(wanted: Setting, value: Any) -> Any:
    """The value in the setting's type.

    Text is parsed: environment variables and flags arrive as text. Lists become tuples, whole numbers
    floats; nothing else is bent (``True`` is not 1, ``2.0`` is not a whole number).

    Raises:
        ValueError: with the complete message: key, value, what is allowed.
    """
    try:
        converted = _converted(wanted.type, value)
        if _is_finite(converted) and wanted.accepts(converted):
            return converted
    except UnicodeEncodeError:  # of other bytes: it could not be written into config.toml
        raise ValueError(f"{wanted.key} = {_shown(value)}: allowed is {wanted.allowed}, in UTF-8.") from None
    except (TypeError, ValueError):
        pass
    raise ValueError(f"{wanted.key} = {_shown(value)}: allowed is {wanted.allowed}.")


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The message for a key that does not exist, with the nearest ones that do."""
    known = list(known)
    if inside := [name for name in known if name.startswith(f"{key}.")]:
        return f"{key} is a section, not a setting: it has {', '.join(inside)}."
    leaf = key.rpartition(".")[2]
    leaf = _ALSO_CALLED.get(leaf, leaf)
    nearest = [name for name in known if name.rpartition(".")[2] == leaf]
    nearest = nearest or difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if not nearest:  # a misspelt leaf without its section: `wight_decay` is near to no full key
        by_leaf = {name.rpartition(".")[2]: name for name in known}
        nearest = [by_leaf[each] for each in difflib.get_close_matches(leaf, by_leaf, n=1)]
    advice = f"did you mean {' or '.join(nearest)}?" if nearest else "run `dagnn train --help` for the list."
    return f"unknown setting {_shown(key)}: {advice}"


def refuse(problems: list[str]) -> None:
    """Raise one ConfigError for all problems; nothing when there are none."""
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        raise ConfigError("\n  ".join([f"{len(problems)} settings are wrong:", *problems]))


def toml_text(values: Mapping[str, Any]) -> str:
    """TOML of values by dotted key: plain keys first, then one table per section.

    >>> print(toml_text({"seed": 1, "optimizer.lr": 0.001, "optimizer.betas": (0.9, 0.98)}), end="")
    seed = 1
    <BLANKLINE>
    [optimizer]
    lr = 0.001
    betas = [0.9, 0.98]
    """
    sections: dict[str, list[str]] = {"": []}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {_toml_value(value)}")
    head = [] if not sections[""] else ["\n".join(sections[""])]
    tables = [f"[{section}]\n" + "\n".join(lines) for section, lines in sections.items() if section]
    return "\n\n".join(head + tables) + "\n"


def _converted(kind: Any, value: Any) -> Any:
    if typing.get_origin(kind) is tuple:
        items = value.replace(",", " ").split() if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            raise TypeError
        kinds = typing.get_args(kind)
        if kinds[-1] is Ellipsis:
            kinds = kinds[:1] * len(items)
        return tuple(_converted(each, item) for each, item in zip(kinds, items, strict=True))
    if kind is bool:
        return _boolean(value)
    if isinstance(value, bool):
        raise TypeError
    if kind is str:
        if isinstance(value, str):
            value.encode()
            return value
    elif isinstance(value, str | int) or (kind is float and isinstance(value, float)):
        return kind(value)
    raise TypeError


def _boolean(value: Any) -> bool:
    words = {"true": True, "1": True, "false": False, "0": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise TypeError


def _is_finite(value: Any) -> bool:
    """TOML accepts `nan` and `inf`, and ``nan < 0`` is false: no range check would catch them."""
    if isinstance(value, tuple):
        return all(_is_finite(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


def _shown(value: Any) -> str:
    """The value on one line with control characters escaped: it may come from a stranger's file."""
    text = value if isinstance(value, str) else repr(list(value) if isinstance(value, tuple) else value)
    text = text if text and text.isprintable() else repr(text)
    return text if len(text) <= 80 else text[:77] + "..."


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON strings are TOML basic strings, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return repr(value)
