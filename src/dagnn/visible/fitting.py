"""What the estimators share: the graph with a head for each output, inputs by name, standardizing, training."""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from dagnn.errors import ConfigError, GraphError
from dagnn.graph import Dag
from dagnn.nn import DagNN, WideDagNN
from dagnn.visible.columns import column_names, restrict
from dagnn.visible.reading import Reading, check_rows, checked_choice, listed

_FEW = 64  # so many features feed all nodes of the default graph's first level


@dataclass(eq=False, repr=False)
class GraphEstimator(BaseEstimator):  # type: ignore[misc]
    """What the three share: the graph, the training, and inputs by name. Its parameters are those of `DagRegressor`."""

    # Fields and not an __init__: scikit-learn reads the signature, which the three extend by one field each.
    dag: Dag | Reading | None = None
    _: KW_ONLY
    activation: Any = "tanh"
    width: Any = 1
    normalise: Literal["batch", "layer"] | None = None
    dropout: Any = 0.0
    learning_rate: float = 0.01
    weight_decay: float = 1e-4
    max_epochs: int = 200
    batch_size: int | None = None
    standardize: bool = True
    missing: str = "refuse"
    extra: str = "refuse"
    early_stopping: bool = False
    validation_fraction: float = 0.1
    patience: int = 20
    random_state: Any = None

    # ---- what each of them decides ----

    @abstractmethod
    def _read_target(self, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """X and y, checked by scikit-learn; the attributes that y decides are set."""

    @abstractmethod
    def _prepared(self, y: NDArray[Any], weight: NDArray[Any]) -> NDArray[Any]:
        """y as the loss takes it, from the samples that count."""

    @abstractmethod
    def _heads(self) -> list[Hashable]:
        """A name for each output of the network."""

    @abstractmethod
    def _loss(self, output: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """The weighted mean loss of ``output [n, heads]``."""

    def _strata(self, target: NDArray[Any]) -> NDArray[Any] | None:
        """What training and validation samples should have the same shares of."""
        return None

    def _check_part(self, part: str, target: NDArray[Any]) -> None:
        """Refuse training or held-out samples of which the loss says nothing."""

    def _default_batch(self, samples: int) -> int:
        return min(samples, 256)

    # ---- fitting ----

    def _fit(self, X: Any, y: Any, sample_weight: Any, class_weight: Any = None) -> Self:
        self._check_parameters()
        if isinstance(X, Mapping) and not issparse(X):  # SciPy's dictionary of keys is a dict; it is refused as sparse
            raise ConfigError(
                "X must be a data frame or an array, got a mapping: make it one, with pandas.DataFrame(X)."
            )
        check_rows("y", y, X)
        check_rows("sample_weight", sample_weight, X)
        names = _frame_names(X)
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise GraphError(f"X has more than one column {twice[0]!r}: keep one of them.")
        X, y = self._read_target(X, y)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if class_weight is not None:
            _check_class_weight(class_weight)
            weight = weight / (weight.max() or 1.0) * compute_sample_weight(class_weight, y)
        if not weight.any():
            raise ValueError("all samples have weight 0, so there is nothing to fit: raise some class_weight.")
        X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]
        weight = weight / weight.max()  # first: the sum of large ones is infinite
        weight = (weight / weight.mean()).astype(X.dtype)
        target = self._prepared(y, weight)
        dag, self._columns = self._graph(X.shape[1], names)
        self._column_names = names
        self.dag_ = _with_heads(dag, self._heads())
        X = X.take(self._columns, axis=1)  # X[:, columns] would be in the order of columns in memory, rows far apart
        self._mean: NDArray[Any] = np.zeros(X.shape[1])
        self._scale: NDArray[Any] = np.ones(X.shape[1])
        if self.standardize:
            self._mean, self._scale = moments(X, weight)
            if not np.isfinite(self._scale).all():
                column = int(np.flatnonzero(~np.isfinite(self._scale))[0])
                name = self.dag_.name_of(int(self.dag_.inputs[column]))
                raise ValueError(f"the values of {name!r} are too large for their variance in {X.dtype}: scale X.")
        x = torch.from_numpy(((X - self._mean) / self._scale).astype(X.dtype))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if target.dtype.kind == "f":
            target = target.astype(X.dtype)
        # A generator of its own: other threads may draw from PyTorch's. Only dropout has no choice.
        generator = torch.Generator().manual_seed(seed)
        with _seeded(seed):
            self.net_ = self._network(x.dtype)
            self.net_.reset_parameters(generator)
            self._train(x, torch.from_numpy(target), torch.from_numpy(weight), generator)
        self.net_.eval()
        return self

    def _check_parameters(self) -> None:
        if not isinstance(self.dag, Dag | Reading | None):
            raise ConfigError(f"dag must be a Dag, what a reader gave, or None, got a {type(self.dag).__name__}.")
        checked_choice("missing", self.missing, ("refuse", "drop"))
        checked_choice("extra", self.extra, ("refuse", "ignore"))
        whole = ("max_epochs", "patience", *(() if self.batch_size is None else ("batch_size",)))
        for name in (*whole, "learning_rate"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 < value < math.inf or (name in whole and int(value) != value):
                kind = "whole number of at least 1" if name in whole else "finite number above 0"
                raise ConfigError(f"{name} must be a {kind}, got {value!r}.")
        if not _is_number(self.weight_decay) or not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"weight_decay must be a finite number of at least 0, got {self.weight_decay!r}.")
        if not _is_number(self.validation_fraction) or not 0 < self.validation_fraction < 1:
            raise ConfigError(f"validation_fraction must be between 0 and 1, got {self.validation_fraction!r}.")
        for name in ("standardize", "early_stopping"):
            if not isinstance(value := getattr(self, name), bool | np.bool_):
                raise ConfigError(f"{name} must be True or False, got {value!r}.")

    def _graph(self, features: int, names: list[Hashable] | None) -> tuple[Dag, NDArray[np.int64]]:
        """The Dag, and the column of X of each of its inputs."""
        if self.dag is None:
            return layered_dag(list(range(features)) if names is None else names), np.arange(features)
        dag = self.dag.dag if isinstance(self.dag, Reading) else self.dag
        if names is None:
            if len(dag.inputs) != features:
                raise GraphError(
                    f"X has {features} features without names, but the Dag has {len(dag.inputs)} inputs: give a data "
                    "frame, whose columns are taken by name."
                )
            return dag, np.arange(features)
        if self.missing == "drop":
            dag = restrict(dag, names).dag
        place = {name: i for i, name in enumerate(names)}
        inputs = [dag.name_of(node) for node in dag.inputs.tolist()]
        lacking = [name for name in inputs if name not in place]
        if lacking:
            raise GraphError(
                f"X lacks {len(lacking)} of {len(inputs)} inputs of the Dag: {listed(lacking, shown=8)}: "
                "missing='drop' takes them out of it, with what nothing else feeds."
            )
        others = [name for name in names if name not in {*inputs}]
        if others and self.extra == "refuse":
            raise GraphError(
                f"X has {len(others)} columns that are no inputs of the Dag: {listed(others, shown=8)}: "
                "extra='ignore' leaves them out."
            )
        return dag, np.array([place[name] for name in inputs], dtype=np.int64)

    def _network(self, dtype: torch.dtype) -> DagNN | WideDagNN:
        if self.width == 1 and self.normalise is None and self.dropout == 0:
            return DagNN(self.dag_, activation=self.activation, dtype=dtype)
        return WideDagNN(
            self.dag_,
            width=self.width,
            activation=self.activation,
            normalise=self.normalise,
            dropout=self.dropout,
            dtype=dtype,
        )

    def _train(self, x: Tensor, target: Tensor, weight: Tensor, generator: torch.Generator) -> None:
        """Adam with decoupled weight decay; with early stopping, the weights of the best epoch stay."""
        net = self.net_
        train, held_out = self._split(len(x), target.numpy(), generator.initial_seed())
        if held_out is not None:
            held = x[held_out], target[held_out], weight[held_out]
            x, target, weight = x[train], target[train], weight[train]
            weight = weight / weight.mean()
        size = self.batch_size or self._default_batch(len(x))
        batches = max(1, round(len(x) / size))
        buffer = x.new_empty(math.ceil(len(x) / batches), x.shape[1])
        optimizer = torch.optim.AdamW(
            net.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay, fused=True
        )
        self.loss_curve_, self.validation_curve_ = list[float](), list[float]()
        best, best_state, best_epoch = math.inf, None, 0
        for epoch in range(self.max_epochs):
            net.train()
            total = 0.0
            # Batches of equal size: with batch norm a last one of a single sample would be refused.
            parts = [None] if batches == 1 else torch.randperm(len(x), generator=generator).tensor_split(batches)
            for part in parts:
                if part is None:
                    rows = x, target, weight
                else:  # into one buffer: a new one for each batch costs twice as much, in pages that have to be mapped
                    taken = torch.index_select(x, 0, part, out=buffer[: len(part)])
                    rows = taken, target[part], weight[part]
                optimizer.zero_grad()
                loss = self._loss(net(rows[0]), *rows[1:])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += loss.item() * len(rows[0]) / len(x)
            if not math.isfinite(total):
                rate = self.learning_rate
                raise ValueError(
                    f"the loss is {total} after {epoch + 1} epochs: lower learning_rate={rate}, or scale X."
                )
            self.loss_curve_.append(total)
            if held_out is not None:
                net.eval()
                with torch.no_grad():
                    score = self._loss(net(held[0]), *held[1:]).item()
                self.validation_curve_.append(score)
                if score < best:
                    best, best_epoch = score, epoch
                    best_state = {name: value.clone() for name, value in net.state_dict().items()}
                elif epoch - best_epoch >= self.patience:
                    break
        if best_state is not None:
            net.load_state_dict(best_state)
        self.n_iter_ = len(self.loss_curve_)

    def _split(
        self, samples: int, target: NDArray[Any], seed: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        rows = np.arange(samples)
        if not self.early_stopping:
            return rows, None
        try:
            train, held_out = train_test_split(
                rows, test_size=self.validation_fraction, random_state=seed, stratify=self._strata(target)
            )
        except ValueError as error:
            raise ValueError(
                f"early_stopping=True holds out validation_fraction={self.validation_fraction} of the samples, and "
                f"there are too few: {error}"
            ) from None
        self._check_part("training", target[train])
        self._check_part("held-out", target[held_out])
        return train, held_out

    # ---- what a fitted one does ----

    def inputs(self, X: Any) -> Tensor:
        """``[n, inputs]``: X as the network ``net_`` takes it, columns by name and standardized; for explanations."""
        check_is_fitted(self, "net_")
        names = _frame_names(X)
        if names is not None and self._column_names is not None and names != self._column_names:
            # scikit-learn compares names that are all text, and gives the differences.
            validate_data(self, X, reset=False, skip_check_array=True)
            raise ValueError("the columns of X are not those of fit, in their order: select X[columns of fit].")
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        dtype = self.net_.edge_weight.dtype
        return torch.from_numpy((X.take(self._columns, axis=1) - self._mean) / self._scale).to(dtype)

    def _output(self, X: Any) -> NDArray[Any]:
        x = self.inputs(X)
        with torch.no_grad():
            return self.net_(x).numpy()  # type: ignore[no-any-return]


def layered_dag(inputs: Sequence[Hashable]) -> Dag:
    """The graph that estimators take without ``dag``: two hidden levels, of at most 32 and 16 nodes.

    Up to 64 inputs feed all nodes of the first; of more, each feeds two. Hidden nodes are called
    ``("hidden", level, place)``.

    >>> layered_dag(["a", "b"]).num_nodes
    14
    """
    first = min(32, max(8, len(inputs)))
    one, two = [("hidden", 1, i) for i in range(first)], [("hidden", 2, i) for i in range(first // 2)]
    edges: list[tuple[Hashable, Hashable]] = []
    for place, name in enumerate(inputs):
        fed = range(first) if len(inputs) <= _FEW else sorted({place % first, place // first % first})
        edges += [(name, one[i]) for i in fed]
    edges += [(u, v) for u in one for v in two]
    names = [*inputs, *one, *two]
    index_of = {name: i for i, name in enumerate(names)}
    return Dag(np.array([(index_of[u], index_of[v]) for u, v in edges], dtype=np.int64), names=names)


def _with_heads(dag: Dag, heads: list[Hashable]) -> Dag:
    """The Dag with a linear node for each head, which every output feeds; these are its outputs."""
    if dag.names is not None and not {*dag.names}.isdisjoint(heads):
        raise GraphError(f"the Dag has a node {heads[0]!r}, which the estimator adds: rename it.")
    if not len(dag.outputs):
        raise GraphError("the Dag has no outputs for the heads to read: say which nodes are, in Dag(outputs=...).")
    outputs, new = dag.outputs.numpy(), dag.num_nodes + np.arange(len(heads))
    more = np.stack([np.tile(outputs, len(heads)), new.repeat(len(outputs))], axis=1)
    return Dag(
        np.concatenate([dag.edges.numpy(), more]),
        num_nodes=dag.num_nodes + len(heads),
        names=None if dag.names is None else [*dag.names, *heads],
        inputs=dag.inputs.numpy(),
        outputs=new,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)


def _check_class_weight(given: Any) -> None:
    if isinstance(given, str) and given == "balanced":
        return
    if not isinstance(given, Mapping):
        raise ConfigError(f"class_weight must be None, 'balanced', or a mapping class -> weight, got {given!r}.")
    for label, weight in given.items():
        if not _is_number(weight) or not 0 <= weight < math.inf:
            raise ConfigError(f"class_weight[{label!r}] must be a finite number of at least 0, got {weight!r}.")


def _frame_names(X: Any) -> list[Hashable] | None:
    """The names of the columns of a data frame; None for anything else."""
    return column_names(X) if hasattr(X, "columns") and not isinstance(X, Mapping) else None


def moments(X: NDArray[Any], weight: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Weighted mean and standard deviation of every column; 1 for one that is constant up to rounding."""
    exact = weight.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite then, which is refused
        mean = np.average(X, axis=0, weights=exact)
        scale = np.sqrt(np.average(np.square(X - mean), axis=0, weights=exact))
    constant = scale <= 10 * np.finfo(X.dtype).eps * np.abs(mean)
    return mean, np.where(constant, 1.0, scale)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """PyTorch draws from ``seed`` inside, and goes on afterwards as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
