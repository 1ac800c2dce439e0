"""`dagnn info`, `dagnn checkpoint` (verify, list, export, import), `dagnn metrics` and `dagnn certify`: about a run."""

import json
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import torch.fx.experimental._config as fx_config
from torch.export import Dim
from tyro.conf import Positional, arg

from dagnn.commands import DEFAULT_RUN, Command, complain, dispatch, parsed
from dagnn.errors import CheckpointError, ConfigError, RunError
from dagnn.files import new_file, replace_file, replaced_file
from dagnn.kernels.emit.native import host_target
from dagnn.training.log import metrics_csv, printable, read_metrics, write_tensorboard
from dagnn.training.run.checkpoint_commands import (
    checkpoint_of,
    export_weights,
    import_weights,
    list_checkpoints,
    verify,
)
from dagnn.training.run.checkpoints import Checkpoint, CheckpointStore
from dagnn.training.run.directory import RunDirectory
from dagnn.training.run.resume import find_run
from dagnn.training.run.tensors import load_model

DESCRIPTION = "description.json"
_MODULE_DEPTH = 2  # `cells.0.linear.weight` counts for `cells.0`


def export_run(path: str, target: str, of_c: Sequence[str], *, overwrite: bool) -> int:
    """Writes the network of a run for `dagnn export`; the exit code. ``of_c``: the options about C that were given."""
    if Path(target).suffix != ".pt2" or of_c:
        options = "".join(f" and --{name}" for name in of_c)
        raise ConfigError(
            f"{path} is a directory. The network of a run rewrites graphs of any shape and is no single DAG, so it is "
            f"written as a program of torch.export, to a file that ends in .pt2; got {target}{options}."
        )
    parameters = export_program(path, target, overwrite=overwrite)
    print(f"a network of {parameters:,} parameters in {target}")
    return 0


def export_program(path: str | Path, target: str | Path, *, averaged: bool = True, overwrite: bool = False) -> int:
    """Writes the GraphRewriter of a checkpoint as a ``.pt2`` file; returns how many parameters it has.

    ``torch.export.load(target).module()`` takes rows, int64 ``[batch, features]`` of any two sizes, as
    ``GraphRewriter.features.encode`` makes them, and gives logits, float32 ``[batch, slots, classes]``, those of
    the network to rounding. Beside it the file has ``description.json``: run, step, and what rows and classes mean.

    Args:
        path: a run directory (its newest whole checkpoint), or one of its checkpoints.
        target: a new file.
        averaged: with the averaged weights, where there are any; else those of the last step.
        overwrite: replace a file that exists.

    Raises:
        CheckpointError: there is no whole checkpoint, or it is of no GraphRewriter.
        RunError: there is no run, or the file exists or cannot be written.
    """
    from dagnn.curriculum.accuracy import model_of  # here: the other commands do not wait for the engine

    checkpoint = checkpoint_of(path)
    model = model_of(checkpoint)
    if not averaged:
        load_model(model, checkpoint.tensors["model"])
    rows = torch.ones((3, 2), dtype=torch.int64)
    # Else torch takes a batch for one of at least two, and the program refuses a single window.
    any_size = fx_config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
    with warnings.catch_warnings(), torch.no_grad(), any_size:
        # torch's own modules, loaded on first use, use what torch itself has given up.
        warnings.simplefilter("ignore", DeprecationWarning)
        program = torch.export.export(model, (rows,), dynamic_shapes=({0: Dim("batch"), 1: Dim("features")},))
    described = {"run": checkpoint.run_id, "step": checkpoint.step, **checkpoint.state["description"]}
    target = Path(target)
    try:
        with (replaced_file if overwrite else new_file)(target) as temporary, temporary.open("wb") as file:
            torch.export.save(program, file, extra_files={DESCRIPTION: json.dumps(described)})
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror or error}.") from error
    return model.num_parameters()


