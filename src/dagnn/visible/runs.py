"""The trainings that replicates compare, and their controls.

Many trainings of one network run at once: different seeds and labels, one thread each, the same bits as each alone.
Controls are shuffled labels, inputs that are the labels, and random graphs of the same degrees.
"""

import math
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.kernels import NetworkPlan, replace_gradients, run_network
from dagnn.nn import DagNN
from dagnn.nn.dag_nn.parameters import draw_uniform, initial_bounds

T = TypeVar("T")
# Runs that one optimizer steps together: each call costs as much as a run of 50 samples takes in it. Every run is a
# pair of tensors of its own, so that where a vector ends does not depend on its neighbours.
_TOGETHER = 8


@dataclass(frozen=True, kw_only=True)
class ReplicateTraining:
    """How every replicate is trained: AdamW, ``gain * output`` as the logit of a label, or as a standardised number.

    Attributes:
        epochs, batch_size: the order of the samples is drawn anew for every epoch; what is left of one is dropped.
        lr, weight_decay: of AdamW. Strong decay keeps weights small where thousands of inputs meet hundreds of samples.
        hidden_decay: the share of ``weight_decay`` for biases and for edges that leave no input. With 0.0 the ways from
            deep nodes to the output stay alive, however strongly the weights of inputs decay.
        gain: by which the output is multiplied.
        activation, output_activation: as of `DagNN`.

    Raises:
        ConfigError: a number out of range.

    >>> ReplicateTraining(epochs=3).batch_size
    50
    """

    epochs: int = 9
    batch_size: int = 50
    lr: float = 2e-3
    weight_decay: float = 6.0
    hidden_decay: float = 1.0
    gain: float = 4.0
    activation: str = "tanh"
    output_activation: str = "tanh"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int:
                if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
                    raise ConfigError(f"{field.name} must be a whole number, at least 1, got {value!r}.")
                object.__setattr__(self, field.name, int(value))
            elif field.type is float:
                least, words = (0.0, "of at least 0") if field.name.endswith("decay") else (1e-12, "above 0")
                if isinstance(value, bool) or not isinstance(value, Real) or not least <= float(value) < math.inf:
                    raise ConfigError(f"{field.name} must be a finite number {words}, got {value!r}.")
                object.__setattr__(self, field.name, float(value))  # PyTorch takes no float32 of NumPy's
        if self.hidden_decay > 1:
            raise ConfigError(f"hidden_decay is a share of weight_decay, from 0.0 to 1.0, got {self.hidden_decay!r}.")
        if self.lr * self.weight_decay >= 1:
            raise ConfigError(
                f"every step would take all of the weights away, or more: lr * weight_decay must be below 1, got "
                f"{self.lr!r} * {self.weight_decay!r}."
            )


@dataclass(frozen=True, eq=False)
class Run:
    """One training: its first parameters, its data, and the seed of the order of its samples.

    Attributes:
        plan: the network, with one output.
        weight, bias: parameters, trained in place.
        x, y: ``[samples, inputs]``, ``[samples]``; labels 0 and 1, or standardised numbers.
        seed: of the order.
        from_input: bool ``[weights]``, the edges that leave an input.
        draw: fills the parameters before the first step, on the thread that trains; None where they are there.
    """

    plan: NetworkPlan
    weight: nn.Parameter
    bias: nn.Parameter
    x: Tensor
    y: Tensor
    seed: int
    from_input: Tensor
    draw: Callable[[], None] | None = None


