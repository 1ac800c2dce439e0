"""Edge tables, SIF and matrices as Dags: the same graph from every form, and what was dropped."""

import gzip

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from read_graphs import adds_up, edges_of

from dagnn import Dag, DagNN
from dagnn.errors import ConfigError, CycleError, DataError, DtypeError, GraphError
from dagnn.visible import read_edges, read_gmt, read_graph, read_obo, read_sif, read_sparse

PAIRS = [("a", "c"), ("b", "c"), ("c", "d"), ("a", "d")]


def written(path, text):
    path.write_text(text)
    return path


class Frame:
    """As far as names go, a frame of polars: columns by name, which are lists."""

    def __init__(self, **columns):
        self.columns, self._values = list(columns), columns

    def __getitem__(self, name):
        return self._values[name]


def test_every_form_of_a_table_gives_the_same_dag(tmp_path):
    lines = ["source,target", *(f"{u},{v}" for u, v in PAIRS)]
    csv = written(tmp_path / "x.csv", "\n".join(lines))
    tsv = written(tmp_path / "x.tsv", "\ufeff" + "\n".join(lines).replace(",", "\t") + "\n\n")
    bare = written(tmp_path / "x.txt", "# made by hand\n" + "\n".join(lines[1:]).replace(",", "\t"))
    odd = written(tmp_path / "x.edges", "\n".join(lines).replace(",", " ; "))
    packed = tmp_path / "x.csv.gz"
    packed.write_bytes(gzip.compress(csv.read_bytes()))
    frame = Frame(other=[0] * 4, target=[v for _, v in PAIRS], source=[u for u, _ in PAIRS])
    expected = read_edges(PAIRS).dag
    readings = [
        read_edges(csv),
        read_edges(tsv),
        read_edges(bare, columns=(0, 1), comment="#"),
        read_edges(odd, delimiter=";"),
        read_edges(packed),
        read_edges(frame),
        read_edges(frame, columns=(2, 1)),
        read_edges(np.array(PAIRS)),
    ]
    assert expected == Dag(PAIRS)
    assert [reading.dag == expected for reading in readings] == [True] * len(readings)
    assert all(adds_up(reading.report) for reading in readings)


