"""The passes of a `CellPlan` as compiled functions, on the blocks, products and gathers that every sweep has."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial

from dagnn.kernels.emit.expressions import EDGE, NODE, SLOT, Expr
from dagnn.kernels.emit.formula import ancestors
from dagnn.kernels.emit.writer import Value
from dagnn.kernels.sweep import packed, sums
from dagnn.kernels.sweep.cell_body import Body, Sinks
from dagnn.kernels.sweep.cell_plan import CellPlan, Place
from dagnn.kernels.sweep.node_blocks import FIELDS, GateRows, NodeBlock, Row, each_block, edge_ahead
from dagnn.kernels.sweep.packed import PRODUCT, PackedLayout, PackedWriter, call

_ALL_FIELDS = (
    *FIELDS, "hidden_width", "projected", "weight", "weight_pack", "back_weight", "back_weight_pack",
    "bias", "states", "y", "grad_y", "in_places", "out_edges", "hidden", "forget_weight", "back_forget_weight",
    "forget_products", "forget_gradients", "hidden_gradients", "state_gradients", "edge_gates", "slot_kept",
    "slot_rows", "slot_gradients", "grad_projected", "scores", "score_weight", "edge_weights", "edge_gradients",
    "score_gradients",
)  # fmt: skip
_ENDS = {"y": "in_sources", "states": "in_sources", "forget_products": "in_places"}
# What the way back prefetches: of a node, and of a slot and its edges. Everything else has been written shortly before.
_OF_NODES = ("projected", "gates", "states", "y")
_OF_SLOTS = ("slot_gradients", "slot_rows", "slot_kept", "edge_gates")
_WANTED = "grad_projected"  # is written only where the pass has been given its address


def write_cell(module: Value, layout: PackedLayout, plan: CellPlan) -> list[str]:
    """All functions of a cell; their names."""
    gates = GateRows(plan.lines, plan.slot_lines, len(plan.aggregates))
    packed.write_product(module, layout, "product", adds=False)
    packed.write_outer(module, layout, "outer")
    if plan.adds_to_slots or plan.each:
        packed.write_product(module, layout, "product_added", adds=True)
    _write_forward(PackedWriter(module, layout, "forward"), plan, gates)
    _write_backward(PackedWriter(module, layout, "backward"), plan, gates)
    sums.write_weight(module, layout, "weight", gates, len(plan.columns))
    sums.write_table(module, layout, "table", gates, [partial(_gate_number, at=at) for at in plan.feature_places])
    names = ["forward", "backward", "weight", "table"]
    if plan.each:
        sums.write_weight(module, layout, "forget", GateRows(1, 0), 1)
        names.append("forget")
    if plan.vectors:
        sums.write_bias(module, layout, "bias", gates, [partial(_gate_number, at=at) for at in plan.vector_places])
        names.append("bias")
    if plan.has_attention:
        sums.write_score(module, layout, "score")
        names.append("score")
    return names


def _write_forward(code: PackedWriter, plan: CellPlan, gates: GateRows) -> None:
    code.fields(*_ALL_FIELDS)
    with each_block(code, gates) as block:
        with code.build.if_then(block.has_operands):
            with block.each_row() as row:
                if plan.has_attention:
                    sums.attend(code, row)
                with row.each_pack() as pack:
                    _PackBody(code, plan, row, pack, plan.there_first).block(NODE, [], plan.first)
            left_packs = code.build.mul(block.slots, code.at(code.i64(0), code.field("packs"), len(plan.aggregates)))
            block.forward_product("product", "weight", _columns(code, block, plan), left_packs)
        with block.each_row() as row:
            with row.each_pack() as pack:
                body = _PackBody(code, plan, row, pack, plan.there)
                # The product has just written the gates: they are in the caches.
                _PackBody(code, plan, row.ahead(), pack, plan.there).prefetch(plan.second, "projected")
                body.block(NODE, [], plan.second)
                # A second time, pack by pack: the product that follows reads neighbouring lines, which ``y`` has not.
                for half in (0, 1) if plan.each else ():
                    h = body.masked(body.value(plan.second[0][0], half), half)
                    code.store_half(h, _by_place(code, "hidden", pack, row.place), half)
            if plan.has_attention:
                sums.score_node(code, row)
        if plan.each:
            _each_product(code, block, "product", "hidden", "forget_weight", "forget_products")
    code.finish()


def _write_backward(code: PackedWriter, plan: CellPlan, gates: GateRows) -> None:
    code.fields(*_ALL_FIELDS)
    first = plan.states[0]
    with each_block(code, gates, back=True) as block:

        def waiting(row: Row, pack: Value) -> dict[str, Value]:
            lines = {first: row.state("hidden_gradients", pack, row.place)}
            for k, name in enumerate(plan.states[1:]):
                lines[name] = row.state("state_gradients", pack, _numbered(code, row.place, len(plan.states) - 1, k))
            return lines

        if plan.each:  # the gradient of an output is whole only with that of its product with the weight of operands
            with block.each_row() as row, row.each_pack() as pack:
                lines = waiting(row, pack) | {plan.each: _by_place(code, "forget_gradients", pack, row.place)}
                body = _PackBody(code, plan, row, pack, {})
                for (name, half), value in _pulled(code, plan, row, pack, None).items():
                    code.store_half(body.masked(value, half), lines[name], half)
            _each_product(code, block, "product_added", "forget_gradients", "back_forget_weight", "hidden_gradients")
        with block.each_row() as row:
            shared = sums.shared_gradient(code, row) if plan.has_attention else None
            with row.each_pack() as pack:
                _PackBody(code, plan, row.ahead(), pack, plan.there_back).prefetch(plan.back, *_OF_NODES)
                if plan.each:
                    lines = waiting(row, pack)
                    pulled = {
                        (name, half): code.load_half(line, half) for name, line in lines.items() for half in (0, 1)
                    }
                else:
                    pulled = _pulled(code, plan, row, pack, shared)
                seeds = {(plan.seeds[name], half): value for (name, half), value in pulled.items()}
                _PackBody(code, plan, row, pack, plan.there_back, seeds).block(NODE, [], plan.back)
        with code.build.if_then(block.has_operands):
            first_slot = code.index_at(code.field("first_slots"), block.first)
            first_line = _numbered(code, first_slot, len(plan.aggregates), 0)
            out = code.offset(code.field("slot_gradients"), code.field("state_bytes"), first_line)
            product = "product_added" if plan.adds_to_slots else "product"
            block.backward_product(product, "back_weight", _columns(code, block, plan), out)
            if plan.last or plan.has_attention:
                with block.each_row() as row:
                    if plan.has_attention:
                        sums.attention_gradients(code, row)
                    if plan.last:
                        with row.each_pack() as pack:
                            _PackBody(code, plan, row, pack, plan.there_last).block(NODE, [], plan.last)
    code.finish()


def _columns(code: PackedWriter, block: NodeBlock, plan: CellPlan) -> Value:
    return code.build.add(code.i64(len(plan.columns)), block.slots if plan.slot_columns else code.i64(0))


def _gate_number(code: PackedWriter, block: NodeBlock, slot: Value | None = None, *, at: Place) -> Value:
    more = slot if at.level == SLOT else block.slots if at.after else None
    return code.i64(at.number) if more is None else code.build.add(code.i64(at.number), more)


def _numbered(code: PackedWriter, index: Value, count: int, number: int) -> Value:
    """Of several rows for each index the one of this number."""
    return index if count == 1 else code.build.add(code.at(code.i64(0), index, count), code.i64(number))


def _pulled(
    code: PackedWriter, plan: CellPlan, row: Row, pack: Value, shared: Value | None
) -> dict[tuple[str, int], Value]:
    """The gradients of what a node gives to others: every edge out of it brings one back."""
    # Pull: the edges out of a node have a fixed order, and so have these sums. If nodes pushed, two blocks of one level
    # could add to the same row at once.
    first = plan.states[0]
    names = [*plan.states, *([plan.each] if plan.each else [])]
    places = {(name, half): code.places(1)[0] for name in names for half in (0, 1)}
    code.prefetch(row.ahead().state("grad_y", pack), code.layout.line)
    for half in (0, 1):
        value = code.load_half(row.state("grad_y", pack), half)
        if shared is not None:
            weight = code.load_half(code.line(code.field("score_weight"), pack), half)
            value = code.multiply_add(shared, weight, value)
        code.build.store(value, places[first, half])
    with row.each_out_edge() as edge:
        later, at_source = (_PackBody(code, plan, row, pack, plan.there_at_source) for _ in range(2))
        for body, number in ((later, edge_ahead(code, edge)), (at_source, edge)):
            body.slot = code.index_at(code.field("out_index"), number)
            body.edge = code.index_at(code.field("out_edges"), number)
        later.prefetch(((one, None) for one in plan.pulled.values()), *_OF_SLOTS)
        for (name, half), place in places.items():
            if name in plan.pulled:
                code.build.store(at_source.added(plan.pulled[name], code.build.load(place), half), place)
    return {key: code.build.load(place) for key, place in places.items()}


def _each_product(code: PackedWriter, block: NodeBlock, name: str, left: str, right: str, out: str) -> None:
    """The block's rows of ``out``, row-major by place: (``+``)= ``left @ right``."""
    # By place, not by node: the rows of a block are then neighbours, as a product needs them.
    zero, packs = code.i64(0), code.field("packs")
    rows_of_weight = code.build.mul(packs, code.i64(code.layout.width))
    call(
        code,
        name,
        PRODUCT,
        left=_by_place(code, left, zero, block.first),
        left_pack=code.at(zero, code.field("num_nodes"), code.layout.line),
        left_packs=packs,
        right=code.field(right),
        right_pack=code.at(zero, rows_of_weight, code.layout.line),
        right_packs=packs,
        out=code.offset(code.field(out), code.field("state_bytes"), block.first),
        out_row=code.field("state_bytes"),
        out_pack=code.i64(code.layout.line),
        rows=block.rows,
        width=code.field("width"),
    )


