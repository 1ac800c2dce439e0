"""The network of a checkpoint as a program of torch.export, which runs without this library."""

import json
import warnings
from pathlib import Path

import torch
import torch.fx.experimental._config as fx_config
from torch.export import Dim

from dagnn.errors import RunError
from dagnn.training.checkpoint_tools import checkpoint_of
from dagnn.training.durable import new_file
from dagnn.training.evaluate import model_of
from dagnn.training.tensor_state import load_model

DESCRIPTION = "description.json"


def export_program(path: str | Path, target: str | Path, *, averaged: bool = True) -> int:
    """Writes the GraphRewriter of a checkpoint as a ``.pt2`` file.

    ``torch.export.load(target).module()`` takes rows, int64 ``[batch, features]`` of any two sizes, as
    ``GraphRewriter.features.encode`` makes them, and gives logits, float32 ``[batch, slots, classes]``, those of
    the network to rounding. Beside it the file has ``description.json``: run, step, and what rows and classes mean.

    Args:
        path: a run directory (its newest whole checkpoint), or one of its checkpoints.
        target: a new file.
        averaged: with the averaged weights, where there are any; else those of the last step.

    Returns:
        How many parameters it has.

    Raises:
        CheckpointError: there is no whole checkpoint, or it is of no GraphRewriter.
        RunError: there is no run, or the file exists or cannot be written.
    """
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
        with new_file(target) as temporary, temporary.open("wb") as file:
            torch.export.save(program, file, extra_files={DESCRIPTION: json.dumps(described)})
    except OSError as error:
        raise RunError(f"cannot write {target}: {error.strerror or error}.") from error
    return model.num_parameters()
