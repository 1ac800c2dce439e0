"""The command-line flags of a training configuration, for tyro, without their defaults filled in."""

import typing
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass, make_dataclass
from typing import Annotated, Any

from dagnn.training.config import training_settings
from dagnn.training.settings import Setting


def training_flags() -> type:
    """A dataclass for `tyro.cli` with one field per setting of `TrainingConfig`, nested alike.

    A flag that is not given stays None, so that `given_flags` can tell it from a default, and every value
    stays text: `TrainingConfig.resolve` converts it and reports all wrong ones at once. Inside a command's own
    dataclass: ``settings: Annotated[training_flags(), tyro.conf.arg(name="")]``.
    """
    return _flags_of("TrainingFlags", training_settings(), "")


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


def _flags_of(name: str, settings: Mapping[str, Setting], prefix: str) -> type:
    members: dict[str, tuple[Any, Any]] = {}
    for key, setting in settings.items():
        head, nested, _ = key.removeprefix(prefix).partition(".")
        if not nested:
            members[head] = (_flag(setting), field(default=None))
        elif head not in members:
            inside = {each: value for each, value in settings.items() if each.startswith(f"{prefix}{head}.")}
            section = _flags_of(f"{head.title()}Flags", inside, f"{prefix}{head}.")
            members[head] = (section, field(default_factory=section))
    return make_dataclass(name, [(head, kind, default) for head, (kind, default) in members.items()], frozen=True)


def _flag(setting: Setting) -> Any:
    import tyro  # here, so that a configuration can be read without it

    is_list = typing.get_origin(setting.type) is tuple
    default = " ".join(map(str, setting.default)) if is_list else setting.default
    told = tyro.conf.arg(
        help=f"{setting.help} ({setting.allowed}; default {default})",
        metavar="LIST" if is_list else setting.type.__name__.upper(),
        help_behavior_hint="",
    )
    # A variable, not a literal: the types exist at run time only.
    return Annotated[tuple[str, ...] | None if is_list else str | None, told]
