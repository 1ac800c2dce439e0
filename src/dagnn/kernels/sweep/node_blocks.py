"""What the compiled passes of a sweep share: blocks of nodes, taken in order, and the rows in them.

Every worker takes the next block of the plan, waits until the levels below it are done (`emit.workers` writes how), and
computes it. Blocks are handed out in order, so the oldest unfinished one never waits for a younger one: no deadlock,
however few of the workers really run. What a block computes does not depend on which worker computes it.

A *line* is a pack's part of a row.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dagnn.kernels.emit.workers import write_done, write_wait
from dagnn.kernels.emit.writer import Value
from dagnn.kernels.sweep.packed import PRODUCT, PackedWriter, call
from dagnn.kernels.sweep.plan import BLOCK_FIELDS, CLASS_FIELDS

# Prefetched so far ahead. Rows of features, outputs and gradients lie in the graph's order, so the processor cannot
# foresee which comes next, and every one was waited for. Run in turns, 512 random DAGs, d=64: forward passes took 0.66
# (minimal gated unit) to 0.81 (TreeLSTM) of the time, backward passes 0.8 to 1. 4 and 16 edges ahead measured alike.
_ROWS_AHEAD, _EDGES_AHEAD = 4, 8

FIELDS = (
    "pieces", "block_table", "class_table", "blocks_done", "yield_core", "nodes", "feature_rows", "first_slots",
    "in_offsets", "in_sources", "out_offsets", "out_index", "packs", "state_bytes", "projected_bytes", "operands",
    "gates", "weight_stride", "width", "num_nodes", "num_edges",
)  # fmt: skip


@dataclass(frozen=True)
class GateRows:
    """How many gates a class keeps per row: ``fixed + per_slot * slots``; and how many lines of operands per slot."""

    fixed: int
    per_slot: int
    operands: int = 1


class NodeBlock:
    """A block of nodes in compiled code: nodes of one level and one class, whose products are computed together.

    Attributes:
        first, rows: its first place in the sweep, and how many nodes it has.
        slots, operator: of each of its nodes.
        after, after_back: how many blocks must be done before it, forward and backward.
    """

    def __init__(self, code: PackedWriter, number: Value, gates: GateRows) -> None:
        build = code.build
        entry = code.at(code.field("block_table"), number, 8 * len(BLOCK_FIELDS))
        value = {name: code.offset_at(entry, code.i64(k)) for k, name in enumerate(BLOCK_FIELDS)}
        node_class = code.at(code.field("class_table"), value["node_class"], 8 * len(CLASS_FIELDS))
        of_class = {name: code.offset_at(node_class, code.i64(k)) for k, name in enumerate(CLASS_FIELDS)}
        self._code = code
        self.first, self.rows, self.slots = value["first"], value["rows"], of_class["slots"]
        self.after, self.after_back, self.operator = value["after"], value["after_back"], of_class["operator"]
        self._local = value["local"]
        # A class keeps pack by pack, and in a pack row by row: a product reads neighbouring lines, and the gradient of
        # a weight is one product over all rows of the class, whatever their levels.
        self._pack_bytes = code.at(code.i64(0), of_class["rows"], code.layout.line)
        row_bytes = code.at(code.i64(0), code.field("packs"), code.layout.line)
        self._operands_of_slot = gates.operands
        operand_rows = build.mul(of_class["operand_row"], code.i64(gates.operands))
        self._operands = code.offset(code.field("operands"), row_bytes, operand_rows)
        rows_of_gates = build.add(
            build.mul(of_class["gate_row"], code.i64(gates.fixed)),
            build.mul(of_class["operand_row"], code.i64(gates.per_slot)),
        )
        self._gates = code.offset(code.field("gates"), row_bytes, rows_of_gates)

    def gate(self, gate: Value, pack: Value, row: Value) -> Value:
        """The line of a gate (a number, or a value) of the block's row."""
        code = self._code
        number = code.i64(gate) if isinstance(gate, int) else gate
        whole = code.build.add(code.build.mul(number, code.field("packs")), pack)
        return self._line(self._gates, whole, row)

    def operand(self, slot: Value, pack: Value, row: Value) -> Value:
        """The line of the block's row in ``operands``: one of its aggregates, slot after slot."""
        code = self._code
        whole = code.build.add(code.build.mul(slot, code.field("packs")), pack)
        return self._line(self._operands, whole, row)

    def _line(self, base: Value, pack: Value, row: Value) -> Value:
        code = self._code
        first = code.offset(base, self._pack_bytes, pack)
        return code.at(first, code.build.add(self._local, row), code.layout.line)

    @property
    def has_operands(self) -> Value:
        """Whether its nodes have any: one bit."""
        return self._code.build.icmp_signed(">", self.slots, self._code.i64(0))

    def forward_product(self, name: str, weight: str, columns: Value, left_packs: Value) -> None:
        """``gates[:columns] = operands @ weight``; columns are counted in gates."""
        code, zero = self._code, self._code.i64(0)
        call(
            code,
            name,
            PRODUCT,
            left=self.operand(zero, zero, zero),
            left_pack=self._pack_bytes,
            left_packs=left_packs,
            right=code.offset(code.field(weight), code.field("weight_stride"), self.operator),
            right_pack=code.field("weight_pack"),
            right_packs=code.build.mul(columns, code.field("packs")),
            out=self.gate(0, zero, zero),
            out_row=code.i64(code.layout.line),
            out_pack=self._pack_bytes,
            rows=self.rows,
            width=code.field("width"),
        )

    def backward_product(self, name: str, weight: str, columns: Value, out: Value) -> None:
        """The gradients of the slots' aggregates from those of the first ``columns`` gates, row-major from ``out``."""
        code, zero = self._code, self._code.i64(0)
        lines = code.at(code.i64(0), self.slots, self._operands_of_slot)
        slots_of_row = code.build.mul(lines, code.field("packs"))
        call(
            code,
            name,
            PRODUCT,
            left=self.gate(0, zero, zero),
            left_pack=self._pack_bytes,
            left_packs=code.build.mul(columns, code.field("packs")),
            right=code.offset(code.field(weight), code.field("weight_stride"), self.operator),
            right_pack=code.field("back_weight_pack"),
            right_packs=slots_of_row,
            out=out,
            out_row=code.at(code.i64(0), slots_of_row, code.layout.line),
            out_pack=code.i64(code.layout.line),
            rows=self.rows,
            width=code.field("width"),
        )

    @contextmanager
    def each_row(self) -> Iterator["Row"]:
        """Code for every row of the block."""
        code = self._code
        with code.loop(code.i64(0), self.rows) as row:
            yield Row(code, self, row)


