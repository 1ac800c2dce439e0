"""A `DagNN` and other programs: `from_neat` reads one, `export` writes it for them, `predictor` takes NumPy arrays."""

import io
import re
import threading
from collections.abc import Callable, Hashable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dagnn import kernels
from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.export import Program
from dagnn.export.c import Rounding, c_files, check_name
from dagnn.export.onnx import onnx_model
from dagnn.export.rounded import Storage, box_of, check_storage, error_bounds, rounded
from dagnn.files import write_all
from dagnn.kernels import NetworkPlan, explain_network, reference
from dagnn.kernels.network import passes
from dagnn.nn.dag_nn.imported import read_genome
from dagnn.nn.dag_nn.pictures_and_tables import Seen
from dagnn.nn.dag_nn.tables import NamedParameters
from dagnn.nn.learnable import value_of

Format = Literal["c", "onnx", "torch"]
_SUFFIX = {"c": ".c", "onnx": ".onnx", "torch": ".pt2"}
_TEST_SAMPLES = 8


class Exports(NamedParameters, Seen):
    """What a `DagNN` takes from other programs and offers to them. `DagNN` is its only class.

    >>> from dagnn import Dag, DagNN
    >>> isinstance(DagNN(Dag([("a", "b")])), Exports)
    True
    """

    activations: list[str]
    aggregations: list[str]
    responses: list[float]
    bias_nodes: bool | Tensor
    _plan_on: dict[torch.device, NetworkPlan]

    @classmethod
    def from_neat(
        cls,
        genome: Any,
        config: Any,
        *,
        activations: Mapping[str, str | Callable[[Any], Any]] | None = None,
        aggregations: Mapping[str, str] | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | int | None = None,
    ) -> Self:
        """The feed-forward network of a genome of neat-python: the same function, which now has gradients.

        Nodes are named by their keys. As in neat-python, disabled connections and nodes that no output needs are left
        out, and a node is ``activation(bias + response * aggregation(weight * value, ...))``.

        Args:
            genome, config: neat-python's ``DefaultGenome`` and ``Config``, or objects with the same attributes.
            activations, aggregations: by the name in the genes, for functions that the config has of its own.

        Raises:
            CycleError: a recurrent genome; the message names a cycle.
            ConfigError: a function that neat-python does not have; another object than a genome or a config.
            GraphError: a connection from a node that the genome lacks.
        """
        found = read_genome(genome, config, activations, aggregations)
        net: Any = cls(found.dag, **found.of_nodes, dtype=dtype, device=device)
        net.bias_nodes = True
        net.set_weights(found.weights)
        net.set_biases(found.biases)
        made: Self = net
        return made

    def explain(self) -> str:
        """Which path computes this network, and why; one sentence."""
        weight, bias = value_of(self, "edge_weight"), value_of(self, "bias")
        return explain_network(self._cpu_plan(), weight, bias)

    def export(
        self,
        path: str | PathLike[str],
        format: Format | None = None,
        *,
        name: str | None = None,
        weights: Storage | None = None,
        within: tuple[float, float] | Mapping[Hashable, tuple[float, float]] | None = None,
        overwrite: bool = False,
    ) -> list[Path]:
        """Write the network, as it is now, for programs without dagnn. Nodes that no output reads are left out.

        - **"c"**: C99 without allocation, for libm only. ``path`` is ``net.c``; ``net.h`` and a test program
          ``net_test.c`` lie beside it. Functions ``net(x, y)`` for one sample, ``net_batch(x, y, n)`` for several.
          Weights are constants. Activations round as in the compiled path, and so do sums over fewer edges than fill a
          vector of the processor; longer sums may differ in their order.
        - **"onnx"**: standard operators of opset 18, x ``[batch, inputs]`` to y ``[batch, outputs]``. Needs
          ``pip install "dagnn[export]"``.
        - **"torch"**: a program of ``torch.export`` with PyTorch's operators, to be read by ``torch.export.load``
          where dagnn is not installed. Its ``module()`` takes x ``[batch, inputs]``.

        The dtype is that of the parameters. Parameters that are computed from others are written as they are now.

        Args:
            path: the file to write; its suffix says the format where ``format`` does not.
            format: "c", "onnx" or "torch".
            name: of the function in C; by default the file's name without suffix.
            weights: in C, weights of fewer bits: "bfloat16", or "int8" with a scale for every node. The header says by
                how much that moves the outputs at most; see `error_bounds`.
            within: for ``weights``, the values that inputs have: ``(low, high)``, or such a pair for each, by name.
            overwrite: replace files that exist.

        Returns:
            the files written: all of them, or after an error none.

        Raises:
            ConfigError: an unknown format, a name that C does not take, a weight that is NaN or infinite, an activation
                that the format lacks, a missing package.
            FileExistsError: a file exists, and ``overwrite`` is False. Other `OSError`: it cannot be written.

        >>> import tempfile
        >>> from dagnn import Dag, DagNN
        >>> net = DagNN(Dag([("a", "c"), ("b", "c")]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print([path.name for path in net.export(Path(folder) / "net.c")])
        ['net.h', 'net.c', 'net_test.c']
        """
        path = Path(path)
        chosen = format_of(path, format)
        if chosen == "c":
            function = check_name(path.stem if name is None else name)
            program, rounding = self.program(), None
            if weights is not None or within is not None:
                stored = rounded(program, check_storage(weights))
                low, high = box_of(program, within)
                rounding = Rounding(stored, low, high, error_bounds(program, stored, low, high))
            content = c_files(program, path.stem, function, *self._samples(rounding), rounding)
        elif weights is not None or within is not None:
            raise ConfigError(f"weights={weights!r} is for C, and format={chosen!r} keeps all bits: leave it out.")
        elif name is not None:
            raise ConfigError(f"name={name!r} is for a function in C, and format={chosen!r} has none: leave it out.")
        else:
            content = {path.name: onnx_model(self.program()) if chosen == "onnx" else self._torch_program()}
        return write_all({path.with_name(file): part for file, part in content.items()}, overwrite=overwrite)

    def program(self) -> Program:
        """What the network computes now, as plain arrays: what every format is written from.

        Raises:
            ConfigError: a weight or bias that an output depends on is NaN or infinite; another dtype than float32 and
                float64.

        >>> from dagnn import Dag, DagNN
        >>> DagNN(Dag([("a", "c"), ("b", "c")])).program().sources.tolist()
        [0, 1]
        """
        layout, (weight, bias) = self._layout, (tensor.numpy() for tensor in self._numbers())
        nodes, of_nodes = layout.node_at.tolist(), np.zeros(self.dag.num_nodes, dtype=bias.dtype)
        of_nodes[layout.has_bias.numpy()] = bias
        return Program.of_network(
            layout.edges.numpy(),
            weight,
            of_nodes,
            [self.activations[node] for node in nodes],
            [self.aggregations[node] for node in nodes],
            [self.responses[node] for node in nodes],
            layout.levels.numpy(),
            layout.inputs.numpy(),
            layout.outputs.numpy(),
            self.input_names,
            self.output_names,
        )

    def error_bounds(
        self, weights: Storage, within: tuple[float, float] | Mapping[Hashable, tuple[float, float]]
    ) -> dict[Hashable, float]:
        """How far weights of fewer bits can move each output at most, for any inputs within bounds.

        By interval arithmetic (Arb), so it holds for every such x, apart from rounding in float32 or float64: that is
        of the size of the dtype's epsilon, with all bits too.

        Args:
            weights: "bfloat16", or "int8" with a scale for every node.
            within: ``(low, high)`` for every input, or such a pair for each, by name.

        Returns:
            output name -> bound.

        Raises:
            ConfigError: other weights, bounds that are no pairs, an activation without a proved bound.
            GraphError: inputs that are missing in ``within``, or unknown.

        >>> from dagnn import Dag, DagNN
        >>> net = DagNN(Dag([("a", "b")]), bias=False)
        >>> net.set_weights({("a", "b"): 1.001})
        >>> {name: round(bound, 6) for name, bound in net.error_bounds("bfloat16", (-2, 2)).items()}
        {'b': 0.002}
        """
        program = self.program()
        found = error_bounds(program, rounded(program, check_storage(weights)), *box_of(program, within))
        return dict(zip(self.output_names, found.tolist(), strict=True))

    def predictor(self) -> "Predictor":
        """The network as it is now, for NumPy arrays: a call without autograd, some ten times cheaper for one sample.

        Later changes of the network do not reach it.

        Raises:
            ConfigError: parameters of another dtype than float32 and float64; a network that is not compiled.

        >>> from dagnn import Dag, DagNN
        >>> net = DagNN(Dag([("a", "c"), ("b", "c")]), bias=False)
        >>> net.set_weights({("a", "c"): 2.0, ("b", "c"): 3.0})
        >>> net.predictor()(np.array([1.0, 10.0])).tolist()
        [32.0]
        """
        plan = self._cpu_plan()
        if plan.why_reference:
            raise ConfigError(f"a predictor is compiled, and this network is not: {plan.why_reference}.")
        return Predictor(plan, *self._numbers())

    def _numbers(self) -> tuple[Tensor, Tensor]:
        """Copies of weights and biases on the CPU, with what other code computes them from taken in."""
        weight, bias = (value_of(self, name).detach().cpu().clone().contiguous() for name in ("edge_weight", "bias"))
        if weight.dtype not in (torch.float32, torch.float64) or weight.is_meta:
            raise ConfigError(
                f"networks leave PyTorch in float32 or float64, with values, got {weight.dtype} on "
                f"{self.edge_weight.device}: convert the network first, as with net.float()."
            )
        return weight, bias

    def _cpu_plan(self) -> NetworkPlan:
        return self._plan_on[torch.device("cpu")]

    def _samples(self, rounding: Rounding | None) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Inputs and outputs for the test program."""
        weight, bias = self._numbers()
        generator, shape = np.random.default_rng(0), (_TEST_SAMPLES, len(self.dag.inputs))
        if rounding is None:
            drawn = torch.from_numpy(generator.standard_normal(shape)).to(weight.dtype)
        else:
            low, high = (torch.from_numpy(end) for end in (rounding.low, rounding.high))
            drawn = torch.from_numpy(generator.uniform(rounding.low, rounding.high, shape)).to(weight.dtype)
            drawn = drawn.double().clamp(low, high).to(weight.dtype)
        return drawn.numpy(), kernels.run_network(self._cpu_plan(), drawn, weight, bias).numpy()

    def _torch_program(self) -> bytes:
        self.program()  # raises for weights that are no numbers
        module = _Reference(self._cpu_plan(), *self._numbers())
        x = module.bias.new_zeros(2, len(self.dag.inputs))
        program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
        file = io.BytesIO()
        torch.export.save(program, file)
        return file.getvalue()


class _Reference(nn.Module):
    """A network by PyTorch's own operators."""

    def __init__(self, plan: NetworkPlan, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.levels = plan.levels
        self.edge_weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return reference.run_network(self.levels, x, self.edge_weight, self.bias)


class Predictor:
    """A network for NumPy arrays, with the weights that it had; see `DagNN.predictor`. Threads may share one.

    Attributes:
        dtype: of the network: float32 or float64. Other real numbers are converted to it.
        num_inputs, num_outputs: columns of x and y.

    >>> from dagnn import Dag, DagNN
    >>> predictor = DagNN(Dag([("a", "b")])).predictor()
    >>> isinstance(predictor, Predictor), predictor.num_inputs, predictor(np.zeros((5, 1))).shape
    (True, 1, (5, 1))
    """

    def __init__(self, plan: NetworkPlan, weight: Tensor, bias: Tensor) -> None:
        self._plan, self._weight, self._bias = plan.compiled, weight, bias
        double = weight.dtype == torch.float64
        self.dtype = np.dtype(np.float64 if double else np.float32)
        self.num_inputs, self.num_outputs = len(plan.inputs), len(plan.outputs)
        self._lock = threading.Lock()
        # One sample goes through memory of our own: to find the address of a caller's array takes longer.
        self._x = np.zeros(self.num_inputs, self.dtype)
        self._y = np.zeros(self.num_outputs, self.dtype)
        self._values = torch.zeros(2 * len(plan.activation), dtype=weight.dtype)
        self._frame = self._plan.frame(batch=1)
        self._frame.set_addresses(
            x=torch.from_numpy(self._x),
            y=torch.from_numpy(self._y),
            weight=weight,
            bias=bias,
            values=self._values,
            slopes=None,
        )
        self._address = self._frame.address
        self._run = self._plan.single_functions(double)["forward"]

    def __call__(self, x: NDArray[np.floating]) -> NDArray[np.floating]:
        """y ``[outputs]`` for x ``[inputs]``, or ``[B, outputs]`` for ``[B, inputs]``: a new array of `dtype`.

        Raises:
            GraphError: another shape.
            DtypeError: not an array of real numbers.
        """
        if type(x) is not np.ndarray or x.shape != self._x.shape or x.dtype.kind not in "fiu":
            return self._batch(x)
        with self._lock:
            self._x[...] = x
            self._run(self._address)
            return self._y.copy()

    def _batch(self, given: Any) -> NDArray[np.floating]:
        """Any array that is not plainly one sample."""
        x = np.asarray(given)
        if x.dtype.kind not in "fiub":
            raise DtypeError(f"x must be an array of real numbers, got {given!r:.60} ({x.dtype}).")
        if x.ndim not in (1, 2) or x.shape[-1] != self.num_inputs:
            expected = f"[inputs] = [{self.num_inputs}] or [B, {self.num_inputs}]"
            raise GraphError(f"x must have the shape {expected}, got {list(x.shape)}.")
        rows = np.array(np.atleast_2d(x), self.dtype, order="C")  # a copy: PyTorch warns of arrays that are read-only
        y = np.empty((0, self.num_outputs), self.dtype)
        if len(rows):
            y = passes.forward(self._plan, torch.from_numpy(rows), self._weight, self._bias)[0].numpy()
        return y if x.ndim == 2 else y[0]


def format_of(path: Path, given: object) -> str:
    """The format of an export to ``path``.

    ConfigError where neither ``given`` nor the suffix says one; C goes to a file that does not end in .c, or whose name
    cannot stand in an ``#include``.
    """
    formats = get_args(Format)
    if given is not None and given not in formats:
        raise ConfigError(f"format must be one of {', '.join(formats)}, got {given!r}.")
    by_suffix = {suffix: name for name, suffix in _SUFFIX.items()}
    if given is None and path.suffix not in by_suffix:
        raise ConfigError(
            f"{path.name!r} does not say the format: give a file that ends in {', '.join(by_suffix)}, or "
            f"format= one of {', '.join(formats)}."
        )
    found = by_suffix[path.suffix] if given is None else str(given)
    if found == "c" and path.suffix != ".c":
        raise ConfigError(f"C goes to a file that ends in .c, got {path.name!r}: a header and a test lie beside it.")
    if found == "c" and not re.fullmatch(r'(?!.*(\?\?|["\\]))[ -~]+', path.stem):
        raise ConfigError(
            f"the name of a C file stands in an #include of another, got {path.name!r}: take printable ASCII without "
            "quotation marks, backslashes and '??'."
        )
    return found
