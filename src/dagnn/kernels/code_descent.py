"""A step of plain gradient descent, in compiled code that has just computed a gradient."""

from dagnn.kernels.code_writer import I32, CodeWriter, Value


def descend(code: CodeWriter, gradient: Value, address: Value) -> None:
    """``parameter -= lr * gradient``, for a number or a vector of them; `Frame.set_descent` sets ``lr``."""
    build = code.build
    if code.double:
        lr = build.bitcast(code.field("lr"), code.number)
    else:
        lr = build.bitcast(build.trunc(code.field("lr"), I32), code.number)
    if gradient.type == code.vector:
        lr = code.splat(lr)
    parameter = code.load(address, gradient.type, code.size)
    code.store(code.multiply_add(build.fneg(lr), gradient, parameter), address, code.size)
