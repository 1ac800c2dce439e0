"""Machine code for the processor at hand: LLVM assembly made callable, and the `Frame` that every function takes."""

import ctypes
import os
import platform
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped,unused-ignore]
from torch import Tensor

from dagnn.errors import ConfigError

FIELDS = (
    # counters
    "next_piece",
    "next_worker",
    # how the batch is cut
    "pieces",
    "tiles_per_piece",
    "tiles",
    "batch",
    # the live nodes first .. last - 1 are worked on
    "num_nodes",
    "live_nodes",
    "first",
    "last",
    # values, slopes and deltas: node-major tiles, row_bytes from node to node
    "values",
    "slopes",
    "deltas",
    "row_bytes",
    "tile_bytes",
    "delta_tile_bytes",
    "delta_worker_bytes",
    # the network
    "codes",
    "in_offsets",
    "in_sources",
    "weight",
    "bias",
    "bias_index",
    "live_bias_index",
    "out_offsets",
    "out_targets",
    "out_index",  # of an edge: a network's weight, a sweep's slot
    "out_weight",
    "seeded",
    "num_edges",
    # nodes that are no plain sums: how they aggregate, the factor of that, their rows of gradients for edges
    "kinds",
    "scales",
    "edge_rows",
    # sums over the tiles of a piece: num_sums arrays of each, one after another
    "edge_sums",
    "node_sums",
    "num_sums",
    # what enters and leaves
    "x",
    "chosen",  # the rows of x that are the samples of the batch; 0 for all of them
    "num_inputs",
    "input_rows",
    "y",
    "num_outputs",
    "output_rows",
    "grad_y",
    "grad_x",
    "grad_weight",
    "grad_bias",
    # 0 or 1: add to grad_weight and grad_bias instead of writing them; then also do a step with lr
    "accumulate",
    "takes_step",
    "lr",
    # a sweep of a cell: its blocks of nodes and their classes, how many blocks are done, what to call when waiting
    "block_table",
    "class_table",
    "num_blocks",
    "blocks_done",
    "yield_core",
    # the graph, in sweep order; `in_` and `out_` arrays are above
    "nodes",
    "feature_rows",
    "first_slots",
    "in_places",
    "out_edges",
    # sizes: packs of the hidden width, bytes of a row and of a row of projected features
    "packs",
    "hidden_width",
    "state_bytes",
    "projected_bytes",
    # what the cell computes with
    "projected",
    "weight_stride",
    "back_weight",
    "forget_weight",
    "back_forget_weight",
    "score_weight",
    # what it saves
    "operands",
    "gates",
    "states",
    "slot_kept",
    "hidden",
    "forget_products",
    "edge_gates",
    "edge_weights",
    "scores",
    # gradients on their way to operands and weights
    "slot_gradients",
    "slot_rows",
    "state_gradients",
    "forget_gradients",
    "hidden_gradients",
    "edge_gradients",
    "score_gradients",
    "grad_projected",
    "grad_score",
    # products: bytes from pack to pack, terms of a pack
    "weight_pack",
    "back_weight_pack",
    "width",
    # the gradient of a weight: its packs, and how they are shared out
    "left_packs",
    "right_packs",
    "left_parts",
    "right_parts",
    "class_first",
    # a network of wide nodes: a record of each, the rows it reads, the edges out of it, values passed on
    "node_table",
    "source_rows",
    "out_table",
    "passed_from",
    "passed_to",
    "row_vectors",  # vectors of a row
    "zeros",
    # its norms: parameters, statistics and whether a pass computes those itself; factors of dropout
    "scale",
    "shift",
    "means",
    "variances",
    "own_statistics",
    "mask",
    "grad_scale",
    "grad_shift",
    "value_gradients",
    # conductance along a path: its steps, edges between rows and out of inputs, the row of the output
    "way",
    "steps",
    "points",
    "shares",
    "inner_offsets",
    "inner_sources",
    "inner_weight",
    "column_offsets",
    "column_rows",
    "column_weight",
    "output_row",
    # rows of calls that run beside each other
    "calls",
    "first_calls",
)
PLACE = {name: place for place, name in enumerate(FIELDS)}
_Row = ctypes.c_int64 * len(FIELDS)


class Frame:
    """Integers by name. It holds addresses of tensors and does not keep those alive: the caller does."""

    def __init__(self, row: Any = None) -> None:
        self._row = _Row() if row is None else _Row.from_buffer_copy(row)

    def copy(self, **values: int) -> "Frame":
        """The same frame with some entries replaced."""
        twin = Frame(self._row)
        twin.set(**values)
        return twin

    def set(self, **values: int) -> None:
        """Replace some entries."""
        row = self._row
        for name, value in values.items():
            row[PLACE[name]] = value

    def set_addresses(self, **tensors: Tensor | None) -> None:
        """Replace some entries by addresses of tensors; 0 for None and for those without elements."""
        row = self._row
        for name, tensor in tensors.items():
            row[PLACE[name]] = 0 if tensor is None else tensor.data_ptr()

    def set_step(self, lr: float, *, double: bool) -> None:
        """Also do a step of plain gradient descent, ``parameter -= lr * gradient``."""
        # Entries are integers: ``lr`` goes in as its bits, float32 in the lower half.
        (bits,) = struct.unpack("<q", struct.pack("<d", lr) if double else struct.pack("<fi", lr, 0))
        self.set(takes_step=1, lr=bits)

    def begin(self, pieces: int) -> None:
        """Reset the counters, for so many pieces of work."""
        row = self._row
        row[PLACE["next_piece"]] = row[PLACE["next_worker"]] = 0
        row[PLACE["pieces"]] = pieces

    @property
    def address(self) -> int:
        return ctypes.addressof(self._row)


