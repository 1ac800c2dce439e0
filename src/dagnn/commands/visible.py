"""`dagnn visible`: a graph and a table become a fitted network, an explanation and pictures, without Python."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from tyro.conf import Positional, arg

from dagnn.commands import Command, as_options, dispatch, parsed, say_aside
from dagnn.commands.explaining import run_explain
from dagnn.drawing.picture import picture_kind
from dagnn.errors import ConfigError, GraphError, RunError, library
from dagnn.nn import DagNN
from dagnn.visible.columns import alike, restrict
from dagnn.visible.on_disk import (
    Model,
    Samples,
    html_table,
    joined_rows,
    link,
    matrix_of,
    picture,
    preformatted,
    read_any,
    read_samples,
    table_text,
    write,
    write_report,
)
from dagnn.visible.reading import Reading, listed

_FEW_VALUES = 10  # a target of more different numbers is a regression
_TABLE_ENDINGS = (".csv", ".tsv", ".tab", ".txt", ".parquet")
_GRAPH_ENDINGS = (*_TABLE_ENDINGS, ".sif", ".gmt", ".obo", ".graphml", ".gml", ".dot", ".gv", ".json")
# What the library says, which takes what this command does not.
_PHRASES = {
    "columns=(source, target), by number": "--columns SOURCE TARGET, by number",
    "hierarchy=.": "--hierarchy FILE.",
    "max_epochs": "--epochs",
    ": change validation_fraction=0.1, or leave": ": leave",
    "validation_fraction=0.1": "0.1",
}


def run_visible(arguments: Sequence[str]) -> int:
    """`dagnn visible` with these arguments; returns the exit code."""
    return dispatch("dagnn visible", COMMANDS, arguments)


@dataclass(frozen=True)
class Fit:
    """Fits a network of the shape of a graph to a table, and writes tables, a page to explore and a report.

    Files: report.html, network.html, network.safetensors, model.json, and as CSV scores, predictions, nodes, edges.
    """

    graph: str
    """.csv, .tsv or .parquet (edges), .sif, .gmt, .obo, .graphml, .gml, .dot, .json; Reactome's, with --members"""
    data: str
    """.csv, .tsv or .parquet: a header, a line for every sample; a first column without a header names the samples"""
    target: str
    """the column to predict: classes or numbers; with --event the time"""
    event: str | None = None
    """column of 0 (censored) and 1: makes it a survival model"""
    out: str = "visible"
    """folder to write"""
    overwrite: bool = False
    """write into a folder that is not empty"""
    task: Literal["auto", "classification", "regression", "survival"] = "auto"
    """auto: survival with --event, regression for a target of more than 10 different numbers, else classification"""
    members: str | None = None
    """genes of terms, for .obo; Reactome's file of genes of pathways"""
    hierarchy: str | None = None
    """of gene sets: containment, or a file of edges"""
    columns: tuple[str, str] | None = None
    """the two columns of a table of edges, source and target when not given; 0 1 of a table without a header"""
    root: str | None = None
    """one node above all"""
    reverse: bool = False
    """turn every edge of the graph round"""
    missing: Literal["refuse", "drop"] = "refuse"
    """inputs of the graph that the data lack: refuse, or drop them with what nothing else feeds"""
    extra: Literal["refuse", "ignore"] = "refuse"
    """columns that are no inputs of the graph"""
    held_out: float = 0.2
    """share of the samples that are kept for the scores; 0 for none"""
    activation: str = "tanh"
    """of the nodes"""
    epochs: int = 200
    """passes over the samples at most"""
    learning_rate: float = 0.01
    """of AdamW"""
    weight_decay: float = 1e-4
    """of AdamW"""
    early_stopping: bool = False
    """stop by the loss of a tenth of the training samples"""
    seed: int = 0
    """of the weights, the order of samples, and of what is held out"""


