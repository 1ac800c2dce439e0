"""The `Frame`: the one argument of every compiled function, a row of 64-bit integers with names.

A call through ctypes costs 0.2 us for each argument, a copied row costs 0.3 us in all. And threads share it: the
first two entries are counters that workers raise to take a number and the next piece of work.
"""

import ctypes
from typing import Any

FIELDS = (
    # counters
    "next_piece",
    "next_worker",
    # how the batch is cut
    "pieces",
    "tiles_per_piece",
    "tiles",
    "batch",
    # nodes first .. last - 1 are worked on
    "num_nodes",
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

    @property
    def address(self) -> int:
        return ctypes.addressof(self._row)
