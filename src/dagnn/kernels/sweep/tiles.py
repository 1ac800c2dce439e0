"""What the compiled passes of a sweep have in common: taking tiles in order, waiting for levels, finding rows.

Every worker takes the next tile of the plan, waits until the levels that it depends on are done, and works. Tiles are
handed out in order, so the oldest one that is not done never waits for a younger one: no deadlock, however few of the
workers really run. What a tile computes does not depend on who computes it.

Legend: P panels of the hidden width; a *line* is a panel's part of a row.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn.kernels.emit.writer import I32, I64, Value
from dagnn.kernels.sweep.packed import PRODUCT, PanelWriter, call
from dagnn.kernels.sweep.plan import CLASS_FIELDS, TILE_FIELDS

# Looks at a counter before a waiting worker lets others have its core.
_LOOKS = 256

FIELDS = (
    "pieces", "tile_table", "class_table", "tiles_done", "yield_core", "nodes", "feature_rows", "first_slots",
    "in_offsets", "in_sources", "out_offsets", "out_slots", "panels", "state_bytes", "projected_bytes", "operands",
    "gates", "weight_stride", "width",
)  # fmt: skip


@dataclass(frozen=True)
class GateRows:
    """How many gates a class keeps per row: ``fixed + per_slot * slots``, in this order in memory."""

    fixed: int
    per_slot: int


class Tile:
    """A tile that a worker works on.

    Attributes:
        first: its first place in the sweep. ``rows``: how many. ``slots``: of each of its nodes.
        operator: of its nodes.
    """

    def __init__(self, code: PanelWriter, number: Value, gates: GateRows) -> None:
        build = code.build
        entry = code.at(code.field("tile_table"), number, 8 * len(TILE_FIELDS))
        value = {name: code.offset_at(entry, code.i64(k)) for k, name in enumerate(TILE_FIELDS)}
        klass = code.at(code.field("class_table"), value["klass"], 8 * len(CLASS_FIELDS))
        of_class = {name: code.offset_at(klass, code.i64(k)) for k, name in enumerate(CLASS_FIELDS)}
        self._code = code
        self.first, self.rows, self.slots = value["first"], value["rows"], of_class["slots"]
        self.after, self.after_back, self.operator = value["after"], value["after_back"], of_class["operator"]
        self._local = value["local"]
        self._panel_bytes = code.at(code.i64(0), of_class["rows"], code.panels.line)
        row_bytes = code.at(code.i64(0), code.field("panels"), code.panels.line)
        self._operands = code.offset(code.field("operands"), row_bytes, of_class["operand_row"])
        rows_of_gates = build.add(
            build.mul(of_class["gate_row"], code.i64(gates.fixed)),
            build.mul(of_class["operand_row"], code.i64(gates.per_slot)),
        )
        self._gates = code.offset(code.field("gates"), row_bytes, rows_of_gates)

    def gate(self, gate: Value, panel: Value, row: Value) -> Value:
        """The line of a gate (a number, or a value) of the tile's row."""
        code = self._code
        number = code.i64(gate) if isinstance(gate, int) else gate
        whole = code.build.add(code.build.mul(number, code.field("panels")), panel)
        return self._line(self._gates, whole, row)

    def operand(self, slot: Value, panel: Value, row: Value) -> Value:
        """The line of what the tile's row hears in a slot."""
        code = self._code
        whole = code.build.add(code.build.mul(slot, code.field("panels")), panel)
        return self._line(self._operands, whole, row)

    def _line(self, base: Value, panel: Value, row: Value) -> Value:
        code = self._code
        first = code.offset(base, self._panel_bytes, panel)
        return code.at(first, code.build.add(self._local, row), code.panels.line)

    @property
    def has_operands(self) -> Value:
        """Whether its nodes have any: one bit."""
        return self._code.build.icmp_signed(">", self.slots, self._code.i64(0))

    def forward_product(self, name: str, weight: str, columns: Value, left_panels: Value) -> None:
        """``gates[:columns] = operands @ weight``; columns are counted in gates."""
        code, zero = self._code, self._code.i64(0)
        call(
            code,
            name,
            PRODUCT,
            left=self.operand(zero, zero, zero),
            left_panel=self._panel_bytes,
            left_panels=left_panels,
            right=code.offset(code.field(weight), code.field("weight_stride"), self.operator),
            right_panel=code.field("weight_panel"),
            right_panels=code.build.mul(columns, code.field("panels")),
            out=self.gate(0, zero, zero),
            out_row=code.i64(code.panels.line),
            out_panel=self._panel_bytes,
            rows=self.rows,
            width=code.field("width"),
        )

    def backward_product(self, name: str, weight: str, columns: Value, out: Value) -> None:
        """What the gradients of the first ``columns`` gates say to the slots, row-major from ``out``."""
        code, zero = self._code, self._code.i64(0)
        slots_of_row = code.build.mul(self.slots, code.field("panels"))
        call(
            code,
            name,
            PRODUCT,
            left=self.gate(0, zero, zero),
            left_panel=self._panel_bytes,
            left_panels=code.build.mul(columns, code.field("panels")),
            right=code.offset(code.field(weight), code.field("weight_stride"), self.operator),
            right_panel=code.field("back_weight_panel"),
            right_panels=slots_of_row,
            out=out,
            out_row=code.at(code.i64(0), slots_of_row, code.panels.line),
            out_panel=code.i64(code.panels.line),
            rows=self.rows,
            width=code.field("width"),
        )

    @contextmanager
    def each_row(self) -> Iterator["Row"]:
        """Code for every row of the tile."""
        code = self._code
        with code.loop(code.i64(0), self.rows) as row:
            yield Row(code, self, row)


