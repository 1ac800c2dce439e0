"""Modules over one fixed graph for programs without dagnn: what `DagSweep.export` and its like share."""

import copy
import io
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dagnn.errors import ConfigError, GraphError, UntranslatedError
from dagnn.export.c import check_name
from dagnn.export.c_graph import CSource, Interface, graph_files
from dagnn.export.c_sweep import SweptCell
from dagnn.export.onnx_traced import traced_model
from dagnn.files import write_all
from dagnn.kernels.graph_plans import Graph, check_graph, compiled_plan, node_operators
from dagnn.nn.cells import FormulaCell
from dagnn.nn.cells.gated import GatedCell
from dagnn.nn.dag_nn.export import Format, format_of
from dagnn.nn.learnable import LearnableModule

# Numbers in the test program: more take a compiler seconds.
_TEST_NUMBERS = 40_000
_OURS = (FormulaCell, GatedCell)


class ExportsOnGraph(LearnableModule):
    """A module that can be written down for one graph. Abstract: a subclass says what its inputs are, and writes C.

    >>> from dagnn.nn import DagSweep, GRUCell
    >>> isinstance(DagSweep(GRUCell(2, 3)), ExportsOnGraph)
    True
    """

    def export(
        self,
        path: str | PathLike[str],
        format: Format | None = None,
        *,
        graph: Graph | None = None,
        name: str | None = None,
        overwrite: bool = False,
    ) -> list[Path]:
        """Write the module, in eval mode, for programs without dagnn. It then computes on this one graph.

        - **"c"**: C99 without allocation, for libm only. ``path`` is ``net.c``; ``net.h``, which says what x and y
          are, and a test program ``net_test.c`` lie beside it. Functions ``net(x, y)`` for one sample, ``net_batch(x,
          y, n)`` for several. Weights and graph are constants. What a cell computes from the projected features rounds
          as in the compiled path.
        - **"onnx"**: standard operators of opset 18 with fixed shapes, those of this graph. Needs
          ``pip install "dagnn[export]"``.
        - **"torch"**: a program of ``torch.export`` with PyTorch's operators, to be read by ``torch.export.load``
          where dagnn is not installed. Its ``module()`` takes what the module takes, without the graph.

        The dtype is that of the parameters. Parameters that are computed from others are written as they are now.

        Args:
            path: the file to write; its suffix says the format where ``format`` does not.
            format: "c", "onnx" or "torch".
            graph: a `Dag` or a `DagBatch`, with the attributes that the module reads.
            name: of the function in C; by default the file's name without suffix.
            overwrite: replace files that exist.

        Returns:
            the files written: all of them, or after an error none.

        Raises:
            ConfigError: an unknown format, a name that C does not take, a weight that is NaN or infinite, a dtype that
                is neither float32 nor float64, a missing package.
            UntranslatedError: (a ConfigError) in C a cell without a formula, hooks, a function that formulas lack; in
                ONNX an operator without a translation. The message names the formats that take the module.
            GraphError: no graph, one without nodes, or one that the module does not take.
            FileExistsError: a file exists, and ``overwrite`` is False. Other `OSError`: it cannot be written.
        """
        path = Path(path)
        chosen = format_of(path, format)
        if chosen == "c":
            name = check_name(path.stem if name is None else name)
        elif name is not None:
            raise ConfigError(f"name={name!r} is for a function in C, and format={chosen!r} has none: leave it out.")
        if graph is None:
            raise GraphError(f"{type(self).__name__} is exported for one graph: give graph=, a Dag or a DagBatch.")
        check_graph(graph)
        if not graph.num_nodes:
            raise GraphError("graph has no nodes, so there is nothing to compute: give one with nodes.")
        dtype = _dtype(self)
        double = dtype == torch.float64
        with _answering(self) as module:
            try:
                if chosen == "c":
                    check_as_written(module)
                    content = module._c_files(graph, path.stem, str(name), double)
                else:
                    content = {path.name: module._traced(graph, chosen, double)}
            except UntranslatedError as error:
                others = module._other_formats(graph, chosen, double)
                more = f"It can be exported with {others}." if others else "No other format takes it."
                raise UntranslatedError(f"{error} {more}") from error
        return write_all({path.with_name(file): part for file, part in content.items()}, overwrite=overwrite)

    _inputs: tuple[str, ...] = ("x",)
    _results: tuple[str, ...] = ("y",)

    @abstractmethod
    def _samples(self, graph: Graph, count: int) -> list[Tensor]:
        """Inputs for a test, drawn at random: what `forward` takes before the graph."""

    @abstractmethod
    def _as_c(self, source: CSource, graph: Graph) -> tuple[Interface, list[str], int]:
        """Adds what it needs to the source; what the header says, the statements, and numbers of memory."""

    def _outputs(self, x: Tensor, graph: Graph) -> tuple[Tensor, ...]:
        """All that `forward` returns, in its order."""
        y = self(x, graph)
        return y if isinstance(y, tuple) else (y,)

    def _c_files(self, graph: Graph, stem: str, name: str, double: bool) -> dict[str, bytes]:
        with torch.no_grad():
            first = self._samples(graph, 1)[0]
            # First of all: this raises for a graph that the module does not take.
            numbers = first.numel() + sum(y.numel() for y in self._outputs(first, graph))
            samples = self._samples(graph, max(1, min(8, _TEST_NUMBERS // numbers)))
            results = [torch.cat([y.flatten() for y in self._outputs(x, graph)]) for x in samples]
        source = CSource(stem, name, double)
        interface, body, work = self._as_c(source, graph)
        x, y = torch.stack([one.flatten() for one in samples]), torch.stack(results)
        given = x.numpy().astype(np.int32) if not x.is_floating_point() else x.numpy()
        return graph_files(source, interface, body, work, given, y.numpy())

    def _other_formats(self, graph: Graph, chosen: str, double: bool) -> str:
        """The formats that take the module, of those that could where the chosen one does not."""
        found = []
        with suppress(ConfigError):
            if chosen != "c":
                check_as_written(self)
                self._as_c(CSource("net", "net", double), graph)
                found.append("format='c'")
        with suppress(ConfigError):
            self._program(graph)
            found.append("format='torch'")
        return " or ".join(found)

    def _traced(self, graph: Graph, chosen: str, double: bool) -> bytes:
        """A program of torch.export, or ONNX from one."""
        program = self._program(graph)
        if chosen == "onnx":
            return traced_model(program, self._inputs, self._results, double=double)
        # An empty tensor that came from NumPy has the address of memory, and PyTorch takes it for a part of that.
        for name, value in program.constants.items():
            if isinstance(value, Tensor) and not value.numel():
                program.constants[name] = value.new_empty(value.shape)
        file = io.BytesIO()
        torch.export.save(program, file)
        return file.getvalue()

    def _program(self, graph: Graph) -> torch.export.ExportedProgram:
        for name, value in self.state_dict().items():
            if isinstance(value, Tensor) and not torch.isfinite(value).all():
                raise ConfigError(
                    f"{name} has numbers that are NaN or infinite: load a network that was trained without."
                )
        (x,) = self._samples(graph, 1)
        with torch.no_grad():
            self._outputs(x, graph)  # raises for a graph that the module does not take
        try:
            return torch.export.export(_OnGraph(self, graph), (x,))
        except Exception as error:  # of a cell of the user's, or of PyTorch's tracer
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise ConfigError(
                f"torch.export cannot trace {type(self).__name__}: {reason:.200} A cell may not look at the values of "
                "tensors, as DiscreteCell does."
            ) from error


class _OnGraph(nn.Module):
    """A module on a graph that is part of it."""

    def __init__(self, module: ExportsOnGraph, graph: Graph) -> None:
        super().__init__()
        self.module, self._graph = module, graph

    def forward(self, x: Tensor) -> Any:
        outputs = self.module._outputs(x, self._graph)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def swept_cell(cell: nn.Module, graph: Graph, way: Literal["up", "down"]) -> SweptCell:
    """A cell and the order in which it goes over a graph, as arrays; UntranslatedError if no formula computes it."""
    is_ours = isinstance(cell, FormulaCell) and all(
        any(getattr(type(cell), method) is getattr(ours, method) for ours in _OURS)
        for method in ("forward", "project", "of_features")
    )
    if is_ours and isinstance(cell, GatedCell):  # its gru may have been replaced
        is_ours = type(cell.gru).forward is nn.GRUCell.forward and cell.gru.bias
    if not is_ours:
        raise UntranslatedError(
            f"C is written from the formula of a cell, and {type(cell).__name__} runs other code: write it as a "
            "FormulaCell."
        )
    assert isinstance(cell, FormulaCell)
    by_position, by_operator = cell.max_children is not None, cell.operators is not None
    weight, bias = cell.of_features()
    projected = cell.project(weight.new_zeros(0, len(weight)))
    return SweptCell(
        cell.plan,
        cell.hidden,
        array_of(weight),
        array_of(bias),
        tuple(map(array_of, projected.weights)),
        compiled_plan(graph, way, by_position=by_position, by_operator=by_operator),
        node_operators(graph, torch.device("cpu")).numpy() if by_operator else None,
    )


def array_of(value: Tensor) -> NDArray[Any]:
    """A weight on the CPU as an array; whole, if it is sharded."""
    whole = value.full_tensor() if hasattr(value, "full_tensor") else value
    array: NDArray[Any] = whole.detach().numpy()
    return array


def check_as_written(module: nn.Module) -> None:
    """Raise UntranslatedError where a call runs more than the modules' own code, which C would leave out."""
    for name, part in _hooked(module):
        raise UntranslatedError(
            f"{name or type(part).__name__} has hooks or a forward of its own, which C would leave out: remove them."
        )


def _hooked(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    everywhere = nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
    for name, part in module.named_modules():
        if (
            everywhere
            or "forward" in vars(part)
            or part._forward_hooks
            or part._forward_pre_hooks
            or part._backward_hooks
            or part._backward_pre_hooks
        ):
            yield name, part


def _dtype(module: nn.Module) -> torch.dtype:
    found = {one.dtype for one in module.parameters()}
    devices = {one.device.type for one in module.parameters()}
    if len(found) != 1 or not found <= {torch.float32, torch.float64} or "meta" in devices:
        listed = ", ".join(sorted(map(str, found))) or "no parameters"
        raise ConfigError(
            f"networks leave PyTorch in float32 or float64, with values, got {listed} on {', '.join(sorted(devices))}: "
            "convert the network first, as with net.float()."
        )
    return found.pop()


@contextmanager
def _answering(module: ExportsOnGraph) -> Iterator[ExportsOnGraph]:
    """The module, or a copy on the CPU, in eval mode: dropout of a user's cell would stay in a program."""
    is_there = all(one.device.type in ("cpu", "meta") for one in module.parameters())
    module = module if is_there else copy.deepcopy(module).cpu()
    modes = [(part, part.training) for part in module.modules()]
    try:
        yield module.eval()
    finally:
        for part, mode in modes:
            part.training = mode
