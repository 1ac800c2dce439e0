"""Many trainings of one network at once: different seeds and labels, one thread each, the same bits as each alone."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor, nn

from dagnn.errors import ConfigError
from dagnn.kernels import NetworkPlan, replace_gradients, run_network
from dagnn.nn import DagNN

# Runs that one optimizer steps together: each call costs as much as a run of 50 samples takes in it. Every run is a
# pair of tensors of its own, so that where a vector ends does not depend on its neighbours.
_TOGETHER = 8


@dataclass(frozen=True, kw_only=True)
class ReplicateTraining:
    """How every replicate is trained: AdamW, ``gain * output`` as the logit of a label, or as a standardised number.

    Attributes:
        epochs, batch_size: the order of the samples is drawn anew for every epoch; what is left of one is dropped.
        lr, weight_decay: of AdamW. Strong decay keeps weights small where thousands of inputs meet hundreds of samples.
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
    gain: float = 4.0
    activation: str = "tanh"
    output_activation: str = "tanh"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and (type(value) is not int or value < 1):
                raise ConfigError(f"{field.name} must be a whole number, at least 1, got {value!r}.")
            lowest = 0 if field.name == "weight_decay" else 1e-12
            if field.type is float and not lowest <= value < float("inf"):
                raise ConfigError(f"{field.name} must be a finite number above 0, got {value!r}.")


@dataclass(frozen=True, eq=False)
class Run:
    """One training: its first parameters, its data, and the seed of the order of its samples.

    Attributes:
        plan: the network, with one output.
        weight, bias: parameters, trained in place.
        x, y: ``[samples, inputs]``, ``[samples]``; labels 0 and 1, or standardised numbers.
        seed: of the order.
    """

    plan: NetworkPlan
    weight: nn.Parameter
    bias: nn.Parameter
    x: Tensor
    y: Tensor
    seed: int


def first_parameters(net: DagNN, seed: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Weights and biases of the network, drawn anew from a seed."""
    net.reset_parameters(torch.Generator().manual_seed(seed))
    return nn.Parameter(net.edge_weight.detach().clone()), nn.Parameter(net.bias.detach().clone())


def train(runs: Sequence[Run], how: ReplicateTraining, *, is_label: bool, done: Callable[[int], None]) -> None:
    """Train all runs, in place, on the threads that PyTorch may use.

    No run waits for another, and each is on one thread: its bits depend on neither. Runs that follow each other with
    the same x and seed share the rows of a batch.

    Args:
        is_label: y are labels, and the loss is that of logistic regression; else half the squared difference.
        done: called with the number of runs that have just ended.
    """
    threads = torch.get_num_threads()
    size = max(1, min(_TOGETHER, -(-len(runs) // threads)))
    groups = [runs[first : first + size] for first in range(0, len(runs), size)]
    lock = threading.Lock()

    def work(group: Sequence[Run]) -> None:
        torch.set_num_threads(1)  # of this thread: several in each would wait for each other at every operation
        _train_group(group, how, is_label)
        with lock:
            done(len(group))

    try:
        if threads == 1 or len(groups) == 1:
            for group in groups:
                work(group)
        else:
            with ThreadPoolExecutor(threads) as pool:
                for future in [pool.submit(work, group) for group in groups]:
                    future.result()
    finally:
        torch.set_num_threads(threads)


def _train_group(runs: Sequence[Run], how: ReplicateTraining, is_label: bool) -> None:
    parameters = [parameter for run in runs for parameter in (run.weight, run.bias)]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=how.lr, weight_decay=how.weight_decay, fused=True)
    batch = min(how.batch_size, min(len(run.x) for run in runs))
    generators = [np.random.default_rng(run.seed) for run in runs]
    for _ in range(how.epochs):
        orders = [
            torch.from_numpy(random.permutation(len(run.x))) for random, run in zip(generators, runs, strict=True)
        ]
        for first in range(0, len(runs[0].x) - batch + 1, batch):
            shared: tuple[int, int] | None = None
            for run, order in zip(runs, orders, strict=True):
                rows = order[first : first + batch]
                if shared != (id(run.x), run.seed):
                    x, shared = run.x.index_select(0, rows), (id(run.x), run.seed)
                gradient_of = _gradient(run.y[rows].unsqueeze(1), how.gain, is_label)
                replace_gradients(run.plan, x, run.weight, run.bias, gradient_of)
            optimizer.step()
    for parameter in parameters:
        parameter.grad = None


def _gradient(y: Tensor, gain: float, is_label: bool) -> Callable[[Tensor], Tensor]:
    def gradient_of(output: Tensor) -> Tensor:
        scaled = output * gain
        prediction = scaled.sigmoid() if is_label else scaled
        return (prediction - y).mul_(gain / len(y))

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
