"""`Panels`: how the numbers of a sweep lie in memory, for the processor at hand.

A matrix ``[rows, columns]`` is cut into panels of ``width`` columns, two vector registers wide, and lies panel after
panel: ``[panels, rows, width]``. A matrix product then reads both factors one cache line after the other, whatever
their sizes, and no two rows are a power of two apart.
"""

from dataclasses import dataclass

from dagnn.kernels.native_code import Target


@dataclass(frozen=True)
class Panels:
    """What a set of compiled functions of a sweep is made for.

    Attributes:
        double: float64, else float32.
        target: the processor.
    """

    double: bool
    target: Target

    @property
    def size(self) -> int:
        """Bytes of a number."""
        return 8 if self.double else 4

    @property
    def lanes(self) -> int:
        """Numbers of a vector."""
        return self.target.vector_bytes // self.size

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return 2 * self.lanes

    @property
    def line(self) -> int:
        """Bytes of a panel's row."""
        return self.width * self.size

    @property
    def row_blocks(self) -> tuple[int, ...]:
        """Rows that a product computes at once, with two sums each in registers, largest first; the last is 1."""
        return (12, 6, 4, 2, 1) if self.target.vector_bytes == 64 else (6, 4, 2, 1)

    def count(self, columns: int) -> int:
        """Panels of a matrix with so many columns; the last one is filled up with zeros."""
        return -(-columns // self.width)
