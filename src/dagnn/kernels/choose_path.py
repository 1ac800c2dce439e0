"""The one place that chooses how a network or a sweep runs.

Two paths: ``compiled``, machine code for the processor at hand, for networks and cells with a formula on the CPU, and
Triton kernels for both on a GPU; and ``reference``, plain PyTorch, for everything else. The environment variable
``DAGNN_KERNELS`` forces a path by name; it is read at every call.
"""

import importlib
import importlib.util
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from types import ModuleType
from typing import Literal, TypeGuard

import torch
from torch import Tensor, nn

from dagnn.errors import ConfigError
from dagnn.graph.cached import constant
from dagnn.kernels import autograd, graph_plans, reference
from dagnn.kernels.network import autograd_function as network
from dagnn.kernels.network import conductance
from dagnn.kernels.network.conductance import ConductancePlan, Conductances
from dagnn.kernels.network.conductance_code import run_compiled as run_compiled_conductance
from dagnn.kernels.network.conductance_products import ProductPlan, run_products
from dagnn.kernels.network.plan import NetworkPlan
from dagnn.kernels.reference import Cell
from dagnn.kernels.sweep import autograd_function as sweep
from dagnn.kernels.sweep.autograd_function import ProjectedCell, Projects, SweepGraph, fits
from dagnn.kernels.sweep.cell_plan import CellPlan
from dagnn.kernels.wide import autograd_function as wide
from dagnn.kernels.wide.operators import run_operator as run_wide_operator
from dagnn.kernels.wide.plan import WideParameters, WidePlan, WideResult, WideState
from dagnn.kernels.wide.plan import run_reference as run_wide_reference

_PATHS = ("compiled", "reference")
_VARIABLE = "DAGNN_KERNELS"
_KEY = getattr(os.environ, "encodekey", str)(_VARIABLE)
_Way = Literal["up", "down"]
_FLOATS = (torch.float32, torch.float64)
_HAS_TRITON = importlib.util.find_spec("triton") is not None


def kernel_path() -> str:
    """Name of the path that runs where it can, from ``DAGNN_KERNELS`` if it is set.

    Raises:
        ConfigError: the variable names no path.
    """
    if not torch.compiler.is_compiling() and _is_unset():  # Dynamo would recompile when any other variable changed
        return "compiled"
    path = os.environ.get(_VARIABLE, "") or "compiled"
    if path not in _PATHS:
        raise ConfigError(
            f"DAGNN_KERNELS={path!r} is not a kernel path: unset it, or set it to one of {', '.join(_PATHS)}."
        )
    return path


def _is_unset() -> bool:
    """Whether `_VARIABLE` is certainly not set."""
    # os.environ.get raises and catches two errors for a variable that is not there: 8 us of a step of 1 ms.
    data = getattr(os.environ, "_data", None)
    return data is not None and _KEY not in data


def run_network(plan: NetworkPlan, x: Tensor, edge_weight: Tensor, bias: Tensor) -> Tensor:
    """Outputs ``[B, outputs]`` of a network, by the path that can run it; see `reference.run_network`.

    Args:
        plan: the network.
        x: float ``[B, inputs]``.
        edge_weight: ``[num_edges]``, the dtype of ``x``.
        bias: ``[num_biases]``, the dtype of ``x``.

    Raises:
        GraphError: the parameters have other lengths than the plan says.

    >>> from dagnn.kernels import plan_network
    >>> edges, inputs, outputs = torch.tensor([[0, 1]]), torch.tensor([0]), torch.tensor([1])
    >>> plan = plan_network(edges, torch.tensor([0, 1]), inputs, outputs, torch.tensor([False, True]), ["relu"] * 2)
    >>> run_network(plan, torch.tensor([[2.0]]), torch.tensor([3.0]), torch.tensor([1.0]))
    tensor([[7.]])
    """
    if torch.compiler.is_compiling():
        # An exported program outlives this process: it may contain PyTorch's operators only.
        if not torch.compiler.is_exporting() and _becomes_operator(x, edge_weight, bias) and not plan.why_reference:
            if x.device.type == "cuda":
                _load_gpu()
            return network.run_operator(plan, x, edge_weight, bias)
        return reference.run_network(plan.levels_as_constant(), x, edge_weight, bias)
    if _is_compiled(x, edge_weight, bias) and not plan.why_reference:
        y: Tensor = network.run_network(plan, x, edge_weight, bias)
        return y
    if _is_on_gpu(x, edge_weight, bias) and not plan.why_reference:
        return _gpu("network").run_network(plan, x, edge_weight, bias)  # type: ignore[no-any-return]
    return reference.run_network(plan.levels, x, edge_weight, bias)


