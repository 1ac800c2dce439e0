"""Triton kernels of a network of wide nodes: several units a node, a block of weights per edge.

Values and gradients are rows ``[units of all nodes, B]``. A *piece* is a run of units of one node; a program computes
pieces of one level for a tile of samples, a launch or two a level: what a norm needs of all samples or of all units of
a node comes in a second one. Every unit pulls, forward from the rows that it reads and backward from those that read
it, in a fixed order: nothing is added atomically, and the bits do not depend on the launch.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: SIM102  # a constant is asked for in an `if` of its own: Triton leaves out what is in it
import triton
import triton.language as tl

from dagnn.kernels.wide.plan import EPSILON

TILE = 64
"""Samples of a program."""
LAYER_TILE = 128
BATCH_TILE = 32
"""Samples that are added at once, where a program sums over a batch; 64 need 132 registers in float64."""
MOST_UNITS = 16
"""Units of a piece. So many are multiplied as blocks, by eight warps and without stages: by four, nine activations need
168 registers in float64, and with stages some spill. Fewer units are multiplied row by row."""
BLOCK, MOST_ROWS = 64, 32
"""Weights whose gradients one program sums: units of a piece times rows that they read, and the most such rows."""
MOST_REGISTERS = 128
"""Of a thread."""
ROWS = tl.constexpr(16)
"""Rows of a product of blocks."""
UNROLLED = tl.constexpr(4)
"""Rows whose loads are under way at once, where they are multiplied one by one."""
_EPSILON = tl.constexpr(EPSILON)

RECORD = (
    "row", "width", "weight", "bias", "norm", "drop", "code", "in_first", "in_last", "out_first", "out_last",
    "pass_first", "pass_last", "pull_first", "pull_last", "read",
)  # fmt: skip
"""What the table says of a node, int64 each: its first row, its units, where its parameters begin (-1: none), its row
of the mask, the code of its activation; ranges in the lists of rows that it reads, of rows that read it, of nodes
passed on to it, and of nodes that get its value; and its first row of the results (-1: none)."""
SIZE = tl.constexpr(len(RECORD))
ROW, WIDTH, WEIGHT, BIAS, NORM, DROP, CODE, IN_FIRST = (tl.constexpr(RECORD.index(name)) for name in RECORD[:8])
IN_LAST, OUT_FIRST, OUT_LAST, PASS_FIRST, PASS_LAST, PULL_FIRST, PULL_LAST, READ = (
    tl.constexpr(RECORD.index(name)) for name in RECORD[8:]
)
# What the first launch of a level does about norms: nothing, normalise with statistics that are given, or leave the
# nodes that have one to the second launch.
GIVEN = tl.constexpr(1)
LATER = tl.constexpr(2)
# Of the arguments of all kernels, those that are no numbers of the network's own dtype.
INTEGERS = ("pieces", "source_rows", "passed_rows", "out_rows", "out_steps", "pulled_rows", "blocks")
LONG, DOUBLES = ("nodes", "out_weights"), ("shares",)
COUNTS = ("first_piece", "last_piece", "first_node", "last_node", "first_block")
# They differ from level to level: code of its own for 1 and for multiples of 16 would be compiled again and again.
_of_any_count = triton.jit(do_not_specialize=COUNTS)


@triton.jit
def _piece(pieces, nodes, piece, units: tl.constexpr):
    """A piece's record of its node, its units, and which of them the node has."""
    at = nodes + tl.load(pieces + 2 * piece).to(tl.int64) * SIZE
    unit = tl.load(pieces + 2 * piece + 1).to(tl.int64) + tl.arange(0, units)
    return at, unit, unit < tl.load(at + WIDTH)


@triton.jit
def _inverse(variance):
    return 1 / tl.sqrt(variance + _EPSILON)


@triton.jit
def _dropped(value, mask, at, columns, present, batch):
    """Times the node's factor of dropout."""
    row = tl.load(at + DROP)
    if row >= 0:
        value *= tl.load(mask + row * batch + columns, mask=present, other=0.0)
    return value


@triton.jit
def _plus_product(total, weights, exists, table, row, is_read, columns, present, batch):
    """Plus the product of a block of weights and of rows of a table ``[rows, B]``."""
    factor = tl.load(weights, mask=exists[:, None] & is_read[None, :], other=0.0)
    places = table + row.to(tl.int64)[:, None] * batch + columns[None, :]
    found = tl.load(places, mask=is_read[:, None] & present[None, :], other=0.0)
    return tl.dot(factor, found, total, input_precision="ieee", out_dtype=total.dtype)