@dataclass(frozen=True, eq=False)
class Data:
    """Training and held-out samples: x ``[samples, inputs]``, y of its dtype, and the rows of each part."""

    x: Tensor
    y: Tensor
    train: Tensor
    test: Tensor
    is_label: bool

    @classmethod
    def made(cls, net: DagNN, x: Tensor, y: Any, held_out: float, seed: int) -> "Data":
        """What `explain_replicates` is given, checked; its errors are those of these arguments."""
        inputs = len(net.dag.inputs)
        if x.dim() != 2 or x.shape[1] != inputs:
            raise GraphError(f"x must have the shape [samples, inputs] = [..., {inputs}], got {list(x.shape)}.")
        if x.dtype not in (torch.float32, torch.float64):
            raise DtypeError(f"x must be float32 or float64, got {x.dtype}: convert it with x.float().")
        if not x.isfinite().all():
            row, column = (~x.isfinite()).nonzero()[0].tolist()
            name = net.input_names[column]
            raise ConfigError(f"x is {x[row, column].item()} for the input {name!r} of sample {row}: fill or drop it.")
        given = np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y)
        if given.dtype.kind not in "buif":
            raise DtypeError(
                f"y must hold numbers, 0 and 1 for two classes, got {given.dtype}: compare it, y == 'ill'."
            )
        labels = torch.as_tensor(given)
        if labels.shape != (len(x),):
            raise GraphError(
                f"y must have one number for each of {len(x)} samples, got the shape {list(labels.shape)}."
            )
        labels = labels.double()  # until they are standardised: float32 takes 1e9 and 1e9 + 1 for one number
        if not labels.isfinite().all():
            raise ConfigError(f"y is not finite for sample {int((~labels.isfinite()).nonzero()[0])}: drop it.")
        if len(labels) < 4 or bool((labels == labels[0]).all()):
            raise ConfigError(
                f"y must differ between samples, and there must be 4 at least, got {len(labels)} of value "
                f"{labels[0].item() if len(labels) else None}: one class only has nothing to learn."
            )
        is_label = bool(((labels == 0) | (labels == 1)).all())
        if not is_label:
            labels = (labels - labels.mean()) / labels.std(unbiased=False)
            if not labels.isfinite().all() or not labels.any():
                raise ConfigError("the values of y are too large for their variance in float64: scale y.")
        labels = labels.to(x.dtype)
        order = torch.from_numpy(np.random.default_rng([seed, 0]).permutation(len(x)))
        test = max(1, min(len(x) - 1, round(held_out * len(x))))
        if bool((labels[order[test:]] == labels[order[test]]).all()):
            raise ConfigError(
                f"the {len(x) - test} samples to train on have one value of y only, the others are held out: change "
                "seed= or held_out=, or give more samples."
            )
        return cls(x.contiguous(), labels, order[test:], order[:test], is_label)


class Start:
    """First parameters of a network from any seed: those that `DagNN.reset_parameters` draws.

    Their bounds are worked out once: on Reactome that takes longer than a step of training.
    """

    def __init__(self, net: DagNN) -> None:
        bounds = initial_bounds(net._layout, net.activations, net.aggregations)
        self._like = list(zip((net.edge_weight.detach(), net.bias.detach()), bounds, strict=True))
        self._from_input = torch.isin(net._layout.edges[:, 0], net._layout.inputs)

    def run(self, plan: NetworkPlan, first: int, x: Tensor, y: Tensor, seed: int) -> "Run":
        """A run whose parameters are drawn from the seed ``first`` when it begins."""
        weight, bias = (nn.Parameter(torch.empty_like(own)) for own, _ in self._like)

        def draw() -> None:
            generator = torch.Generator().manual_seed(first)
            for parameter, (_, bound) in zip((weight, bias), self._like, strict=True):
                draw_uniform(parameter, bound, generator)

        return Run(plan, weight, bias, x, y, seed, self._from_input, draw)


