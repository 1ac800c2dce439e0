"""The estimators: scikit-learn's own checks, graphs by name, the same bits for a seed, and what cannot be fitted."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from dagnn import Dag, DagNN
from dagnn.errors import ConfigError, GraphError
from dagnn.nn import WideDagNN
from dagnn.visible import DagClassifier, DagRegressor, DagSurvival, align, read_edges
from dagnn.visible.reading import check_rows

DAG = Dag([("a", "p"), ("b", "p"), ("c", "q"), ("d", "q"), ("p", "root"), ("q", "root")])
RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
Y = (X[:, 0] * X[:, 1] > 0).astype(int)
TIMES = np.array(
    [*zip(RNG.random(120) < 0.7, np.ceil(5 * np.exp(-X[:, 0])), strict=True)], dtype=[("event", bool), ("time", float)]
)


# One of the two by default: what they share is nearly all.
@pytest.mark.parametrize(
    "estimator",
    [
        pytest.param(DagClassifier(), id="DagClassifier"),
        pytest.param(DagRegressor(), id="DagRegressor", marks=pytest.mark.slow),
    ],
)
def test_scikit_learn_s_own_checks_pass(estimator):
    results = check_estimator(estimator, on_skip=None, on_fail=None)
    failed = {one["check_name"]: one["exception"] for one in results if one["status"] not in ("passed", "skipped")}
    assert failed == {}
    skipped = {one["check_name"].removeprefix("check_") for one in results if one["status"] == "skipped"}
    needs_pandas = {"sample_weights_pandas_series", "classifier_data_not_an_array", "regressor_data_not_an_array"}
    assert skipped <= {"array_api_input"} | needs_pandas
    assert sum(one["status"] == "passed" for one in results) > 50


def pairs_of(dag):
    return {(dag.name_of(u), dag.name_of(v)) for u, v in dag.edges.tolist()}


def frame(values, columns):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(values, columns=columns)


def test_the_graph_gets_a_head_for_each_class():
    binary = DagClassifier(DAG, max_epochs=2, random_state=0).fit(X, Y)
    assert pairs_of(binary.dag_) == pairs_of(DAG) | {("root", ("class", 1))}
    assert binary.net_.input_names == ("a", "b", "c", "d") and binary.net_.output_names == (("class", 1),)
    labels = np.array(["low", "mid", "top"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    open_dag = DAG.remove(nodes=["root"]).subgraph(["a", "b", "c", "d", "p", "q"])
    several = DagClassifier(open_dag, max_epochs=100, random_state=0).fit(X, labels)
    assert several.net_.output_names == (("class", "low"), ("class", "mid"), ("class", "top"))
    assert several.predict_proba(X).shape == (120, 3) and several.score(X, labels) > 0.8
    np.testing.assert_allclose(several.predict_proba(X).sum(1), 1)
    np.testing.assert_array_equal(several.classes_[several.decision_function(X).argmax(1)], several.predict(X))


def test_a_fitted_network_is_the_prediction():
    model = DagClassifier(DAG, max_epochs=3, random_state=0).fit(X, Y)
    x = model.inputs(X)
    np.testing.assert_allclose(x.numpy(), StandardScaler().fit_transform(X), atol=1e-12)
    with torch.no_grad():
        np.testing.assert_array_equal(model.net_(x)[:, 0].numpy(), model.decision_function(X))
    assert isinstance(model.net_, DagNN) and not model.net_.training
    assert x.is_contiguous()  # a batch of rows strewn over memory takes as long as the network


def test_a_pathway_network_learns_what_a_line_cannot():
    model = DagClassifier(max_epochs=400, random_state=0).fit(X, Y)
    assert model.score(X, Y) > 0.95 > 0.7 > LogisticRegression().fit(X, Y).score(X, Y)


def test_the_same_random_state_gives_the_same_bits_whatever_others_draw():
    options = {"max_epochs": 5, "batch_size": 32, "random_state": 3, "early_stopping": True}
    first = DagClassifier(DAG, **options).fit(X, Y)
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    again = clone(first).fit(X, Y)
    assert torch.equal(torch.random.get_rng_state(), before)
    np.testing.assert_array_equal(first.decision_function(X), again.decision_function(X))
    restored = pickle.loads(pickle.dumps(first))
    np.testing.assert_array_equal(first.decision_function(X), restored.decision_function(X))
    other = DagClassifier(DAG, **{**options, "random_state": 4}).fit(X, Y)
    assert (other.decision_function(X) != first.decision_function(X)).any()


def test_float32_is_trained_in_float32():
    model = DagRegressor(DAG, max_epochs=2).fit(X.astype(np.float32), X[:, 0])
    assert model.net_.edge_weight.dtype == torch.float32 and model.predict(X.astype(np.float32)).dtype == np.float64
    narrow = DagRegressor(DAG, max_epochs=2).fit(X.astype(np.float32), X[:, 0].astype(np.float32))
    assert narrow.predict(X.astype(np.float32)).dtype == np.float32


def test_a_target_far_from_0_is_learned_in_float32():
    y, x, offset = X[:, 0], X.astype(np.float32), 1.6e9
    plain = DagRegressor(DAG, max_epochs=20, random_state=0).fit(x, y)
    far = DagRegressor(DAG, max_epochs=20, random_state=0).fit(x, y + offset)
    assert far.score(x, y + offset) == pytest.approx(plain.score(x, y), abs=1e-3)
    np.testing.assert_allclose(far.predict(x) - offset, plain.predict(x), atol=2e-3)


def test_pipelines_and_grids():
    grid = GridSearchCV(
        make_pipeline(StandardScaler(), DagClassifier(DAG, max_epochs=5, random_state=0)),
        {"dagclassifier__learning_rate": [1e-5, 0.1], "dagclassifier__activation": ["tanh"]},
        cv=2,
    ).fit(X, (X[:, 0] > 0).astype(int))
    assert grid.best_params_["dagclassifier__learning_rate"] == 0.1
    scores = cross_val_score(DagSurvival(max_epochs=60, random_state=0), X, TIMES, cv=3)
    assert scores.min() > 0.75


def test_weights_of_classes_and_samples_count():
    rare = (X[:, 0] + RNG.normal(size=120) > 1.5).astype(int)
    plain = DagClassifier(max_epochs=100, random_state=0).fit(X, rare)
    balanced = DagClassifier(max_epochs=100, class_weight="balanced", random_state=0).fit(X, rare)
    assert balanced.predict(X).sum() > plain.predict(X).sum()
    weight = np.where(rare == 1, (rare == 0).mean() / (rare == 1).mean(), 1.0)
    by_hand = DagClassifier(max_epochs=100, random_state=0).fit(X, rare, sample_weight=weight)
    np.testing.assert_allclose(by_hand.decision_function(X), balanced.decision_function(X), rtol=1e-6, atol=1e-9)
    explicit = DagClassifier(class_weight={0: 1.0, 1: weight.max()}, max_epochs=100, random_state=0).fit(X, rare)
    np.testing.assert_allclose(explicit.decision_function(X), by_hand.decision_function(X), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({0: 1, 1: -1}, r"class_weight\[1\] must be a finite number of at least 0, got -1"),
        ({0: np.nan, 1: 1}, r"class_weight\[0\] must be a finite number of at least 0, got nan"),
        ({0: "1", 1: 1}, r"class_weight\[0\] must be a finite number of at least 0, got '1'"),
        ("balance", "class_weight must be None, 'balanced', or a mapping class -> weight, got 'balance'"),
    ],
)
def test_class_weights_that_would_drop_a_class_are_refused(weights, message):
    with pytest.raises(ConfigError, match=message):
        DagClassifier(DAG, class_weight=weights).fit(X, Y)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_only_ratios_of_weights_count(dtype):
    x = X.astype(dtype)
    plain = DagClassifier(DAG, max_epochs=2, random_state=0).fit(x, Y)
    huge = DagClassifier(DAG, max_epochs=2, random_state=0).fit(x, Y, sample_weight=np.full(120, 1e308))
    np.testing.assert_array_equal(plain.decision_function(x), huge.decision_function(x))
    survival = DagSurvival(DAG, max_epochs=2, random_state=0).fit(x, TIMES)
    heavy = DagSurvival(DAG, max_epochs=2, random_state=0).fit(x, TIMES, sample_weight=np.full(120, 1e308))
    np.testing.assert_array_equal(survival.predict_survival_function(x), heavy.predict_survival_function(x))


def test_early_stopping_keeps_the_best_epoch():
    noise = RNG.integers(0, 2, size=120)
    model = DagClassifier(early_stopping=True, patience=5, validation_fraction=0.3, random_state=0).fit(X, noise)
    best = int(np.argmin(model.validation_curve_))
    assert model.n_iter_ == len(model.validation_curve_) == best + 1 + 5 < model.max_epochs
    short = clone(model).set_params(max_epochs=best + 1).fit(X, noise)
    np.testing.assert_array_equal(short.decision_function(X), model.decision_function(X))


def test_several_targets_are_several_heads():
    y = np.stack([X[:, 0], 100 + 50 * X[:, 2]], axis=1)
    open_dag = Dag([("a", "p"), ("b", "p"), ("c", "q"), ("d", "q")])
    model = DagRegressor(open_dag, random_state=0).fit(X, y)
    assert model.net_.output_names == (("target", 0), ("target", 1)) and model.score(X, y) > 0.9


def test_wide_nodes_with_norm_and_dropout():
    model = DagClassifier(DAG, width=4, normalise="batch", dropout=0.1, max_epochs=150, random_state=0).fit(X, Y)
    assert isinstance(model.net_, WideDagNN) and model.score(X, Y) > 0.8
    again = clone(model).fit(X, Y)
    np.testing.assert_array_equal(again.decision_function(X), model.decision_function(X))
    odd = DagClassifier(DAG, width=2, normalise="batch", batch_size=20, max_epochs=1).fit(X[:101], Y[:101])
    assert odd.n_iter_ == 1  # no batch of one sample is left over


def test_survival_orders_samples_by_risk():
    model = DagSurvival(DAG, random_state=0).fit(X, TIMES)
    assert model.net_.output_names == (("hazard", 0),)
    assert model.score(X, TIMES) > 0.85 and np.corrcoef(model.predict(X), X[:, 0])[0, 1] > 0.8
    breslow = DagSurvival(DAG, ties="breslow", random_state=0).fit(X, TIMES)
    assert (breslow.predict(X) != model.predict(X)).any() and breslow.score(X, TIMES) > 0.85
    part = DagSurvival(DAG, batch_size=30, early_stopping=True, max_epochs=30, random_state=0).fit(X, TIMES)
    assert part.score(X, TIMES) > 0.8
    clones = [clone(model).fit(X, TIMES), pickle.loads(pickle.dumps(model))]
    assert all((one.predict(X) == model.predict(X)).all() for one in clones)
    columns = {"time": TIMES["time"].astype(np.float32), "event": TIMES["event"]}
    as_frame = frame(columns, ["time", "event"])
    np.testing.assert_array_equal(DagSurvival(DAG, random_state=0).fit(X, as_frame).predict(X), model.predict(X))


def test_survival_curves_are_those_of_breslow():
    model = DagSurvival(DAG, random_state=0).fit(X, TIMES)

    times = model.event_times_
    curves = model.predict_survival_function(X)
    assert times.tolist() == np.unique(TIMES["time"][TIMES["event"]]).tolist() and curves.shape == (120, len(times))
    assert (np.diff(curves, axis=1) <= 0).all() and (curves > 0).all() and (curves <= 1).all()
    # By the definition, in plain loops, for one sample and one time.
    risk, at = model.predict(X).astype(float), times[7]
    events = [t for event, t in TIMES.tolist() if event and t <= at]
    hazard = sum(1 / np.exp(risk[TIMES["time"] >= t]).sum() for t in events)
    assert curves[3, 7] == pytest.approx(np.exp(-hazard * np.exp(risk[3])), rel=1e-9)
    # A step function: 1 before the first event, right-continuous, constant after the last.
    few = model.predict_survival_function(X[:2], times=[0.0, times[0], times[-1], 1e9])
    assert few[:, 0].tolist() == [1, 1] and np.allclose(few[:, 1:], curves[:2][:, [0, -1, -1]], rtol=1e-5)
    # The highest risk has the lowest curve.
    assert curves[risk.argmax()].tolist() == curves.min(0).tolist()
    with pytest.raises(ConfigError, match="times must be a list of numbers of at least 0, got -1"):
        model.predict_survival_function(X, times=-1)


def test_survival_curves_equal_those_of_scikit_survival():
    linear_model = pytest.importorskip("sksurv.linear_model.coxph", reason="needs scikit-survival")
    model = DagSurvival(DAG, random_state=0).fit(X, TIMES)
    theirs = linear_model.BreslowEstimator().fit(model.predict(X).astype(float), TIMES["event"], TIMES["time"])

    curves = theirs.get_survival_function(model.predict(X).astype(float))

    assert np.allclose([curve(model.event_times_) for curve in curves], model.predict_survival_function(X), atol=1e-12)


def test_columns_of_a_frame_are_inputs_by_name():
    table = frame(X, ["a", "b", "c", "d"])
    model = DagClassifier(DAG, max_epochs=3, random_state=0).fit(table, Y)
    mixed = DagClassifier(DAG, max_epochs=3, random_state=0).fit(table[["d", "a", "c", "b"]], Y)
    np.testing.assert_array_equal(model.decision_function(table), mixed.decision_function(table[["d", "a", "c", "b"]]))
    assert torch.equal(mixed.inputs(table[["d", "a", "c", "b"]]), model.inputs(table))
    assert model.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    with pytest.raises(ValueError, match="feature names should match those that were passed during fit"):
        model.predict(table[["d", "a", "c", "b"]])
    with pytest.raises(GraphError, match=r"X lacks 1 of 4 inputs of the Dag: 'd': missing='drop'"):
        DagClassifier(DAG).fit(table[["a", "b", "c"]], Y)
    with pytest.raises(GraphError, match=r"X has 1 columns that are no inputs of the Dag: 'age': extra='ignore'"):
        DagClassifier(DAG).fit(table.assign(age=1.0), Y)
    part = DagClassifier(DAG, missing="drop", extra="ignore", max_epochs=2).fit(table[["b", "a"]].assign(age=1.0), Y)
    assert part.net_.input_names == ("a", "b") and "q" not in part.dag_.names
    assert torch.equal(part.inputs(table[["b", "a"]].assign(age=1.0)), model.inputs(table)[:, :2])
    numbers = read_edges([(7157, "p"), (672, "p")]).dag
    entrez = DagRegressor(numbers, max_epochs=1).fit(frame(X[:, :2], [672, 7157]), Y)
    np.testing.assert_array_equal(entrez._columns, [1, 0])
    with pytest.raises(ValueError, match="the columns of X are not those of fit, in their order"):
        entrez.predict(frame(X[:, :2], [7157, 672]))
    assert align(table, model.net_).names == model.net_.input_names
    with pytest.raises(GraphError, match="X has more than one column 'a': keep one of them"):
        DagClassifier(DAG).fit(frame(np.c_[X, X[:, :1]], [*"abcd", "a"]), Y)


def test_what_cannot_be_fitted_is_refused():
    with pytest.raises(GraphError, match=r"the Dag has no outputs for the heads to read: say which nodes are"):
        DagClassifier(DAG.remove(nodes=[DAG.name_of(node) for node in DAG.outputs.tolist()])).fit(X, Y)
    with pytest.raises(ValueError, match="y holds one class only, 1: a classifier needs at least two"):
        DagClassifier(DAG).fit(X, np.ones(120, int))
    with pytest.raises(ValueError, match="y holds one class only, 0"):
        DagClassifier(DAG).fit(X, Y, sample_weight=(Y == 0).astype(float))
    with pytest.raises(ValueError, match="Sample weights must contain at least one non-zero number"):
        DagRegressor(DAG).fit(X, Y, sample_weight=np.zeros(120))
    with pytest.raises(ValueError, match="all samples have weight 0, so there is nothing to fit"):
        DagClassifier(DAG, class_weight={0: 0, 1: 0}).fit(X, Y)
    censored = TIMES.copy()
    censored["event"] = False
    with pytest.raises(ValueError, match="all 120 samples are censored: without an event there is nothing to fit"):
        DagSurvival(DAG).fit(X, censored)
    censored["event"], censored["time"][7] = True, np.nan
    with pytest.raises(ValueError, match="the time in row 7 of y is nan: it must be a finite number"):
        DagSurvival(DAG).fit(X, censored)
    with pytest.raises(ValueError, match=r"y must be a structured array .*, got a ndarray: make one with numpy.array"):
        DagSurvival(DAG).fit(X, Y)
    holes = X.copy()
    holes[3, 1] = np.nan
    for model, y in ((DagClassifier(DAG), Y), (DagRegressor(DAG), Y), (DagSurvival(DAG), TIMES)):
        with pytest.raises(ValueError, match="Input X contains NaN"):
            model.fit(holes, y)
        with pytest.raises(GraphError, match="X has 3 features without names, but the Dag has 4 inputs"):
            model.fit(X[:, :3], y)
    with pytest.raises(ValueError, match=r"early_stopping=True holds out validation_fraction=0\.1 of the samples, and"):
        DagClassifier(early_stopping=True).fit(X[:4], [0, 1, 1, 1])
    few = np.array([(row < 2, row + 1.0) for row in range(60)], dtype=TIMES.dtype)
    with pytest.raises(ValueError, match=r"of 6 held-out samples 0 have an event, .*: change validation_fraction=0\.1"):
        DagSurvival(DAG, early_stopping=True, random_state=0).fit(X[:60], few)
    last = np.array([(row > 57, row + 1.0) for row in range(60)], dtype=TIMES.dtype)  # each is the last of its part
    with pytest.raises(ValueError, match=r"samples 1 have an event, and none comes while another is at risk"):
        DagSurvival(DAG, early_stopping=True, validation_fraction=0.5, random_state=0).fit(X[:60], last)
    with pytest.raises(ValueError, match="the values of y are too large for their variance in float64: scale y"):
        DagRegressor(DAG).fit(X, X[:, 0] * 1e300)
    with pytest.raises(ValueError, match=r"the loss is (nan|inf) after \d+ epochs: lower learning_rate=1e\+200"):
        DagRegressor(DAG, activation="relu", learning_rate=1e200).fit(X, Y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_epochs": 0}, "max_epochs must be a whole number of at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size must be a whole number of at least 1, got 2.5"),
        ({"learning_rate": -1.0}, "learning_rate must be a finite number above 0, got -1.0"),
        ({"weight_decay": -1.0}, "weight_decay must be a finite number of at least 0"),
        ({"validation_fraction": 1.0}, "validation_fraction must be between 0 and 1, got 1.0"),
        ({"missing": "zero"}, "missing must be one of 'refuse', 'drop', got 'zero'"),
        ({"extra": "drop"}, "extra must be one of 'refuse', 'ignore', got 'drop'"),
        ({"activation": "step"}, "activation"),
        ({"max_epochs": "3"}, "max_epochs must be a whole number of at least 1, got '3'"),
        ({"patience": None}, "patience must be a whole number of at least 1, got None"),
        ({"learning_rate": True}, "learning_rate must be a finite number above 0, got True"),
        ({"weight_decay": None}, "weight_decay must be a finite number of at least 0, got None"),
        ({"validation_fraction": "0.1"}, "validation_fraction must be between 0 and 1, got '0.1'"),
        ({"standardize": "no"}, "standardize must be True or False, got 'no'"),
        ({"early_stopping": 1}, "early_stopping must be True or False, got 1"),
    ],
)
def test_a_parameter_out_of_range_is_refused_in_fit(options, message):
    with pytest.raises(ConfigError, match=message):
        DagRegressor(DAG, **options).fit(X, Y)


def test_many_features_share_the_default_graph():
    wide, y = make_classification(80, 500, n_informative=20, random_state=0)
    model = DagClassifier(max_epochs=40, random_state=0).fit(wide, y)
    assert model.dag_.num_edges < 2 * 500 + 32 * 16 + 16 + 1 and (model.dag_.out_degree[:500] > 0).all()
    assert model.score(wide, y) > 0.9
    iris = load_iris(return_X_y=True)
    assert DagClassifier(random_state=0).fit(*iris).score(*iris) > 0.95


def test_rows_in_another_order_are_refused():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcd"), index=[f"s{row}" for row in range(120)])
    y = pandas.Series(Y, index=frame.index)
    weight = pandas.Series(np.ones(120), index=frame.index)
    model = DagClassifier(DAG, max_epochs=1)
    for wrong in ({"y": y[::-1]}, {"y": y, "sample_weight": weight[::-1]}):
        with pytest.raises(GraphError, match=r"row 0 is 's0' in X and 's119' in .*, and rows are taken by position"):
            model.fit(frame, **wrong)
    model.fit(frame, y, weight)
    model.fit(frame, pandas.Series(Y))  # numbers beside names: nothing says that they are in another order


def test_labels_of_rows_are_compared_where_both_have_them():
    class Labelled:
        def __init__(self, *labels):
            self.index = np.array(labels)

    check_rows("y", Labelled("s", "t"), Labelled("s", "t"))
    check_rows("y", Labelled(0, 1), Labelled("s", "t"))
    check_rows("y", [1, 2], Labelled("s", "t"))
    with pytest.raises(GraphError, match=r"row 1 is 't' in X and 'u' in y.*y\.loc\[X\.index\]"):
        check_rows("y", Labelled("s", "u"), Labelled("s", "t"))


def test_what_is_no_table_and_no_graph_is_named():
    with pytest.raises(ConfigError, match="X must be a data frame or an array, got a mapping"):
        DagClassifier(DAG).fit({"a": X[:, 0]}, Y)
    with pytest.raises(ConfigError, match="dag must be a Dag, what a reader gave, or None, got a str"):
        DagClassifier("graph.gmt").fit(X, Y)
    with pytest.raises(ValueError, match="the values of 'b' are too large for their variance in float64: scale X"):
        DagClassifier(DAG).fit(X * np.array([1, 1e300, 1, 1]), Y)
