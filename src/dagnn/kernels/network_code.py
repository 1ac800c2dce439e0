"""The compiled functions of a network, made once per process for each shape."""

from collections.abc import Mapping
from functools import cache

from dagnn.kernels.code_tiles import Shape
from dagnn.kernels.native_code import NativeFunction, compiled


@cache
def tile_functions(shape: Shape) -> Mapping[str, NativeFunction]:
    """``forward``, ``backward``, ``gather`` and ``finish`` for tiles of sparse nodes."""
    from dagnn.kernels import code_backward, code_edges, code_forward

    module = _module(shape)
    code_forward.write_forward(module, shape, "forward", summed=False)
    code_backward.write_backward(module, shape, "backward")
    code_edges.write_gather(module, shape, "gather")
    code_edges.write_finish(module, shape, "finish")
    return compiled(str(module), ("forward", "backward", "gather", "finish"), shape.target)


@cache
def block_functions(shape: Shape) -> Mapping[str, NativeFunction]:
    """``activate``: bias and activation for the nodes whose sums a matrix product computed."""
    from dagnn.kernels import code_forward

    module = _module(shape)
    code_forward.write_forward(module, shape, "activate", summed=True)
    return compiled(str(module), ("activate",), shape.target)


@cache
def single_functions(shape: Shape) -> Mapping[str, NativeFunction]:
    """``forward`` and ``backward``, one sample at a time."""
    from dagnn.kernels import code_single

    module = _module()
    code_single.write_single_forward(module, shape, "forward")
    code_single.write_single_backward(module, shape, "backward")
    return compiled(str(module), ("forward", "backward"), shape.target)


def _module(shape: Shape | None = None) -> object:
    """A module, with what tiles of a shape need between matrices and rows."""
    from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

    module = ir.Module("dagnn")
    if shape is not None:
        from dagnn.kernels import code_rows

        code_rows.write_read_rows(module, shape)
        code_rows.write_write_rows(module, shape)
    return module