def test_pandas_and_parquet(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(PAIRS, columns=["source", "target"]).assign(w=[1.0, 2.0, 3.0, 4.0])
    frame.to_parquet(tmp_path / "x.parquet")
    for table in (frame, tmp_path / "x.parquet"):
        reading = read_edges(table, weight="w")
        assert reading.dag == Dag(PAIRS) and reading.weights == dict(zip(PAIRS, [1.0, 2.0, 3.0, 4.0], strict=True))
    frame.loc[2, "target"] = None
    with pytest.raises(DataError, match=r"a DataFrame, row 3: a node without a name, got (None|nan)"):
        read_edges(frame)
    genes = pandas.DataFrame({"source": [7157, 672], "target": ["p", "p"]})
    assert read_edges(genes).dag.names == (7157, "p", 672)


def test_repeated_edges_are_dropped_and_counted():
    reading = read_edges([*PAIRS, PAIRS[0], PAIRS[0]])
    assert reading.dag == Dag(PAIRS) and adds_up(reading.report)
    assert reading.report.names("edges", "repeated") == (PAIRS[0], PAIRS[0])
    assert (reading.report.edges_read, reading.report.edges, reading.report.count("nodes")) == (6, 4, 0)


def test_weights_go_into_a_network():
    reading = read_edges([("a", "c", 2), ("b", "c", "3.5")], weight=2)
    net = DagNN(reading.dag, bias=False)
    net.set_weights(reading.weights)
    assert net({"b": [10.0], "a": [1.0]}).tolist() == [[37.0]]
    with pytest.raises(DataError, match=r"the edge 'a' -> 'c' has two weights, 2.0 and 3.0"):
        read_edges([("a", "c", 2), ("a", "c", 3)], weight=2)


def test_reverse_turns_values_round_and_a_root_joins_what_is_open():
    reading = read_edges([("a", "b"), ("a", "c")], root="top")
    assert edges_of(reading.dag) == {("a", "b"), ("a", "c"), ("b", "top"), ("c", "top")}
    assert (reading.report.nodes_added, reading.report.edges_added, adds_up(reading.report)) == (1, 2, True)
    back = read_edges([("a", "b"), ("a", "c")], root="top", reverse=True)
    assert edges_of(back.dag) == {(v, u) for u, v in edges_of(reading.dag)}
    assert [back.dag.name_of(node) for node in back.dag.inputs.tolist()] == ["top"]
    there = read_edges([("a", "top"), ("b", "c")], root="top")
    assert edges_of(there.dag) == {("a", "top"), ("b", "c"), ("c", "top")} and there.report.nodes_added == 0
    with pytest.raises(GraphError, match="root='a' is a node that feeds others: give the root a new name"):
        read_edges([("a", "b")], root="a")


@pytest.mark.parametrize(
    ("text", "options", "error", "message"),
    [
        ("source,target\na,b\nb,a\n", {}, CycleError, r"x\.csv: the edges form a cycle: a -> b -> a"),
        ("source,target\na,a\n", {}, CycleError, r"x\.csv: .*a -> a"),
        ("source,target\na,\n", {}, DataError, r"x\.csv, line 2: a node without a name, got ''"),
        ("source,target\na,b\nc\n", {}, DataError, r"x\.csv, line 3: expected at least 2 cells, got 1"),
        ("from,to\na,b\n", {}, DataError, r"no column 'source'; the columns are 'from', 'to': choose with columns="),
        ("source,target,target\n", {}, DataError, "more than one column 'target'"),
        ("source,target,w\na,b,many\n", {"weight": "w"}, DataError, "line 2: a weight must be a finite number"),
        ("source,target,w\na,b,nan\n", {"weight": "w"}, DataError, "line 2: a weight must be a finite number"),
        ("source,target\n", {}, DataError, "no nodes are left"),
        ("a,b\n", {"columns": ("a",)}, ConfigError, "columns must be two names, or two numbers"),
        ("a,b\n", {"columns": None}, ConfigError, "columns must be two names, or two numbers, got None"),
        ("a,b\n", {"columns": (0, -1)}, ConfigError, r"must be all names, or all numbers from 0, got \[0, -1\]"),
        ("a,b,1\n", {"columns": (0, 1), "weight": "w"}, ConfigError, r"all numbers from 0, got \[0, 1, 'w'\]"),
        ("a,b\n", {"delimiter": "::"}, ConfigError, "delimiter must be one character, .* got '::'"),
        ('source,target\na,"b\nc,d\n', {}, DataError, r'x\.csv, line 2: a cell that begins with " must end with'),
        ('source,target\na,"b"c\nc,d\n', {}, DataError, r'x\.csv, line 2: a cell that begins with " must end with'),
    ],
)
def test_a_bad_table_is_refused_by_line(tmp_path, text, options, error, message):
    with pytest.raises(error, match=message):
        read_edges(written(tmp_path / "x.csv", text), **options)


def test_what_is_no_table_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"the suffix '\.edges' tells no format"):
        read_edges(written(tmp_path / "x.edges", "a b"))
    with pytest.raises(DataError, match=r"cannot read .*nothing\.csv"):
        read_edges(tmp_path / "nothing.csv")
    with pytest.raises(DataError, match="row 2: expected a pair"):
        read_edges([("a", "b"), "cd"])
    with pytest.raises(DtypeError, match="must be a path, a data frame or a list of pairs, got a int"):
        read_edges(3)
    with pytest.raises(DataError, match=r"row 1: expected a pair \(source, target\), got {"):  # a set has no first
        read_edges([{"a", "b"}])
    with pytest.raises(DataError, match=r"row 1: expected a pair \(source, target\), got {"):
        read_edges([{"a": 1, "b": 2}])
    with pytest.raises(ConfigError, match=r"weight must be the name or the number of a column, got \['w'\]"):
        read_edges(Frame(source=["a"], target=["b"]), weight=["w"])
    with pytest.raises(DtypeError, match=r"root is \['x'\], which cannot name a node"):
        read_edges([("a", "b")], root=["x"])
    with pytest.raises(DataError, match="row 1: a weight must be a finite number, got 1000"):
        read_edges([("a", "b", 10**400)], weight=2)
    with pytest.raises(ConfigError, match=r"all numbers from 0, got \[0, -1\]"):
        read_edges(Frame(source=["a"], target=["b"]), columns=(0, -1))
    for read in (read_sif, read_gmt, read_obo, read_graph):
        with pytest.raises(DtypeError, match="path must be the path of a file, got None"):
            read(None)
    latin = tmp_path / "x.csv"
    latin.write_bytes("source,target\nä,b\n".encode("latin-1"))
    with pytest.raises(DataError, match="line 2: not UTF-8"):
        read_edges(latin)
    with pytest.raises(DataError, match=r"row 1: the node is .*cannot name a node"):
        read_edges([(object(), "b")])