def replace_gradients(
    plan: NetworkPlan,
    x: Tensor,
    rows: Tensor,
    edge_weight: Tensor,
    bias: Tensor,
    gradient_of: Callable[[Tensor], Tensor],
) -> None:
    """Gradients of the parameters for one batch, in their ``.grad``, which must be there; what it held is gone.

    Args:
        x: ``[samples, inputs]``, contiguous.
        rows: int64 ``[B]``, contiguous, rows of x: the batch; B at least 1.
        gradient_of: the gradient of the outputs ``[B, outputs]``, from the outputs, in whose memory it may be.
    """
    if _is_compiled(x, edge_weight.detach(), bias.detach()) and not plan.why_reference:
        network.replace_gradients(plan, x, rows, edge_weight, bias, gradient_of)
        return
    assert edge_weight.grad is not None
    assert bias.grad is not None
    with torch.enable_grad():
        y = reference.run_network(plan.levels, x[rows], edge_weight, bias)
    found = torch.autograd.grad(y, (edge_weight, bias), gradient_of(y.detach().clone()), allow_unused=True)
    for parameter, gradient in zip((edge_weight, bias), found, strict=True):
        assert parameter.grad is not None
        parameter.grad.zero_() if gradient is None else parameter.grad.copy_(gradient)


def run_conductance(
    plan: ConductancePlan | ProductPlan,
    x: Tensor,
    way: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    rule: conductance.Rule,
    steps: int,
    is_compiled: bool = True,
) -> Conductances:
    """Conductances along a path, by the path that can run them; see `conductance.run_conductance`.

    Args:
        is_compiled: the compiled path has all activations. It has no products.
    """
    if isinstance(plan, ProductPlan):
        return run_products(plan, x, way, weight, bias, rule=rule, steps=steps)
    if is_compiled and plan.output_row >= 0 and _is_compiled(x, way, weight, bias):
        return run_compiled_conductance(plan, x, way, weight, bias, rule=rule, steps=steps)
    return conductance.run_conductance(plan, x, way, weight, bias, rule=rule, steps=steps)


def explain_network(plan: NetworkPlan, edge_weight: Tensor, bias: Tensor) -> str:
    """Which path runs a network with these parameters, and why."""
    if _is_on_gpu(edge_weight, bias) and not plan.why_reference:
        return _on_gpu_explained(edge_weight)
    return _explained(edge_weight, plan.why_reference, bias)


def _on_gpu_explained(edge_weight: Tensor) -> str:
    return f"compiled: Triton kernels for {edge_weight.device}, forward and backward"


def _explained(edge_weight: Tensor, why: str, *others: Tensor) -> str:
    why = why or _why_reference(edge_weight, *others)
    if not why:
        return "compiled: machine code for this processor, forward and backward"
    return f"reference: plain PyTorch, level by level, because {why}"


def _why_reference(*parameters: Tensor) -> str:
    """Why code for this processor does not take these parameters; empty where it does."""
    first = parameters[0]
    if kernel_path() != "compiled":
        return f"{_VARIABLE}={kernel_path()}"
    if first.dtype not in _FLOATS:
        return f"its parameters are {first.dtype}"
    if not first.is_cpu:
        missing = ", and triton is not installed (pip install dagnn[triton])"
        return f"its parameters are on the device {first.device}{missing * (first.is_cuda and not _HAS_TRITON)}"
    return "" if _is_compiled(*parameters) else "its parameters are no plain tensors"


def explain_cell(plan: CellPlan, parameters: Iterable[Tensor]) -> str:
    """Which path runs a cell with these parameters, and why; see `dagnn.nn.FormulaCell.explain`."""
    given = list(parameters)
    on_gpu = _is_on_gpu(*given)
    why = plan.reason or ("" if on_gpu else _why_reference(*given))
    if why:
        return f"level by level: {why}"
    return f"compiled: Triton kernels for {given[0].device}" if on_gpu else "compiled"


def accumulate_network(
    plan: NetworkPlan, x: Tensor, edge_weight: Tensor, bias: Tensor, grad_y: Tensor, lr: float | None = None
) -> bool:
    """Adds the gradients for ``grad_y [B, outputs]`` to ``.grad`` in one compiled pass, without autograd.

    Args:
        lr: where given, a fused step: the pass also does ``parameter -= lr * .grad``.

    Returns:
        False, with nothing changed, where the compiled path cannot take these tensors: use autograd then.
    """
    if x.requires_grad or not _is_compiled(x, edge_weight, bias, grad_y) or plan.why_reference:
        return False
    accumulated: bool = network.accumulate(plan, x, edge_weight, bias, grad_y, lr)
    return accumulated


