"""`dagnn visible explain`: what a fitted network's output flows through, over replicates trained anew if asked."""

import html
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from tyro.conf import Positional, arg

from dagnn.commands import as_options, parsed, say_aside
from dagnn.drawing.picture import picture_bytes
from dagnn.errors import ConfigError
from dagnn.nn import DagNN
from dagnn.training.log import printable
from dagnn.visible.explaining import explain
from dagnn.visible.on_disk import (
    Model,
    Samples,
    edges_table,
    html_table,
    link,
    picture,
    plain_name,
    preformatted,
    read_samples,
    table_text,
    write,
    write_report,
)
from dagnn.visible.replicates import Replicates, explain_replicates
from dagnn.visible.runs import ReplicateTraining

_ONE_NETWORK = (
    "A single run says nothing about ranks: importances follow its seed and the shape of the graph. Add "
    "--replicates 3, which trains the graph anew and on shuffled targets too, before you believe one."
)


# What the library says of arguments that are called otherwise here, or that the command does not have.
_PHRASES = {
    "lr must": "--learning-rate must",
    "lr * weight_decay": "--learning-rate * --weight-decay",
    " or held_out=": "",
    "scale y": "scale the target",
}


@dataclass(frozen=True)
class Explain:
    """Explains a fitted network on samples: how much of its output flows through every node and edge.

    Conductance from the mean training sample to each sample. Writes explained_nodes.csv, explained_edges.csv,
    explanation.svg, explanation.html and explained.html into the folder of the network.
    """

    run: Positional[Annotated[str, arg(metavar="DIR")]] = "visible"
    """folder that dagnn visible fit wrote"""
    data: str = ""
    """samples to explain, with the columns of the fit"""
    output: str | None = None
    """the class or node to explain; needed if the network has several outputs"""
    rule: Literal["path", "secant"] = "path"
    """path: integrated gradients; secant: exact where activations have kinks"""
    steps: int = 32
    """points of the path"""
    top: int = 30
    """nodes in the picture and in the printed list"""
    replicates: int = 0
    """train the graph anew so often, and as often on each order of shuffled targets, and compare: replicates.csv"""
    shuffles: int = 19
    """orders of shuffled targets; 19 are the least for a p-value of 0.05"""
    epochs: int = ReplicateTraining.epochs
    """of each replicate; look at the held-out score that is printed"""
    learning_rate: float = ReplicateTraining.lr
    """of each replicate"""
    weight_decay: float = ReplicateTraining.weight_decay
    """of each replicate; strong by default, for many inputs and few samples"""
    hidden_decay: float = ReplicateTraining.hidden_decay
    """share of the weight decay for edges that leave no input; with 0 deep nodes are found under a strong decay too"""
    seed: int = 0
    """of the replicates"""


def run_explain(arguments: Sequence[str]) -> int:
    """`dagnn visible explain` with these arguments; returns the exit code."""
    given = parsed(Explain, "visible explain", arguments)
    if not given.data:
        raise ConfigError("give the samples to explain with --data FILE; see dagnn visible explain --help.")
    if given.top < 1:
        raise ConfigError(f"--top must be at least 1, got {given.top}.")
    folder = Path(given.run)
    model = Model.load(folder)
    samples = read_samples(given.data)
    say_aside(f"{len(samples.names):,} samples, {model.net.dag.num_nodes:,} nodes")
    output = _output(model.net, given.output)
    with as_options(Explain, _PHRASES):
        found = explain(model.net, model.inputs(samples), output=output, rule=given.rule, steps=given.steps)
        anew = _replicates(given, model, samples, output) if given.replicates else None
    order = np.argsort(-np.abs(found.node_means.numpy()), kind="stable")
    names = [found.node_names[place] for place in order.tolist()]
    level, height = model.net.dag.levels.numpy(), model.net.dag.heights.numpy()
    nodes: dict[str, list[Any]] = {
        "node": names,
        "label": [model.labels.get(str(name)) for name in names],
        "level": level[order].tolist(),
        "height": height[order].tolist(),
        "mean conductance": found.node_means.numpy()[order].tolist(),
        "share": found.node_shares.numpy()[order].tolist(),
    }
    write(folder / "explained_nodes.csv", table_text(nodes))
    write(folder / "explained_edges.csv", table_text(edges_table(found)))
    title = f"What decides {plain_name(found.output)}"
    figure = model.net.draw(importance=found, top=given.top, title=title, labels=model.labels)
    write(folder / "explanation.svg", picture_bytes(figure, "svg"))
    model.net.write_page(folder / "explanation.html", importance=found, title=title, labels=model.labels)
    error = f"completeness error {found.error:.3g}, of a mean change of {float(found.change.abs().mean()):.3g}"
    first = {name: column[: given.top] for name, column in nodes.items()}
    said = _ONE_NETWORK if anew is None else "This is the one network that was fitted; the replicates are below."
    more: list[list[str]] = []
    if anew is not None:
        table = _replicates_table(anew, model.labels)
        write(folder / "replicates.csv", table_text(table))
        rows = {name: column[: given.top] for name, column in table.items()}
        more = [["Replicates", preformatted(str(anew)), html_table(rows)]]
    write_report(
        folder / "explained.html",
        title,
        ["Most important nodes", f"<p>{html.escape(said)}</p>", html_table(first), f"<p>{error}</p>"],
        ["Picture", picture(model, found, given.top), link("explanation.html", "Explore the explanation")],
        *more,
    )
    width = max(len(printable(str(plain_name(name)))) for name in first["node"])
    for name, value, label in zip(first["node"], first["mean conductance"], first["label"], strict=True):
        print(f"{printable(str(plain_name(name))).ljust(width)}  {value:>10.4g}  {printable(label or '')}".rstrip())
    print(error)
    if anew is not None:
        print(*map(printable, str(anew).splitlines()), sep="\n")
    files = "explained.html, explanation.html, explanation.svg, explained_nodes.csv"
    print(f"written to {folder}: {files}{', replicates.csv' * (anew is not None)}")
    if anew is None:
        say_aside(_ONE_NETWORK)
    return 0


