"""`align`: the same inputs from every kind of table, in any order; what is missing, extra or no number is refused."""

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

from dagnn import Dag, DagNN
from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.visible import align

DAG = Dag([("a", "p"), ("b", "p"), ("c", "q"), ("p", "root"), ("q", "root")])
X = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])  # a, b, c


class Frame:
    def __init__(self, columns, values):
        self.columns, self._values = columns, dict(zip(columns, values, strict=True))

    def __getitem__(self, name):
        return self._values[name]


class Annotated:
    """An AnnData, as far as `align` reads it."""

    isbacked = False

    def __init__(self, X, names, **layers):
        self.X, self.var_names, self.layers = X, names, layers


@given(st.permutations(["a", "b", "c", "more", "x9"]))
def test_the_order_of_columns_never_matters(order):
    values = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "more": X[:, 0] * 7, "x9": X[:, 0] * torch.nan}
    matrix = torch.stack([values[name] for name in order], 1)
    frame = Frame(order, [values[name].numpy() for name in order])
    sparse = scipy.sparse.csr_matrix(matrix.numpy())
    tables = [
        (frame, {}),
        ({name: values[name] for name in order}, {}),
        (matrix, {"columns": order}),
        (matrix.double().numpy(), {"columns": order}),
        (sparse, {"columns": order}),
        (scipy.sparse.coo_array(matrix.numpy()), {"columns": order}),
        (Annotated(sparse, order), {}),
        (Annotated(None, order, counts=matrix.numpy()), {"layer": "counts"}),
    ]
    net = DagNN(DAG)
    for table, options in tables:
        for to in (net, DAG, ["a", "b", "c"]):
            aligned = align(table, to, extra="ignore", **options)
            assert torch.equal(aligned.x, X) and aligned.names == ("a", "b", "c")
            assert aligned.ignored == tuple(name for name in order if name not in "abc")
            assert (aligned.dag is DAG) == (to is DAG)
        with pytest.raises(GraphError, match=r"the table has 2 columns that are no inputs: '(more|x9)', '(more|x9)'"):
            align(table, net, **options)


def test_x_has_the_dtype_of_the_network_and_keeps_its_graph():
    net, x = DagNN(DAG).double(), X[:, [2, 0, 1]].requires_grad_()
    aligned = align(x, net, columns=["c", "a", "b"])
    assert aligned.x.dtype == torch.float64
    net(aligned.x).sum().backward()
    assert x.grad is not None and x.grad.ne(0).all()


def test_missing_inputs_are_filled_only_as_asked():
    table = {"c": X[:, 2], "a": X[:, 0]}
    with pytest.raises(GraphError, match="the table lacks 1 of 3 inputs: 'b': choose missing='zero', 'mean'"):
        align(table, DAG)
    zero = align(table, DAG, missing="zero")
    assert torch.equal(zero.x, X * torch.tensor([1.0, 0.0, 1.0])) and zero.filled == ("b",)
    mean = align(table, DAG, missing="mean", training={"b": [1.0, 2.0, 6.0]})
    assert torch.equal(mean.x, torch.stack([X[:, 0], torch.full((2,), 3.0), X[:, 2]], 1)) and mean.filled == ("b",)
    trained = align(torch.tensor([[1.0, 9.0], [5.0, 9.0]]), ["a", "b"], columns=["b", "a"])
    for training, columns in ((trained, ["a", "c"]), ({"b": [2.0, 4.0]}, ["a", "c"]), (X - 2, ["a", "b", "c"])):
        test = X[:, [0, 2]] if len(columns) == 2 else X
        again = align(test, DAG, columns=columns, missing="mean", training=training)
        assert torch.equal(again.x, mean.x if len(columns) == 2 else X)
    assert str(mean) == "x [2, 3]; filled: 'b'"


def test_dropped_inputs_take_along_what_only_they_feed():
    aligned = align({"b": X[:, 1], "a": X[:, 0]}, DAG, missing="drop")
    assert aligned.dag.names == ("a", "p", "b", "root") and aligned.filled == ()
    assert torch.equal(aligned.x, X[:, :2]) and DagNN(aligned.dag)(aligned.x).shape == (2, 1)
    with pytest.raises(ConfigError, match="missing='drop' takes inputs from a Dag"):
        align({"a": [1.0]}, DagNN(DAG), missing="drop")
    with pytest.raises(GraphError, match="no input of the Dag is measured"):
        align({"d": [1.0]}, DAG, missing="drop", extra="ignore")


