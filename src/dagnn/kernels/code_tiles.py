"""What the compiled functions for tiles have in common: their shape and a switch over activations.

A *tile* is a part of the batch: ``tile`` samples of every node. A node's *row* is its ``tile`` numbers of one tile,
contiguous: a few vector registers.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn.kernels.code_activations import CODES
from dagnn.kernels.code_writer import I8, CodeWriter, Value
from dagnn.kernels.native_code import Target


@dataclass(frozen=True)
class Shape:
    """What a set of compiled functions is made for.

    Attributes:
        double: float64, else float32.
        tile: samples of a tile, a power of two.
        activations: names of those that occur, sorted.
        target: the processor.
        apart: rows are as far from each other as the frame says, not next to each other.
        far: the values of a tile don't stay in the second-level cache.
    """

    double: bool
    tile: int
    activations: tuple[str, ...]
    target: Target
    apart: bool
    far: bool

    @property
    def size(self) -> int:
        """Bytes of a number."""
        return 8 if self.double else 4

    @property
    def lanes(self) -> int:
        """Numbers of a vector."""
        return min(self.tile, self.target.vector_bytes // self.size)

    @property
    def vectors(self) -> int:
        """Vectors of a row."""
        return self.tile // self.lanes

    def writer(self, module: Value, name: str, num_arguments: int | None = None) -> CodeWriter:
        return CodeWriter(
            module, name, double=self.double, lanes=self.lanes, target=self.target, num_arguments=num_arguments
        )

    def row_start(self, code: CodeWriter, base: Value, node: Value) -> Value:
        """The address of a node's row."""
        row_bytes = code.field("row_bytes") if self.apart else code.i64(self.tile * self.size)
        return code.offset(base, row_bytes, node)

    def row(self, code: CodeWriter, base: Value, node: Value) -> list[Value]:
        """The addresses of the vectors of a node's row."""
        first = self.row_start(code, base, node)
        return [code.build.add(first, code.i64(k * self.lanes * self.size)) for k in range(self.vectors)]


def ask_for_row(code: CodeWriter, shape: Shape, base: Value, nodes: str, edge: Value, ahead: int) -> None:
    """Have the row of the node at the other end of a later edge brought into the caches.

    Args:
        nodes: array of these nodes, by edge; so much longer than there are edges as ``ahead`` says.
    """
    later = code.index_at(code.field(nodes), code.build.add(edge, code.i64(ahead)))
    code.prefetch(shape.row_start(code, base, later), shape.tile * shape.size)


def by_activation(
    code: CodeWriter,
    shape: Shape,
    activation: Value,
    case: Callable[[str], None],
    otherwise: Callable[[], None] | None = None,
) -> None:
    """``case(name)`` for the code of an activation; ``otherwise`` for an input."""
    build = code.build
    blocks = {name: build.append_basic_block(name) for name in shape.activations}
    rest, done = build.append_basic_block("input"), build.append_basic_block("activated")
    switch = build.switch(activation, rest)
    for name, block in blocks.items():
        switch.add_case(ir.Constant(I8, CODES[name]), block)
        build.position_at_end(block)
        case(name)
        build.branch(done)
    build.position_at_end(rest)
    if otherwise is not None:
        otherwise()
    build.branch(done)
    build.position_at_end(done)


def bias_of(code: CodeWriter, node: Value) -> Value:
    """The bias of a node; 0 where it has none."""
    build = code.build
    slot = code.index_at(code.field("bias_slots"), node)
    none = build.icmp_signed("<", slot, code.i64(0))
    nothing = code.variable(code.number)
    code.build.store(ir.Constant(code.number, 0.0), nothing)
    place = code.at(code.field("bias"), slot, code.size)
    return code.load(build.select(none, build.ptrtoint(nothing, place.type), place), code.number)


def is_given(code: CodeWriter, name: str) -> Value:
    """Whether an entry of the frame is not 0."""
    return code.build.icmp_signed("!=", code.field(name), code.i64(0))
