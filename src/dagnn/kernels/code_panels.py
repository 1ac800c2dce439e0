"""`PanelWriter`: what the compiled functions of a sweep do with rows of panels, two vectors at a time."""

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn.kernels.code_math import exp, tanh
from dagnn.kernels.code_writer import CodeWriter, Value
from dagnn.kernels.panels import Panels


class PanelWriter(CodeWriter):
    """A `CodeWriter` whose vectors are the halves of a panel's row.

    Loads and stores ask for no alignment: rows may lie in tensors of the user's, and aligned ones are as fast anyway.

    Args:
        module, name, num_arguments: as for `CodeWriter`.
        panels: the precision and the processor.
    """

    def __init__(self, module: Value, panels: Panels, name: str, num_arguments: int | None = None) -> None:
        super().__init__(
            module,
            name,
            double=panels.double,
            lanes=panels.lanes,
            target=panels.target,
            num_arguments=num_arguments,
        )
        self.panels = panels

    def half(self, line: Value, half: int) -> Value:
        """The address of a half (0 or 1) of a panel's row."""
        return self.build.add(line, self.i64(half * self.lanes * self.size))

    def load_half(self, line: Value, half: int) -> Value:
        return self.load(self.half(line, half), self.vector, self.size)

    def store_half(self, value: Value, line: Value, half: int) -> None:
        self.store(value, self.half(line, half), self.size)

    def add_to_half(self, value: Value, line: Value, half: int) -> None:
        self.store_half(self.build.fadd(self.load_half(line, half), value), line, half)

    def line(self, base: Value, panel: Value) -> Value:
        """The address of a panel's part of a row whose panels lie side by side."""
        return self.at(base, panel, self.panels.line)

    def places(self, count: int = 2) -> list[Value]:
        """Variables for vectors, all 0 now: one for each half, or as many as asked for."""
        result = [self.variable(self.vector) for _ in range(count)]
        for place in result:
            self.build.store(self.constant(0), place)
        return result

    def number_at(self, base: Value, index: Value) -> Value:
        """Entry of an array of numbers."""
        return self.load(self.at(base, index, self.size), self.number, self.size)

    def number_constant(self, value: float) -> Value:
        return ir.Constant(self.number, value)


def sigmoid(code: CodeWriter, z: Value) -> Value:
    """1 / (1 + e^-z). In float32 by way of tanh, which costs half: off by at most 1.4e-7."""
    build = code.build
    if code.double:
        one = code.constant(1)
        return build.fdiv(one, build.fadd(one, exp(code, build.fneg(z))))
    half = code.constant(0.5)
    return code.multiply_add(half, tanh(code, build.fmul(half, z)), half)