class Row:
    """A node of a tile.

    Attributes:
        row: its number in the tile. ``place``: in the sweep. ``node``: in the graph.
        first_slot: its first slot.
    """

    def __init__(self, code: PanelWriter, tile: Tile, row: Value) -> None:
        self._code, self.tile, self.row = code, tile, row
        self.place = code.build.add(tile.first, row)
        self.node = code.index_at(code.field("nodes"), self.place)
        self.first_slot = code.index_at(code.field("first_slots"), self.place)

    def projected(self, gate: int, panel: Value, field: str = "projected") -> Value:
        """The line of a gate of the projected features, or of their gradient."""
        code = self._code
        at = "feature_rows" if field == "projected" else "nodes"
        row = code.index_at(code.field(at), self.place)
        base = code.offset(code.field(field), code.field("projected_bytes"), row)
        shift = code.build.mul(code.i64(gate), code.field("state_bytes"))
        return code.line(code.build.add(base, shift), panel)

    def gate(self, gate: Value, panel: Value) -> Value:
        return self.tile.gate(gate, panel, self.row)

    def heard(self, gate: int, panel: Value, half: int) -> Value:
        """Half of what a product has left in the place of a gate; 0 for a node without operands, which has none."""
        code = self._code
        value = code.load_half(self.gate(gate, panel), half)
        return code.build.select(self.tile.has_operands, value, code.constant(0))

    def state(self, field: str, panel: Value, index: Value | None = None) -> Value:
        """The line of this node's row, or of the row ``index``, of a matrix of one row for each node or slot."""
        code = self._code
        row = self.node if index is None else index
        return code.line(code.offset(code.field(field), code.field("state_bytes"), row), panel)

    @contextmanager
    def each_panel(self) -> Iterator[Value]:
        code = self._code
        with code.loop(code.i64(0), code.field("panels")) as panel:
            yield panel

    @contextmanager
    def each_slot(self) -> Iterator[Value]:
        """Code for every slot of the node, counted from 0."""
        code = self._code
        with code.loop(code.i64(0), self.tile.slots) as slot:
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
def each_tile(code: PanelWriter, gates: GateRows, *, back: bool = False) -> Iterator[Tile]:
    """Code for every tile that the worker takes, in the order of the plan or from its end."""
    build = code.build
    with code.pieces() as piece:
        last = build.sub(code.field("pieces"), code.i64(1))
        tile = Tile(code, build.sub(last, piece) if back else piece, gates)
        _wait(code, tile.after_back if back else tile.after)
        yield tile
        build.atomic_rmw("add", _done(code), code.i64(1), "acq_rel")


def _ends(code: PanelWriter, field: str, group: Value) -> tuple[Value, Value]:
    offsets = code.field(field)
    return code.offset_at(offsets, group), code.offset_at(offsets, code.build.add(group, code.i64(1)))


def _done(code: PanelWriter) -> Value:
    return code.build.inttoptr(code.field("tiles_done"), ir.PointerType(I64))


def _wait(code: PanelWriter, needed: Value) -> None:
    """Until so many tiles are done."""
    build = code.build
    looks = code.variable(I64)
    build.store(code.i64(0), looks)
    look, again, give, done = (build.append_basic_block(name) for name in ("look", "again", "yield", "ready"))
    build.branch(look)
    build.position_at_end(look)
    count = build.load_atomic(_done(code), "acquire", 8)
    build.cbranch(build.icmp_signed("<", count, needed), again, done)
    build.position_at_end(again)
    build.store(build.add(build.load(looks), code.i64(1)), looks)
    patient = build.icmp_signed("<", build.load(looks), code.i64(_LOOKS))
    nobody = build.icmp_signed("==", code.field("yield_core"), code.i64(0))
    build.cbranch(build.or_(patient, nobody), look, give)
    build.position_at_end(give)
    build.call(build.inttoptr(code.field("yield_core"), ir.PointerType(ir.FunctionType(I32, []))), [])
    build.branch(look)
    build.position_at_end(done)