class Row:
    """A node of a block.

    Attributes:
        row, place, node: its number in the block, in the sweep and in the graph.
        first_slot: its first slot.
    """

    def __init__(self, code: PackedWriter, block: NodeBlock, row: Value, place: Value | None = None) -> None:
        self._code, self.block, self.row = code, block, row
        self.place = code.build.add(block.first, row) if place is None else place
        self.node = code.index_at(code.field("nodes"), self.place)
        self.first_slot = code.index_at(code.field("first_slots"), self.place)

    def ahead(self) -> "Row":
        """The row whose lines are to be prefetched now; it may belong to the next block."""
        code, further = self._code, self._code.i64(_ROWS_AHEAD)
        place = _at_most_last(code, code.build.add(self.place, further), "num_nodes")
        return Row(code, self.block, code.build.add(self.row, further), place)

    def projected(self, gate: int, pack: Value, field: str = "projected") -> Value:
        """The line of a gate of the projected features, or of their gradient."""
        code = self._code
        # Nodes may share a row of features, and two blocks must never write to one row: gradients go by node. Those of
        # a shared table are summed afterwards, by `write_table`.
        at = "feature_rows" if field == "projected" else "nodes"
        row = code.index_at(code.field(at), self.place)
        base = code.offset(code.field(field), code.field("projected_bytes"), row)
        shift = code.build.mul(code.i64(gate), code.field("state_bytes"))
        return code.line(code.build.add(base, shift), pack)

    def gate(self, gate: Value, pack: Value) -> Value:
        return self.block.gate(gate, pack, self.row)

    def state(self, field: str, pack: Value, index: Value | None = None) -> Value:
        """The line of this node's row, or of the row ``index``, of a matrix of one row for each node or slot."""
        code = self._code
        row = self.node if index is None else index
        return code.line(code.offset(code.field(field), code.field("state_bytes"), row), pack)

    @contextmanager
    def each_pack(self) -> Iterator[Value]:
        code = self._code
        with code.loop(code.i64(0), code.field("packs")) as pack:
            yield pack

    @contextmanager
    def each_slot(self) -> Iterator[Value]:
        """Code for every slot of the node, counted from 0."""
        code = self._code
        with code.loop(code.i64(0), self.block.slots) as slot:
            yield slot

    @contextmanager
    def each_in_edge(self, slot: Value | None = None) -> Iterator[Value]:
        """Code for every edge into a slot of the node, by default its first."""
        code = self._code
        number = self.first_slot if slot is None else code.build.add(self.first_slot, slot)
        with code.loop(*_ends(code, "in_offsets", number)) as edge:
            yield edge

    @contextmanager
    def each_out_edge(self) -> Iterator[Value]:
        """Code for every edge out of the node, as a place of ``out_slots`` and ``out_edges``."""
        code = self._code
        with code.loop(*_ends(code, "out_offsets", self.place)) as edge:
            yield edge


@contextmanager
def each_block(code: PackedWriter, gates: GateRows, *, back: bool = False) -> Iterator[NodeBlock]:
    """Code for every block that the worker takes, in the order of the plan or from its end."""
    build = code.build
    with code.pieces() as piece:
        # Backward the tickets count from the end, so that the oldest unfinished block still waits for nobody younger.
        last = build.sub(code.field("pieces"), code.i64(1))
        block = NodeBlock(code, build.sub(last, piece) if back else piece, gates)
        write_wait(code, block.after_back if back else block.after)
        yield block
        write_done(code)


def edge_ahead(code: PackedWriter, edge: Value) -> Value:
    """The edge, in or out, whose lines are to be prefetched now."""
    return _at_most_last(code, code.build.add(edge, code.i64(_EDGES_AHEAD)), "num_edges")


def _at_most_last(code: PackedWriter, index: Value, count: str) -> Value:
    last = code.build.sub(code.field(count), code.i64(1))
    return code.build.select(code.build.icmp_signed("<", index, last), index, last)


def _ends(code: PackedWriter, field: str, group: Value) -> tuple[Value, Value]:
    offsets = code.field(field)
    return code.offset_at(offsets, group), code.offset_at(offsets, code.build.add(group, code.i64(1)))