def run_wide(plan: WidePlan, x: Tensor, parameters: WideParameters, state: WideState) -> WideResult:
    """Values of the nodes that are read, by the path that can run it; see `kernels.wide.plan.run_reference`.

    Args:
        x: float ``[B, columns]``.
        parameters, state: of the dtype of ``x`` and the sizes that the plan says.
    """
    given = [each for each in (x, *parameters, *state) if each is not None]
    if torch.compiler.is_compiling():
        # An exported program outlives this process: it may contain PyTorch's operators only.
        if not torch.compiler.is_exporting() and _becomes_operator(*given):
            if x.device.type == "cuda":
                if plan.why_not_on_gpu():
                    return run_wide_reference(plan, x, parameters, state)
                _load_gpu()
            return run_wide_operator(plan, x, parameters, state)
        return run_wide_reference(plan, x, parameters, state)
    if _is_compiled(*given):
        return wide.run_wide(plan, x, parameters, state)
    if _is_on_gpu(*given) and not plan.why_not_on_gpu():
        return _gpu("wide").run_wide(plan, x, parameters, state)  # type: ignore[no-any-return]
    return run_wide_reference(plan, x, parameters, state)


def explain_wide(plan: WidePlan, edge_weight: Tensor) -> str:
    """Which path runs a network of wide nodes with these weights, and why."""
    why = plan.why_not_on_gpu() if edge_weight.is_cuda else ""
    if _is_on_gpu(edge_weight) and not why:
        return _on_gpu_explained(edge_weight)
    return _explained(edge_weight, why)


def run_sweeps(
    graph: graph_plans.Graph,
    cells: Mapping[_Way, Cell],
    features: Tensor,
    rows: Tensor | None = None,
    *,
    by_level: Collection[str] = (),
) -> list[Tensor]:
    """Outputs ``[num_nodes, width]`` of a sweep of each cell over a graph; see `reference.run_sweep`.

    Args:
        cells: for ``"up"``, along the edges, and ``"down"``, against them, or for one of the two. A cell that
            `Projects` is compiled where that is possible; every other one is called level by level.
        features: ``[num_nodes, in_features]``, or with ``rows`` ``[any number, in_features]``.
        rows: int64 ``[num_nodes]``, the row of ``features`` of every node.
        by_level: directions whose cell is called level by level, even if it could be compiled.

    Raises:
        ConfigError: ``DAGNN_KERNELS`` names no path.
        GraphError: a cell distinguishes operators, and the graph has none; or the graph was written to.

    >>> class Height:
    ...     state_sizes = (1,)
    ...
    ...     def __call__(self, features, states, target, position):
    ...         return (reference.segment_max(states[0], target, len(features)) + 1,)
    >>> from dagnn.graph import Dag
    >>> run_sweeps(Dag([(0, 1), (1, 2)]), {"up": Height()}, torch.zeros(3, 1))[0].flatten()
    tensor([1., 2., 3.])
    """
    kernel_path()  # raises for an unknown path, also where no cell could be compiled
    outputs: dict[str, Tensor] = {}
    compiled: dict[str, tuple[SweepGraph, ProjectedCell]] = {}
    for direction, cell in cells.items():
        compiles = direction not in by_level and _projects(cell) and _compiles(cell, graph, features, rows)
        ready = _compiled_sweep(graph, direction, cell, features, rows) if compiles else None  # type: ignore[arg-type]
        if ready is None:
            outputs[direction] = _run_by_level(graph, direction, cell, features, rows)
        elif _is_on_gpu(features):
            outputs[direction] = _gpu("sweep").run_sweep(*ready)
        else:
            compiled[direction] = ready
    if compiled:
        outputs |= zip(compiled, sweep.run_sweeps(list(compiled.values())), strict=True)
    return [outputs[direction] for direction in cells]


def _compiled_sweep(
    graph: graph_plans.Graph, direction: _Way, cell: Projects, features: Tensor, rows: Tensor | None
) -> tuple[SweepGraph, ProjectedCell] | None:
    """What the compiled path needs; None where the cell's tensors do not fit the graph."""
    device, operators = features.device, cell.operators
    plan = graph_plans.compiled_plan(
        graph, direction, by_position=cell.max_children is not None, by_operator=operators is not None
    )
    projected = cell.project(features)
    # Compiled code reads wherever the plan and the sizes send it, so it must never see tensors that do not fit. The
    # reference path takes those, and PyTorch raises the error.
    is_fit = fits(projected, plan, by_operator=operators) and projected.hidden == cell.state_sizes[0]
    given = (projected.projected, *projected.weights)
    if not is_fit or not (_is_compiled(*given) or _is_on_gpu(*given)):
        return None
    own = SweepGraph(
        plan,
        lambda: graph_plans.sweep_plan(graph, direction, device),
        lambda: graph_plans.edge_positions(graph, device),
        None if operators is None else graph_plans.node_operators(graph, device),
        None if rows is None else _checked_rows(rows, len(features)),
    )
    return own, projected.as_reached()