def _output(net: DagNN, wanted: str | None) -> Any:
    """The output that is called so, in full or by its class; the only one where none is."""
    known = {str(plain_name(name)): name for name in net.output_names}
    short = {str(name[-1]) if isinstance(name, tuple) else str(name): name for name in net.output_names}
    if wanted is None:
        if len(known) > 1:
            raise ConfigError(f"the network has several outputs: choose one with --output, of {', '.join(short)}.")
        return next(iter(known.values()))
    if wanted in known or wanted in short:
        return known.get(wanted, short.get(wanted))
    names = {str(net.dag.name_of(node)): net.dag.name_of(node) for node in range(net.dag.num_nodes)}
    if wanted not in names:
        raise ConfigError(f"the network has no node {wanted!r}; its outputs are {', '.join(short)}.")
    return names[wanted]


def _replicates(given: Explain, model: Model, samples: Samples, output: Hashable) -> Replicates:
    """What `explain_replicates` finds on the graph of a fitted network; of several classes, one against all others.

    Raises:
        ConfigError: a survival model, an output that is no head, a class that the fit did not know.
        DataError: the samples lack the target, or hold a cell that is no number.
    """
    net = model.net
    if model.task == "survival":
        raise ConfigError(
            "--replicates is for classes and numbers, and this network is a survival model: leave it out."
        )
    if output not in net.output_names:
        raise ConfigError(f"--replicates trains towards the target, and {output!r} is no output: leave --output out.")
    y = _target(model, samples, output)
    training = ReplicateTraining(
        epochs=given.epochs,
        lr=given.learning_rate,
        weight_decay=given.weight_decay,
        hidden_decay=given.hidden_decay,
    )
    hidden = {net.activations[node] for node in range(net.dag.num_nodes)} - {"identity"}
    if len(hidden) == 1:
        training = replace(training, activation=hidden.pop())

    def progress(done: int, total: int) -> None:
        if done * 10 // total > (done - 1) * 10 // total:
            say_aside(f"{done:,} of {total:,} networks trained")

    return explain_replicates(
        net.dag, model.inputs(samples), y, output=output, replicates=given.replicates, shuffles=given.shuffles,
        training=training, seed=given.seed, progress=progress,
    )  # fmt: skip


def _target(model: Model, samples: Samples, output: Hashable) -> NDArray[np.float64]:
    """``[samples]``: 1 for the class of the output and 0 for the others, or the numbers."""
    if model.task == "regression":
        return samples.numbers(model.target)
    cells = samples.column(model.target)
    unknown = [row for row, cell in enumerate(cells) if cell not in model.classes]
    if unknown:
        raise ConfigError(
            f"sample {samples.names[unknown[0]]!r} has {cells[unknown[0]]!r} as {model.target!r}, and the network was "
            f"fitted on {', '.join(model.classes)}: drop the sample."
        )
    assert isinstance(output, tuple)  # ("class", label), the name that the estimator gives
    return np.array([cell == str(output[-1]) for cell in cells], dtype=np.float64)


def _replicates_table(found: Replicates, labels: Any) -> dict[str, list[Any]]:
    """The nodes by the difference of their share to that on shuffled targets, largest first."""
    order = np.argsort(-found.difference.numpy(), kind="stable").tolist()
    low, high = found.interval()
    names = [found.node_names[place] for place in order]
    table: dict[str, list[Any]] = {"node": names, "label": [labels.get(str(name)) for name in names]}
    columns = {"share": found.mean, "low": low, "high": high, "difference": found.difference, "p": found.p_values}
    # NaN is no number for a reader of the table: inputs and the output have no p, one replicate has no interval.
    for name, values in columns.items():
        table[name] = [None if value != value else value for value in values.numpy()[order].tolist()]
    return table
