"""`explain_replicates`: which nodes matter, over seeds and against what labels without a signal give."""

import warnings
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Real
from typing import Any, Literal, final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagnn.errors import ConfigError, ConstantNodesWarning, library
from dagnn.graph import Dag
from dagnn.nn import DagNN
from dagnn.nn.learnable import check_dag
from dagnn.visible.explaining import baseline_of, explain_with
from dagnn.visible.reading import check_rows, checked_whole
from dagnn.visible.runs import (
    Data,
    ReplicateTraining,
    Run,
    Start,
    deterministic,
    each_on_one_thread,
    rewired,
    scores,
    shuffled,
    single_threaded,
    train,
    with_one_output,
)

Control = Literal["shuffled", "deterministic", "rewired"]
# What seeds are drawn for: each purpose has its own stream, so that one control does not move another. 0 is that of
# the held-out samples.
_FIRST, _ORDER, _SHUFFLE, _REWIRE = range(1, 5)


@final
class Replicates:
    """Importance of every node over replicates and controls: what `explain_replicates` returns.

    Importance is a *share*: the mean ``|C_v|`` over the held-out samples, over the mean ``|F(x) - F(baseline)|``.

    Attributes:
        node_names: in the order of the Dag's nodes.
        output: name of the node that was trained.
        shares: float64 ``[replicates, num_nodes]``.
        sizes: float64 ``[replicates, num_nodes]``, the mean ``|C_v|``.
        control_shares: of every control, float64 ``[runs, num_nodes]``; of shuffles ``[shuffles * replicates, ...]``,
            shuffle by shuffle.
        control_sizes: the same of the mean ``|C_v|``.
        scores: on the held-out samples, of every replicate: the area under the ROC curve, for numbers the correlation.
        control_scores: the same of every control, against the labels it was trained on.
        error: the largest completeness error of all explanations.

    The example is that of `explain_replicates`.

    >>> Replicates.__name__
    'Replicates'
    """

    def __init__(self, dag: Dag, output: Hashable, found: Mapping[str, "_Measured"], replicates: int) -> None:
        true = found["true"]
        self._dag, self.output, self._replicates = dag, output, replicates
        self.shares, self.sizes, self.scores = true.shares, true.sizes, true.scores
        controls = {name: measured for name, measured in found.items() if name != "true"}
        self.control_shares = {name: measured.shares for name, measured in controls.items()}
        self.control_sizes = {name: measured.sizes for name, measured in controls.items()}
        self.control_scores = {name: measured.scores for name, measured in controls.items()}
        self.error = max(measured.error for measured in found.values())

    @cached_property
    def node_names(self) -> tuple[Hashable, ...]:
        """The names of the nodes, in the order of the Dag."""
        return tuple(map(self._dag.name_of, range(self._dag.num_nodes)))

    @cached_property
    def mean(self) -> Tensor:
        """The mean share of every node, float64 ``[num_nodes]``."""
        return self.shares.mean(0)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Where the mean share over all seeds lies, by Student's t over the replicates; NaN for one replicate.

        It says how much seeds move a share, not whether the share means anything: for that see `p_values`.
        """
        _check_level(level, 0.95)
        count = len(self.shares)
        if count < 2:
            nothing = torch.full_like(self.mean, torch.nan)
            return nothing, nothing.clone()
        half = _statistics().t.ppf((1 + level) / 2, count - 1) * self.shares.std(0) / count**0.5
        return self.mean - half, self.mean + half

    @cached_property
    def difference(self) -> Tensor:
        """The mean share less that on shuffled labels, float64 ``[num_nodes]``: what to rank by.

        The mean share alone ranks nodes by where they are in the graph. Shares on shuffled labels are scaled to the
        same sum over the hidden nodes, so that the differences of those sum to 0: a network of noise changes its
        output little, since what flows cancels, and so its shares are large all over. Networks whose hidden nodes are
        all dead, as some with "relu" and a strong decay are, have no such sum and do not count.

        Raises:
            ConfigError: there is no control of shuffled labels.
        """
        null = self._of("shuffled", self.control_sizes)
        summed = self._tested if self._tested.any() else self._dag.inputs
        part, null_part = (sizes / sizes[:, summed].sum(1, keepdim=True) for sizes in (self.sizes, null))
        return (part.nanmean(0) - null_part.nanmean(0)) * self.shares[:, summed].sum(1).mean()

    @cached_property
    def p_values(self) -> Tensor:
        """The chance that *any* hidden node differs so much if the labels say nothing, float64 ``[num_nodes]``.

        The statistic of a set of labels is its mean over replicates of ``sqrt(mean |C_v|)`` less the mean over all
        sets. A node's p-value is the share of sets, the true one among them, whose largest statistic over the hidden
        nodes is as large as that of the node on the true labels. So it is family-wise over the nodes, and no smaller
        than 1 / (shuffles + 1). It is not divided by a standard error: that gave false hits. NaN for inputs and the
        output, which are not tested.

        Raises:
            ConfigError: there is no control of shuffled labels.
        """
        null = self._of("shuffled", self.control_sizes).sqrt()
        null = null.view(-1, self._replicates, null.shape[1]).mean(1)
        sets = torch.cat([self.sizes.sqrt().mean(0, keepdim=True), null])
        statistic = (sets - sets.mean(0))[:, self._tested]
        result = torch.full((sets.shape[1],), torch.nan, dtype=torch.float64)
        if statistic.shape[1]:
            largest = statistic.max(1).values
            as_large = (largest[1:].unsqueeze(1) >= statistic[0]).sum(0)
            result[self._tested] = (1 + as_large).double() / len(sets)
        return result

    def significant(self, level: float = 0.05) -> list[Hashable]:
        """Names of the hidden nodes with a p-value of at most ``level``, largest difference of shares first."""
        _check_level(level, 0.05)
        chosen = (self.p_values <= level).nonzero().flatten().tolist()
        return [self.node_names[node] for node in sorted(chosen, key=lambda node: -float(self.difference[node]))]

    def top(self, n: int = 10) -> list[tuple[Hashable, float]]:
        """The ``n`` hidden nodes of largest `difference`, with it; without shuffled labels, of largest mean share."""
        n = checked_whole("n", n)
        value = self.difference if "shuffled" in self.control_shares else self.mean
        chosen = self._tested.nonzero().flatten().tolist()
        ranked = sorted(chosen, key=lambda node: -float(value[node]))[: max(0, n)]
        return [(self.node_names[node], float(value[node])) for node in ranked]

    def likeness(self) -> dict[str, float]:
        """Spearman's correlation, over the hidden nodes, of the mean shares with those of every control.

        Near 1 for shuffled labels: the graph's shape ranks the nodes, whatever the labels say.
        """
        chosen = self._tested
        found = {}
        for name, shares in self.control_shares.items():
            pair = self.mean[chosen].numpy(), shares.nanmean(0)[chosen].numpy()
            is_flat = len(pair[0]) < 2 or any((one == one[0]).all() for one in pair)
            found[name] = float("nan") if is_flat else float(_statistics().spearmanr(*pair).statistic)
        return found

    def to_frame(self) -> Any:
        """A data frame of pandas, a row per node: share, its interval, and with shuffled labels difference and p-value.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        pandas = library("pandas", "to_frame", "pandas")
        low, high = self.interval()
        columns = {"share": self.mean, "low": low, "high": high}
        for name, shares in self.control_shares.items():
            columns[f"share_{name}"] = shares.nanmean(0)
        if "shuffled" in self.control_shares:
            columns |= {"difference": self.difference, "p_value": self.p_values}
        return pandas.DataFrame({"node": list(self.node_names)} | {name: one.tolist() for name, one in columns.items()})

    def __str__(self) -> str:
        held_out = ", ".join(f"{score:.3f}" for score in self.scores.tolist()[:5])
        lines = [f"{len(self.shares)} replicates for {self.output!r}, held-out score {held_out}; "
                 f"completeness error at most {self.error:.1e}"]  # fmt: skip
        for name, likeness in self.likeness().items():
            mean = self.control_scores[name].mean().item()
            lines.append(
                f"  {name}: score {mean:.3f}, rank correlation of the shares with the true ones {likeness:.2f}"
            )
        p_value = self.p_values if "shuffled" in self.control_shares else None
        for node, value in self.top():
            p_text = "" if p_value is None else f"  p {float(p_value[self._dag.index_of(node)]):.3f}"
            lines.append(f"  {value:+8.4f}  {node}{p_text}")
        lines += self.cautions()
        return "\n".join(lines)

    def cautions(self) -> list[str]:
        """What these runs cannot say."""
        found = []
        if len(self.shares) == 1:
            found.append("A single run says nothing: seeds move importances more than labels do. Take replicates.")
        if "shuffled" not in self.control_shares:
            found.append("Without shuffled labels, the graph's shape ranks the nodes: no differences, no p-values.")
        elif (sets := 1 + len(self.control_shares["shuffled"]) // self._replicates) < 20:
            found.append(f"{sets - 1} shuffles give no p-value below {1 / sets:.2f}: take 19 or more for 0.05.")
        return found

    @cached_property
    def _tested(self) -> Tensor:
        """bool ``[num_nodes]``: neither inputs nor the output."""
        tested = torch.ones(self._dag.num_nodes, dtype=torch.bool)
        tested[self._dag.inputs] = False
        tested[self._dag.index_of(self.output)] = False
        return tested

    def _of(self, control: str, values: Mapping[str, Tensor]) -> Tensor:
        if control not in values:
            raise ConfigError(f"this needs the control {control!r}, and the controls were {sorted(values)}: add it.")
        return values[control]


def explain_replicates(
    dag: Dag,
    x: Any,
    y: Any,
    *,
    replicates: int = 3,
    controls: Collection[str] = ("shuffled",),
    shuffles: int = 19,
    output: Hashable = None,
    baseline: Any = 0.0,
    held_out: float = 0.25,
    training: ReplicateTraining | None = None,
    steps: int = 16,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Replicates:
    """Importance of every node over replicates, beside controls, from networks that are trained here.

    A replicate is a seed: of the first weights and of the order of the samples. A share of the samples, the same for
    all, is held out: scores and importances are of those. All networks train at once, on the threads that PyTorch may
    use, each with the bits that it has alone.

    Controls: ``"shuffled"`` trains every replicate on ``shuffles`` random orders of y; only against these are there
    ranks (`Replicates.difference`) and p-values. ``"deterministic"`` replaces every input by y, so that only the graph
    tells nodes apart. ``"rewired"`` gives every replicate a random graph of the same degrees, see `rewired`.

    Args:
        dag: the graph, with one output or one named by ``output``; nodes are sums, as in `DagNN`.
        x: ``[samples, inputs]``, standardised; or columns by name.
        y: ``[samples]``: 0 and 1, or numbers, which are standardised.
        replicates, shuffles: at least 1. 3 and 19 are the least for p-values of 0.05.
        baseline: as of `explain`: a number, or one sample.
        held_out: share of the samples.
        training: by default ``ReplicateTraining()``.
        steps: points of the path, as of `explain`.
        seed: of everything, at least 0; one seed gives the same bits, whatever the threads.
        progress: called with the number of runs that are trained, and of all.

    Raises:
        GraphError, DtypeError, ConfigError: as of `explain` and `DagNN`; y of another length, of one class only or all
            equal, not finite, no numbers, a series with the rows of x in another order; too few samples; a number out
            of range; an unknown control.

    >>> dag = Dag([("a", "p"), ("b", "p"), ("c", "q"), ("d", "q"), ("p", "y"), ("q", "y")])
    >>> x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    >>> training = ReplicateTraining(weight_decay=0.1, lr=0.02)
    >>> found = explain_replicates(dag, x, (x[:, 0] + x[:, 1] > 0).float(), training=training)
    >>> found.significant(), found.top(1)[0][0]
    (['p'], 'p')
    """
    check_dag(dag)
    names = _checked_settings(replicates, controls, shuffles, held_out, seed, steps)
    how = ReplicateTraining() if training is None else training
    if not isinstance(how, ReplicateTraining):
        raise ConfigError(f"training must be a ReplicateTraining(...) or None, got {training!r}.")
    dag = with_one_output(dag, output)
    with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng(devices=[]), single_threaded() as threads:
        net = _network(dag, how)
        check_rows("y", y, x)
        samples = net.input_from(x) if not isinstance(x, Tensor) else x
        data = Data.made(net, samples.detach().cpu(), y, held_out, seed)
        baseline = baseline_of(net.to(data.x.dtype), baseline, data.x[data.test])  # before hours of training
        jobs = list(_jobs(net, dag, data, how, names, replicates, shuffles, seed))
        counter = _Counter(len(jobs), progress)
        train([job.run for job in jobs], how, is_label=data.is_label, threads=threads, done=counter.add)
        found = {}
        for name in ("true", *names):
            found[name] = _measured([job for job in jobs if job.of == name], data, baseline, steps, threads)
    return Replicates(dag, dag.name_of(int(dag.outputs[0])), found, replicates)


@dataclass(frozen=True, eq=False)
class _Job:
    """A run, what it is for, and the held-out samples on which it is measured; ``place`` orders those of one kind."""

    of: str
    place: tuple[int, int]
    net: DagNN
    run: Run
    x: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class _Measured:
    shares: Tensor
    sizes: Tensor
    scores: Tensor
    error: float


class _Counter:
    def __init__(self, total: int, progress: Callable[[int, int], None] | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def add(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)


def _checked_settings(
    replicates: object, controls: Collection[str], shuffles: object, held_out: object, seed: object, steps: object
) -> list[str]:
    counts = (("replicates", replicates, 1), ("shuffles", shuffles, 1), ("seed", seed, 0), ("steps", steps, 1))
    for name, value, least in counts:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{name} must be a whole number, at least {least}, got {value!r}.")
    if not isinstance(held_out, float) or not 0 < held_out < 1:
        raise ConfigError(f"held_out must lie between 0 and 1, got {held_out!r}: 0.25 is a quarter of the samples.")
    known = get_args(Control)
    is_list = isinstance(controls, Collection) and not isinstance(controls, str)
    wrong = [name for name in controls if name not in known] if is_list else [controls]
    if wrong:
        raise ConfigError(f"controls is a list of some of {', '.join(known)}, got {wrong[0]!r}.")
    return [name for name in known if name in controls]


def _check_level(level: Any, usual: float) -> None:
    if not isinstance(level, Real) or not 0 < float(level) < 1:
        raise ConfigError(f"level must lie between 0 and 1, got {level!r}: {usual} is usual.")


def _network(dag: Dag, how: ReplicateTraining) -> DagNN:
    return DagNN(dag, activation=how.activation, output_activation=how.output_activation)


def _jobs(
    net: DagNN, dag: Dag, data: Data, how: ReplicateTraining, names: Sequence[str], replicates: int, shuffles: int,
    seed: int,
) -> Iterator[_Job]:  # fmt: skip
    """All runs: replicate by replicate on the true and all shuffled labels, then those of the other controls."""
    labels = {("true", 0): data.y}
    if "shuffled" in names:
        for number in range(shuffles):
            labels["shuffled", number] = shuffled(data.y, np.random.default_rng([seed, _SHUFFLE, number]))
    net = net.to(data.x.dtype)
    x, x_test = data.x[data.train], data.x[data.test]
    y, y_test = data.y[data.train], data.y[data.test]
    if "deterministic" in names:
        told = deterministic(data.y, data.x.shape[1])
        x_told, told_test = told[data.train], told[data.test]

    def job(
        of: str, number: int, k: int, first: Start, own: DagNN, x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor
    ) -> _Job:
        # The same first weights and order for all labels: what differs between them is the labels.
        plan = own._plan_on[torch.device("cpu")]
        run = first.run(plan, _seed(seed, _FIRST, k), x, y, _seed(seed, _ORDER, k))
        return _Job(of, (number, k), own, run, x_test, y_test)

    first = Start(net)
    for k in range(replicates):
        for (of, number), values in labels.items():
            yield job(of, number, k, first, net, x, values[data.train], x_test, values[data.test])
    for k in range(replicates if "deterministic" in names else 0):
        yield job("deterministic", 0, k, first, net, x_told, y, told_test, y_test)
    for k in range(replicates if "rewired" in names else 0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConstantNodesWarning)  # of the same nodes, said already
            other = _network(rewired(dag, _seed(seed, _REWIRE, k)), how).to(data.x.dtype)
        yield job("rewired", 0, k, Start(other), other, x, y, x_test, y_test)


def _seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def _measured(jobs: Sequence[_Job], data: Data, baseline: Any, steps: int, threads: int) -> _Measured:
    jobs = sorted(jobs, key=lambda job: job.place)

    def measured(job: _Job) -> tuple[Tensor, Tensor, float]:
        weight, bias = job.run.weight.detach(), job.run.bias.detach()
        found = explain_with(job.net, weight, bias, job.x, baseline, output=None, rule="path", steps=steps)
        size: NDArray[np.float64] = np.abs(found.nodes.numpy()).mean(axis=0, dtype=np.float64)
        return found.node_shares, torch.from_numpy(size), found.error

    shares, sizes, errors = zip(*each_on_one_thread([partial(measured, job) for job in jobs], threads), strict=True)
    own = scores([job.run for job in jobs], [job.x for job in jobs], [job.y for job in jobs], is_label=data.is_label)
    return _Measured(torch.stack(shares), torch.stack(sizes), torch.tensor(own, dtype=torch.float64), max(errors))


def _statistics() -> Any:
    return library("scipy.stats", "an interval or a rank correlation", "dagnn[visible]")
