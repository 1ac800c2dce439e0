"""What a network shows: a picture, a page, a summary, and tables of its numbers by name."""

import copy
from collections import Counter
from collections.abc import Hashable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from dagnn import kernels
from dagnn.errors import ConfigError, GraphError, library
from dagnn.graph.as_scene import drawn, scene_of, write_page
from dagnn.nn.dag_nn.parameters import network_plan
from dagnn.nn.dag_nn.tables import NamedInputs, rows_of
from dagnn.nn.learnable import check_dtype, value_of

Shown = Literal["weights", "gradients", "values", "importance"]
_SHOWN = ("weights", "gradients", "values", "importance")


class Seen(NamedInputs):
    """How a network of a Dag is looked at; of a network with blocks as weights, a block's number is its norm.

    >>> from dagnn import Dag, DagNN
    >>> net = DagNN(Dag([("a", "c"), ("b", "c")]), bias=False)
    >>> net.set_weights({("a", "c"): 2.0, ("b", "c"): -3.0})
    >>> print(net.summary())
    DagNN: 3 nodes, 2 edges, 2 parameters of float32 (2 weights, 0 biases)
    2 inputs, 1 output, 2 levels
      level  nodes  edges in  activations
          0      2         0  input 2
          1      1         2  identity 1
    >>> net.table("edges")
    {'source': ['a', 'b'], 'target': ['c', 'c'], 'weight': [2.0, -3.0], 'gradient': [0.0, 0.0]}
    """

    activations: list[str]
    aggregations: list[str]
    responses: list[float]

    if TYPE_CHECKING:  # what a network with one weight an edge, or with blocks, defines beside this class

        def edge_names(self) -> list[tuple[Hashable, Hashable]]: ...
        def edge_weights(self) -> dict[tuple[Hashable, Hashable], Any]: ...
        def edge_grads(self) -> dict[tuple[Hashable, Hashable], Any]: ...
        def biases(self) -> dict[Hashable, Any]: ...

    # ---- text and tables ----

    def summary(self) -> str:
        """What the network is made of, as text: nodes, edges, parameters; for every level its nodes and activations."""
        dag, inputs = self.dag, set(self.dag.inputs.tolist())
        weights, biases = self.edge_weight.numel(), self._parameters["bias"]
        parameters = sum(parameter.numel() for parameter in self.parameters())
        num_biases = 0 if biases is None else biases.numel()
        levels = dag.levels.tolist()
        units: list[int] | None = getattr(self, "widths", None)
        edges_into = dag.in_degree.tolist()
        rows = [["level", "nodes", *(["units"] if units else []), "edges in", "activations"]]
        for level in range(max(levels, default=-1) + 1):
            nodes = [v for v in range(dag.num_nodes) if levels[v] == level]
            kinds = Counter("input" if v in inputs else self.activations[v] for v in nodes)
            row = [f"{level}", f"{len(nodes):,}", *([f"{sum(units[v] for v in nodes):,}"] if units else [])]
            named = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
            rows.append([*row, f"{sum(edges_into[v] for v in nodes):,}", named])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
        of = str(self.edge_weight.dtype).removeprefix("torch.")
        return "\n".join(
            [
                f"{type(self).__name__}: {_counted(dag.num_nodes, 'node')}, {_counted(dag.num_edges, 'edge')}, "
                f"{_counted(parameters, 'parameter')} of {of} "
                f"({_counted(weights, 'weight')}, {_counted(num_biases, 'bias', 'biases')})",
                f"{_counted(len(dag.inputs), 'input')}, {_counted(len(dag.outputs), 'output')}, "
                f"{_counted(len(rows) - 1, 'level')}",
                *("  ".join(["", *map(str.rjust, row[:-1], widths), row[-1]]) for row in rows),
            ]
        )

    def table(
        self, of: Literal["edges", "nodes"] = "edges", *, x: Any = None, importance: Any = None
    ) -> dict[str, list[Any]]:
        """Columns of the same length: one row an edge, in the order of ``edge_names()``, or one a node, in the Dag's.

        Args:
            of: "edges": source, target, weight, gradient; "nodes": node, level, kind (input, inner, output), in_degree,
                out_degree, activation, bias (None without one).
            x: of nodes: adds the column "value", the mean over the samples; as for the network itself.
            importance: adds the column "importance": a number for each node by name, or for each edge by (source,
                target), None where it has none; or what `dagnn.visible.explain` found, whose means are taken.

        Raises:
            ConfigError: another ``of``; ``x`` for edges, or for a network with blocks as weights.
            GraphError: ``importance`` names an unknown node or edge.
        """
        columns: dict[str, list[Any]]
        if of == "edges":
            if x is not None:
                raise ConfigError("x gives values of nodes: table('nodes', x=x).")
            pairs = [(u, v) for u, v in self.edge_names()]
            columns = {"source": [u for u, _ in pairs], "target": [v for _, v in pairs]}
            columns["weight"] = [_number(value) for value in self.edge_weights().values()]
            if self._parameters.get("edge_weight") is not None:
                columns["gradient"] = [_number(value) for value in self.edge_grads().values()]
            if importance is not None:
                columns["importance"] = _found(_parts(importance)[1], pairs, "edge")
            return columns
        if of != "nodes":
            raise ConfigError(f'of must be "edges" or "nodes", got {of!r}.')
        dag = self.dag
        names = [dag.name_of(v) for v in range(dag.num_nodes)]
        inputs, outputs = set(dag.inputs.tolist()), set(dag.outputs.tolist())
        biases = self.biases()
        columns = {
            "node": names,
            "level": dag.levels.tolist(),
            "kind": ["input" if v in inputs else "output" if v in outputs else "inner" for v in range(len(names))],
            "in_degree": dag.in_degree.tolist(),
            "out_degree": dag.out_degree.tolist(),
            "activation": [None if v in inputs else self.activations[v] for v in range(len(names))],
            "bias": [_number(biases[name]) if name in biases else None for name in names],
        }
        if x is not None:
            columns["value"] = _means(self.node_values(x)).tolist()
        if importance is not None:
            columns["importance"] = _found(_parts(importance)[0], names, "node")
        return columns

    def to_frame(self, of: Literal["edges", "nodes"] = "edges", *, x: Any = None, importance: Any = None) -> Any:
        """`table` as a ``pandas.DataFrame``. Arguments and errors as there, and MissingPackageError without pandas."""
        columns = self.table(of, x=x, importance=importance)
        pandas = library("pandas", "to_frame, unlike net.table(...),", "pandas")
        return pandas.DataFrame(columns)

    def node_values(self, x: Any) -> Tensor:
        """The value of every node for ``x``: ``[..., num_nodes]``, in the order of the Dag's nodes, without gradient.

        Args:
            x: as for the network itself.

        Raises:
            ConfigError: a network whose nodes hold several units, and have no single value.
            GraphError, DtypeError: as of the network.
        """
        layout = getattr(self, "_layout", None)
        if layout is None:
            raise ConfigError(
                f"the nodes of a {type(self).__name__} hold several units, and no single value: read some by heads."
            )
        given = x if isinstance(x, Tensor) else self.input_from(x)
        with torch.no_grad():
            weight, bias = value_of(self, "edge_weight"), value_of(self, "bias")
            if given.dim() == 0 or given.shape[-1] != len(self.dag.inputs):
                raise GraphError(
                    f"x must have the shape [..., inputs] = [..., {len(self.dag.inputs)}], got {list(given.shape)}: "
                    "input_names lists them."
                )
            check_dtype("x", given, weight.dtype)
            everything = copy.copy(layout)
            everything.outputs = layout.place_of
            plan = network_plan(everything, self.activations, self.aggregations, self.responses).to(given.device)
            values = kernels.run_network(plan, rows_of(given), weight, bias)
        return values.reshape(*given.shape[:-1], self.dag.num_nodes)

    # ---- pictures ----

    def draw(
        self,
        path: str | PathLike[str] | None = None,
        *,
        show: Shown | None = None,
        x: Any = None,
        importance: Any = None,
        edge_importance: Any = None,
        top: int | None = None,
        title: str | None = None,
        labels: Mapping[Any, str] | None = None,
    ) -> Any:
        """A picture as a ``matplotlib.figure.Figure``; see `Dag.draw` for how it looks.

        Args:
            path: also write it to this file, .svg, .png or .pdf.
            show: "weights": edges by their weight; "gradients": edges by the accumulated gradient; "values": nodes by
                their mean value for ``x``, edges by weight; "importance": nodes by ``importance``, edges by
                ``edge_importance`` or else by weight. By default what the other arguments are for, else weights.
            x: samples, as for the network itself.
            importance: node -> number, or one for each node in the Dag's order; or what `dagnn.visible.explain` found,
                whose means are taken, for the edges too.
            edge_importance: (source, target) -> number, or one for each edge in the order of ``dag.edges``.
            top: draw only so many nodes, the most important, and how they are connected.
            title: a line at the top.
            labels: node -> a text to print in place of its name, such as ``Reading.labels``.

        Raises:
            ConfigError: arguments that do not belong together, another ending of ``path``, gradients of weights that
                are computed from others.
            GraphError, DtypeError, OSError: as of `Dag.draw`.

        >>> from dagnn import Dag, DagNN
        >>> net = DagNN(Dag([("a", "c"), ("b", "c"), ("c", "d")]))
        >>> figure = net.draw(importance={"a": 0.7, "b": 0.1, "c": 0.8, "d": 0.8}, top=3)
        """
        kind = _kind(show, x is not None, importance is not None or edge_importance is not None)
        importance, edge_importance = _both(importance, edge_importance)
        of_nodes, of_edges = dict[str, Any](), dict[str, Any]()
        if kind == "values":
            of_nodes["mean value"] = _means(self.node_values(x))
        if importance is not None:
            of_nodes["importance"] = importance
        if edge_importance is not None:
            of_edges["importance"] = edge_importance
        elif kind == "gradients":
            of_edges["gradient" + self._blocks] = _numbers(self.edge_grads())
        else:
            of_edges["weight" + self._blocks] = _numbers(self.edge_weights())
        return drawn(scene_of(self.dag, of_nodes, of_edges, None, labels), path, top, title)

    def write_page(
        self,
        path: str | PathLike[str],
        *,
        x: Any = None,
        importance: Any = None,
        edge_importance: Any = None,
        title: str | None = None,
        labels: Mapping[Any, str] | None = None,
    ) -> None:
        """Write an HTML page to explore the network in a browser: one file, which works offline; see `Dag.write_page`.

        It shows weights, biases and activations, gradients where there are some, and what the arguments add.

        Args:
            path: the file, replaced completely or not at all.
            x, importance, edge_importance, labels: as for `draw`, all allowed at once.
            title: of the page; by default the name of the file.

        Raises:
            ConfigError: ``x`` for a network whose nodes have no single value.
            GraphError, DtypeError, OSError: as of `Dag.draw`.
        """
        of_nodes, of_edges = dict[str, Any](), dict[str, Any]()
        importance, edge_importance = _both(importance, edge_importance)
        if importance is not None:
            of_nodes["importance"] = importance
        if x is not None:
            of_nodes["mean value"] = _means(self.node_values(x))
        of_nodes["bias" + self._blocks] = _numbers(self.biases())
        if edge_importance is not None:
            of_edges["importance"] = edge_importance
        of_edges["weight" + self._blocks] = _numbers(self.edge_weights())
        weight = self._parameters.get("edge_weight")
        if weight is not None and weight.grad is not None:
            of_edges["gradient" + self._blocks] = _numbers(self.edge_grads())
        inputs = set(self.dag.inputs.tolist())
        kinds = ["none (input)" if v in inputs else kind for v, kind in enumerate(self.activations)]
        write_page(scene_of(self.dag, of_nodes, of_edges, {"activation": kinds}, labels), path, title)

    @property
    def _blocks(self) -> str:
        return " (norm of the block)" if hasattr(self, "widths") else ""


