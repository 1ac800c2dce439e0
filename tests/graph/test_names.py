"""One form of every name: what is taken, what is refused, and at which doors."""

import datetime
import decimal
import enum
import fractions
import pickle
import random
import uuid

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from names import Gene, Pair, disguised, plain_name, spelled

from dagnn.errors import DtypeError, GraphError
from dagnn.graph import Dag
from dagnn.graph.names import canonical, sort_key


class Same:
    """Two of them have one text."""

    def __repr__(self):
        return "Same()"


Colour = enum.Enum("Colour", ["RED"])
Number = enum.IntEnum("Number", ["ONE"])
Letter = enum.StrEnum("Letter", {"A": "a"})


@given(st.integers(0, 10**9))
def test_equal_names_have_one_form_of_one_type(seed):
    rng = random.Random(seed)
    name = plain_name(rng)
    other = plain_name(rng)
    form = canonical(disguised(name, rng))
    assert form == name
    assert spelled(form) == spelled(name)
    assert canonical(form) == form
    assert sort_key(form) == sort_key(name)
    assert (sort_key(canonical(disguised(other, rng))) == sort_key(form)) == (other == name)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        (np.int64(3), 3),
        (np.uint64(2**63), 2**63),
        (np.bool_(True), 1),
        (True, 1),
        (Number.ONE, 1),
        (-0.0, 0),
        (2.0, 2),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.str_("a"), "a"),
        (Letter.A, "a"),
        (Gene("TP53"), "TP53"),
        (np.bytes_(b"a"), b"a"),
        (Pair(np.int64(1), "a"), (1, "a")),
        ((frozenset({np.int64(1)}), None), (frozenset({1}), None)),
    ],
)
def test_forms(name, form):
    dag = Dag([], names=[name])
    assert spelled(dag.names[0]) == spelled(form)
    assert dag.index_of(name) == dag.index_of(form) == 0
    assert Dag.from_json(dag.to_json()) == dag


@pytest.mark.fault("graphs_and_networks", 3)
@pytest.mark.parametrize(
    "name",
    [
        object(),
        Same(),
        lambda: 0,
        int,
        Colour.RED,
        float("nan"),
        np.float32("nan"),
        np.longdouble(1),
        1j,
        fractions.Fraction(1, 2),
        decimal.Decimal("1.0"),
        datetime.datetime(2020, 1, 1),
        np.datetime64("2020-01-01", "ns"),
        np.timedelta64(3),
        uuid.UUID(int=1),
        range(3),
        ["a"],
        torch.tensor(3),
        np.array(3),
        ("a", object()),
        frozenset({Same()}),
        np.void(b"a"),
        ...,
    ],
    ids=lambda name: type(name).__name__,
)
def test_what_has_no_lasting_order_is_refused_by_name(name):
    with pytest.raises(DtypeError, match=r"names\[1\] is .*, which cannot name a node"):
        Dag([], names=["a", name])
    if not isinstance(name, float | np.floating):
        with pytest.raises(DtypeError, match=r"(?s)edge 1 has the end .*cannot name a node|list of tensors"):
            Dag([("a", "b"), ("b", name)])
    with pytest.raises(GraphError, match="unknown node"):
        Dag([("a", "b")]).index_of(name)


@pytest.mark.fault("graphs_and_networks", 1)
def test_numpy_integers_are_names_where_python_integers_are():
    names = [np.int64(2), np.int64(0), np.int64(1)]
    dag = Dag([(0, 1), (0, 2)], names=names)
    assert dag == Dag([(0, 1), (0, 2)], names=[2, 0, 1])
    assert dag.edges.tolist() == [[1, 0], [1, 2]]
    assert dag == Dag([(np.int32(0), np.uint8(1)), (0.0, 2.0)], names=np.array([2, 0, 1]))
    for zero in (0, np.int64(0), 0.0, False):
        assert dag.index_of(zero) == 1
    assert dag.subgraph([np.int64(0), 1]).names == (0, 1)
    assert Dag([(0, 1)], names=[2, 0, 1], inputs=[np.int64(0)]).inputs.tolist() == [1]


@pytest.mark.fault("graphs_and_networks", 1)
def test_networkx_nodes_from_an_array():
    graph = networkx.DiGraph()
    graph.add_edges_from(np.array([[5, 0], [0, 7]]))
    dag = Dag.from_networkx(graph)
    assert [type(name) for name in dag.names] == [int, int, int]
    assert [dag.name_of(dag.index_of(name)) for name in (0, 5, np.int64(7))] == [0, 5, 7]
    graph = networkx.DiGraph()
    graph.add_edges_from(np.array([[0, 1], [1, 2]]))
    assert Dag.from_networkx(graph).names is None


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint16])
def test_numpy_integers_are_indices_where_python_integers_are(kind):
    assert Dag([(kind(0), kind(2))]) == Dag([(0, 2)])
    dag = Dag([("a", "b")], inputs=[kind(1)])
    assert dag.inputs.tolist() == [1]
    assert dag.index_of(kind(1)) == 1
    with pytest.raises(GraphError, match="unknown node True"):
        dag.index_of(True)
    with pytest.raises(GraphError, match=r"unknown node 1\.0"):
        dag.index_of(1.0)


@pytest.mark.fault("graphs_and_networks", 12)
@pytest.mark.parametrize("dtype", [object, str, np.dtypes.StringDType()])
def test_arrays_of_strings_are_names(dtype):
    values = np.array([["a", "c"], ["b", "c"]], dtype=dtype)
    dag = Dag(values, inputs=np.array(["b", "a"], dtype=dtype), outputs=values[:1, 1])
    assert dag == Dag([("a", "c"), ("b", "c")], inputs=["b", "a"])
    assert dag == Dag(values.T.copy().T, inputs=values[::-1, 0])
    assert dag.names == ("a", "c", "b")
    assert Dag(values, names=np.array(["a", "b", "c"], dtype=dtype)).names == ("a", "b", "c")
    assert dag.subgraph(values[0]).names == ("a", "c")
    assert dag.remove(nodes=values[1:, 0], edges=values[:1]).num_edges == 0


