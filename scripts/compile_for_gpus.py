"""Compiles the Triton kernels of networks and cells for GPUs that need not be here, and prints what they use.

    python scripts/compile_for_gpus.py [--json]

A row for each kernel, dtype and architecture: registers of a thread, bytes of spilled registers and of local and shared
memory, from NVIDIA's ``cuobjdump``, which comes with Triton; and how many instructions of PTX are atomic. Exit code 1
where something spills, is atomic, or needs more than 128 registers, which would leave room for less than 512
threads on a multiprocessor.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dagnn.kernels import ACTIVATIONS
from dagnn.kernels.gpu import network, sweep, sweep_code, wide, wide_code
from dagnn.kernels.gpu.mathematics import activations
from dagnn.nn import AttentionCell, ChildSumTreeLSTMCell, GRUCell, TreeLSTMCell

ARCHITECTURES = (80, 90, 100)
MOST_REGISTERS = 128
_INTEGERS = {
    "level_offsets", "input_column", "bias_index", "codes", "in_offsets", "in_sources", "kinds", "out_offsets",
    "out_edges", "delta_rows", "output_offsets", "output_columns", "edge_rows", "left_rows", "right_rows",
    *sweep_code.INTEGERS, *wide_code.INTEGERS,
}  # fmt: skip
_COUNTS = {
    "first_level", "last_level", "batch", "num_inputs", "num_outputs", "count", "first", "width", *wide_code.COUNTS,
}  # fmt: skip
_DOUBLES = {"scales", "edge_scales", *wide_code.DOUBLES}
_LONG = {"order", "offsets", *wide_code.LONG}
CELLS = {
    "child-sum TreeLSTM": ChildSumTreeLSTMCell(1, 1),
    "TreeLSTM": TreeLSTMCell(1, 1),
    "GRU over sums": GRUCell(1, 1),
    "GRU over means": GRUCell(1, 1, "mean"),
    "GRU over maxima": GRUCell(1, 1, "max"),
    "attention": AttentionCell(1, 1),
}
_ATOMIC = re.compile(r"^\s*(?:@!?%\w+\s+)?(?:atom|red)\.", re.MULTILINE)
HIDDEN = 100  # no power of two: the last columns of a tile are masked


def kernels() -> dict[str, tuple[Any, dict[str, Any], dict[str, int]]]:
    """Each kernel with its constants and options."""
    return {**{name: (*one, {}) for name, one in of_networks().items()}, **of_wide_networks(), **of_cells()}


def of_networks() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Those of a network with every built-in activation and every aggregation."""
    activated, pulled = activations(tuple(ACTIVATIONS))
    sizes = {"tile": network.TILE, "edges": network.EDGES}
    sums = {"tile": network.TILE, "rows": network.SUMS}
    return {
        "forward": (network.forward_kernel, {"activated": activated, "aggregates": True, **sizes}),
        "backward": (network.backward_kernel, {"pulled": pulled, "aggregates": True, **sizes}),
        "plain forward": (network.forward_kernel, {"activated": activated, "aggregates": False, **sizes}),
        "plain backward": (network.backward_kernel, {"pulled": pulled, "aggregates": False, **sizes}),
        "sums over the batch": (network.sums_over_batch, {"multiplied": True, "scaled": True, **sums}),
    }


def of_wide_networks() -> dict[str, tuple[Any, dict[str, Any], dict[str, int]]]:
    """Those of a network with every built-in activation, dropout and residuals; as many units a piece as need most."""
    activated, pulled = activations(tuple(ACTIVATIONS))
    batch = {"units": wide_code.MOST_UNITS, "tile": wide_code.BATCH_TILE}
    options, more = wide.launch_options(wide_code.MOST_UNITS), {"drops": True, "passes": True}
    found = {
        "wide, batch norm": (wide_code.batch_norm, {**more, **batch}, options),
        "wide, batch norm backward": (
            wide_code.norm_backward, {"pulled": pulled, "is_own": True, "drops": True, **batch}, options,
        ),
        "wide, layer norm": (wide_code.layer_norm, {**more, "tile": wide_code.LAYER_TILE}, {}),
        "wide, layer norm backward": (
            wide_code.layer_norm_backward, {"pulled": pulled, "drops": True, "tile": wide_code.LAYER_TILE}, {},
        ),
    }  # fmt: skip
    for units in (wide_code.MOST_UNITS, wide_code.MOST_UNITS // 2):
        for what, norm in (("given", wide_code.GIVEN), ("later", wide_code.LATER)):
            sizes = {"units": units, "tile": wide_code.TILE, "dotted": wide.is_dotted(units), "norm": norm.value}
            name, options = f"wide, norm {what}, {units} units", wide.launch_options(units)
            found[f"{name}, forward"] = (wide_code.forward, {"activated": activated, **more, **sizes}, options)
            kept = {"pulled": pulled, "is_kept": True}
            found[f"{name}, backward"] = (wide_code.backward, {**kept, **more, **sizes}, options)
    for units in (wide_code.MOST_UNITS, wide_code.MOST_UNITS // 2, 1):
        sizes = {"rows": wide.rows_of_block(units), "units": units, "tile": wide_code.BATCH_TILE}
        found[f"wide, gradients of weights, {units} units"] = (wide_code.weight_gradients, sizes, {})
    return found


def of_cells() -> dict[str, tuple[Any, dict[str, Any], dict[str, int]]]:
    """Those that are written for each built-in cell, and those of all."""
    tile = sweep_code.MOST_COLUMNS
    constants, options = {"hidden": HIDDEN, "tile": tile}, sweep_code.launch_options(tile)
    found = {
        f"{cell}, {name}": (kernel.run, constants, options)
        for cell, module in CELLS.items()
        for name, kernel in sweep_code.cell_kernels(module.plan).items()
    }
    sizes = {"edges": sweep.EDGES}
    return {
        **found,
        "attention, softmax": (sweep.attend, sizes, {}),
        "attention, gradients": (sweep.attention_gradients, {"hidden": HIDDEN, "width": sweep.WIDTH, **sizes}, {}),
        "sums of rows": (sweep.sums_of_rows, {"tile": tile, "rows": sweep.ROWS}, {}),
    }


def compiled(kernel: Any, constants: dict[str, Any], options: dict[str, int], dtype: str, architecture: int) -> Any:
    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name in _COUNTS:
            return "i32"
        if name in _LONG:
            return "*i64"
        return "*i32" if name in _INTEGERS else "*fp64" if name in _DOUBLES else f"*{dtype}"

    signature = {name: kind(name) for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def usage(cubin: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        shown = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", shown.stdout)}


def rows() -> list[dict[str, Any]]:
    found = []
    for name, (kernel, constants, options) in kernels().items():
        for dtype in ("fp32", "fp64"):
            for architecture in ARCHITECTURES:
                asm = compiled(kernel, constants, options, dtype, architecture).asm
                used = {**usage(asm["cubin"]), "ATOMIC": len(_ATOMIC.findall(asm["ptx"]))}
                found.append({"kernel": name, "dtype": dtype, "architecture": f"sm_{architecture}", **used})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = rows()
    if arguments.json:
        print(json.dumps(found))
    else:
        print(f"triton {triton.__version__}")
        for row in found:
            print("  ".join(f"{name} {value}" for name, value in row.items()))
    return int(any(row["REG"] > MOST_REGISTERS or row["STACK"] or row["LOCAL"] or row["ATOMIC"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