def _fit(arguments: Sequence[str]) -> int:
    given = parsed(Fit, "visible fit", arguments)
    library("sklearn", "dagnn visible fit", "dagnn[visible]")
    if not 0 <= given.held_out < 1:
        raise ConfigError(f"--held-out must be at least 0 and less than 1, got {given.held_out}.")
    folder = _folder(given.out, given.overwrite)
    with as_options(Fit, _PHRASES):
        reading = read_any(
            given.graph,
            members=given.members,
            hierarchy=given.hierarchy,
            columns=given.columns,
            root=given.root,
            reverse=given.reverse,
        )
        say_aside(str(reading.report))
        samples = read_samples(given.data)
        task = _task(given, samples)
        x, dag = _inputs(given, samples, reading)
        say_aside(f"{len(x):,} samples, {x.shape[1]:,} inputs, target {given.target}: {task}")
        try:
            model, scores, predictions = _fitted(given, samples, task, x, dag, reading)
        except ValueError as error:  # scikit-learn's, and of the estimators: one class only, all censored ...
            raise ConfigError(str(error)) from error

    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder)
    write(folder / "scores.csv", table_text({"part": list(scores), **joined_rows(list(scores.values()))}))
    write(folder / "predictions.csv", table_text(predictions))
    labels = model.labels
    nodes = model.net.table("nodes")
    write(folder / "nodes.csv", table_text({**nodes, "label": [labels.get(str(name)) for name in nodes["node"]]}))
    edges = model.net.table("edges")
    write(folder / "edges.csv", table_text({name: edges[name] for name in ("source", "target", "weight")}))
    model.net.write_page(folder / "network.html", title=f"{Path(given.graph).stem}: {given.target}", labels=labels)
    write_report(
        folder / "report.html",
        f"{given.target} from {Path(given.data).name}",
        ["Scores", html_table({"part": list(scores), **joined_rows(list(scores.values()))})],
        [
            "Network",
            preformatted(model.net.summary()),
            picture(model, None),
            link("network.html", "Explore the network"),
        ],
        ["Graph", preformatted(str(reading.report))],
    )
    for part, values in scores.items():
        print(part, *(f"{name} {value:.4g}" for name, value in values.items()), sep="  ")
    print(f"written to {folder}: report.html, network.html, scores.csv, predictions.csv, nodes.csv, edges.csv")
    return 0


def _folder(out: str, overwrite: bool) -> Path:
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file, expected a folder to write: choose another with --out.")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise RunError(f"{folder} is not empty: choose another folder with --out, or add --overwrite.")
    return folder


def _task(given: Fit, samples: Samples) -> str:
    if given.task == "survival" and given.event is None:
        raise ConfigError("a survival model needs --event, the column of 0 (censored) and 1.")
    if given.event is not None and given.task not in ("auto", "survival"):
        raise ConfigError(f"--event is for a survival model, got --task {given.task}: drop one of them.")
    if given.event is not None:
        return "survival"
    if given.task != "auto":
        return given.task
    values = set(samples.column(given.target))
    return "regression" if len(values) > _FEW_VALUES and all(map(_is_number, values)) else "classification"


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False


def _inputs(given: Fit, samples: Samples, reading: Reading) -> tuple[NDArray[np.float64], Any]:
    """``[samples, inputs]``, and the Dag that they belong to."""
    dag = reading.dag
    features = [name for name in samples.cells if name not in (given.target, given.event)]
    inputs = [dag.name_of(node) for node in dag.inputs.tolist()]
    lacking = [name for name in inputs if name not in features]
    others = [name for name in features if name not in {*inputs}]
    if lacking and given.missing == "refuse":
        raise GraphError(
            f"{samples.source} lacks {len(lacking)} of {len(inputs)} inputs of the graph: {listed(lacking, shown=8)}"
            f"{alike(lacking, others)}: add these columns, or take the inputs out of the graph with --missing drop."
        )
    if others and given.extra == "refuse":
        raise GraphError(
            f"{samples.source} has {len(others)} columns that are no inputs of the graph: {listed(others, shown=8)}: "
            "--extra ignore leaves them out."
        )
    kept = restrict(dag, features).dag if given.missing == "drop" else dag
    if others or kept.num_nodes < dag.num_nodes:
        lost = dag.num_nodes - kept.num_nodes
        say_aside(f"{len(others):,} columns are ignored, {lost:,} nodes dropped that no column feeds")
    return matrix_of(samples, map(kept.name_of, kept.inputs.tolist())), kept