def info(path: str | Path) -> str:
    """A description of a run directory's newest whole checkpoint, or of one of its checkpoints, for a terminal.

    Raises:
        RunError: there is no run.
        CheckpointError: the checkpoint is missing or damaged.
    """
    directory, step = find_run(path)
    run = RunDirectory.read(directory)
    store = CheckpointStore(run.checkpoints_path, run.run_id)
    checkpoint = store.latest() if step is None else store.load(step)
    lines = [f"run {run.run_id} in {run.path}"]
    if checkpoint is None:
        return "\n".join(map(printable, [*lines, "no checkpoint yet"]))

    lines.append(f"step {checkpoint.step:,} of {run.config().max_steps:,}, in {store.path_of(checkpoint.step)}")
    if step is None and len(store.steps()) > 1:
        lines.append(f"checkpoints of the steps {', '.join(f'{each:,}' for each in store.steps())}")
    promotion = checkpoint.state.get("promotion")
    if promotion is not None:
        levels = promotion["levels"][: promotion["open"]]
        lines.append(f"level {levels[-1]} of {promotion['levels'][-1]} ({promotion['order']})")
    if checkpoint.score is not None:
        lines.append(f"score {checkpoint.score:.4f}")
    if checkpoint.clock:
        lines.append(f"{checkpoint.clock['seconds']:,.0f} seconds, {checkpoint.clock['cpu_seconds']:,.0f} of the CPU")

    counts = parameters_by_module(checkpoint)
    width = max(map(len, counts), default=0)
    lines += ["", f"{sum(counts.values()):,} parameters"]
    lines += [f"  {module.ljust(width)}  {count:>12,}" for module, count in counts.items()]
    return "\n".join(map(printable, lines))


def vector_widths() -> list[str]:
    """How wide the vectors are that compute here, a line each for our kernels, PyTorch and MKL.

    Results differ by rounding from width to width: where two machines disagree in the last digits, look here first. The
    errors are those of `host_target`.
    """
    kernels = f"vectors of our kernels: {host_target().vector_bytes} bytes"
    if limit := os.environ.get("DAGNN_VECTOR_BYTES"):
        kernels += f" (DAGNN_VECTOR_BYTES={limit})"
    mkl = "none in this PyTorch"
    if torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        # No call of MKL returns what it has chosen.
        mkl = os.environ.get("MKL_ENABLE_INSTRUCTIONS") or "the processor's best (MKL_ENABLE_INSTRUCTIONS is not set)"
    pytorch = torch.backends.cpu.get_cpu_capability()
    return [kernels, f"PyTorch's CPU capability: {pytorch}", f"MKL's instructions: {mkl}"]


def parameters_by_module(checkpoint: Checkpoint) -> dict[str, int]:
    """Trainable numbers by module, in the model's order, without buffers; or a CheckpointError."""
    try:
        names = [name for group in checkpoint.state["optimizer"]["names"] for name in group]
        sizes = {name: checkpoint.tensors["model"][name].numel() for name in names}
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"the checkpoint of step {checkpoint.step} has another form: {error!r}.") from error
    counts: Counter[str] = Counter()
    for name, size in sizes.items():
        counts[".".join(name.split(".")[:-1][:_MODULE_DEPTH]) or "(the model itself)"] += size
    return dict(counts)


def run_checkpoint(arguments: Sequence[str]) -> int:
    """Runs `dagnn checkpoint` with these arguments and returns the exit code."""
    return dispatch("dagnn checkpoint", COMMANDS, arguments)


@dataclass(frozen=True)
class Verify:
    """Compares every byte of the checkpoints with their manifests; exit code 2 when one is damaged."""

    path: Positional[Annotated[str, arg(metavar="PATH")]] = DEFAULT_RUN
    """run directory, or one checkpoint"""


def _verify(arguments: Sequence[str]) -> int:
    print("\n".join(verify(parsed(Verify, "checkpoint verify", arguments).path)))
    return 0