def test_means_need_their_columns_and_rows():
    table = {"c": X[:, 2], "a": X[:, 0]}
    with pytest.raises(GraphError, match="training lacks 1 columns as well: 'b'"):
        align(table, DAG, missing="mean", training=table)
    with pytest.raises(DtypeError, match="training has no rows"):
        align(table, DAG, missing="mean", training={"b": []})
    with pytest.raises(ConfigError, match="it goes with missing='mean', got 'zero'"):
        align(table, DAG, missing="zero", training=table)
    with pytest.raises(ConfigError, match="it goes with missing='mean', got 'mean'"):
        align(table, DAG, missing="mean")
    with pytest.raises(ConfigError, match="missing must be one of 'refuse', 'zero', 'mean', 'drop', got 'fill'"):
        align(table, DAG, missing="fill")


def test_a_gene_twice_is_refused_and_another_column_twice_is_not():
    values = torch.ones(2, 4)
    with pytest.raises(GraphError, match="the table has 2 columns 'b': keep one of them"):
        align(values, DAG, columns=["a", "b", "c", "b"])
    assert align(values, ["a", "b"], columns=["a", "b", "c", "c"], extra="ignore").ignored == ("c", "c")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_named(bad):
    values = X.clone()
    values[1, 1] = bad
    expected = rf"column 'b' holds {bad} in row 1 \(1 such values in all\): fill them before"
    for table, options in ((values, {"columns": ["a", "b", "c"]}), (dict(zip("abc", values.T, strict=True)), {})):
        with pytest.raises(DtypeError, match=expected):
            align(table, DAG, **options)


def test_objects_are_refused():
    table = {"a": np.array([1.0, 2.0], dtype=object), "b": X[:, 1], "c": X[:, 2]}
    with pytest.raises(DtypeError, match="column 'a' has the dtype object, so it may hold texts: convert it"):
        align(table, DAG)
    with pytest.raises(DtypeError, match="must hold real numbers, got an array of object"):
        align(np.array([[1, 2, "x"]], dtype=object), DAG, columns=["a", "b", "c"])
    with pytest.raises(DtypeError, match="must hold real numbers, densely, got a"):
        align(X + 0j, DAG, columns=["a", "b", "c"])


def test_masked_values_are_refused():
    table = np.ma.masked_array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [[False, True, False], [True, False, False]])
    with pytest.raises(DtypeError, match=r"column 'b' is masked in row 0 \(2 such values in all\): fill them before"):
        align(table, list("abc"), columns=list("abc"))
    whole = align(table, ["c"], columns=list("abc"), extra="ignore")  # nothing of that column is masked
    assert whole.x.tolist() == [[3.0], [6.0]]


def test_names_are_lists_and_each_is_there_once():
    with pytest.raises(GraphError, match="to lists 'a' more than once: list every input once"):
        align({"a": [5.0]}, ["a", "a", "b"], missing="zero")
    with pytest.raises(ConfigError, match=r"columns must be a list, got the text 'abc': give \['abc'\]"):
        align(X, DAG, columns="abc")


def test_a_table_without_names_is_refused():
    for table in (X, X.numpy(), scipy.sparse.csr_array(X.numpy())):
        with pytest.raises(DtypeError, match=r"has no names: give those of its columns, columns=\[...\]"):
            align(table, DAG)
    with pytest.raises(DtypeError, match=r"columns= has 2 names for the last dimension of the table, got the shape"):
        align(X, DAG, columns=["a", "b"])
    with pytest.raises(ConfigError, match="layer= is for an AnnData, got a Tensor"):
        align(X, DAG, columns=["a", "b", "c"], layer="counts")
    with pytest.raises(ConfigError, match="the AnnData has no layer 'raw'; there is 'counts'"):
        align(Annotated(None, ["a"], counts=X), DAG, layer="raw")
    with pytest.raises(ConfigError, match="the AnnData has no X: give layer="):
        align(Annotated(None, ["a"]), DAG)


def test_a_name_of_another_type_or_case_is_hinted_at():
    with pytest.raises(GraphError, match=r"lacks 1 of 1 inputs: 'TP53' \(there is 'Tp53' for 'TP53'\)"):
        align({"Tp53": [1.0]}, ["TP53"])
    with pytest.raises(GraphError, match=r"\(there is '7157' for 7157\)"):
        align({"7157": [1.0]}, [7157])


def test_anndata_and_pandas():
    anndata, pandas = pytest.importorskip("anndata"), pytest.importorskip("pandas")
    frame = pandas.DataFrame(X.numpy(), columns=["a", "b", "c"])[["c", "a", "b"]]
    data = anndata.AnnData(frame.rename(index=str), layers={"twice": frame.to_numpy() * 2})
    assert torch.equal(align(data, DAG).x, X) and torch.equal(align(frame, DAG).x, X)
    assert torch.equal(align(data, DAG, layer="twice").x, 2 * X)
    with pytest.raises(DtypeError, match="column 'b' has the dtype object"):
        align(frame.astype({"b": object}), DAG)
