"""`DagClassifier`, `DagRegressor` and `DagSurvival`: a network of your graph as an estimator of scikit-learn."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, validate_data
from torch import Tensor
from torch.nn import functional

from dagnn.errors import ConfigError
from dagnn.visible.fitting import GraphEstimator, moments
from dagnn.visible.reading import checked_choice
from dagnn.visible.survival import TIES, concordance_index, cox_loss, cumulative_hazard, read_survival


@final
@dataclass(eq=False, repr=False, kw_only=True)
class DagClassifier(ClassifierMixin, GraphEstimator):  # type: ignore[misc]
    """A classifier whose network has the shape of your graph. Parameters as of `DagRegressor`, and one more.

    Two classes have one head, the log odds of the second; more classes have one each. A head is a linear node that all
    outputs of the Dag feed: for several classes, give a Dag without a single root, whose one number they would share.

    Args:
        class_weight: None, ``"balanced"``, or class -> weight of at least 0, by which the weights of its samples are
            multiplied.

    Attributes:
        classes_: the classes, sorted; the names of the heads are ``("class", label)``.

    Raises:
        ValueError: one class only; otherwise as of `DagRegressor`.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> DagClassifier(random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    class_weight: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on ``X [n, features]`` and the classes ``y [n]``; ``sample_weight [n]`` multiplies their losses."""
        return self._fit(X, y, sample_weight, self.class_weight)

    def decision_function(self, X: Any) -> NDArray[Any]:
        """The log odds of the second class ``[n]``; of more than two, the logits ``[n, classes]``."""
        output = self._output(X)
        return output[:, 0] if len(self.classes_) == 2 else output

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """The probability of each class ``[n, classes]``."""
        output = torch.from_numpy(self._output(X))
        if len(self.classes_) == 2:
            second = output.sigmoid()
            return torch.cat([1 - second, second], dim=1).numpy()
        return output.softmax(1).numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """The most likely class ``[n]``."""
        decision = self.decision_function(X)
        chosen = (decision > 0).astype(np.int64) if decision.ndim == 1 else decision.argmax(1)
        return self.classes_[chosen]  # type: ignore[no-any-return]

    def _read_target(self, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        return X, y

    def _prepared(self, y: NDArray[Any], weight: NDArray[Any]) -> NDArray[Any]:
        self.classes_, target = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            only = self.classes_.tolist()[0]
            raise ValueError(
                f"y holds one class only, {only!r}: a classifier needs at least two (samples of weight 0 do not count)."
            )
        return target.astype(np.int64)

    def _heads(self) -> list[Hashable]:
        labels = self.classes_.tolist()
        return [("class", label) for label in (labels[1:] if len(labels) == 2 else labels)]

    def _loss(self, output: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        if output.shape[1] == 1:
            loss = functional.binary_cross_entropy_with_logits(output[:, 0], target.to(output), reduction="none")
        else:
            loss = functional.cross_entropy(output, target, reduction="none")
        return (weight * loss).mean()

    def _strata(self, target: NDArray[Any]) -> NDArray[Any] | None:
        return target


@final
@dataclass(eq=False, repr=False, kw_only=True)
class DagRegressor(RegressorMixin, GraphEstimator):  # type: ignore[misc]
    """A regressor whose network has the shape of your graph, trained by Adam on the squared error.

    The columns of a data frame are the inputs of the Dag, by name; an array has its inputs in the order of
    ``dag.inputs``. A linear head for each target is added to the Dag, which all its outputs feed. X of float32 is
    trained in float32, twice as fast; all else in float64. The same ``random_state`` gives the same bits.

    Args:
        dag: a `Dag`, or what a reader gave. None: two hidden levels, made for the number of features.
        activation, width, normalise, dropout: of the nodes, as of `dagnn.nn.WideDagNN`; with the last three at their
            defaults the network is a `dagnn.nn.DagNN`.
        learning_rate, weight_decay: of AdamW.
        max_epochs: passes over the samples.
        batch_size: samples a step; None: 256, or all if there are fewer.
        standardize: subtract the mean of each feature and divide by its standard deviation in the training data.
        missing: an input without a column is refused (``"refuse"``), or taken out of the Dag with all that nothing
            else feeds (``"drop"``; see `restrict`).
        extra: a column that is no input is refused (``"refuse"``) or ignored (``"ignore"``).
        early_stopping: hold out ``validation_fraction`` of the samples, stop when their loss has not fallen for
            ``patience`` epochs, and keep the weights of the best epoch.
        random_state: None, an int or a NumPy ``RandomState``.

    Attributes:
        net_: the fitted network; ``inputs(X)`` gives its x.
        dag_: its Dag, with the heads: ``("target", 0)`` and so on.
        loss_curve_, validation_curve_: the loss after each epoch.
        n_iter_: how many epochs it took.
        n_features_in_, feature_names_in_: as of every estimator.

    Raises:
        GraphError: inputs without a column, columns that are no inputs, a number of features that does not fit.
        ConfigError: a parameter out of range.
        ValueError: NaN or infinity in X or y, values too large for their variance, no sample with a weight, a loss that
            is no longer finite.

    >>> X = np.random.default_rng(0).normal(size=(80, 2))
    >>> from dagnn import Dag
    >>> dag = Dag([("a", "p"), ("b", "p")])
    >>> model = DagRegressor(dag, random_state=0).fit(X, np.tanh(X[:, 0] - X[:, 1]))
    >>> model.net_.input_names, model.score(X, np.tanh(X[:, 0] - X[:, 1])) > 0.99
    (('a', 'b'), True)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on ``X [n, features]`` and ``y [n]`` or ``[n, targets]``; ``sample_weight [n]`` multiplies losses."""
        return self._fit(X, y, sample_weight)

    def predict(self, X: Any) -> NDArray[Any]:
        """The targets, ``[n]`` or ``[n, targets]`` as in `fit`; float32 where y was, else float64."""
        y: NDArray[Any] = (self._output(X) * self._y_scale + self._y_mean).astype(self._y_dtype)
        return y if self._many else y[:, 0]

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may try: several targets."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _read_target(self, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], multi_output=True, y_numeric=True)
        self._many, self._y_dtype = y.ndim == 2, np.float32 if y.dtype == np.float32 else np.float64
        # float64 until it is standardized: in float32 a time stamp of 1.6e9 is a multiple of 128.
        return X, y.reshape(len(y), -1).astype(np.float64)

    def _prepared(self, y: NDArray[Any], weight: NDArray[Any]) -> NDArray[Any]:
        self._targets = y.shape[1]
        self._y_mean, self._y_scale = moments(y, weight)
        if not np.isfinite([self._y_mean, self._y_scale]).all():
            raise ValueError("the values of y are too large for their variance in float64: scale y.")
        standardized: NDArray[Any] = (y - self._y_mean) / self._y_scale
        return standardized

    def _heads(self) -> list[Hashable]:
        return [("target", place) for place in range(self._targets)]

    def _loss(self, output: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        return (weight * (output - target).square().mean(1)).mean()


@final
@dataclass(eq=False, repr=False, kw_only=True)
class DagSurvival(GraphEstimator):
    """A survival model whose network has the shape of your graph: its output is the log hazard ratio of Cox's model.

    Parameters as of `DagRegressor`, and one more. A batch has its own risk sets, so by default all samples are one.
    Early stopping needs an event among the samples it holds out, with another of them still at risk.

    Args:
        ties: how events at one time count, ``"efron"`` or ``"breslow"``: see `cox_loss`.

    Attributes:
        event_times_: the distinct times of events in the training data, ascending; otherwise as of `DagRegressor`.

    Raises:
        ValueError: y without an event and a time, all samples censored; otherwise as of `DagRegressor`.

    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y = np.array([(True, time) for time in np.exp(-X[:, 0])], dtype=[("event", bool), ("time", float)])
    >>> model = DagSurvival(random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    >>> model.predict_survival_function(X, times=[0.5, 1.0, 2.0]).shape
    (60, 3)
    """

    ties: str = "efron"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on ``X [n, features]`` and y: a structured array or data frame with an event (bool) and a time."""
        checked_choice("ties", self.ties, TIES)
        self._fit(X, y, sample_weight)
        event, time = read_survival(y)
        risk = self.predict(X).astype(np.float64)
        weight = np.ones(len(time)) if sample_weight is None else np.broadcast_to(sample_weight, len(time))
        self._highest = float(risk.max())
        weight = np.asarray(weight, np.float64) / np.max(weight)
        found = cumulative_hazard(risk - self._highest, event, time, weight)
        self.event_times_, self._hazard = found
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The log hazard ratio ``[n]``: the higher, the earlier the event."""
        return self._output(X)[:, 0]

    def predict_cumulative_hazard_function(self, X: Any, times: Any = None) -> NDArray[np.float64]:
        """The cumulative hazard of each sample at each time, ``[n, times]``, by Breslow's estimate.

        It steps at the times of events in the training data: 0 before the first, constant after the last.

        Args:
            X: ``[n, features]``.
            times: ``[times]``, numbers of at least 0; ``event_times_`` when not given.

        Raises:
            ConfigError: times that are no list of such numbers.
        """
        risk = self.predict(X).astype(np.float64)
        try:
            at = self.event_times_ if times is None else np.asarray(times, np.float64)
        except (TypeError, ValueError):
            at = np.array(np.nan)
        if at.ndim != 1 or not (at >= 0).all():
            raise ConfigError(f"times must be a list of numbers of at least 0, got {times!r}.")
        steps = np.concatenate([[0.0], self._hazard])[np.searchsorted(self.event_times_, at, side="right")]
        hazard: NDArray[np.float64] = np.exp(risk - self._highest)[:, None] * steps
        return hazard

    def predict_survival_function(self, X: Any, times: Any = None) -> NDArray[np.float64]:
        """The probability that the event of each sample comes after each time, ``[n, times]``.

        ``exp(-cumulative hazard)``; arguments and errors as of `predict_cumulative_hazard_function`. What
        scikit-survival returns with ``return_array=True``, so its ``integrated_brier_score`` takes it.
        """
        survival: NDArray[np.float64] = np.exp(-self.predict_cumulative_hazard_function(X, times))
        return survival

    def score(self, X: Any, y: Any) -> float:
        """The concordance index of `predict`."""
        event, time = read_survival(y)
        return concordance_index(self.predict(X), event, time)

    def _read_target(self, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        X = validate_data(self, X, dtype=[np.float64, np.float32])
        if y is None:
            raise ValueError("DagSurvival requires y to be passed, but the target y is None.")
        event, time = read_survival(y)
        check_consistent_length(X, event)
        return X, np.stack([event.astype(np.float64), time], axis=1)

    def _prepared(self, y: NDArray[Any], weight: NDArray[Any]) -> NDArray[Any]:
        if not y[:, 0].any():
            raise ValueError(f"all {len(y)} samples are censored: without an event there is nothing to fit.")
        # Ranks: two times that differ stay different in float32.
        return np.stack([y[:, 0], np.unique(y[:, 1], return_inverse=True)[1]], axis=1)

    def _heads(self) -> list[Hashable]:
        return [("hazard", 0)]

    def _loss(self, output: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        event = target[:, 0] > 0
        if not event.any():  # a batch of censored samples says nothing
            return 0 * output.sum()
        return cox_loss(output[:, 0], event, target[:, 1], weight=weight, ties=self.ties)

    def _strata(self, target: NDArray[Any]) -> NDArray[Any] | None:
        return target[:, 0]

    def _check_part(self, part: str, target: NDArray[Any]) -> None:
        event, rank = target.T
        if not event.any() or (rank >= rank[event > 0].min()).sum() < 2:
            raise ValueError(
                f"early_stopping=True: of {len(target)} {part} samples {int(event.sum())} have an event, and none "
                "comes while another is at risk, so their loss says nothing: change "
                f"validation_fraction={self.validation_fraction!r}, or leave early_stopping out."
            )

    def _default_batch(self, samples: int) -> int:
        return samples