def _fitted(
    given: Fit, samples: Samples, task: str, x: NDArray[np.float64], dag: Any, reading: Reading
) -> tuple[Model, dict[str, dict[str, float]], dict[str, list[Any]]]:
    """The model, scores of each part, and a table of predictions."""
    from dagnn.visible import DagClassifier, DagRegressor, DagSurvival
    from dagnn.visible.fitting import moments

    options: dict[str, Any] = {
        "activation": given.activation,
        "max_epochs": given.epochs,
        "learning_rate": given.learning_rate,
        "weight_decay": given.weight_decay,
        "early_stopping": given.early_stopping,
        "random_state": given.seed,
        "standardize": False,
    }
    y = _target(given, samples, task)
    train, test = _parts(given, task, y)
    mean, scale = moments(x[train], np.ones(len(train)))
    if not np.isfinite([mean, scale]).all():
        name = dag.name_of(int(dag.inputs[int(np.flatnonzero(~np.isfinite(mean + scale))[0])]))
        raise ConfigError(f"the values of {name!r} are too large for their variance in float64: scale that column.")
    inputs = ((x - mean) / scale).astype(np.float32)
    kind = {"classification": DagClassifier, "regression": DagRegressor, "survival": DagSurvival}[task]
    model = kind(dag, **options).fit(inputs[train], y[train])
    say_aside(f"fitted in {model.n_iter_:,} epochs, loss {model.loss_curve_[-1]:.4g}")

    parts = {"training": train, **({"held out": test} if len(test) else {})}
    scores = {name: _scores(task, model, inputs[rows], y[rows]) for name, rows in parts.items()}
    part_of = np.full(len(x), "training", dtype=object)
    part_of[test] = "held out"
    predictions: dict[str, list[Any]] = {"sample": samples.names, "part": part_of.tolist()}
    if task == "survival":
        predictions |= {"time": y["time"].tolist(), "event": y["event"].astype(int).tolist()}
        predictions["log hazard ratio"] = model.predict(inputs).tolist()
    else:
        predictions |= {given.target: y.tolist(), "predicted": model.predict(inputs).tolist()}
    classes: list[str] = []
    if isinstance(model, DagClassifier):
        classes = model.classes_.tolist()
        shares = model.predict_proba(inputs)
        predictions |= {f"probability of {name}": shares[:, place].tolist() for place, name in enumerate(classes)}
    labels = {str(node): text for node, text in reading.labels.items()}
    assert isinstance(model.net_, DagNN)  # one unit a node, as by default
    return Model(model.net_, task, given.target, classes, mean, scale, labels), scores, predictions


def _target(given: Fit, samples: Samples, task: str) -> NDArray[Any]:
    if task == "classification":
        cells = samples.column(given.target)
        if "" in cells:
            where = samples.names[cells.index("")]
            raise ConfigError(f"sample {where!r} has no {given.target!r}: drop the sample, or fill its class.")
        return np.array(cells)
    values = samples.numbers(given.target)
    if given.event is None:
        return values
    event = samples.numbers(given.event)
    if not np.isin(event, (0, 1)).all():
        raise ConfigError(f"column {given.event!r} must hold 0 (censored) and 1 only.")
    if (values < 0).any():
        row = int(np.flatnonzero(values < 0)[0])
        raise ConfigError(f"sample {samples.names[row]!r} has the time {values[row]:g}: it must be at least 0.")
    return np.array(list(zip(event == 1, values, strict=True)), dtype=[("event", bool), ("time", float)])


