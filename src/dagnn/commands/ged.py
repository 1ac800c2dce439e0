"""`dagnn ged`: compares the Dags of two files, prints the edits, and draws them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from dagnn.errors import ConfigError, GraphError
from dagnn.files import replace_file
from dagnn.ged.costs import EditCosts
from dagnn.ged.distance import DEFAULT_BUDGET, GedResult, graph_edit_distance
from dagnn.ged.labelled import read_pair
from dagnn.ged.picture import draw_edits, spelled
from dagnn.graph import Dag


@dataclass(frozen=True)
class Comparison:
    """The result of `compare_files`.

    Attributes:
        result: bounds, map and edit path.
        plot: the file of the picture; None without one.
    """

    result: GedResult
    plot: Path | None

    @property
    def text(self) -> str:
        """For a terminal: lines without control characters."""
        found = self.result
        lines = [
            f"distance  {found.upper:g}, proved"
            if found.proved
            else f"distance  between {found.lower:g} and {found.upper:g}, not proved: raise --budget",
            f"lower     {found.lower:g}",
            f"upper     {found.upper:g}",
            f"search    {found.search_nodes:,} nodes",
            f"edits     {len(found.edit_path) or 'none'}",
            *(f"  {spelled(edit)}" for edit in found.edit_path),
        ]
        if self.plot is not None:
            lines.append(f"picture   {self.plot}")
        return "\n".join(lines)

    def summary(self) -> dict[str, Any]:
        """For JSON: ``distance`` is null unless it is proved; in ``node_map`` null means "no node"."""
        found = self.result
        return {
            "distance": found.upper if found.proved else None,
            "lower": found.lower,
            "upper": found.upper,
            "proved": found.proved,
            "search_nodes": found.search_nodes,
            "node_map": [[_plain(u), _plain(v)] for u, v in found.node_map],
            "edit_path": [{name: _plain(value) for name, value in vars(edit).items()} for edit in found.edit_path],
            "plot": None if self.plot is None else str(self.plot),
        }


def compare_files(
    a: str | Path,
    b: str | Path,
    costs: EditCosts | None = None,
    *,
    budget: int = DEFAULT_BUDGET,
    seconds: float | None = None,
    node_label: str | None = "label",
    edge_label: str | None = "label",
    plot: str | Path | None = None,
) -> Comparison:
    """The graph edit distance of two files that `Dag.to_json` wrote.

    Args:
        plot: the file for the picture; it must end in .svg or .png.
        The rest as in `graph_edit_distance`.

    Raises:
        OSError: a file cannot be read or written. ``plot`` keeps its old content then.
        GraphError: a file holds no Dag, or the graphs cannot be compared.
        ConfigError: another ending of ``plot``, and as in `graph_edit_distance`.
    """
    target = None if plot is None else Path(plot)
    kind = None if target is None else _kind(target)
    left, right = _read(Path(a)), _read(Path(b))
    options: dict[str, Any] = {"directed": True, "node_label": node_label, "edge_label": edge_label}
    result = graph_edit_distance(left, right, costs, budget=budget, seconds=seconds, **options)
    if target is not None and kind is not None:
        graphs = read_pair(left, right, **options)
        titles = (spelled(Path(a).name), spelled(Path(b).name))
        _write(target, draw_edits(*graphs, result, titles=titles, kind=kind))
    return Comparison(result, target)


def _kind(plot: Path) -> Literal["svg", "png"]:
    """The kind of a picture; checked before the search, which may take long."""
    match plot.suffix.lower():
        case ".svg":
            return "svg"
        case ".png":
            return "png"
    raise ConfigError(f"the picture {plot} must end in .svg or .png.")


def _read(path: Path) -> Dag:
    document = path.read_bytes()
    try:
        return Dag.from_json(document)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None
    except MemoryError:
        raise GraphError(f"{path}: the graph does not fit into memory.") from None


def _write(path: Path, content: bytes) -> None:
    """Write the whole file or none of it."""
    try:
        replace_file(path, content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # the name that the user gave


def _plain(value: Any) -> Any:
    """A name or label as JSON can hold it: without tensors, tuples, NaN and infinity."""
    if isinstance(value, Tensor | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, str) or not isinstance(value, Sequence):
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        return value
    return [_plain(item) for item in value]
