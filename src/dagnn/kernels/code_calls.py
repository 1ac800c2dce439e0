"""A compiled function that calls others: one row of calls after another, each row by whoever takes it."""

from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

from dagnn.kernels.code_writer import I64, CodeWriter, Value
from dagnn.kernels.native_code import Target

CALL_BYTES = 16
"""A call is two int64: the address of the function and that of its frame."""


def write_calls(module: Value, target: Target, name: str) -> None:
    """The function ``name``: the calls ``first_calls[row] .. first_calls[row + 1] - 1`` in order; a piece is a row."""
    code = CodeWriter(module, name, double=False, lanes=target.vector_bytes // 4, target=target)
    code.fields("pieces", "calls", "first_calls")
    function = ir.PointerType(ir.FunctionType(ir.VoidType(), [I64]))
    with code.pieces() as row:
        first = code.offset_at(code.field("first_calls"), row)
        last = code.offset_at(code.field("first_calls"), code.build.add(row, code.i64(1)))
        with code.loop(first, last) as number:
            call = code.at(code.field("calls"), number, CALL_BYTES)
            address, frame = (code.offset_at(call, code.i64(k)) for k in (0, 1))
            code.build.call(code.build.inttoptr(address, function), [frame])
    code.finish()
