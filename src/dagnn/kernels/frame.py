"""The `Frame`: the one argument of every compiled function, a row of 64-bit integers with names.

A call through ctypes costs 0.2 us for each argument, a copied row costs 0.3 us in all. And threads share it: the
first two entries are counters that workers raise to take a number and the next piece of work.
"""

import ctypes
import struct
from typing import Any

from torch import Tensor

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
    "bias_slots",
    "live_bias_slots",
    "out_offsets",
    "out_targets",
    "out_slots",
    "out_weight",
    "seeded",
    "num_edges",
    # sums over the tiles of a piece: num_sums arrays of each, one after another
    "edge_sums",
    "node_sums",
    "num_sums",
    # what enters and leaves
    "x",
    "num_inputs",
    "input_rows",
    "y",
    "num_outputs",
    "output_rows",
    "grad_y",
    "grad_x",
    "grad_weight",
    "grad_bias",
    # 0 or 1: add to grad_weight and grad_bias instead of writing them; step downhill by lr
    "accumulate",
    "descend",
    "lr",
    # a sweep of a recursive cell: its tiles and classes, how many of the tiles are done, whom to call when waiting
    "tile_table",
    "class_table",
    "num_tiles",
    "tiles_done",
    "yield_core",
    # the graph, in sweep order; `in_` and `out_` arrays are above
    "nodes",
    "feature_rows",
    "first_slots",
    "in_places",
    "out_edges",
    # sizes: panels of the hidden width, bytes of a row and of a row of projected features
    "panels",
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
    "extremes",
    "hidden",
    "forget_products",
    "edge_gates",
    "edge_weights",
    "scores",
    # gradients on their way
    "slot_gradients",
    "slot_states",
    "state_gradients",
    "forget_gradients",
    "hidden_gradients",
    "edge_gradients",
    "score_gradients",
    "grad_projected",
    "grad_score",
    # products: bytes from panel to panel, terms of a panel
    "weight_panel",
    "back_weight_panel",
    "width",
    # the gradient of a weight: its panels, and how they are shared out
    "left_panels",
    "right_panels",
    "left_parts",
    "right_parts",
    "class_first",
    # rows of calls that run beside each other
    "calls",
    "first_calls",
)
PLACE = {name: place for place, name in enumerate(FIELDS)}
_Row = ctypes.c_int64 * len(FIELDS)


class Frame:
    """Integers by name. Addresses in it do not keep their tensors alive: the caller does."""

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

    def set_descent(self, lr: float, *, double: bool) -> None:
        """Also take a step of plain gradient descent; the entry holds the bits of ``lr`` in the precision at hand."""
        (bits,) = struct.unpack("<q", struct.pack("<d", lr) if double else struct.pack("<fi", lr, 0))
        self.set(descend=1, lr=bits)

    def begin(self, pieces: int) -> None:
        """Set the counters back, for so many pieces of work."""
        row = self._row
        row[PLACE["next_piece"]] = row[PLACE["next_worker"]] = 0
        row[PLACE["pieces"]] = pieces

    @property
    def address(self) -> int:
        return ctypes.addressof(self._row)
