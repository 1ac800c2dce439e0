"""The compiled functions of a sweep, made once per process for each kind of cell and precision."""

from collections.abc import Mapping
from functools import cache

from dagnn.kernels.native_code import NativeFunction, compiled
from dagnn.kernels.panels import Panels
from dagnn.kernels.sweep_cells import Kind


@cache
def sweep_functions(kind: Kind, panels: Panels) -> Mapping[str, NativeFunction]:
    """``forward`` and ``backward``; ``weight`` and ``table``, sums over all nodes, and what else the kind needs."""
    from llvmlite import ir  # type: ignore[import-untyped,unused-ignore]

    from dagnn.kernels import code_child_sum, code_gru, code_product, code_sums, code_tree_lstm

    module, names = ir.Module("dagnn"), ["forward", "backward", "weight", "table"]
    code_product.write_product(module, panels, "product", adds=False)
    code_product.write_outer(module, panels, "outer")
    if kind != "tree_lstm":
        code_product.write_product(module, panels, "product_added", adds=True)
    if kind == "tree_lstm":
        code_tree_lstm.write_forward(module, panels, "forward")
        code_tree_lstm.write_backward(module, panels, "backward")
        code_sums.write_weight(module, panels, "weight", code_tree_lstm.GATES, 3)
        code_sums.write_table(module, panels, "table", code_tree_lstm.GATES, (0, 1, 2, 3), per_slot=3)
    elif kind == "child_sum":
        code_child_sum.write_forward(module, panels, "forward")
        code_child_sum.write_backward(module, panels, "backward")
        code_sums.write_weight(module, panels, "weight", code_child_sum.GATES, 3)
        code_sums.write_weight(module, panels, "forget", code_child_sum.FORGET, 1)
        code_sums.write_table(module, panels, "table", code_child_sum.GATES, (0, 1, 2, 3))
        names.append("forget")
    else:
        code_gru.write_forward(module, panels, "forward", kind)
        code_gru.write_backward(module, panels, "backward", kind)
        code_sums.write_weight(module, panels, "weight", code_gru.GATES, 3)
        code_sums.write_table(module, panels, "table", code_gru.GATES, code_gru.COLUMNS)
        code_sums.write_bias(module, panels, "bias", code_gru.GATES, 2)
        names.append("bias")
        if kind == "attention":
            code_sums.write_score(module, panels, "score")
            names.append("score")
    return compiled(str(module), tuple(names), panels.target)