@pytest.mark.fault("graphs_and_networks", 12)
def test_arrays_of_bytes_and_of_records_are_names():
    assert Dag(np.array([["a", "b"]], dtype="S")).names == (b"a", b"b")
    assert Dag(np.array([("a", 3)], dtype=[("from", "U1"), ("to", "i8")])).names == ("a", 3)
    assert Dag(np.array([[1, "a"]], dtype=object)).names == (1, "a")


class Frame:
    """As much of a data frame as matters: it iterates over its columns."""

    def __init__(self, rows):
        self.rows = np.array(rows, dtype=object)
        self.shape = self.rows.shape

    def __iter__(self):
        return iter([("from", 0), ("to", 0)])

    def to_numpy(self):
        return self.rows


@pytest.mark.fault("graphs_and_networks", 12)
def test_a_frame_is_its_rows():
    assert Dag(Frame([["a", "b"], ["b", "c"]])) == Dag([("a", "b"), ("b", "c")])
    assert Dag(Frame([[10, 20]]), names=[20, 10]) == Dag([(10, 20)], names=[20, 10])


@pytest.mark.fault("graphs_and_networks", 12)
def test_arrays_of_ints_are_indices():
    names = [2, 0, 1]
    dag = Dag(np.array([[0, 1]]), names=names, inputs=np.array([2]))
    assert dag == Dag([(2, 0)], names=names, inputs=[1])
    with pytest.raises(GraphError, match=r"unknown node 7: .* holds indices: for names give inputs.tolist\(\)"):
        Dag([(2, 0)], names=names, inputs=np.array([7]))
    with pytest.raises(GraphError, match=r"edge 0 is 7 -> 0, .* holds indices, for names give edges.tolist\(\)"):
        Dag(np.array([[7, 0]]), names=names)
    with pytest.raises(GraphError, match="edges has masked entries"):
        Dag(np.ma.array([["a", "b"]], mask=[[False, True]]))


@pytest.mark.fault("graphs_and_networks", 26)
def test_floats_are_names_where_numbers_are():
    dag = Dag([(1.5, 2.5), (1.5, 3)], names=[1.5, 2.5, 3])
    assert dag.edges.tolist() == [[0, 1], [0, 2]]
    assert Dag.from_networkx(dag.to_networkx()) == dag
    assert dag == Dag(np.array([[1.5, 2.5], [1.5, 3.0]]), names=np.array([1.5, 2.5, 3]), outputs=np.array([2.5, 3.0]))
    with pytest.raises(GraphError, match=r"edge 0 is 0 -> 1, but 0 is not among the names 1.5, 2.5"):
        Dag([(0, 1)], names=[1.5, 2.5])
    for edges in ([(1.5, 2.5)], [("a", 2.5)], [(True, False)]):
        with pytest.raises(DtypeError, match="edges must hold integers or names"):
            Dag(edges)


@pytest.mark.fault("graphs_and_networks", 14)
def test_json_writes_numpy_names_as_numbers_and_text():
    dag = Dag([(np.str_("a"), np.str_("b"))], node_attributes={"label": [np.str_("p"), np.int64(3)]})
    assert Dag.from_json(dag.to_json()) == dag
    assert Dag([], names=[np.int64(4)]).to_json() == Dag([], names=[4]).to_json()
    blocks = [frozenset({"a", "b", (1, b"\xff")}), frozenset()]
    dag, again = Dag([], names=blocks), Dag([], names=[frozenset(list(block)[::-1]) for block in blocks])
    assert dag.to_json() == again.to_json()
    assert Dag.from_json(dag.to_json()) == dag


def test_sets_are_taken_in_the_order_of_nodes_and_of_names():
    edges = [("b", "c"), ("a", "c"), ("c", "d")]
    assert Dag(set(edges)).names == ("a", "b", "c", "d")
    dag = Dag(edges, inputs={"a", "b"}, outputs=frozenset({"d", "c"}))
    assert dag.inputs.tolist() == [0, 2]
    assert dag.outputs.tolist() == [1, 3]
    assert dag.subgraph({"d", "c", "a"}).names == ("c", "a", "d")
    for names in ({"a", "b", "c", "d"}, dict(enumerate("abcd"))):
        with pytest.raises(DtypeError, match=r"names must be a list, in the order of the nodes, got a (set|dict)"):
            Dag(edges, names=names)


@pytest.mark.parametrize("edge", [{"a", "b"}, frozenset({"a", "b"}), {"source": "a", "target": "b"}])
def test_what_has_no_first_and_second_is_no_edge(edge):
    with pytest.raises(GraphError, match=r"edges must be pairs \(source, target\), got .* at edge 1"):
        Dag([("a", "b"), edge])


@pytest.mark.parametrize("graph", [Dag([(0, 1)]), networkx.DiGraph([((0, 0), (0, 1))])])
def test_a_graph_is_no_list_of_edges(graph):
    with pytest.raises(DtypeError, match="edges must be a tensor, an array or a list of pairs, got"):
        Dag(graph)


def test_names_of_an_old_pickle_get_their_form():
    dag = Dag([("a", "b")])
    function, arguments = dag.__reduce__()
    old = function(arguments[0], arguments[1], (np.str_("a"), np.str_("b")), *arguments[3:])
    assert list(map(type, old.names)) == [str, str]
    assert pickle.loads(pickle.dumps(old)) == dag