@triton.jit
def _finished(
    value, values, mask, at, passed_rows, lanes, inside, columns, present, batch,
    drops: tl.constexpr, passes: tl.constexpr,
):  # fmt: skip
    """What comes behind the norm: dropout, and the mean of the sources of the same width.

    ``lanes``: places of the elements behind the first row of their node.
    """
    if drops:
        value = _dropped(value, mask, at, columns, present, batch)
    if passes:
        start = tl.load(at + PASS_FIRST)
        stop = tl.load(at + PASS_LAST)
        if stop > start:
            total = tl.zeros_like(value)
            for k in range(start, stop):
                row = tl.load(passed_rows + k).to(tl.int64)
                total += tl.load(values + row * batch + lanes, mask=inside, other=0.0)
            value += total / (stop - start).to(value.dtype)
    return value


@_of_any_count
def forward(
    values, sums, hidden, weight, bias, scale, shift, means, variances, mask, pieces, nodes, source_rows, passed_rows,
    first_piece, last_piece, batch,
    activated: tl.constexpr, norm: tl.constexpr, drops: tl.constexpr, passes: tl.constexpr, dotted: tl.constexpr,
    units: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Values of a level, and what their activations were given; ``hidden`` of nodes with a norm.

    That is the value less the mean, divided by the deviation; what the activation gave, where the norm comes later.
    """
    columns = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    present = columns < batch
    for piece in range(first_piece + tl.program_id(1), last_piece, tl.num_programs(1)):
        at, unit, exists = _piece(pieces, nodes, piece, units)
        width = tl.load(at + WIDTH)
        lanes = unit[:, None] * batch + columns[None, :]
        inside = exists[:, None] & present[None, :]
        start = tl.load(at + IN_FIRST)
        weights = weight + tl.load(at + WEIGHT) + unit
        z = tl.zeros([units, tile], dtype=values.dtype.element_ty)
        stop = tl.load(at + IN_LAST)
        if dotted:
            for first in range(start, stop, ROWS):
                k = first + tl.arange(0, ROWS)
                is_read = k < stop
                rows = tl.load(source_rows + k, mask=is_read, other=0)
                places = weights[:, None] + ((k - start) * width)[None, :]
                z = _plus_product(z, places, exists, values, rows, is_read, columns, present, batch)
        else:
            for k in tl.range(start, stop, loop_unroll_factor=UNROLLED):
                row = tl.load(source_rows + k).to(tl.int64)
                factor = tl.load(weights + (k - start) * width, mask=exists, other=0.0)
                z += factor[:, None] * tl.load(values + row * batch + columns, mask=present, other=0.0)[None, :]
        place = tl.load(at + BIAS)
        if place >= 0:
            z += tl.load(bias + place + unit, mask=exists, other=0.0)[:, None]
        own = tl.load(at + ROW) * batch + lanes
        tl.store(sums + own, z, mask=inside)
        value = activated(tl.load(at + CODE), z)
        place = tl.load(at + NORM)
        is_last = True
        if norm == GIVEN:
            if place >= 0:
                mean = tl.load(means + place + unit, mask=exists, other=0.0)
                inverse = _inverse(tl.load(variances + place + unit, mask=exists, other=0.0))
                value = (value - mean[:, None]) * inverse[:, None]
                tl.store(hidden + own, value, mask=inside)
                value *= tl.load(scale + place + unit, mask=exists, other=0.0)[:, None]
                value += tl.load(shift + place + unit, mask=exists, other=0.0)[:, None]
        if norm == LATER:
            if place >= 0:
                is_last = False
                tl.store(hidden + own, value, mask=inside)
        if is_last:
            value = _finished(
                value, values, mask, at, passed_rows, lanes, inside, columns, present, batch, drops, passes
            )
            tl.store(values + own, value, mask=inside)


@_of_any_count
def batch_norm(
    values, hidden, scale, shift, means, variances, mask, pieces, nodes, passed_rows,
    first_piece, batch,
    drops: tl.constexpr, passes: tl.constexpr, units: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The rest of a level whose norms take mean and variance of the batch, which are written too."""
    at, unit, exists = _piece(pieces, nodes, first_piece + tl.program_id(0), units)
    place = tl.load(at + NORM)
    if place >= 0:
        first_row = tl.load(at + ROW) * batch
        total = tl.zeros([units, tile], dtype=values.dtype.element_ty)
        for start in range(0, batch, tile):
            columns = start + tl.arange(0, tile)
            inside = exists[:, None] & (columns < batch)[None, :]
            total += tl.load(hidden + first_row + unit[:, None] * batch + columns[None, :], mask=inside, other=0.0)
        mean = tl.sum(total, axis=1) / batch
        # In a pass of its own: the difference of two sums would lose digits.
        total = tl.zeros([units, tile], dtype=values.dtype.element_ty)
        for start in range(0, batch, tile):
            columns = start + tl.arange(0, tile)
            inside = exists[:, None] & (columns < batch)[None, :]
            value = tl.load(hidden + first_row + unit[:, None] * batch + columns[None, :], mask=inside, other=0.0)
            centred = tl.where(inside, value - mean[:, None], 0.0)
            total += centred * centred
        variance = tl.sum(total, axis=1) / batch
        tl.store(means + place + unit, mean, mask=exists)
        tl.store(variances + place + unit, variance, mask=exists)
        inverse = _inverse(variance)
        factor = tl.load(scale + place + unit, mask=exists, other=0.0)
        shifted = tl.load(shift + place + unit, mask=exists, other=0.0)
        tl.debug_barrier()  # all threads have read what is overwritten now
        for start in range(0, batch, tile):
            columns = start + tl.arange(0, tile)
            present = columns < batch
            inside = exists[:, None] & present[None, :]
            lanes = unit[:, None] * batch + columns[None, :]
            normed = (tl.load(hidden + first_row + lanes, mask=inside, other=0.0) - mean[:, None]) * inverse[:, None]
            tl.store(hidden + first_row + lanes, normed, mask=inside)
            value = _finished(
                normed * factor[:, None] + shifted[:, None],
                values, mask, at, passed_rows, lanes, inside, columns, present, batch, drops, passes,
            )  # fmt: skip
            tl.store(values + first_row + lanes, value, mask=inside)


@_of_any_count
def layer_norm(
    values, hidden, inverses, scale, shift, mask, nodes, passed_rows,
    first_node, last_node, batch,
    drops: tl.constexpr, passes: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The rest of a level whose norms are over the units of a node; ``inverses [nodes, B]``: 1 / deviation."""
    columns = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    present = columns < batch
    for node in range(first_node + tl.program_id(1), last_node, tl.num_programs(1)):
        number = tl.cast(node, tl.int64)
        at = nodes + number * SIZE
        place = tl.load(at + NORM)
        width = tl.load(at + WIDTH)
        own = tl.load(at + ROW) * batch + columns
        if place >= 0:
            total = tl.zeros([tile], dtype=values.dtype.element_ty)
            for unit in range(width):
                total += tl.load(hidden + own + unit * batch, mask=present, other=0.0)
            mean = total / width.to(total.dtype)
            total = tl.zeros([tile], dtype=values.dtype.element_ty)
            for unit in range(width):
                centred = tl.load(hidden + own + unit * batch, mask=present, other=0.0) - mean
                total += centred * centred
            inverse = _inverse(total / width.to(total.dtype))
            tl.store(inverses + number * batch + columns, inverse, mask=present)
            tl.debug_barrier()  # all threads have read what is overwritten now
            for unit in range(width):
                lanes = unit * batch + columns
                normed = (tl.load(hidden + own + unit * batch, mask=present, other=0.0) - mean) * inverse
                tl.store(hidden + own + unit * batch, normed, mask=present)
                value = normed * tl.load(scale + place + unit) + tl.load(shift + place + unit)
                value = _finished(
                    value, values, mask, at, passed_rows, lanes, present, columns, present, batch, drops, passes
                )
                tl.store(values + own + unit * batch, value, mask=present)


@_of_any_count
def backward(
    grad_read, weight, sums, gradients, deltas, scale, variances, mask, pieces, nodes, out_rows, out_weights, out_steps,
    pulled_rows, shares, first_piece, last_piece, batch, num_inputs,
    pulled: tl.constexpr, norm: tl.constexpr, drops: tl.constexpr, passes: tl.constexpr, is_kept: tl.constexpr,
    dotted: tl.constexpr, units: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Gradients of the sums of a level; those of the values of inputs, of nodes with a norm to come, or of all.

    ``is_kept``: the gradients of all values are read again.
    """
    columns = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    present = columns < batch
    for piece in range(first_piece + tl.program_id(1), last_piece, tl.num_programs(1)):
        at, unit, exists = _piece(pieces, nodes, piece, units)
        lanes = unit[:, None] * batch + columns[None, :]
        inside = exists[:, None] & present[None, :]
        read = tl.load(at + READ)
        gradient = tl.zeros([units, tile], dtype=sums.dtype.element_ty)
        if read >= 0:
            gradient = tl.load(grad_read + read * batch + lanes, mask=inside, other=0.0)
        start = tl.load(at + OUT_FIRST)
        stop = tl.load(at + OUT_LAST)
        if dotted:
            for first in range(start, stop, ROWS):
                k = first + tl.arange(0, ROWS)
                is_read = k < stop
                rows = tl.load(out_rows + k, mask=is_read, other=0)
                steps = tl.load(out_steps + k, mask=is_read, other=0)
                firsts = weight + tl.load(out_weights + k, mask=is_read, other=0)
                places = firsts[None, :] + unit[:, None] * steps[None, :]
                gradient = _plus_product(gradient, places, exists, deltas, rows, is_read, columns, present, batch)
        else:
            for k in tl.range(start, stop, loop_unroll_factor=UNROLLED):
                row = tl.load(out_rows + k).to(tl.int64)
                of_units = weight + tl.load(out_weights + k) + unit * tl.load(out_steps + k)
                factor = tl.load(of_units, mask=exists, other=0.0)
                gradient += factor[:, None] * tl.load(deltas + row * batch + columns, mask=present, other=0.0)[None, :]
        if passes:
            for k in range(tl.load(at + PULL_FIRST), tl.load(at + PULL_LAST)):
                row = tl.load(pulled_rows + k).to(tl.int64)
                share = tl.load(shares + k).to(gradient.dtype)
                gradient += share * tl.load(gradients + row * batch + lanes, mask=inside, other=0.0)
        own = tl.load(at + ROW) * batch + lanes
        is_input = tl.load(pieces + 2 * piece) < num_inputs
        if is_kept or is_input:
            tl.store(gradients + own, gradient, mask=inside)
        place = tl.load(at + NORM)
        is_last = not is_input
        if norm == LATER:
            if place >= 0:
                is_last = False
        if is_last:
            if drops:
                gradient = _dropped(gradient, mask, at, columns, present, batch)
            if norm == GIVEN:
                if place >= 0:
                    inverse = _inverse(tl.load(variances + place + unit, mask=exists, other=0.0))
                    gradient *= (tl.load(scale + place + unit, mask=exists, other=0.0) * inverse)[:, None]
            z = tl.load(sums + own, mask=inside, other=0.0)
            tl.store(deltas + own, pulled(tl.load(at + CODE), z, gradient), mask=inside)


@_of_any_count
def norm_backward(
    sums, hidden, gradients, deltas, scale, variances, mask, pieces, nodes, grad_scale, grad_shift, first_piece, batch,
    pulled: tl.constexpr, is_own: tl.constexpr, drops: tl.constexpr, units: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Gradients of scales and shifts; with ``is_own``, where the batch gave the statistics, those of sums too."""
    at, unit, exists = _piece(pieces, nodes, first_piece + tl.program_id(0), units)
    place = tl.load(at + NORM)
    if place >= 0:
        first_row = tl.load(at + ROW) * batch
        of_shift = tl.zeros([units, tile], dtype=sums.dtype.element_ty)
        of_scale = tl.zeros([units, tile], dtype=sums.dtype.element_ty)
        for start in range(0, batch, tile):
            columns = start + tl.arange(0, tile)
            present = columns < batch
            inside = exists[:, None] & present[None, :]
            own = first_row + unit[:, None] * batch + columns[None, :]
            gradient = tl.load(gradients + own, mask=inside, other=0.0)
            if drops:
                gradient = _dropped(gradient, mask, at, columns, present, batch)
            of_shift += gradient
            of_scale += gradient * tl.load(hidden + own, mask=inside, other=0.0)
        total_shift = tl.sum(of_shift, axis=1)
        total_scale = tl.sum(of_scale, axis=1)
        tl.store(grad_shift + place + unit, total_shift, mask=exists)
        tl.store(grad_scale + place + unit, total_scale, mask=exists)
        if is_own:
            inverse = _inverse(tl.load(variances + place + unit, mask=exists, other=0.0))
            factor = tl.load(scale + place + unit, mask=exists, other=0.0) * inverse
            centre = total_shift / batch
            slope = total_scale / batch
            for start in range(0, batch, tile):
                columns = start + tl.arange(0, tile)
                present = columns < batch
                inside = exists[:, None] & present[None, :]
                own = first_row + unit[:, None] * batch + columns[None, :]
                gradient = tl.load(gradients + own, mask=inside, other=0.0)
                if drops:
                    gradient = _dropped(gradient, mask, at, columns, present, batch)
                normed = tl.load(hidden + own, mask=inside, other=0.0)
                arriving = factor[:, None] * (gradient - centre[:, None] - normed * slope[:, None])
                z = tl.load(sums + own, mask=inside, other=0.0)
                tl.store(deltas + own, pulled(tl.load(at + CODE), z, arriving), mask=inside)


@_of_any_count
def layer_norm_backward(
    sums, hidden, inverses, gradients, deltas, scale, mask, nodes, first_node, last_node, batch,
    pulled: tl.constexpr, drops: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Gradients of the sums of those nodes of a level that have a norm over their units."""
    columns = tl.program_id(0).to(tl.int64) * tile + tl.arange(0, tile)
    present = columns < batch
    for node in range(first_node + tl.program_id(1), last_node, tl.num_programs(1)):
        number = tl.cast(node, tl.int64)
        at = nodes + number * SIZE
        place = tl.load(at + NORM)
        width = tl.load(at + WIDTH)
        own = tl.load(at + ROW) * batch + columns
        if place >= 0:
            centre = tl.zeros([tile], dtype=sums.dtype.element_ty)
            slope = tl.zeros([tile], dtype=sums.dtype.element_ty)
            for unit in range(width):
                gradient = tl.load(gradients + own + unit * batch, mask=present, other=0.0)
                if drops:
                    gradient = _dropped(gradient, mask, at, columns, present, batch)
                gradient *= tl.load(scale + place + unit)
                centre += gradient
                slope += gradient * tl.load(hidden + own + unit * batch, mask=present, other=0.0)
            centre = centre / width.to(centre.dtype)
            slope = slope / width.to(slope.dtype)
            inverse = tl.load(inverses + number * batch + columns, mask=present, other=0.0)
            for unit in range(width):
                gradient = tl.load(gradients + own + unit * batch, mask=present, other=0.0)
                if drops:
                    gradient = _dropped(gradient, mask, at, columns, present, batch)
                gradient *= tl.load(scale + place + unit)
                normed = tl.load(hidden + own + unit * batch, mask=present, other=0.0)
                arriving = inverse * (gradient - centre - normed * slope)
                z = tl.load(sums + own + unit * batch, mask=present, other=0.0)
                tl.store(deltas + own + unit * batch, pulled(tl.load(at + CODE), z, arriving), mask=present)


@_of_any_count
def weight_gradients(
    values, deltas, grad_weight, blocks, nodes, source_rows, first_block, batch,
    rows: tl.constexpr, units: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The gradients of a block of weights: of the units of a piece, and of ``rows`` rows that they read."""
    block = blocks + 3 * (first_block + tl.program_id(0)).to(tl.int64)
    at = nodes + tl.load(block).to(tl.int64) * SIZE
    width = tl.load(at + WIDTH)
    unit = tl.load(block + 1).to(tl.int64) + tl.arange(0, units)
    number = tl.load(block + 2).to(tl.int64) + tl.arange(0, rows)
    exists = unit < width
    first = tl.load(at + IN_FIRST)
    is_read = first + number < tl.load(at + IN_LAST)
    source = tl.load(source_rows + first + number, mask=is_read, other=0).to(tl.int64)
    own = tl.load(at + ROW) + unit
    # Sample by sample of a tile, added up at the end: no sums across threads within the loop.
    total = tl.zeros([rows, units, tile], dtype=values.dtype.element_ty)
    for start in range(0, batch, tile):
        columns = start + tl.arange(0, tile)
        present = columns < batch
        value = tl.load(
            values + source[:, None] * batch + columns[None, :], mask=is_read[:, None] & present[None, :], other=0.0
        )
        delta = tl.load(
            deltas + own[:, None] * batch + columns[None, :], mask=exists[:, None] & present[None, :], other=0.0
        )
        total += value[:, None, :] * delta[None, :, :]
    place = tl.load(at + WEIGHT) + number[:, None] * width + unit[None, :]
    tl.store(grad_weight + place, tl.sum(total, axis=2), mask=is_read[:, None] & exists[None, :])
