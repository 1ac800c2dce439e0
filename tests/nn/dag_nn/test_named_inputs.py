"""Columns of a network's input: which is which, and inputs by name."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import dags

from dagnn.errors import DagnnError, DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.nn import DagNN

EDGES = [("a", "h"), ("b", "h"), ("h", "y"), ("a", "z")]


class Frame:
    """A data frame as far as names go: ``columns``, which may repeat, and columns by name."""

    def __init__(self, columns: dict | list) -> None:
        pairs = list(columns.items()) if isinstance(columns, dict) else columns
        self.columns = [name for name, _ in pairs]
        self._values = dict(pairs)

    def __getitem__(self, name):
        return self._values[name]


class Labelled:
    """A column as pandas has it: values with row labels, and missing values of its own."""

    def __init__(self, values, index=None) -> None:
        self.values, self.index = (
            np.asarray(values, dtype=object),
            Labels(range(len(values)) if index is None else index),
        )

    @property
    def shape(self):
        return self.values.shape

    def __array__(self, dtype=None, copy=None):
        return self.values

    def to_numpy(self, dtype, na_value):
        return np.array([na_value if value is NA else value for value in self.values], dtype=dtype)


class Labels(tuple):
    def equals(self, other) -> bool:
        return self == other


NA = object()


def network(**options) -> DagNN:
    torch.manual_seed(0)
    return DagNN(Dag(EDGES, inputs=["b", "a"], outputs=["z", "y"]), **options)


X = torch.tensor([[2.0, 1.0], [4.0, 3.0], [6.0, 5.0]])  # b, a


@pytest.mark.fault("docs_and_packaging", 2)
def test_the_columns_have_names_and_the_order_of_declaration_is_told():
    assert (network().input_names, network().output_names) == (("b", "a"), ("z", "y"))
    forward, backward = DagNN(Dag([("a", "y"), ("b", "y")])), DagNN(Dag([("b", "y"), ("a", "y")]))
    assert (forward.input_names, backward.input_names) == (("a", "b"), ("b", "a"))
    backward.load_state_dict(forward.state_dict())
    by_name = {"b": [1.0, 0.5], "a": [-2.0, 0.0]}
    assert torch.equal(backward(by_name), forward(by_name))
    assert DagNN(Dag([(0, 2), (1, 2)])).input_names == (0, 1)


@given(dags(min_nodes=1, named=None), st.randoms(), st.integers(0, 4))
def test_the_order_of_named_columns_never_matters(dag, random, rows):
    net = DagNN(dag, dtype=torch.float64)
    x = torch.randn(rows, len(dag.inputs), dtype=torch.float64)
    columns = [*zip(net.input_names, x.T.tolist(), strict=True), ("not in the network", ["text"] * rows)]
    random.shuffle(columns)
    for table in (dict(columns), Frame(columns)):
        assert torch.equal(net(table), net(x))


@pytest.mark.fault("graphs_and_networks", 20)
def test_a_frame_of_any_numbers_becomes_the_dtype_of_the_network():
    for dtype in (torch.float32, torch.float64):
        net = network(dtype=dtype)
        expected = net(X.to(dtype))
        for convert in (
            np.asarray,
            list,
            torch.tensor,
            tuple,
            lambda values: np.asarray(values, dtype=object),
            lambda values: np.asarray(values, dtype=np.uint8),
            Labelled,
        ):
            frame = Frame({"a": convert([1, 3, 5]), "text": ["x", "y", "z"], "b": convert([2, 4, 6])})
            y = net(frame)
            assert y.dtype == dtype and torch.equal(y, expected)
        assert torch.equal(net(X.numpy()), expected) and torch.equal(net(X.to(dtype)[0].numpy()), expected[0])
        assert torch.equal(net({"a": 1, "b": 2.0}), expected[0])
        assert torch.equal(net.input_from({"b": [2, 4, 6], "a": [1, 3, 5]}), X.to(dtype))
        assert torch.equal(net(net.input_from(X.to(dtype))), expected)


def test_names_that_numpy_gives_are_the_names():
    net = DagNN(Dag([(7, 3), (9, 3)], names=[3, 9, 7]))
    assert torch.equal(net(Frame({np.int64(7): [1.0], np.int64(9): [2.0]})), net(torch.tensor([[2.0, 1.0]])))
    assert torch.equal(network()({np.str_("a"): X[:, 1], np.str_("b"): X[:, 0]}), network()(X))


def test_tensors_by_name_stay_in_their_graph_and_keep_any_batch_shape():
    net, a = network().double(), torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    y = net({"a": a, "b": np.ones((2, 3))})
    assert y.shape == (2, 3, 2)
    y.sum().backward()
    x = torch.stack([torch.ones_like(a), a], dim=-1).detach().requires_grad_()
    net(x).sum().backward()
    torch.testing.assert_close(a.grad, x.grad[..., 1])
    net.backward_accumulate(torch.ones(2, 3, 2, dtype=torch.float64))  # through the call by name


def test_missing_values_become_nan():
    columns = {"a": Labelled([1.0, NA, None]), "b": np.array([2.0, np.nan, None], dtype=object)}
    assert network().input_from(columns).isnan().tolist() == [[False, False], [True, True], [True, True]]


def test_columns_that_are_not_there_are_all_listed():
    with pytest.raises(GraphError, match=r"x lacks 2 of 2 inputs: 'b', 'a'\. It has 'A', 'c': add these columns"):
        network()(Frame({"A": [1.0], "c": [1.0]}))
    many = DagNN(Dag([(i, 9) for i in range(9)]))
    with pytest.raises(GraphError, match=r"lacks 8 of 9 inputs: 1, 2, 3, 4, 5 and 3 more. It has 0: "):
        many({0: [1.0]})
    with pytest.raises(GraphError, match=r"\(there is '1', a str, for 1, a int\)"):
        many({0: [1.0], "1": [1.0]})


def test_a_name_twice_is_refused_where_it_is_an_input():
    column = [1.0]
    assert network()(Frame([("a", column), ("q", column), ("q", column), ("b", column)])).shape == (1, 2)
    with pytest.raises(GraphError, match="x has more than one column for 'a': keep one of each"):
        network()(Frame([("a", column), ("b", column), ("a", column)]))


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (["1", "2"], "texts or other objects"),
        (np.array(["1", 2], dtype=object), "texts or other objects"),
        (np.array([1, 2], dtype="datetime64[s]"), r"datetime64\[s\]"),
        (np.array([1j, 2]), "complex128"),
        ([object(), 1], "texts or other objects"),
    ],
)
def test_a_column_without_real_numbers_is_named(column, kind):
    with pytest.raises(DtypeError, match=f"column 'a' of x holds {kind}, not real numbers: convert it"):
        network()({"a": column, "b": [1.0, 2.0]})


def test_columns_that_do_not_fit_together():
    with pytest.raises(GraphError, match=r"must have one shape, but 'b' has \[3\] and 'a' has \[2\]"):
        network()({"a": [1.0, 2.0], "b": [1.0, 2.0, 3.0]})
    with pytest.raises(GraphError, match=r"must have one shape, but 'b' has \[3, 1\] and 'a' has \[3\]"):
        network()({"a": torch.ones(3), "b": torch.ones(3, 1)})
    with pytest.raises(GraphError, match=r"'b' and 'a' of x have different row labels \(\.index\): align them first"):
        network()({"a": Labelled([1.0, 2.0], "pq"), "b": Labelled([1.0, 2.0], "qp")})
    with pytest.raises(DtypeError, match="column 'a' of x cannot be read as numbers"):
        network()({"a": [1.0, [2.0, 3.0]], "b": [1.0, 2.0]})
    with pytest.raises(DtypeError, match=r"column 'a' of x must hold real numbers, densely, got a torch.sparse_coo"):
        network()({"a": torch.ones(2).to_sparse(), "b": torch.ones(2)})


@pytest.mark.fault("graphs_and_networks", 20, 24)
@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[1.0, 2.0]], "x must be a tensor or an array .* columns by name .* got a list"),
        (None, "got a NoneType"),
        (1.0, "got a float"),
        (np.array([["1", "2"]]), "x must hold real numbers, got an array of <U1"),
        (np.array([[1.0, None]]), r"got an array of object: convert it with \.astype\(float\)"),
        (np.ma.array([[1.0, 2.0]], mask=[[0, 1]]), r"masked array, .* x\.filled\(value\)"),
        (np.array([(1.0, 2.0)], dtype=[("a", float), ("b", float)]), "structured array, .* pass {name: x"),
        (X.to_sparse(), r"x must be dense, got .*torch.sparse_coo: convert it with x\.to_dense\(\)"),
        (X.to(torch.complex64), r"x must be torch.float32, .* got torch.complex64"),
    ],
)
def test_what_is_no_input_says_what_is_expected(x, message):
    with pytest.raises(DtypeError, match=message):
        network()(x)


def test_an_array_of_another_width():
    with pytest.raises(GraphError, match=r"x must have the shape \[\.\.\., inputs\] = \[\.\.\., 2\], got \[4, 3\]"):
        network()(np.ones((4, 3)))


def test_a_table_that_gives_no_columns():
    class Lazy:
        columns = ("a", "b")

        def __getitem__(self, name):
            raise TypeError("not subscriptable")

    with pytest.raises(DtypeError, match=r"x is a Lazy, which gives no column 'b': collect or convert it first"):
        network()(Lazy())


def test_a_network_without_inputs_takes_the_rows_of_what_is_given():
    net = DagNN(Dag([("s", "y")], inputs=[]), bias=["s", "y"])
    assert net({}).shape == (1,)
    assert net(Frame({"anything": [1.0, 2.0]})).shape == (2, 1)


class Row(Labelled):
    """One row of pandas: among labels of mixed types, an int in brackets is a place."""

    ndim = 1

    @property
    def iloc(self):
        return self.values

    def __getitem__(self, name):
        return self.values[name]


@pytest.mark.fault("graphs_and_networks", 1)
def test_a_row_is_read_by_its_labels_where_they_are_numbers_too():
    net = DagNN(Dag(np.array([[0, 3], [1, 3], [2, 3]]), names=[0.5, 1, 2, "o"]))
    assert net.input_from(Row([2.0, 0.5, 1.0], [2, 0.5, 1])).tolist() == [0.5, 1.0, 2.0]


class Axes(np.ndarray):
    """An array of xarray: its axes have names and labels."""

    dims: tuple[str, ...]
    indexes: dict[str, Labels]


def axes(dims, **labels) -> Axes:
    array = np.arange(4.0).reshape(2, 2).view(Axes)
    array.dims, array.indexes = dims, {axis: Labels(values) for axis, values in labels.items()}
    return array


@pytest.mark.parametrize(
    ("b", "message"),
    [
        (axes(("s", "t")), "the dimensions .*transpose"),
        (axes(("t", "s"), t=[1, 0]), "different labels along 't'"),
        (np.ma.array(np.zeros((2, 2)), mask=[[0, 1], [0, 0]]), "column 'b' of x is masked"),
        (np.full((2, 2), 1e300), "too large for torch.float32"),
    ],
)
def test_columns_that_would_be_mixed_up_or_lost_are_refused(b, message):
    a = axes(("t", "s"), t=[0, 1])
    assert network().input_from({"a": a, "b": axes(("t", "s"), t=[0, 1])}).shape == (2, 2, 2)
    with pytest.raises(DagnnError, match=message):
        network().input_from({"a": a, "b": b})