def _by_place(code: PackedWriter, field: str, pack: Value, place: Value) -> Value:
    """The line of a matrix in packs that has a row for every place."""
    rows = code.build.mul(pack, code.field("num_nodes"))
    return code.at(code.field(field), code.build.add(rows, place), code.layout.line)


class _PackBody(Body):
    """What a pass does in one pack of one row; arguments as of `Body`.

    ``slot`` and ``edge`` are those that it is about now, numbered among all; ``local``: the slot among those of its
    node.
    """

    def __init__(
        self,
        code: PackedWriter,
        plan: CellPlan,
        row: Row,
        pack: Value,
        there: Mapping[Expr, Place],
        known: Mapping[tuple[Expr, int], Value] | None = None,
    ) -> None:
        super().__init__(code, there, known)
        self._plan, self._row, self._pack = plan, row, pack
        self._lines: dict[Place, Value] = {}
        self._masks: dict[int, Value] = {}
        self.slot: Value | None = None
        self.edge: Value | None = None
        self.local: Value | None = None

    def masked(self, value: Value, half: int) -> Value:
        """The value, and 0 in the columns that fill up the last pack."""
        if self._plan.keeps_zero:
            return value
        if half not in self._masks:
            code = self._code
            first = code.build.add(code.at(code.i64(0), self._pack, code.layout.width), code.i64(half * code.lanes))
            self._masks[half] = code.lanes_below(code.build.sub(code.field("hidden_width"), first))
        return self._code.build.select(self._masks[half], value, self._code.constant(0))

    def prefetch(self, sinks: Iterable[tuple[Expr, Place | None]], *fields: str) -> None:
        """Bring into the caches what the sinks need of these fields."""
        needed = ancestors([expr for expr, _ in sinks], self._there.__contains__)
        for at in dict.fromkeys(self._there[one] for one in needed if one in self._there):
            if at.field in fields and (at.level < EDGE or self.edge is not None):
                self._code.prefetch(self._address(at), self._code.layout.line)

    @contextmanager
    def _each(self, level: int, terms: Sequence[Expr]) -> Iterator[None]:
        code, row = self._code, self._row
        outside = dict(self._lines), dict(self._masks)
        with row.each_slot() if level == SLOT else row.each_in_edge(self.local) as number:
            if level == SLOT:
                self.local, self.slot = number, code.build.add(row.first_slot, number)
            else:
                later = _PackBody(code, self._plan, row, self._pack, self._there)
                self.edge, later.edge = number, edge_ahead(code, number)
                later.prefetch(((term, None) for term in terms), *_ENDS)
            yield
        self._lines, self._masks = outside
        if level == SLOT:
            self.local = self.slot = None
        else:
            self.edge = None

    def _has_edges(self) -> Value:
        return self._code.build.icmp_signed(">", self._count(), self._code.i64(0))

    def _count(self) -> Value:
        """How many edges go into the slot."""
        code, offsets = self._code, self._code.field("in_offsets")
        assert self.slot is not None
        after = code.offset_at(offsets, code.build.add(self.slot, code.i64(1)))
        return code.build.sub(after, code.offset_at(offsets, self.slot))

    def _read(self, half: int, one: Expr) -> Value | None:
        code, at = self._code, self._there.get(one)
        if one.op == "share":
            edges = code.build.select(self._has_edges(), self._count(), code.i64(1))  # a slot with none has a sum of 0
            count = code.build.sitofp(edges, code.number)
            return code.splat(code.build.fdiv(code.number_constant(1), count))
        if at is None and one.op == "count":  # of edges into a slot, of slots of a node
            return code.splat(code.build.sitofp(self._count() if one.level else self._row.block.slots, code.number))
        if at is None:
            return None
        if at.field == "edge_weights":  # a number for all columns
            return code.splat(code.number_at(code.field(at.field), self.edge))
        value = code.load_half(self._line(at), half)
        # Without operands there was no product, and the line holds anything. Not what the target left in a slot's row.
        if one.op == "column" and at.level == NODE:
            value = code.build.select(self._row.block.has_operands, value, code.constant(0))
        return value

    def _line(self, at: Place) -> Value:
        if at.level == SLOT and self.slot is None:  # what slots have in common lies in the first one too
            return self._address(at)
        if at not in self._lines:
            self._lines[at] = self._address(at)
        return self._lines[at]

    def _address(self, at: Place) -> Value:
        code, row, pack = self._code, self._row, self._pack
        match at.field:
            case "gates":
                return row.gate(_gate_number(code, row.block, self.local, at=at), pack)
            case "projected" | "grad_projected":
                return row.projected(at.number, pack, at.field)
            case "bias":
                return row.state("bias", pack, code.i64(at.number))
            case "operands":
                slot = _numbered(code, self.local, self._plan.rows["operands"], at.number)
                return row.block.operand(slot, pack, row.row)
        slot = row.first_slot if self.slot is None else self.slot
        index = (row.place if at.field == "forget_products" else row.node, slot, self.edge)[at.level]
        if at.level == EDGE and at.field in _ENDS:
            index = code.index_at(code.field(_ENDS[at.field]), index)
        return row.state(at.field, pack, _numbered(code, index, self._plan.rows.get(at.field, 1), at.number))

    def _write(self, sinks: Sinks) -> None:
        code = self._code
        values = [(self.masked(self.value(expr, half), half), at, half) for half in (0, 1) for expr, at in sinks]
        for value, at, half in values:
            if at.field != _WANTED:
                code.store_half(value, self._line(at), half)
        # Where nodes share rows of features, the address is 0 here, and `write_table` sums the gates later.
        wanted = [one for one in values if one[1].field == _WANTED]
        is_given = code.build.icmp_signed("!=", code.field(_WANTED), code.i64(0)) if wanted else None
        with nullcontext() if is_given is None else code.build.if_then(is_given):
            for value, at, half in wanted:
                code.store_half(value, self._line(at), half)