@dataclass(frozen=True)
class List:
    """Lists the checkpoints of a run: step, score, size, which is the newest and which the best."""

    run: Positional[Annotated[str, arg(metavar="RUN")]] = DEFAULT_RUN
    """run directory"""


def _list(arguments: Sequence[str]) -> int:
    print("\n".join(list_checkpoints(parsed(List, "checkpoint list", arguments).run)))
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
        parameters = export_program(given.path, given.output, averaged=not given.last_step)
        print(f"a network of {parameters:,} parameters in {given.output}")
        return 0
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
    count = import_weights(given.source, given.output, key=given.key)
    print(f"{count} tensors in {given.output}")
    return 0


COMMANDS = {
    name: Command(kind.__doc__ or "", run)
    for name, kind, run in (
        ("verify", Verify, _verify),
        ("list", List, _list),
        ("export", Export, _export),
        ("import", Import, _import),
    )
}


@dataclass(frozen=True)
class Certify:
    """Asks the network of a run about every neighbourhood that inputs of a level can lead to, of any length and depth.

    Prints what follows, or what shows that the network is wrong. Exit status: 0 right for every input, 1 not, 2 an
    error. docs/explanation/certificate.md has the proof, and what it does not prove.
    """

    run: Positional[Annotated[str, arg(metavar="RUN")]] = DEFAULT_RUN
    """run directory, or one of its checkpoints"""
    levels: Annotated[tuple[str, ...], arg(metavar="LEVELS")] = ("1,2,3",)
    """such as 1,2,3; 5 can be had too"""
    expressions: int = 20_000
    """how many to draw, on each level, in search of some that lead to what is wrong"""
    json: bool = False
    """print JSON"""


def run_certify(arguments: Sequence[str]) -> int:
    """Runs `dagnn certify` with these arguments and returns the exit code."""
    given = parsed(Certify, "certify", arguments)
    from dagnn.curriculum.certificate import BOUNDS, certify_run

    if given.expressions < 0:
        raise ConfigError(f"expressions must be at least 0, got {given.expressions}.")
    words = [word for part in given.levels for word in part.split(",") if word]
    wrong = next((word for word in words if not word.isdecimal()), None)
    if wrong is not None:
        raise ConfigError(f"levels = {wrong}: expected numbers of levels, such as 1,2,3.")
    levels = tuple(dict.fromkeys(map(int, words)))
    found = certify_run(given.run, levels, expressions=given.expressions, note=complain)
    holds = all(certificate.holds for certificate in found)
    if given.json:
        print(json.dumps({"holds": holds, "bounds": BOUNDS, "levels": [each.summary() for each in found]}))
    else:
        print(*(line for each in found for line in each.lines), sep="\n")
        if any(each.holds for each in found):
            print(f"bounds of the claim: {BOUNDS}")
    return 0 if holds else 1


@dataclass(frozen=True)
class Metrics:
    """Writes metrics.jsonl of a run as CSV (to stdout, or to --csv FILE), or for TensorBoard."""

    run: Positional[Annotated[str, arg(metavar="RUN")]] = DEFAULT_RUN
    """run directory"""
    csv: str | None = None
    """file of the CSV; replaced if it is there"""
    tensorboard: str | None = None
    """directory of the event files; needs `pip install "dagnn[tensorboard]"`"""


def run_metrics(arguments: Sequence[str]) -> int:
    """Runs `dagnn metrics` with these arguments and returns the exit code."""
    given = parsed(Metrics, "metrics", arguments)
    rows = read_metrics(RunDirectory.read(given.run).metrics_path)
    if given.csv is not None:
        try:
            replace_file(Path(given.csv), metrics_csv(rows).encode())
        except OSError as error:
            raise RunError(f"cannot write {given.csv}: {error.strerror or error}.") from error
    if given.tensorboard is not None:
        print(f"{write_tensorboard(rows, given.tensorboard):,} values in {given.tensorboard}")
    if given.csv is None and given.tensorboard is None:
        print(metrics_csv(rows), end="")
    return 0