def test_quotes_that_are_part_of_a_name_are_named_by_line(tmp_path):
    text = 'source\ttarget\tnote\na\tb\t"5 prime\nc\td\tx\ne\tf\t{}\n'
    for end in ("y", '"', '"y'):
        with pytest.raises(DataError, match=r'q\.tsv, line 2: a cell that begins with " must end with the next one'):
            read_edges(written(tmp_path / "q.tsv", text.format(end)))
    fine = written(tmp_path / "q.csv", 'source,target,note\na,b,"two\nlines, and a comma"\n"5"" end",c,5"\n')
    assert edges_of(read_edges(fine).dag) == {("a", "b"), ('5" end', "c")}


@pytest.mark.parametrize("ending", ["csv", "sif", "gmt", "obo", "graphml"])
def test_a_damaged_gz_file_cannot_be_read(tmp_path, ending):
    packed = bytearray(gzip.compress(np.random.default_rng(0).integers(97, 123, 3000, dtype=np.uint8).tobytes()))
    packed[12] ^= 0xFF
    path = tmp_path / f"x.{ending}.gz"
    path.write_bytes(packed)
    read = {"csv": read_edges, "sif": read_sif, "gmt": read_gmt, "obo": read_obo, "graphml": read_graph}[ending]
    with pytest.raises(DataError, match=r"cannot read .*x\.\w+\.gz: Error -3 while decompressing data"):
        read(path)


def test_lines_end_where_the_file_ends_them(tmp_path):
    # str.splitlines() ends lines at these too.
    for mark in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029":
        sif = tmp_path / "x.sif"
        sif.write_text(f"a\tr\tb{mark}c\td\n", encoding="utf-8")
        assert edges_of(read_sif(sif).dag) == {("a", f"b{mark}c"), ("a", "d")}
        gmt = tmp_path / "x.gmt"
        gmt.write_text(f"s1\tde{mark}sc\tA\tB\n", encoding="utf-8")
        assert edges_of(read_gmt(gmt).dag) == {("A", "s1"), ("B", "s1")}
    for end in ("\n", "\r", "\r\n"):
        sif.write_bytes(f"a r b{end}{end}b r c".encode())
        assert edges_of(read_sif(sif).dag) == {("a", "b"), ("b", "c")}


def test_sif_by_tabs_or_blanks(tmp_path):
    blanks = written(tmp_path / "b.sif", "a pp c d\nb pd c\n\nlone\nc pp d\n")
    tabs = written(tmp_path / "t.sif", "a\tpp\tc\td\t\nb\tpd\tc\n\nlone\nc\tpp\td\n")
    assert read_sif(blanks).dag == read_sif(tabs).dag
    assert edges_of(read_sif(blanks).dag) == {*PAIRS} and "lone" in read_sif(blanks).dag.names
    chosen = read_sif(tabs, relations=["pp"])
    assert chosen.report.names("edges", "relation 'pd'") == (("b", "c"),) and adds_up(chosen.report)
    assert chosen.report.names("nodes", "none of their edges was kept") == ("b",)
    spaced = read_sif(written(tmp_path / "s.sif", "gene A\tfeeds\tgene B\n"))
    assert edges_of(spaced.dag) == {("gene A", "gene B")}
    with pytest.raises(DataError, match=r"bad\.sif, line 2: expected a node, a relation and nodes, got 'a pp'"):
        read_sif(written(tmp_path / "bad.sif", "a pp c\na pp\n"))
    with pytest.raises(ConfigError, match=r"relations must be a list, got the text 'pp': give \['pp'\]"):
        read_sif(blanks, relations="pp")
    with pytest.raises(CycleError, match="a -> b -> c -> a"):
        read_sif(written(tmp_path / "cycle.sif", "a pp b\nb pp c\nc pp a\n"))


