"""A Dag as something to draw: its names, levels and edges, and numbers by name or in order as columns."""

from collections.abc import Hashable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dagnn.drawing.picture import draw_scene, page_text, picture_bytes, picture_kind
from dagnn.drawing.scene import Scene
from dagnn.errors import DtypeError, GraphError
from dagnn.files import replace_file
from dagnn.graph.content import Content

Columns = Mapping[str, Any]


def scene_of(
    dag: Content,
    of_nodes: Columns | None = None,
    of_edges: Columns | None = None,
    texts: Columns | None = None,
    labels: Mapping[Any, str] | None = None,
) -> Scene:
    """What `draw_scene` and `page_text` take.

    Args:
        of_nodes: what the numbers mean -> one number a node: a mapping by name, which may leave nodes out, or a
            tensor, array or list ``[num_nodes]`` in the order of the nodes.
        of_edges: the same for edges: a mapping by (source, target), or ``[num_edges]`` in the order of ``dag.edges``.
        texts: what the texts mean -> one text a node.
        labels: node -> the text to print in place of its name; the name becomes one of the texts.

    Raises:
        GraphError: an unknown node or edge, or another number of values.
        DtypeError: values that are no real numbers.
    """
    edges = dag.edges.numpy()
    pairs, number = np.unique(edges, axis=0, return_inverse=True)
    number = number.reshape(-1)
    is_input, is_output = np.zeros(dag.num_nodes, dtype=bool), np.zeros(dag.num_nodes, dtype=bool)
    is_input[dag.inputs.numpy()], is_output[dag.outputs.numpy()] = True, True
    edge_columns = {}
    for title, given in (of_edges or {}).items():
        values = _edge_numbers(dag, title, given)
        edge_columns[title] = np.zeros(len(pairs))
        np.add.at(edge_columns[title], number, values)
    repeated = len(edges) - len(pairs)
    names = [dag.name_of(node) for node in range(dag.num_nodes)]
    if labels:
        texts = {"name": list(map(str, names)), **(texts or {})}
    return Scene(
        names=[str((labels or {}).get(name, name)) for name in names],
        levels=dag.levels.numpy(),
        edges=pairs,
        is_input=is_input,
        is_output=is_output,
        of_nodes={title: _node_numbers(dag, title, given) for title, given in (of_nodes or {}).items()},
        of_edges=edge_columns,
        notes=(f"{repeated:,} parallel edges are joined with others, their numbers summed",) if repeated else (),
        texts=texts or {},
    )


def drawn(scene: Scene, path: str | PathLike[str] | None, top: int | None, title: str | None) -> Any:
    """The figure; written to ``path`` as well, completely or not at all."""
    kind = None if path is None else picture_kind(Path(path))
    figure = draw_scene(scene, top=top, title=title)
    if path is not None and kind is not None:
        replace_file(Path(path), picture_bytes(figure, kind))
    return figure


def write_page(scene: Scene, path: str | PathLike[str], title: str | None) -> None:
    """Write the page completely, or not at all."""
    replace_file(Path(path), page_text(scene, title=title or Path(path).stem).encode())


def titled(values: Any, title: str) -> dict[str, Any] | None:
    """One column, or none."""
    return None if values is None else {title: values}


def _node_numbers(dag: Content, title: str, given: Any) -> NDArray[np.float64]:
    if _is_mapping(given):
        numbers = np.full(dag.num_nodes, np.nan)
        for name, value in given.items():
            numbers[dag.index_of(name)] = _number(title, name, value)
        return numbers
    return _in_order(title, given, dag.num_nodes, "nodes")


def _edge_numbers(dag: Content, title: str, given: Any) -> NDArray[np.float64]:
    if not _is_mapping(given):
        return _in_order(title, given, dag.num_edges, "edges")
    numbers = np.full(dag.num_edges, np.nan)
    place_of: dict[tuple[int, int], int] = {}
    for place, (u, v) in enumerate(dag.edges.tolist()):
        if place_of.setdefault((u, v), place) != place:
            numbers[place] = 0.0  # a parallel edge, which a mapping cannot tell from the first
    for pair, value in given.items():
        ends = _ends(dag, title, pair)
        if ends not in place_of:
            raise GraphError(f"{title}: there is no edge {pair[0]!r} -> {pair[1]!r}: give the source first.")
        numbers[place_of[ends]] = _number(title, pair, value)
    return numbers


def _ends(dag: Content, title: str, pair: Hashable) -> tuple[int, int]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise GraphError(f"{title}: an edge is a pair of names (source, target), got {pair!r}.")
    return dag.index_of(pair[0]), dag.index_of(pair[1])


def _is_mapping(given: Any) -> bool:
    """Whether it has labels: a mapping, or a column of pandas."""
    return isinstance(given, Mapping) or (hasattr(given, "items") and hasattr(given, "index"))


def _number(title: str, name: Any, value: Any) -> float:
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        raise DtypeError(f"{title}: {name!r} must have one real number, got {value!r}.") from None


def _in_order(title: str, given: Any, count: int, what: str) -> NDArray[np.float64]:
    if isinstance(given, Tensor):
        given = given.detach().cpu().double().numpy()
    try:
        numbers = np.array(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise DtypeError(f"{title} must hold real numbers, one for each of {count:,} {what}, got {given!r}.") from None
    if numbers.shape != (count,):
        raise GraphError(
            f"{title} must have one number for each of {count:,} {what}, got the shape {list(numbers.shape)}: give a "
            "mapping by name, or all in order."
        )
    return numbers
