"""Settings: typed, range-checked fields of nested frozen dataclasses, addressed by dotted keys.

A configuration derives from `Settings` and declares its fields with `setting`. This file converts values from text,
checks them, reads and writes TOML, and reports all problems of a configuration at once.
"""

import functools
import json
import math
import os
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from dagnn.errors import ConfigError, closest, did_you_mean

T = TypeVar("T")
_MAX_FILE_CHARACTERS = 1 << 20
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


def below_one() -> dict[str, Any]:
    """Keyword arguments of `setting` for numbers ``0 <= value < 1``."""
    return {"allowed": "a number from 0 to below 1", "accepts": lambda value: 0 <= value < 1}


def one_of(*choices: str) -> dict[str, Any]:
    """Keyword arguments of `setting` for a closed list of names."""
    return {"allowed": "one of " + ", ".join(choices), "accepts": lambda value: value in choices}


@dataclass(frozen=True)
class Settings:
    """A configuration: fields made by `setting`, and sections of them, which are frozen dataclasses too.

    Raises one ConfigError for all values that are of the wrong type or out of range.
    """

    def __post_init__(self) -> None:
        known, problems = settings_of(type(self)), []
        for key, value in flatten(self).items():
            try:
                converted = convert(known[key], value)
            except ValueError as error:
                problems.append(str(error))
            else:
                section, _, name = key.rpartition(".")
                # In its own type (a list is a tuple now, 1 is 1.0): equal settings write equal TOML.
                object.__setattr__(getattr(self, section) if section else self, name, converted)
        refuse(problems or self.contradictions())

    def contradictions(self) -> list[str]:
        """Messages about settings that are fine alone and not together; a derived class adds its own."""
        return []

    @classmethod
    def resolve(
        cls,
        file: str | Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> Self:
        """The configuration by precedence: flags, then environment, then file, then defaults.

        Args:
            file: TOML.
            environment: searched for ``DAGNN_<KEY>``; None reads ``os.environ``. A ``DAGNN_`` name that is no
                setting is refused when it looks like one misspelt, and left alone otherwise (``DAGNN_KERNELS``).
            flags: dotted key -> value, as text or typed.

        Raises:
            ConfigError: unreadable file; unknown keys (with a suggestion) and wrong values, all at once.
        """
        return _build(cls, cls.given(file, environment=environment, flags=flags))

    @classmethod
    def given(
        cls,
        file: str | Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The settings that were given, by dotted key, without defaults; arguments and errors as of `resolve`."""
        known = settings_of(cls)
        problems: list[str] = []
        values: dict[str, Any] = {}
        if file is not None:
            values |= _from_table(known, _read_toml(Path(file)), f"file {file}", problems)
        values |= _from_environment(known, os.environ if environment is None else environment, problems)
        values |= _typed(known, flags or {}, "", problems)
        refuse(problems)
        return values

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """The configuration in this text; what it leaves out has its default. Raises ConfigError."""
        problems: list[str] = []
        values = _from_table(settings_of(cls), _parse_toml(text, "the text"), "", problems)
        refuse(problems)
        return _build(cls, values)

    @classmethod
    def part_of(cls, file: str | Path) -> Self:
        """The settings of this class in the TOML of a derived one, whose others are ignored. Raises ConfigError."""
        known = settings_of(cls)
        problems: list[str] = []
        table = {key: value for key, value in _dotted(known, _read_toml(Path(file))).items() if key in known}
        values = _from_table(known, table, f"file {file}", problems)
        refuse(problems)
        return _build(cls, values)

    def to_toml(self) -> str:
        """Every setting as TOML; `from_toml` gives an equal configuration."""
        return toml_text(flatten(self))

    def changed(self, flags: Mapping[str, Any]) -> Self:
        """A copy with these settings, by dotted key: ``config.changed({"optimizer.lr": 1e-4})``. Raises ConfigError."""
        problems: list[str] = []
        values = flatten(self) | _typed(settings_of(type(self)), flags, "", problems)
        refuse(problems)
        return _build(type(self), values)

    def differences(self, other: "Settings") -> dict[str, tuple[Any, Any]]:
        """Settings that differ: dotted key -> (mine, theirs)."""
        theirs = flatten(other)
        return {key: (value, theirs[key]) for key, value in flatten(self).items() if value != theirs[key]}


def settings_of(config: type) -> Mapping[str, Setting]:
    """Every leaf of a nested dataclass, by dotted key, in the order of declaration; of base classes first."""
    return _leaves(typing.cast(Any, config), "")


@functools.cache
def _leaves(config: type, prefix: str) -> Mapping[str, Setting]:
    found: dict[str, Setting] = {}
    hints = typing.get_type_hints(config)
    for each in fields(config):
        key, kind = prefix + each.name, hints[each.name]
        if is_dataclass(kind):
            found |= _leaves(typing.cast(Any, kind), key + ".")
        else:
            words = dict(each.metadata)
            if kind is int:
                words["allowed"] = words["allowed"].replace("a number", "a whole number")
            found[key] = Setting(key, kind, each.default, **words)
    return found


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """The values of a nested dataclass, by dotted key."""
    values: dict[str, Any] = {}
    for each in fields(config):
        value = getattr(config, each.name)
        values |= flatten(value, f"{prefix}{each.name}.") if is_dataclass(value) else {prefix + each.name: value}
    return values


def _build(config: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """The nested dataclass with these values by dotted key; the rest keeps its default."""
    hints = typing.get_type_hints(config)
    arguments = {}
    for each in fields(typing.cast(Any, config)):
        key, kind = prefix + each.name, hints[each.name]
        if is_dataclass(kind):
            arguments[each.name] = _build(typing.cast(type[Any], kind), values, key + ".")
        elif key in values:
            arguments[each.name] = values[key]
    return config(**arguments)


def convert(wanted: Setting, value: Any) -> Any:
    """The value in the setting's type; ValueError with the complete message: key, value, what is allowed.

    Text is parsed: environment variables and flags arrive as text. Lists become tuples, whole numbers
    floats; nothing else is bent (``True`` is not 1, ``2.0`` is not a whole number).
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
    nearest = sorted(name for name in known if name.rpartition(".")[2] == leaf)
    by_leaf = {name.rpartition(".")[2]: name for name in known}
    if not nearest:
        # A misspelt leaf without its section, such as `wight_decay`, is close to no full key.
        near = closest(key, known) or by_leaf.get(closest(leaf, by_leaf) or "")
        nearest = [near] if near else []
    advice = did_you_mean(nearest, "run `dagnn train --help` for the list.")
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


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_FILE_CHARACTERS + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}.") from error
    if len(text) > _MAX_FILE_CHARACTERS:
        raise ConfigError(f"the configuration file {path} has more than {_MAX_FILE_CHARACTERS:,} characters.")
    return _parse_toml(text, str(path))


def _parse_toml(text: str, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{origin} is not TOML of ours: its values are nested too deeply.") from None
    except ValueError as error:  # a TOMLDecodeError, or a number with too many digits
        raise ConfigError(f"{origin} is not TOML: {error}.") from error


def _from_table(
    known: Mapping[str, Setting], table: Mapping[str, Any], origin: str, problems: list[str]
) -> dict[str, Any]:
    """Values of a TOML table. Text stays text there: ``lr = "1e-3"`` in quotes is refused, not parsed."""
    given = _dotted(known, table)
    for key, value in list(given.items()):
        wanted = known.get(key)
        if wanted is not None and wanted.type is not str and isinstance(value, str):
            del given[key]
            problems.append(_with_origin(f'{key} = "{value}": allowed is {wanted.allowed}, without quotes.', origin))
    return _typed(known, given, origin, problems)


def _dotted(known: Mapping[str, Setting], table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, Mapping) and name not in known:
            found |= _dotted(known, value, name + ".")
        else:
            found[name] = value
    return found


def _from_environment(
    known: Mapping[str, Setting], environment: Mapping[str, str], problems: list[str]
) -> dict[str, Any]:
    names = {each.environment_name: key for key, each in known.items()}
    given = {}
    for name, text in environment.items():
        if name in names:
            given[names[name]] = text
        elif name.startswith("DAGNN_") and (nearest := closest(name, names, cutoff=0.9)):
            problems.append(f"unknown environment variable {name}: did you mean {nearest}?")
    return _typed(known, given, "environment", problems)


def _typed(known: Mapping[str, Setting], given: Mapping[str, Any], origin: str, problems: list[str]) -> dict[str, Any]:
    """The given values in the settings' types; what is wrong goes to ``problems``."""
    values = {}
    for key, value in given.items():
        try:
            if key not in known:
                raise ValueError(unknown_key(key, known))
            values[key] = convert(known[key], value)
        except ValueError as error:
            problems.append(_with_origin(str(error), origin))
    return values


def _with_origin(problem: str, origin: str) -> str:
    return f"{problem} [{origin}]" if origin else problem


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
