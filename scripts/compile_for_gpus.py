"""Compiles the Triton kernels of a network for GPUs that need not be here, and prints what they use.

    python scripts/compile_for_gpus.py [--json]

A row for each kernel, dtype and architecture: registers of a thread, bytes of spilled registers and of local and shared
memory, from NVIDIA's ``cuobjdump``, which comes with Triton. Exit code 1 where something spills or needs more than 128
registers, which would leave room for less than four programs of 128 threads on a multiprocessor.
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
from dagnn.kernels.gpu import network
from dagnn.kernels.gpu.mathematics import activations

ARCHITECTURES = (80, 90, 100)
MOST_REGISTERS = 128
_INTEGERS = {
    "level_offsets", "input_column", "bias_index", "codes", "in_offsets", "in_sources", "kinds", "out_offsets",
    "out_edges", "delta_rows", "output_offsets", "output_columns", "edge_rows", "left_rows", "right_rows",
}  # fmt: skip
_COUNTS = {"first_level", "last_level", "batch", "num_inputs", "num_outputs", "count"}
_DOUBLES = {"scales", "edge_scales"}


def kernels() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Each kernel with its constants, for a network with every built-in activation and every aggregation."""
    activated, pulled = activations(tuple(ACTIVATIONS))
    sizes = {"tile": network.TILE, "edges": network.EDGES}
    sums = {"tile": network.TILE, "rows": network.SUMS}
    return {
        "forward": (network.forward, {"activated": activated, "aggregates": True, **sizes}),
        "backward": (network.backward, {"pulled": pulled, "aggregates": True, **sizes}),
        "plain forward": (network.forward, {"activated": activated, "aggregates": False, **sizes}),
        "plain backward": (network.backward, {"pulled": pulled, "aggregates": False, **sizes}),
        "sums over the batch": (network.sums_over_batch, {"multiplied": True, "scaled": True, **sums}),
    }


def compiled(kernel: Any, constants: dict[str, Any], dtype: str, architecture: int) -> Any:
    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name in _COUNTS:
            return "i32"
        return "*i32" if name in _INTEGERS else "*fp64" if name in _DOUBLES else f"*{dtype}"

    signature = {name: kind(name) for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32))


def usage(cubin: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        shown = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", shown.stdout)}


def rows() -> list[dict[str, Any]]:
    found = []
    for name, (kernel, constants) in kernels().items():
        for dtype in ("fp32", "fp64"):
            for architecture in ARCHITECTURES:
                used = usage(compiled(kernel, constants, dtype, architecture).asm["cubin"])
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
    return int(any(row["REG"] > MOST_REGISTERS or row["STACK"] or row["LOCAL"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
