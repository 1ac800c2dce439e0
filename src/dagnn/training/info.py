"""What a run or a checkpoint is: its step, level and score, its parameters by module; and the machine at hand."""

import os
from collections import Counter
from pathlib import Path

import torch

from dagnn.errors import CheckpointError
from dagnn.kernels.native_code import host_target
from dagnn.training.checkpoint import Checkpoint
from dagnn.training.checkpoint_store import CheckpointStore
from dagnn.training.resume import find_run
from dagnn.training.run_directory import RunDirectory
from dagnn.training.text import printable

_MODULE_DEPTH = 2  # `cells.0.linear.weight` counts for `cells.0`


def info(path: str | Path) -> str:
    """A description for a terminal.

    Args:
        path: a run directory (its newest whole checkpoint is described), or one of its checkpoints.

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

    Results differ by rounding from width to width: where two machines disagree in the last digits, look here first.

    Raises:
        ConfigError: ``DAGNN_VECTOR_BYTES`` is none of 16, 32 and 64.
    """
    kernels = f"vectors of our kernels: {host_target().vector_bytes} bytes"
    if limit := os.environ.get("DAGNN_VECTOR_BYTES"):
        kernels += f" (DAGNN_VECTOR_BYTES={limit})"
    mkl = "none in this PyTorch"
    if torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        # MKL tells no program what it has chosen.
        mkl = os.environ.get("MKL_ENABLE_INSTRUCTIONS") or "the processor's best (MKL_ENABLE_INSTRUCTIONS is not set)"
    pytorch = torch.backends.cpu.get_cpu_capability()
    return [kernels, f"PyTorch's CPU capability: {pytorch}", f"MKL's instructions: {mkl}"]


def parameters_by_module(checkpoint: Checkpoint) -> dict[str, int]:
    """Trainable numbers by module, in the model's order; buffers do not count.

    Raises:
        CheckpointError: the checkpoint does not say which of its tensors are parameters.
    """
    try:
        names = [name for group in checkpoint.state["optimizer"]["names"] for name in group]
        sizes = {name: checkpoint.tensors["model"][name].numel() for name in names}
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"the checkpoint of step {checkpoint.step} has another form: {error!r}.") from error
    counts: Counter[str] = Counter()
    for name, size in sizes.items():
        counts[".".join(name.split(".")[:-1][:_MODULE_DEPTH]) or "(the model itself)"] += size
    return dict(counts)