@dataclass(frozen=True)
class Target:
    """A processor to compile for.

    Attributes:
        cpu, features: what LLVM calls the processor, and its instruction sets as ``+avx2,-fma,...``.
        vector_bytes: size of a vector register, 16, 32 or 64.
        fma: a fused multiply-add exists. Without one LLVM would call a function of libm for each: 1 GF/s.
        level2_bytes: the second-level cache of a core, or a guess where the system does not say.
    """

    cpu: str
    features: str
    vector_bytes: int
    fma: bool
    level2_bytes: int = 1 << 20


PLAIN = Target("", "", vector_bytes=16, fma=False)
"""What every processor of the family has: the least that the kernels must run on."""


_VARIABLE = "DAGNN_VECTOR_BYTES"
# Features that need wider registers, or build on one that does. All others work without them.
_WIDER = {
    16: ("avx", "fma", "f16c", "xop", "amx", "vaes", "vpclmulqdq", "evex"),
    32: ("avx512", "avx10", "evex", "amx"),
}


@cache
def host_target() -> Target:
    """The processor at hand, as it describes itself, with vectors of `largest_vector` and its errors. Queried once."""
    limit = largest_vector()
    try:
        features = llvm.get_host_cpu_features()
    except RuntimeError:  # LLVM cannot query this platform
        return PLAIN
    for name in features:
        if name.startswith(_WIDER.get(limit, ())):
            features[name] = False
    size = 64 if features.get("avx512f") else 32 if features.get("avx") else 16
    # ARM processors have a fused multiply-add with their vectors and no feature named for it.
    fused = bool(features.get("fma") or features.get("neon"))
    return Target(llvm.get_host_cpu_name(), features.flatten(), size, fused, _level2_bytes())


def largest_vector() -> int:
    """Bytes of the largest vector that compiled code may use, from ``DAGNN_VECTOR_BYTES``; 64 where it is not set.

    A processor with smaller registers uses those. Results differ by rounding from width to width, and by no bit from
    machine to machine of one width and instruction set. ConfigError for none of 16, 32 and 64.
    """
    given = os.environ.get(_VARIABLE, "") or "64"
    if given not in ("16", "32", "64"):
        raise ConfigError(f"{_VARIABLE}={given!r} is no size of a vector: unset it, or set it to one of 16, 32, 64.")
    return int(given)


def _level2_bytes(default: int = 1 << 20) -> int:
    try:
        with open("/sys/devices/system/cpu/cpu0/cache/index2/size") as file:  # noqa: PTH123
            text = file.read().strip()
        return int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}[text[-1]]
    except (OSError, ValueError, KeyError, IndexError):
        return default


# LLVM's global state is not ours alone: one compilation at a time.
_compiling = threading.Lock()


def compiled(assembly: str, names: tuple[str, ...], target: Target) -> Mapping[str, "NativeFunction"]:
    """The functions called ``names`` of a module, each of type ``void (i64)``."""
    with _compiling:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        # By default the constants of a module may lie anywhere, and every use of one builds its address first. Beside
        # the code they are operands: forward passes of tanh took 0.93 to 0.97 of the time, cells 0.93 to 1.04.
        # llvmlite's own memory manager keeps code and constants in one block.
        beside = os.name == "posix" and platform.machine() in ("x86_64", "amd64")
        places = {"reloc": "pic", "codemodel": "small"} if beside else {}
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=target.cpu, features=target.features, opt=3, **places
        )
        module = llvm.parse_assembly(assembly)
        module.verify()
        passes = llvm.create_new_module_pass_manager()
        # Variables into registers, simple forms, loops that test at their end, nothing twice. Our code needs no more:
        # it is vectors already, and what does not change stands before its loops. The passes of LLVM's level 2 took
        # 200 ms where these take 15, for a network of tanh. Run in turns, layered,
        # random and deep networks took 0.97 to 1.03 of the time, all cells 0.97 to 1.06.
        passes.add_sroa_pass()
        passes.add_simplify_cfg_pass()
        passes.add_instruction_combine_pass()
        passes.add_loop_rotate_pass()
        passes.add_new_gvn_pass()
        passes.add_simplify_cfg_pass()
        passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
        code = llvm.create_mcjit_compiler(module, machine, use_lmm=True if beside else None)
        code.finalize_object()
    return {name: NativeFunction(code, code.get_function_address(name)) for name in names}


class NativeFunction:
    """A compiled function that is called with the address of its `Frame`, without the interpreter lock."""

    def __init__(self, code: Any, address: int) -> None:
        self._code = code  # LLVM frees the code with this object
        self.address = address
        self._call: Callable[[int], None] = ctypes.CFUNCTYPE(None, ctypes.c_int64)(address)

    def __call__(self, frame: int) -> None:
        self._call(frame)