def _checked_rows(rows: Tensor, count: int) -> Tensor:
    """A copy of rows in ``0 .. count - 1``: the user may write to theirs before the backward pass."""
    if rows.is_cpu:  # the module has looked at them
        return rows.clone()
    # Where looking at them would wait for the GPU, PyTorch's own kernel checks them, and stops the program.
    return torch.arange(count, device=rows.device).index_select(0, rows)


def _run_by_level(
    graph: graph_plans.Graph, direction: _Way, cell: Cell, features: Tensor, rows: Tensor | None
) -> Tensor:
    device = features.device
    levels, position = graph_plans.sweep_plan(graph, direction, device), graph_plans.edge_positions(graph, device)
    by_operator = getattr(cell, "operators", None) is not None
    operator = graph_plans.node_operators(graph, device) if by_operator else None
    of_nodes = features if rows is None else features.index_select(0, rows)
    return reference.run_sweep(levels, of_nodes, position, cell, operator)


def _projects(cell: Cell) -> TypeGuard[Projects]:
    # Not isinstance: in Python 3.11 asking a protocol took a tenth of a step over one small graph.
    return all(hasattr(cell, name) for name in ("project", "max_children", "operators"))


def _compiles(cell: Projects, graph: graph_plans.Graph, features: Tensor, rows: Tensor | None) -> bool:
    """Whether the compiled path takes a sweep of this cell."""
    parameters = cell.parameters() if isinstance(cell, nn.Module) else ()
    if not graph.num_nodes or torch.compiler.is_compiling():
        return False
    given, is_plain = (features, *parameters), autograd.is_plain
    if _is_on_gpu(*given):
        is_plain = autograd.is_plain_on_gpu
    elif not _is_compiled(*given):
        return False
    if torch.is_autocast_enabled(features.device.type):
        return False
    if rows is not None and not (is_plain(rows) and rows.device == features.device):
        return False
    if cell.max_children is None:
        return True
    # Positions out of range go to the cell itself, which raises the error.
    bounds = graph_plans.position_bounds(graph)
    return bounds is not None and bounds[0] >= 0 and bounds[1] < cell.max_children


def _becomes_operator(*tensors: Tensor) -> bool:
    """Whether the compiled path takes these tensors, while ``torch.compile`` traces."""
    # Not `autograd.is_plain`: what it looks at exists for real tensors only.
    dtype = tensors[0].dtype
    device = tensors[0].device
    of_one_kind = all(t.dtype == dtype and t.device == device and t.layout == torch.strided for t in tensors)
    of_one_kind = of_one_kind and (device.type == "cpu" or (device.type == "cuda" and _HAS_TRITON))
    return kernel_path() == "compiled" and dtype in _FLOATS and of_one_kind


def _is_compiled(*tensors: Tensor) -> bool:
    """Whether the compiled path takes these tensors: on the CPU, all float32 or all float64, and plain memory."""
    dtype = tensors[0].dtype
    if kernel_path() != "compiled" or dtype not in _FLOATS or autograd.is_watched():
        return False
    for tensor in tensors:  # noqa: SIM110  # a loop, not `all(...)`: this runs in every step
        if tensor.dtype != dtype or not autograd.is_plain(tensor):
            return False
    return True


def _is_on_gpu(*tensors: Tensor) -> bool:
    """Whether Triton kernels take these tensors: on one GPU, all float32 or all float64, and plain memory."""
    first = tensors[0]
    if not (first.is_cuda and _HAS_TRITON and first.dtype in _FLOATS and kernel_path() == "compiled"):
        return False
    return not autograd.is_watched() and all(
        one.dtype == first.dtype and one.device == first.device and autograd.is_plain_on_gpu(one) for one in tensors
    )


def _gpu(part: str) -> ModuleType:
    """Kernels for a GPU: triton takes a second to import, and many installations have none."""
    return importlib.import_module(f"dagnn.kernels.gpu.{part}")


@constant
def _load_gpu() -> None:
    """Before ``torch.compile`` runs the operator on a GPU: its kernels are registered when they are imported."""
    _gpu("network")
    _gpu("wide")
