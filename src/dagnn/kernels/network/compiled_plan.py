"""`CompiledPlan`: a network as the arrays that its compiled functions walk along, and those functions."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]
from numpy.typing import NDArray
from torch import Tensor

from dagnn.graph.edges import offsets_of, stable_order
from dagnn.graph.levels import peel
from dagnn.kernels.emit.functions import keeps_slope
from dagnn.kernels.emit.native import Frame, NativeFunction, Target, compiled
from dagnn.kernels.network import INPUT, Shape, backward, forward, single
from dagnn.kernels.network.aggregation import PLAIN, aggregated
from dagnn.kernels.network.dense_blocks import find_blocks
from dagnn.kernels.nodes import ACTIVATIONS, NEAT_ACTIVATIONS

# Up to so many samples are computed one by one.
_LARGEST_SINGLE = 2
# Dense blocks of more edges in all go through PyTorch's products also for one sample: they use every thread.
_LARGEST_SINGLE_DENSE = 1 << 20
# Batch sizes whose preparation is kept: more than a training run has, and too few to matter in memory.
_MAX_PREPARED = 64
# Most arrays of partial sums: enough for as many threads, and less memory than the values.
_MAX_PIECES = 16
# Multiply-adds of a forward pass below which one thread does everything: some 50 us. Where other processes keep the
# cores busy, handing out work means waiting for threads that do not run: 378 edges, B = 256, on two busy cores two
# threads took 12.6 s for 1,000 steps, one 0.9.
PARALLEL_WORK = 1 << 18
# Blocks with less than this share of the edges are not worth rows of the whole batch.
_MIN_BLOCK_SHARE = 0.25
# From so many edges out of inputs on, and with such a share of all, gradients of inputs that nobody asks for are worth
# leaving out: a first call takes a quarter longer then.
_MANY_FROM_INPUTS, _SHARE_FROM_INPUTS = 1 << 13, 0.25


@dataclass(frozen=True)
class Cut:
    """How a batch is cut into tiles, and where its values are in memory.

    Attributes:
        shape: of the compiled functions.
        batch: samples.
        tiles: tiles of ``shape.tile`` samples, the last one filled up.
        row_length: numbers from node to node.
        tile_length: numbers from tile to tile.
        tiles_per_piece, pieces: the tiles whose gradients are summed in one array. They follow from the batch alone,
            not from the threads: so do the bits of a gradient.
        is_shared: whether it is worth several threads; see `PARALLEL_WORK`.
    """

    shape: Shape
    batch: int
    tiles: int
    row_length: int
    tile_length: int
    tiles_per_piece: int
    pieces: int
    is_shared: bool


class Prepared(NamedTuple):
    """What is the same for all batches of one size. Kept, since working it out took as long as a small pass.

    Attributes:
        cut: how the batch is cut.
        functions: ``forward``, ``backward``, ``gather`` and ``finish``; ``activate`` if there are blocks.
        frame: with the addresses of the network and the cut; to be copied.
    """

    cut: Cut
    functions: Mapping[str, NativeFunction]
    frame: Frame


class CompiledPlan:
    """A network on the CPU, ready for the compiled functions.

    Values lie in tiles, ``[tiles, num_nodes, tile]``; with dense blocks as a matrix ``[num_nodes, batch]``, whose
    columns are the tiles, so that a block is one matrix product. Nodes keep their numbers.

    A node without a path to an output is *dead*: after pruning, half of them may be. Nothing reads its value, and its
    gradients are 0, so the passes leave it out. Inputs never are dead, nor is any node where there are dense blocks.

    Args:
        edges, levels, inputs, outputs, activation, aggregation, response: as of `NetworkPlan`, in arrays.
        bias_index: ``[num_nodes]``, where the bias of a node is in the bias vector; -1 for no bias.
        target: the processor to compile for.
    """

    def __init__(
        self,
        edges: NDArray[np.int64],
        levels: NDArray[np.int64],
        inputs: NDArray[np.int64],
        outputs: NDArray[np.int64],
        bias_index: NDArray[np.int64],
        activation: Sequence[str],
        aggregation: Sequence[str],
        response: NDArray[np.float64],
        target: Target,
    ) -> None:
        self.target = target
        self.num_nodes, self.num_edges = len(levels), len(edges)
        self.num_inputs, self.num_outputs = len(inputs), len(outputs)
        source = np.ascontiguousarray(edges[:, 0], dtype=np.int32)
        in_offsets = offsets_of(np.bincount(edges[:, 1], minlength=self.num_nodes))

        is_input = np.zeros(self.num_nodes, dtype=bool)
        is_input[inputs] = True
        found = {name: number for number, name in enumerate(dict.fromkeys(activation))}
        numbers = np.fromiter(map(found.__getitem__, activation), np.int64, self.num_nodes)
        is_used = np.zeros(len(found), dtype=bool)
        is_used[numbers[~is_input]] = True
        used = [name for name, number in found.items() if is_used[number]]
        self._names = _compiled_for(used)
        code_of = {name: code for code, name in enumerate(self._names, start=1)}
        codes = np.array([code_of.get(name, INPUT) for name in found], np.uint8)[numbers]
        codes[is_input] = INPUT
        self.keeps_slopes = any(map(keeps_slope, used))

        self._aggregated = aggregated(aggregation, response, np.diff(in_offsets), is_input)
        self.num_rows = self._aggregated.num_rows
        is_plain = self._aggregated.kinds == PLAIN
        blocks = find_blocks(source, in_offsets, levels, is_plain)
        dense = sum(block.num_edges for block in blocks)
        self.blocks = blocks if dense >= _MIN_BLOCK_SHARE * max(1, self.num_edges) else []
        self.reads_inputs_only = [
            bool((codes[block.source_first : block.source_last] == INPUT).all()) for block in self.blocks
        ]
        self.positions = [
            None if block.positions is None else torch.from_numpy(block.positions) for block in self.blocks
        ]

        live = np.ones(self.num_nodes, dtype=bool)
        if not self.blocks:
            live = _reaching(source, in_offsets, np.concatenate([inputs, outputs]))
        nodes = np.flatnonzero(live)
        self.num_live = len(nodes)

        seeded = np.zeros(self.num_nodes, dtype=np.uint8)
        seeded[outputs] = 1
        is_sparse = live[edges[:, 1]]
        for block in self.blocks:
            # The product of a block adds to the rows of its sources before their turn comes.
            seeded[block.source_first : block.source_last] = 1
            is_sparse[block.first_weight : block.first_weight + block.num_edges] = False
        sparse = np.flatnonzero(is_sparse)
        self.num_sparse = len(sparse)
        # Sorted by source, for the backward pass pulls: each node then reads its edges front to back.
        out_index = sparse[stable_order(source[sparse].astype(np.int64), self.num_nodes)]

        # Of these edges, sorted by source: those in front of the first whose source is no input.
        from_others = np.flatnonzero(~is_input[source[out_index]])
        self.num_from_inputs = int(from_others[0]) if len(from_others) else self.num_sparse

        self.dead_edges = torch.from_numpy(np.flatnonzero(~live[edges[:, 1]]))
        self.dead_biases = torch.from_numpy(bias_index[~live & (bias_index >= 0)])
        self._arrays: dict[str, NDArray[np.generic]] = {
            "codes": codes,
            "live_nodes": nodes.astype(np.int32),
            "in_offsets": in_offsets,
            "in_sources": _longer(source, forward.AHEAD),
            "bias_index": bias_index.astype(np.int32),
            "live_bias_index": np.where(live, bias_index, -1).astype(np.int32),
            "out_offsets": offsets_of(np.bincount(source[sparse], minlength=self.num_nodes)),
            "out_targets": _longer(self._rows_of(out_index, edges[out_index, 1], in_offsets), backward.AHEAD),
            "out_index": out_index.astype(np.int32),
            "seeded": seeded,
            "input_rows": inputs.astype(np.int32),
            "output_rows": outputs.astype(np.int32),
        }
        if self._aggregated.names:
            of_nodes = self._aggregated
            self._arrays |= {"kinds": of_nodes.kinds, "scales": of_nodes.scales, "edge_rows": of_nodes.edge_rows}
        # Asked for in every backward pass: by way of the array it took as long as a small operation of PyTorch's.
        self._index_at: int = self._arrays["out_index"].__array_interface__["data"][0]
        self._prepared: dict[tuple[int, bool], Prepared] = {}
        self._frame = Frame()
        self._frame.set(
            num_nodes=self.num_nodes,
            last=self.num_live,
            num_edges=self.num_sparse,
            num_inputs=self.num_inputs,
            num_outputs=self.num_outputs,
            **{name: array.__array_interface__["data"][0] for name, array in self._arrays.items()},
        )

    def _rows_of(
        self, edges: NDArray[np.int64], targets: NDArray[np.int64], in_offsets: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The row of gradients that the source of each edge pulls from: its target's, or one of its own."""
        if not self._aggregated.names:
            return targets
        first = self._aggregated.edge_rows[targets].astype(np.int64)
        return np.where(first < 0, targets, first + edges - in_offsets[targets])

    def is_single(self, batch: int) -> bool:
        """Whether so small a batch is computed sample by sample."""
        if self._aggregated.names:
            return False
        if self.blocks:
            return batch == 1 and self.num_edges <= _LARGEST_SINGLE_DENSE
        return batch <= _LARGEST_SINGLE

    def cut(self, batch: int, double: bool) -> Cut:
        """How a batch of at least one sample is cut."""
        tile = self._tile(batch, 8 if double else 4)
        tiles = -(-batch // tile)
        if self.blocks:
            # Rows whose distance is a power of two would all compete for the same few sets of the caches.
            row = tiles * tile
            row_length, tile_length = row + 16 * (row % 128 == 0), tile
        else:
            row_length, tile_length = tile, self.num_nodes * tile
        tiles_per_piece = -(-tiles // _MAX_PIECES)
        shape = self.shape(double, tile)
        pieces, is_shared = -(-tiles // tiles_per_piece), batch * self.num_edges >= PARALLEL_WORK
        return Cut(shape, batch, tiles, row_length, tile_length, tiles_per_piece, pieces, is_shared)

    def _tile(self, batch: int, size: int) -> int:
        lanes = self.target.vector_bytes // size
        allowed = [tile for tile in (64, 32, 16, 8) if tile <= max(8, 4 * lanes)]
        smallest = next((tile for tile in reversed(allowed) if tile >= batch), allowed[0])
        if self.blocks:
            return 1 if batch == 1 else smallest  # a product with a vector, not with eight times the same one
        # The rows that a tile gathers from should stay in the second-level cache. Where even narrow ones do not, wide
        # ones wait less per number.
        fitting = [tile for tile in allowed if self.num_nodes * tile * size <= 1.3 * self.target.level2_bytes]
        best = next((tile for tile in fitting if tile >= 32), allowed[0])
        return min(best, smallest)

    def shape(self, double: bool, tile: int) -> Shape:
        """The shape of compiled functions for this network."""
        far = self.num_nodes * tile * (8 if double else 4) > self.target.level2_bytes
        names, apart = self._aggregated.names, bool(self.blocks)
        skips = self.num_from_inputs >= max(_MANY_FROM_INPUTS, _SHARE_FROM_INPUTS * self.num_edges)
        return Shape(
            double,
            self.target,
            tile,
            self._names,
            apart=apart,
            far=far,
            aggregations=names,
            skips_inputs=skips and not apart,  # dense blocks add to the rows of inputs, too
        )

    def functions(self, shape: Shape) -> Mapping[str, NativeFunction]:
        """``forward``, ``backward``, ``gather`` and ``finish``; ``activate`` if there are blocks."""
        functions = tile_functions(shape)
        return {**functions, **block_functions(shape)} if self.blocks else functions

    def single_functions(self, double: bool) -> Mapping[str, NativeFunction]:
        """``forward``, sample by sample, and ``backward`` where all nodes are plain sums."""
        lanes = self.target.vector_bytes // (8 if double else 4)
        names = self._aggregated.names
        return single_functions(
            Shape(double, self.target, lanes, self._names, apart=False, far=False, aggregations=names)
        )

    def frame(self, **values: int) -> Frame:
        """A frame with the addresses of the network."""
        return self._frame.copy(**values)

    def prepared(self, batch: int, double: bool) -> Prepared:
        """What a pass over ``batch`` samples needs."""
        # Two threads may both prepare a size: the results are equal, and either may stay.
        found = self._prepared.get((batch, double))
        if found is not None:
            return found
        cut = self.cut(batch, double)
        size = cut.shape.size
        frame = self.frame(
            batch=cut.batch,
            tiles=cut.tiles,
            tiles_per_piece=cut.tiles_per_piece,
            row_bytes=cut.row_length * size,
            tile_bytes=cut.tile_length * size,
        )
        if len(self._prepared) >= _MAX_PREPARED:
            self.forget()
        made = self._prepared[batch, double] = Prepared(cut, self.functions(cut.shape), frame)
        return made

    def index_address(self, edge: int) -> int:
        """Where the index of the weight of an edge lies, for edges sorted by source."""
        return self._index_at + edge * self._arrays["out_index"].itemsize

    def forget(self) -> None:
        """Drop what `prepared` keeps."""
        self._prepared.clear()

    def segments(self) -> list[tuple[int, int, int | None]]:
        """All nodes in order, cut where blocks begin and end: (first, last, number of the block or None)."""
        result: list[tuple[int, int, int | None]] = []
        done = 0
        for number, block in enumerate(self.blocks):
            if done < block.first:
                result.append((done, block.first, None))
            result.append((block.first, block.last, number))
            done = block.last
        if done < self.num_nodes:
            result.append((done, self.num_nodes, None))
        return result

    def matrix(self, number: int, weight: Tensor) -> Tensor:
        """The weights of a block as a matrix: a view of ``weight``, contiguous, or its weights spread out."""
        block, positions = self.blocks[number], self.positions[number]
        if positions is None:
            return weight.as_strided(block.shape, (block.shape[1], 1), weight.storage_offset() + block.first_weight)
        own = weight[block.first_weight : block.first_weight + block.num_edges]
        return own.new_zeros(block.shape[0] * block.shape[1]).index_copy_(0, positions, own).view(block.shape)


@cache
def tile_functions(shape: Shape) -> Mapping[str, NativeFunction]:
    """``forward``, ``backward``, ``gather`` and ``finish`` for tiles of sparse nodes."""
    module = _tile_module(shape)
    forward.write_forward(module, shape, "forward", summed=False)
    backward.write_backward(module, shape, "backward")
    backward.write_gather(module, shape, "gather")
    backward.write_finish(module, shape, "finish")
    return compiled(str(module), ("forward", "backward", "gather", "finish"), shape.target)


@cache
def block_functions(shape: Shape) -> Mapping[str, NativeFunction]:
    """``activate``: bias and activation for the nodes whose sums a matrix product computed."""
    module = _tile_module(shape)
    forward.write_forward(module, shape, "activate", summed=True)
    return compiled(str(module), ("activate",), shape.target)


@cache
def single_functions(shape: Shape) -> Mapping[str, NativeFunction]:
    """``forward``, one sample at a time, and ``backward`` where there are no aggregations."""
    module = ir.Module("dagnn")
    single.write_single_forward(module, shape, "forward")
    if shape.aggregations:
        return compiled(str(module), ("forward",), shape.target)
    single.write_single_backward(module, shape, "backward")
    return compiled(str(module), ("forward", "backward"), shape.target)


def _tile_module(shape: Shape) -> object:
    """A module with what tiles need to read and write rows of the batch."""
    module = ir.Module("dagnn")
    forward.write_read_rows(module, shape)
    forward.write_write_rows(module, shape)
    return module


def _reaching(source: NDArray[np.int32], in_offsets: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which nodes are among ``ends`` or have a path to one."""
    num_nodes = len(in_offsets) - 1
    waiting = np.bincount(source, minlength=num_nodes)
    waiting[ends] += 1  # an edge that no peeling removes
    if waiting.all():
        return np.ones(num_nodes, dtype=bool)
    return peel(in_offsets, source.astype(np.int64), waiting) < 0


def _longer(nodes: NDArray[np.integer], ahead: int) -> NDArray[np.int32]:
    """With ``ahead`` more entries, which the prefetches of the last edges read."""
    return np.append(nodes, np.zeros(ahead, nodes.dtype)).astype(np.int32)


def _compiled_for(used: Collection[str]) -> tuple[str, ...]:
    """The activations to compile for a network with those that it uses.

    Every set of activations is a compilation of its own. The usual network has one, and another at its outputs. All
    others share the set of our names, or that of all names, as do the networks of an evolving population; a network
    with formulas of its own compiles what it uses.
    """
    if NEAT_ACTIVATIONS.keys() & set(used) or len(used) > 2:
        for known in (ACTIVATIONS.keys(), ACTIVATIONS.keys() | NEAT_ACTIVATIONS.keys()):
            if known >= set(used):
                return tuple(sorted(known))
    return tuple(sorted(used))