def _parts(given: Fit, task: str, y: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows to train on, and rows that are held out, with the same shares of classes or events."""
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(y))
    if given.held_out == 0:
        return rows, rows[:0]
    strata = {"classification": y, "survival": y["event"] if task == "survival" else None}.get(task)
    try:
        train, test = train_test_split(rows, test_size=given.held_out, random_state=given.seed, stratify=strata)
    except ValueError as error:
        shares = {"classification": "every class", "survival": "events and censored samples"}.get(task, "samples")
        raise ConfigError(
            f"--held-out {given.held_out} of {len(y)} samples does not leave {shares} in both parts: choose another "
            f"share, give more samples, or hold none out with --held-out 0 ({str(error).rstrip('.')})."
        ) from None
    return np.sort(train), np.sort(test)


def _scores(task: str, model: Any, x: NDArray[Any], y: NDArray[Any]) -> dict[str, float]:
    from sklearn import metrics

    found: dict[str, float] = {"samples": len(y)}
    if task == "classification":
        predicted = model.predict(x)
        found["accuracy"] = metrics.accuracy_score(y, predicted)
        recalls = [float((predicted[y == label] == label).mean()) for label in np.unique(y)]
        found["balanced accuracy"] = float(np.mean(recalls))
    elif task == "regression":
        predicted = model.predict(x)
        found["mean absolute error"] = metrics.mean_absolute_error(y, predicted)
        if len(y) > 1:
            found["R2"] = metrics.r2_score(y, predicted)
    else:
        found["concordance index"] = model.score(x, y)
    return {name: float(value) for name, value in found.items()}


# ---- dagnn visible draw ----


@dataclass(frozen=True)
class Draw:
    """Draws a graph, a saved network or a fitted one: .svg, .png, .pdf, or .html to explore."""

    source: Positional[Annotated[str, arg(metavar="SOURCE")]]
    """folder that dagnn visible fit wrote, a file that DagNN.save wrote, or a graph in a file"""
    out: Positional[Annotated[str, arg(metavar="OUT")]]
    """file to write"""
    top: int | None = None
    """draw only so many nodes, the most important"""
    title: str | None = None
    """a line at the top"""
    members: str | None = None
    """of a graph: genes of terms, or Reactome's file of genes of pathways"""
    columns: tuple[str, str] | None = None
    """of a table of edges: its two columns; 0 1 of a table without a header"""
    root: str | None = None
    """of a graph: one node above all"""


def _draw(arguments: Sequence[str]) -> int:
    given = parsed(Draw, "visible draw", arguments)
    source, out = Path(given.source), Path(given.out)
    is_page = out.suffix.lower() in (".html", ".htm")
    if not is_page:
        picture_kind(out)  # before anything is read
    elif given.top is not None:
        raise ConfigError("--top is for pictures: a page shows neighbourhoods of large graphs by itself.")
    drawn: Any
    labels: Mapping[Any, str] = {}
    if source.is_dir():
        model = Model.load(source)
        drawn, labels = model.net, model.labels
    elif given.members or source.name.removesuffix(".gz").lower().endswith(_GRAPH_ENDINGS):
        with as_options(Draw, _PHRASES):
            reading = read_any(source, members=given.members, columns=given.columns, root=given.root)
        say_aside(str(reading.report))
        drawn, labels = reading.dag, reading.labels
    else:
        drawn = DagNN.load(source)
    if is_page:
        drawn.write_page(out, title=given.title, labels=labels)
    else:
        drawn.draw(out, top=given.top, title=given.title, labels=labels)
    print(out)
    return 0


COMMANDS = {
    "fit": Command("fit a network of the shape of a graph to a table", _fit),
    "explain": Command("what the output of a fitted network flows through", run_explain),
    "draw": Command("a graph or network as a picture, or as a page to explore", _draw),
}