def train(
    runs: Sequence[Run], how: ReplicateTraining, *, is_label: bool, threads: int, done: Callable[[int], None]
) -> None:
    """Train all runs, in place, on ``threads`` threads; call it inside `single_threaded`.

    No run waits for another, and each is on one thread: its bits depend on neither.

    Args:
        is_label: y are labels, and the loss is that of logistic regression; else half the squared difference.
        done: called with the number of runs that have just ended.
    """
    # As many groups for every thread, of equal size but for one run.
    groups = threads * -(-len(runs) // (threads * _TOGETHER))
    bounds = [len(runs) * number // groups for number in range(groups + 1)]
    lock = threading.Lock()

    def work(group: Sequence[Run]) -> None:
        _train_group(group, how, is_label)
        with lock:
            done(len(group))

    parts = [runs[first:last] for first, last in pairwise(bounds) if first < last]
    each_on_one_thread([partial(work, part) for part in parts], threads)


@contextmanager
def single_threaded() -> Iterator[int]:
    """PyTorch computes on one thread inside; yields how many it may use.

    Threads that share one operation wait for each other by spinning. On a busy machine each such operation took a time
    slice: drawing the first weights of eight runs took twice as long as training them.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def each_on_one_thread(works: Sequence[Callable[[], T]], threads: int) -> list[T]:
    """What every function returns; so many of them run at once, each on one thread."""
    if threads == 1 or len(works) == 1:
        return [work() for work in works]
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return [future.result() for future in [pool.submit(work) for work in works]]


def _train_group(runs: Sequence[Run], how: ReplicateTraining, is_label: bool) -> None:
    parameters = [parameter for run in runs for parameter in (run.weight, run.bias)]
    for run in runs:
        if run.draw is not None:
            run.draw()
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=how.lr, weight_decay=how.weight_decay * how.hidden_decay, fused=True)
    input_decay = [] if how.hidden_decay == 1 else [(run.weight.detach(), _rest(run, how)) for run in runs]
    batch = min(how.batch_size, min(len(run.x) for run in runs))
    generators = [np.random.default_rng(run.seed) for run in runs]
    # Tensors, which an operation takes in half the time of a Python number.
    gain, share = (torch.tensor(value, dtype=runs[0].y.dtype) for value in (how.gain, how.gain / batch))
    for _ in range(how.epochs):
        orders = [
            torch.from_numpy(random.permutation(len(run.x))) for random, run in zip(generators, runs, strict=True)
        ]
        labels = [torch.split(run.y[order].unsqueeze(1), batch) for run, order in zip(runs, orders, strict=True)]
        batches = [torch.split(order, batch) for order in orders]
        for number in range(len(runs[0].x) // batch):
            for run, rows, y in zip(runs, batches, labels, strict=True):
                gradient_of = _gradient(y[number], gain, share, is_label)
                replace_gradients(run.plan, run.x, rows[number], run.weight, run.bias, gradient_of)
            for weight, rest in input_decay:
                weight.mul_(rest)
            optimizer.step()
    for parameter in parameters:
        parameter.grad = None


def _rest(run: Run, how: ReplicateTraining) -> Tensor:
    """What every weight is multiplied by, beside AdamW's decay, so that those of inputs decay in full."""
    full = how.lr * how.weight_decay
    rest = torch.ones_like(run.weight.detach())
    rest[run.from_input] = (1 - full) / (1 - full * how.hidden_decay)
    return rest


def _gradient(y: Tensor, gain: Tensor, share: Tensor, is_label: bool) -> Callable[[Tensor], Tensor]:
    """Of the mean loss of a batch, times ``gain``: ``share`` is gain / samples."""

    def gradient_of(output: Tensor) -> Tensor:
        prediction = output.mul_(gain)
        if is_label:
            prediction = prediction.sigmoid_()
        return prediction.sub_(y).mul_(share)

    return gradient_of


def scores(runs: Sequence[Run], x: Sequence[Tensor], y: Sequence[Tensor], *, is_label: bool) -> list[float]:
    """On other samples: the area under the ROC curve of every run; for numbers the correlation."""
    found = []
    for run, samples, truth in zip(runs, x, y, strict=True):
        output = run_network(run.plan, samples, run.weight.detach(), run.bias.detach())[:, 0].double()
        found.append(_area(output, truth) if is_label else _correlation(output, truth.double()))
    return found


def _area(score: Tensor, label: Tensor) -> float:
    positive, negative = score[label > 0], score[label <= 0]
    if not len(positive) or not len(negative):
        return float("nan")
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive) + torch.searchsorted(ordered, positive, right=True)
    return float(below.double().mean() / (2 * len(negative)))


def _correlation(a: Tensor, b: Tensor) -> float:
    a, b = a - a.mean(), b - b.mean()
    return float((a @ b) / (a.norm() * b.norm()))


# Rounds in which every edge is paired once and tries to swap: after so many, hardly one is where it was.
_ROUNDS = 20


def rewired(dag: Dag, seed: int, rounds: int = _ROUNDS) -> Dag:
    """A random Dag with the same nodes, inputs, outputs, and number of edges into and out of every node.

    Pairs of edges ``u -> v, p -> q`` become ``u -> q, p -> v``, where that makes no edge twice and no edge against the
    levels of ``dag``; so there are no cycles. Attributes of edges are dropped; those of nodes stay.

    Args:
        seed: 0 or more; equal seeds give equal graphs.
        rounds: in each, every edge is paired with a random one; 0 returns the same edges.

    Raises:
        GraphError: ``dag`` is no `Dag`, or has an edge twice.
        ConfigError: a negative seed or number of rounds.

    Source: Maslov, Sneppen, "Specificity and Stability in Topology of Protein Networks", Science 296, 2002.

    >>> dag = Dag([("a", "p"), ("b", "p"), ("c", "q"), ("p", "y"), ("q", "y")])
    >>> other = rewired(dag, seed=1)
    >>> other.in_degree.tolist() == dag.in_degree.tolist(), other.out_degree.tolist() == dag.out_degree.tolist()
    (True, True)
    """
    if not isinstance(dag, Dag):
        raise GraphError(f"rewired needs a Dag, got {type(dag).__name__}.")
    for name, value in (("seed", seed), ("rounds", rounds)):
        if not isinstance(value, int) or value < 0:
            raise ConfigError(f"{name} must be a whole number, at least 0, got {value!r}.")
    random, level = np.random.default_rng(seed), dag.levels.numpy()
    source, target = dag.edges.numpy().T.copy()
    if len(np.unique(source * dag.num_nodes + target)) < len(source):
        raise GraphError("the Dag has an edge twice: drop one, so that degrees mean something.")
    for _ in range(rounds):
        target = _swapped(source, target, level, random)
    return _same_nodes(dag, np.stack([source, target], axis=1), dag.outputs)


def _same_nodes(dag: Dag, edges: Tensor | NDArray[np.int64], outputs: Tensor) -> Dag:
    """The nodes of ``dag``, its inputs, names and node attributes, with these edges and outputs."""
    names, attributes = dag.names, dag.node_attributes
    return Dag(edges, dag.num_nodes, inputs=dag.inputs, outputs=outputs, names=names, node_attributes=attributes)


def _swapped(
    source: NDArray[np.int64], target: NDArray[np.int64], level: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.int64]:
    """The targets after one round of swaps."""
    count, nodes = len(source), len(level)
    order = random.permutation(count)[: count // 2 * 2].reshape(-1, 2)
    first, second = order.T
    allowed = (level[source[first]] < level[target[second]]) & (level[source[second]] < level[target[first]])
    first, second = first[allowed], second[allowed]
    # An edge that is there now, even one about to go, is refused, and so is one that two pairs would make.
    new = np.stack([source[first] * nodes + target[second], source[second] * nodes + target[first]])
    _, back, uses = np.unique(new, return_inverse=True, return_counts=True)
    fresh = (uses[back.reshape(new.shape)] == 1) & ~np.isin(new, source * nodes + target)
    kept = fresh.all(axis=0)
    first, second = first[kept], second[kept]
    result = target.copy()
    result[first], result[second] = target[second], target[first]
    return result


def shuffled(y: Tensor, random: np.random.Generator) -> Tensor:
    """``y`` in a random order."""
    return y[torch.from_numpy(random.permutation(len(y)))]


def deterministic(y: Tensor, inputs: int) -> Tensor:
    """Inputs that are the label, ``[samples, inputs]``, of mean 0 and variance 1: no input differs from another."""
    spread = y.std(unbiased=False)
    return ((y - y.mean()) / spread).unsqueeze(1).expand(-1, inputs).contiguous()


def with_one_output(dag: Dag, output: Hashable) -> Dag:
    """The same Dag with one output; GraphError for no such node, or several outputs and none named."""
    if output is None:
        if len(dag.outputs) != 1:
            shown = ", ".join(repr(dag.name_of(node)) for node in dag.outputs.tolist()[:5])
            raise GraphError(
                f"the Dag has {len(dag.outputs)} outputs, {shown} ...: say which is trained, with output=."
            )
        node = int(dag.outputs[0])
    else:
        node = dag.index_of(output)
    return _same_nodes(dag, dag.edges, torch.tensor([node]))
