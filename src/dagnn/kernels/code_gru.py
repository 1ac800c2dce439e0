"""The GRU over what a node hears, forward and backward: the sum, mean or maximum of its operands, or by attention.

Gates of a row, in panels: r, z, what the operands say to n before r weighs it, n. The way back writes the gradients of
all four over them.
"""

from dagnn.kernels.code_gru_hearing import hear, let_hear, score_node, shared_gradient
from dagnn.kernels.code_math import tanh
from dagnn.kernels.code_panels import PanelWriter, sigmoid
from dagnn.kernels.code_sweep import FIELDS, GateRows, Row, Tile, each_tile
from dagnn.kernels.code_tree_lstm import is_asked
from dagnn.kernels.code_writer import Value
from dagnn.kernels.panels import Panels

GATES = GateRows(fixed=4, per_slot=0)
COLUMNS = (0, 1, 3)
"""The gates whose gradients are those of the projected features r, z, n."""
_R, _Z, _SAID, _N = range(4)


def write_forward(module: Value, panels: Panels, name: str, how: str) -> None:
    """The function ``name``: ``y`` of all nodes; ``operands`` and ``gates`` for the way back.

    Args:
        how: ``"sum"``, ``"mean"``, ``"max"`` or ``"attention"``.
    """
    code = PanelWriter(module, panels, name)
    code.fields(
        *FIELDS, "projected", "weight", "weight_panel", "bias", "y", "in_places", "extremes", "scores", "score_weight",
        "edge_weights",
    )  # fmt: skip
    with each_tile(code, GATES) as tile:
        with code.build.if_then(tile.has_operands):
            with tile.each_row() as row:
                hear(code, row, how)
            tile.forward_product("product", "weight", code.i64(3), code.field("panels"))
        _gates(code, tile)
        if how == "attention":
            with tile.each_row() as row:
                score_node(code, row)
    code.finish()


def _gates(code: PanelWriter, tile: Tile) -> None:
    build = code.build
    with tile.each_row() as row, row.each_panel() as panel:
        for half in (0, 1):
            own = [code.load_half(row.projected(gate, panel), half) for gate in range(3)]
            said = code.load_half(code.line(code.field("bias"), panel), half)
            said = build.fadd(said, row.heard(_SAID, panel, half))
            heard = _operand(code, row, panel, half)
            r, z = (sigmoid(code, build.fadd(own[gate], row.heard(gate, panel, half))) for gate in (_R, _Z))
            n = tanh(code, code.multiply_add(r, said, own[2]))
            for gate, value in ((_R, r), (_Z, z), (_SAID, said), (_N, n)):
                code.store_half(value, row.gate(gate, panel), half)
            code.store_half(code.multiply_add(z, build.fsub(heard, n), n), row.state("y", panel), half)


def write_backward(module: Value, panels: Panels, name: str, how: str) -> None:
    """The function ``name``: gradients of the gates over the gates, and ``grad_projected`` where it is asked for.

    ``slot_gradients`` hold the gradients of what nodes have heard, for their operands to fetch.
    """
    code = PanelWriter(module, panels, name)
    code.fields(
        *FIELDS, "back_weight", "back_weight_panel", "y", "grad_y", "slot_gradients", "grad_projected", "out_edges",
        "extremes", "score_weight", "edge_weights", "edge_gradients", "score_gradients",
    )  # fmt: skip
    with each_tile(code, GATES, back=True) as tile:
        _gate_gradients(code, tile, how)
        with code.build.if_then(tile.has_operands):
            first_slot = code.index_at(code.field("first_slots"), tile.first)
            out = code.offset(code.field("slot_gradients"), code.field("state_bytes"), first_slot)
            tile.backward_product("product_added", "back_weight", code.i64(3), out)
            with tile.each_row() as row:
                let_hear(code, row, how)
    code.finish()


def _operand(code: PanelWriter, row: Row, panel: Value, half: int) -> Value:
    """Half of what the node hears; 0 for a node without operands."""
    build, has = code.build, row.tile.has_operands
    # Such a node has no place among the operands: anything that is there to be read will do.
    line = build.select(has, row.tile.operand(code.i64(0), panel, row.row), row.gate(_R, panel))
    return build.select(has, code.load_half(line, half), code.constant(0))


def _gate_gradients(code: PanelWriter, tile: Tile, how: str) -> None:
    build, one = code.build, code.constant(1)
    with tile.each_row() as row:
        shared = shared_gradient(code, row) if how == "attention" else None
        with row.each_panel() as panel:
            of_h = _fetched(code, row, panel, how, shared)
            for half in (0, 1):
                gradient = build.load(of_h[half])
                r, z, said, n = (code.load_half(row.gate(gate, panel), half) for gate in range(4))
                heard = _operand(code, row, panel, half)
                of_n = build.fmul(gradient, build.fsub(one, z))
                of_n = build.fmul(of_n, build.fsub(one, build.fmul(n, n)))
                of_z = build.fmul(build.fmul(gradient, build.fsub(heard, n)), build.fmul(z, build.fsub(one, z)))
                of_r = build.fmul(build.fmul(of_n, said), build.fmul(r, build.fsub(one, r)))
                gradients = {_R: of_r, _Z: of_z, _SAID: build.fmul(of_n, r), _N: of_n}
                for gate, value in gradients.items():
                    code.store_half(value, row.gate(gate, panel), half)
                with build.if_then(tile.has_operands):
                    place = row.state("slot_gradients", panel, row.first_slot)
                    code.store_half(build.fmul(gradient, z), place, half)
                with build.if_then(is_asked(code)):
                    for column, gate in enumerate(COLUMNS):
                        code.store_half(gradients[gate], row.projected(column, panel, "grad_projected"), half)


def _fetched(code: PanelWriter, row: Row, panel: Value, how: str, shared: Value | None) -> list[Value]:
    """Variables with the gradient of the output: that of ``y``, and what the users of the node have left for it."""
    build = code.build
    of_h = code.places()
    for half, place in enumerate(of_h):
        value = code.load_half(row.state("grad_y", panel), half)
        if shared is not None:
            weight = code.load_half(code.line(code.field("score_weight"), panel), half)
            value = code.multiply_add(shared, weight, value)
        build.store(value, place)
    with row.each_out_edge() as edge:
        slot = code.index_at(code.field("out_slots"), edge)
        attention = None
        if how == "attention":
            number = code.index_at(code.field("out_edges"), edge)
            attention = code.splat(code.number_at(code.field("edge_weights"), number))
        for half, place in enumerate(of_h):
            value = code.load_half(row.state("slot_gradients", panel, slot), half)
            total = build.load(place)
            if attention is not None:
                total = code.multiply_add(attention, value, total)
            elif how == "max":
                own = code.load_half(row.state("y", panel), half)
                wins = build.fcmp_ordered("==", own, code.load_half(row.state("extremes", panel, slot), half))
                total = build.select(wins, build.fadd(total, value), total)
            else:
                total = build.fadd(total, value)
            build.store(total, place)
    return of_h