def _kind(show: object, has_x: bool, has_importance: bool) -> str:
    """What is shown, when the arguments belong together."""
    if show is None:
        show = "importance" if has_importance else "values" if has_x else "weights"
    if show not in _SHOWN:
        raise ConfigError(f"show must be one of {', '.join(_SHOWN)}, got {show!r}.")
    for kind, given, argument in (("values", has_x, "x"), ("importance", has_importance, "importance")):
        if given and show != kind:
            raise ConfigError(f"{argument} is for show={kind!r}, got show={show!r}: drop one of them.")
        if show == kind and not given:
            raise ConfigError(f"show={kind!r} needs {argument}=...")
    return str(show)


def _both(importance: Any, edge_importance: Any) -> tuple[Any, Any]:
    """Importances of nodes and edges; those of an explanation's edges where no others are given."""
    of_nodes, of_edges = _parts(importance)
    return of_nodes, of_edges if edge_importance is None and of_nodes is not importance else edge_importance


def _parts(importance: Any) -> tuple[Any, Any]:
    """What is given, for nodes and for edges; of an `Explanation`, which this package may not import, its means."""
    if not hasattr(importance, "node_means"):
        return importance, importance
    return (
        dict(zip(importance.node_names, importance.node_means.tolist(), strict=True)),
        dict(zip(importance.edge_names, importance.edge_means.tolist(), strict=True)),
    )


def _number(value: Any) -> float:
    """A number, or the Frobenius norm of a block; also of a block of one, so that all have one meaning."""
    return float(value.norm()) if isinstance(value, Tensor) else float(value)


def _numbers(values: Mapping[Any, Any]) -> dict[Any, float]:
    return {name: _number(value) for name, value in values.items()}


def _means(values: Tensor) -> Tensor:
    """Mean over all samples, float64 ``[num_nodes]``."""
    return rows_of(values).double().mean(0)


def _found(given: Mapping[Any, float], names: list[Any], what: str) -> list[float | None]:
    """The numbers of these nodes or edges; an error for one of another."""
    known = set(names)
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise GraphError(f"importance has {unknown!r}, which is no {what} of the network.")
    return [None if name not in given else float(given[name]) for name in names]


def _counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
