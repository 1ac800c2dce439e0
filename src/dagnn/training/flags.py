"""The command-line flags of a training configuration, for tyro, without their defaults filled in."""

import typing
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, is_dataclass, make_dataclass
from itertools import zip_longest
from typing import Annotated, Any

from dagnn.training.config import TrainingConfig, training_settings
from dagnn.training.settings import Setting


def training_flags() -> type:
    """A dataclass for `tyro.cli` with one field per setting of `TrainingConfig`, nested alike.

    A flag that is not given stays None, so that `given_flags` can tell it from a default, and every value
    stays text: `TrainingConfig.resolve` converts it and reports all wrong ones at once. Inside a command's own
    dataclass: ``settings: Annotated[training_flags(), tyro.conf.arg(name="")]``.
    """
    return _flags_of(TrainingConfig, training_settings(), "")


def spelt_out(arguments: Sequence[str]) -> list[str]:
    """The arguments with "true" after a yes-or-no setting that stands alone.

    >>> spelt_out(["--compile", "--seed", "3"])
    ['--compile', 'true', '--seed', '3']
    """
    alone = {f"--{key.replace('_', '-')}" for key, setting in training_settings().items() if setting.type is bool}
    found: list[str] = []
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue="--"):
        found.append(argument)
        if argument in alone and following.startswith("-"):
            found.append("true")
    return found


def given_flags(flags: Any, prefix: str = "") -> dict[str, str]:
    """What the user typed: dotted key -> text, to be passed to ``TrainingConfig.resolve(flags=...)``."""
    given: dict[str, str] = {}
    for each in fields(flags):
        value = getattr(flags, each.name)
        if is_dataclass(value):
            given |= given_flags(value, f"{prefix}{each.name}.")
        elif value is not None:
            given[prefix + each.name] = value if isinstance(value, str) else " ".join(value)
    return given


def unknown_flags(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Flags that nothing has taken, as settings for ``TrainingConfig.given`` to refuse with its suggestion, and the
    words that belong to no flag.

    >>> unknown_flags(["--bach-size", "3", "--sed=1", "--optimizer.lrr"])
    ({'bach_size': '3', 'sed': '1', 'optimizer.lrr': ''}, [])
    >>> unknown_flags(["twice"])
    ({}, ['twice'])
    """
    flags: dict[str, str] = {}
    words = []
    key = None
    for argument in arguments:
        if argument.startswith("--"):
            name, _, value = argument[2:].partition("=")
            key = name.replace("-", "_")
            flags[key] = value
        elif key is None:
            words.append(argument)
        else:
            flags[key] = f"{flags[key]} {argument}".strip()
    return flags, words


def _flags_of(config: type, settings: Mapping[str, Setting], prefix: str) -> type:
    import tyro  # here, so that a configuration can be read without it

    hints = typing.get_type_hints(config)
    members: dict[str, tuple[Any, Any]] = {}
    for key, setting in settings.items():
        head, nested, _ = key.removeprefix(prefix).partition(".")
        if not nested:
            members[head] = (_flag(setting), field(default=None))
        elif head not in members:
            inside = {each: value for each, value in settings.items() if each.startswith(f"{prefix}{head}.")}
            section = _flags_of(hints[head], inside, f"{prefix}{head}.")
            # With its help said, tyro does not search the source of these classes, which have none, for it.
            told = tyro.conf.arg(help=(hints[head].__doc__ or "").partition("\n")[0])
            members[head] = (Annotated[section, told], field(default_factory=section))
    return make_dataclass(
        f"{config.__name__}Flags", [(head, kind, default) for head, (kind, default) in members.items()], frozen=True
    )


def _flag(setting: Setting) -> Any:
    import tyro

    is_list = typing.get_origin(setting.type) is tuple
    default = " ".join(map(str, setting.default)) if is_list else setting.default
    told = tyro.conf.arg(
        help=f"{setting.help} ({setting.allowed}; default {default})",
        metavar="LIST" if is_list else setting.type.__name__.upper(),
        help_behavior_hint="",
    )
    # typing.Optional, None first: for `str | None` tyro loads typeguard, which takes a third of the time of --help.
    kind: Any = typing.Union[None, tuple[str, ...]] if is_list else typing.Union[None, str]  # noqa: UP007
    return Annotated[kind, told]
