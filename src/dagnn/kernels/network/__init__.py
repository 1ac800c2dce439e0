"""One DAG with a weight per edge: its plan, and its compiled forward and backward passes, made for a `Shape`."""

from dataclasses import dataclass

from dagnn.kernels.emit.writer import CodeWriter, TargetShape, Value

INPUT = 0  # the code of a node whose value is given; those of activations follow


@dataclass(frozen=True)
class Shape(TargetShape):
    """What a set of compiled functions is made for.

    Attributes:
        tile: samples of a tile, a power of two.
        activations: those that occur, sorted; the code of one is 1 + its place. `INPUT` is that of a node whose value
            is given.
        apart: rows are as far from each other as the frame says, not next to each other.
        far: the values of a tile don't stay in the second-level cache.
        aggregations: how nodes that are no plain sums aggregate; see `Aggregated`.
        skips_inputs: whether the backward pass computes no gradients of inputs that nobody asks for. That takes a
            second loop over the edges of a node: a third more to compile.
    """

    tile: int
    activations: tuple[str, ...]
    apart: bool
    far: bool
    aggregations: tuple[str, ...] = ()
    skips_inputs: bool = False

    @property
    def lanes(self) -> int:
        """Numbers of a vector; a tile may be narrower than the processor's vectors."""
        return min(self.tile, self.target.vector_bytes // self.size)

    @property
    def vectors(self) -> int:
        """Vectors of a row."""
        return self.tile // self.lanes

    def row_start(self, code: CodeWriter, base: Value, node: Value) -> Value:
        """The address of a node's row."""
        row_bytes = code.field("row_bytes") if self.apart else code.i64(self.tile * self.size)
        return code.offset(base, row_bytes, node)

    def row(self, code: CodeWriter, base: Value, node: Value) -> list[Value]:
        """The addresses of the vectors of a node's row."""
        first = self.row_start(code, base, node)
        return [code.build.add(first, code.i64(k * self.lanes * self.size)) for k in range(self.vectors)]