@given(st.integers(1, 6), st.integers(1, 6), st.randoms())
def test_a_matrix_is_read_as_it_is_written(rows, columns, random):
    dense = np.array([[random.choice([0.0, 0.0, 1.5, -2.0]) for _ in range(columns)] for _ in range(rows)])
    sources, targets = [f"g{i}" for i in range(rows)], [f"p{j}" for j in range(columns)]
    reading = read_sparse(scipy.sparse.csr_array(dense), sources, targets)
    assert reading.weights == {(sources[i], targets[j]): dense[i, j] for i, j in np.argwhere(dense)}
    assert edges_of(reading.dag) == {*reading.weights} and reading.dag.names == (*sources, *targets)
    assert edges_of(read_sparse(dense, sources, targets, reverse=True).dag) == {(v, u) for u, v in reading.weights}


@pytest.mark.parametrize("form", ["coo_array", "csr_array", "csc_array"])
def test_entries_that_a_matrix_stores_twice_are_added(form):
    places = [0, 0, 0, 0], [1, 1, 2, 2]
    stored = scipy.sparse.coo_array(([1.0, 1.0, 2.0, -2.0], places), shape=(3, 3))
    if form == "csr_array":
        stored = scipy.sparse.csr_array((stored.data, places[1], [0, 4, 4, 4]), shape=(3, 3))
    elif form == "csc_array":
        stored = scipy.sparse.csc_array((stored.data, places[0], [0, 0, 2, 4]), shape=(3, 3))
    reading = read_sparse(stored, ["a", "b", "c"])
    assert reading.weights == {("a", "b"): 2.0} and stored.nnz == 4
    assert reading.report.names("edges", "a stored zero") == (("a", "c"),) and adds_up(reading.report)


def test_bad_matrices_are_refused():
    stored = scipy.sparse.coo_array(([0.0, 1.0], ([0, 0], [1, 2])), shape=(3, 3))
    assert read_sparse(stored, ["a", "b", "c"]).report.names("edges", "a stored zero") == (("a", "b"),)
    with pytest.raises(CycleError, match="a -> b -> a"):
        read_sparse(np.array([[0, 1], [1, 0]]), ["a", "b"])
    with pytest.raises(DataError, match=r"3 by 3 names, but the shape is \[2, 2\]"):
        read_sparse(np.eye(2), ["a", "b", "c"])
    with pytest.raises(DataError, match="'a' is listed twice among the names"):
        read_sparse(np.eye(2), ["a", "b"], ["a", "c"])
    with pytest.raises(DataError, match="must be a finite number, got nan"):
        read_sparse(np.array([[np.nan]]), ["a"], ["b"])
    with pytest.raises(DtypeError, match="matrix must hold real numbers, in two dimensions, got a list"):
        read_sparse([["x"]], ["a"], ["b"])
    with pytest.raises(DtypeError, match=r"matrix must hold real numbers, .*: its dtype is complex128"):
        read_sparse(np.array([[0, 1 + 2j], [0, 0]]), ["a", "b"])
    with pytest.raises(ConfigError, match="names must be a list, got None"):
        read_sparse(np.eye(2), None)
    with pytest.raises(ConfigError, match="target_names must be a list, got the text 'cd'"):
        read_sparse(np.eye(2), ["a", "b"], "cd")
    assert torch.equal(read_sparse(np.ones((1, 1)), ["a"], ["b"]).dag.edges, torch.tensor([[0, 1]]))
