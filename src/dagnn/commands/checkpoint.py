"""`dagnn checkpoint`: verify, list, export, import."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from dagnn.commands.arguments import parsed
from dagnn.errors import ConfigError

DEFAULT_RUN = "runs/curriculum"


def run(arguments: Sequence[str]) -> int:
    """Runs `dagnn checkpoint` with these arguments and returns the exit code."""
    name = arguments[0] if arguments else "--help"
    if name in ("--help", "-h"):
        print(_help())
        return 0
    if name not in COMMANDS:
        nearest = difflib.get_close_matches(name, COMMANDS, n=1)
        advice = f"did you mean {nearest[0]}?" if nearest else f"it is one of {', '.join(COMMANDS)}."
        raise ConfigError(f"unknown command checkpoint {name!r}: {advice}")
    return COMMANDS[name](arguments[1:])


@dataclass(frozen=True)
class Verify:
    """Compares every byte of the checkpoints with their manifests; exit code 2 when one is damaged."""

    path: Positional[Annotated[str, arg(metavar="PATH")]] = DEFAULT_RUN
    """run directory, or one checkpoint"""


def _verify(arguments: Sequence[str]) -> int:
    given = parsed(Verify, "checkpoint verify", arguments)
    from dagnn.training.checkpoint_tools import verify

    print("\n".join(verify(given.path)))
    return 0


@dataclass(frozen=True)
class List:
    """Lists the checkpoints of a run: step, score, size, which is the newest and which the best."""

    run: Positional[Annotated[str, arg(metavar="RUN")]] = DEFAULT_RUN
    """run directory"""


def _list(arguments: Sequence[str]) -> int:
    given = parsed(List, "checkpoint list", arguments)
    from dagnn.training.checkpoint_tools import list_checkpoints

    print("\n".join(list_checkpoints(given.run)))
    return 0


@dataclass(frozen=True)
class Export:
    """Writes the weights of a checkpoint to a new safetensors file, or the network as a program of torch.export."""

    path: Positional[Annotated[str, arg(metavar="PATH")]]
    """run directory (its newest checkpoint), or one checkpoint"""
    output: Positional[Annotated[str, arg(metavar="FILE")]]
    """the new file"""
    format: Literal["safetensors", "torch-export"] = "safetensors"
    """torch-export: a .pt2 file, which torch.export.load runs without this library"""
    last_step: bool = False
    """the weights of the last step, not the averaged ones"""


def _export(arguments: Sequence[str]) -> int:
    given = parsed(Export, "checkpoint export", arguments)
    if given.format == "torch-export":
        from dagnn.training.program import export_program

        parameters = export_program(given.path, given.output, averaged=not given.last_step)
        print(f"a network of {parameters:,} parameters in {given.output}")
        return 0
    from dagnn.training.checkpoint_tools import export_weights

    count = export_weights(given.path, given.output, averaged=not given.last_step)
    print(f"{count} tensors in {given.output}")
    return 0


@dataclass(frozen=True)
class Import:
    """Writes the tensors of a foreign .pt file to a new safetensors file; runs none of the file's code."""

    source: Positional[Annotated[str, arg(metavar="FILE.PT")]]
    """what torch.save of some program wrote"""
    output: Positional[Annotated[str, arg(metavar="FILE")]]
    """the new file"""
    key: str | None = None
    """which part of the file, where it holds several things: such as model"""


def _import(arguments: Sequence[str]) -> int:
    given = parsed(Import, "checkpoint import", arguments)
    from dagnn.training.checkpoint_tools import import_weights

    count = import_weights(given.source, given.output, key=given.key)
    print(f"{count} tensors in {given.output}")
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "verify": _verify,
    "list": _list,
    "export": _export,
    "import": _import,
}


def _help() -> str:
    told = {"verify": Verify, "list": List, "export": Export, "import": Import}
    width = max(map(len, told))
    return "\n".join(
        [
            "usage: dagnn checkpoint COMMAND [OPTIONS]",
            "",
            *(f"  {name.ljust(width)}  {kind.__doc__}" for name, kind in told.items()),
            "",
            "`dagnn checkpoint COMMAND --help` lists the options of a command.",
        ]
    )
