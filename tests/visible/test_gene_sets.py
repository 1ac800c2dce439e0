"""GMT and Reactome as Dags: nesting, genes, what is dropped, and bad files."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_graphs import adds_up, edges_of, inputs_of

from dagnn import DagNN
from dagnn.errors import ConfigError, CycleError, DataError, GraphError
from dagnn.visible import read_edges, read_gmt, read_reactome


def gmt(folder, sets):
    path = folder / "sets.gmt"
    path.write_text("".join("\t".join([name, f"about {name}", *genes]) + "\n" for name, genes in sets.items()))
    return path


SETS = {"all": "ABCD", "left": "AB", "right": "CD", "twin": "CD", "none": ""}


def test_gmt_without_a_hierarchy(tmp_path):
    reading = read_gmt(gmt(tmp_path, SETS), root="root")
    expected = {(gene, name) for name, genes in SETS.items() for gene in genes}
    assert edges_of(reading.dag) == expected | {(name, "root") for name in SETS if name != "none"}
    assert inputs_of(reading.dag) == list("ABCD")
    assert reading.labels == {name: f"about {name}" for name in SETS if name != "none"}
    assert reading.report.names("nodes", "no gene feeds them") == ("none",) and adds_up(reading.report)
    DagNN(reading.dag)  # no constant nodes, of which it would warn
    packed = tmp_path / "sets.gmt.gz"
    packed.write_bytes(gzip.compress((tmp_path / "sets.gmt").read_bytes()))
    assert read_gmt(packed, root="root").dag == reading.dag
    back = read_gmt(packed, reverse=True)
    assert edges_of(back.dag) == {(name, gene) for gene, name in expected}
    assert [back.dag.name_of(node) for node in back.dag.outputs.tolist()] == list("ABCD")


@given(st.lists(st.sets(st.sampled_from("ABCDEF")), max_size=7))
def test_containment_is_the_order_of_sets_without_detours(tmp_path_factory, sets):
    members = {f"s{place}": genes for place, genes in enumerate(sets)}
    if not any(sets):
        return
    path = gmt(tmp_path_factory.getbasetemp(), {name: sorted(genes) for name, genes in members.items()})
    for redundant in ("keep", "drop"):
        reading = read_gmt(path, hierarchy="containment", redundant=redundant)
        inside = {(a, b) for a in members for b in members if members[a] and members[a] < members[b]}
        nested = {(a, b) for a, b in inside if not any((a, c) in inside and (c, b) in inside for c in members)}
        brought = {b: set().union(*(members[a] for a, parent in inside if parent == b)) for b in members}
        direct = {
            (gene, name)
            for name, genes in members.items()
            for gene in genes
            if redundant == "keep" or gene not in brought[name]
        }
        assert edges_of(reading.dag) == nested | direct and adds_up(reading.report)


def test_gmt_with_a_hierarchy_of_any_form(tmp_path):
    path = gmt(tmp_path, SETS)
    pairs = [("left", "all"), ("right", "all"), ("all", "life"), ("empty", "life")]
    (tmp_path / "tree.csv").write_text("parent,child\n" + "".join(f"{v},{u}\n" for u, v in pairs))
    reading = read_gmt(path, hierarchy=pairs)
    genes = {("A", "left"), ("B", "left"), *((gene, name) for gene in "CD" for name in ("right", "twin"))}
    assert edges_of(reading.dag) == {*pairs[:3]} | genes
    assert reading.report.names("nodes", "no gene feeds them") == ("none", "empty")
    assert reading.report.names("edges", "a nested set brings the gene") == tuple((gene, "all") for gene in "ABCD")
    assert adds_up(reading.report)
    tree = read_edges(pairs)
    for hierarchy in (tmp_path / "tree.csv", tree, tree.dag):
        assert edges_of(read_gmt(path, hierarchy=hierarchy).dag) == edges_of(reading.dag)
    kept = read_gmt(path, hierarchy=pairs, redundant="keep")
    assert edges_of(kept.dag) == edges_of(reading.dag) | {(gene, "all") for gene in "ABCD"}


def test_bad_gene_sets_are_refused(tmp_path):
    path = gmt(tmp_path, {"a": "AAB"})
    assert read_gmt(path).report.names("edges", "listed twice in a set") == (("A", "a"),)
    with pytest.raises(CycleError, match=r"sets\.gmt: .*a -> b -> a"):
        read_gmt(path, hierarchy=[("a", "b"), ("b", "a")])
    with pytest.raises(GraphError, match=r"'B' is both a gene and a set: rename one, or list what is nested"):
        read_gmt(gmt(tmp_path, {"A": "xB", "B": "y"}))
    path.write_text("a\tx\tA\na\tx\tB\n")
    with pytest.raises(DataError, match=r"sets\.gmt, line 2: the set 'a' is there twice"):
        read_gmt(path)
    path.write_text("\tx\tA\n")
    with pytest.raises(DataError, match=r"sets\.gmt, line 1: a set without a name"):
        read_gmt(path)
    path.write_text("a\tx\nb\n")
    with pytest.raises(DataError, match=r"no nodes are left. sets\.gmt: 2 nodes, 0 edges read"):
        read_gmt(path)
    with pytest.raises(ConfigError, match=r"hierarchy must be 'containment', pairs .*, got 'contained'"):
        read_gmt(path, hierarchy="contained")
    with pytest.raises(ConfigError, match="redundant must be one of 'drop', 'keep', got 'no'"):
        read_gmt(path, redundant="no")


def reactome(folder):
    (folder / "relation.txt").write_text(
        "R-HSA-1\tR-HSA-2\nR-HSA-1\tR-HSA-3\nR-HSA-2\tR-HSA-4\nR-BTA-1\tR-BTA-2\nR-HSA-9\tR-HSA-8\n"
    )
    rows = [("P1", 2, "Two"), ("P1", 2, "Two"), ("P1", 4, "Four"), ("P2", 4, "Four"), ("P3", 3, "Three")]
    lines = [f"{gene}\tR-HSA-{number}\tlink\t{name}\tTAS\tHomo sapiens\n" for gene, number, name in rows]
    (folder / "members.txt").write_text("".join(lines) + "P9\tR-BTA-2\tlink\tCow\tTAS\tBos taurus\n")
    return folder / "relation.txt", folder / "members.txt"


def test_reactome_turns_relations_round(tmp_path):
    reading = read_reactome(*reactome(tmp_path), root="root")
    tree = {("R-HSA-2", "R-HSA-1"), ("R-HSA-3", "R-HSA-1"), ("R-HSA-4", "R-HSA-2"), ("R-HSA-1", "root")}
    genes = {("P1", "R-HSA-2"), ("P1", "R-HSA-4"), ("P2", "R-HSA-4"), ("P3", "R-HSA-3")}
    assert edges_of(reading.dag) == tree | genes and inputs_of(reading.dag) == ["P1", "P2", "P3"]
    assert reading.labels == {"R-HSA-2": "Two", "R-HSA-3": "Three", "R-HSA-4": "Four"}
    assert {*reading.report.names("nodes", "no gene feeds them")} == {"R-HSA-8", "R-HSA-9"}
    assert reading.report.names("edges", "repeated") == (("P1", "R-HSA-2"),)
    assert reading.report.notes == ("2 lines of other species not read",) and adds_up(reading.report)
    lean = read_reactome(*reactome(tmp_path), redundant="drop")
    assert edges_of(lean.dag) == tree - {("R-HSA-1", "root")} | genes - {("P1", "R-HSA-2")}
    assert inputs_of(read_reactome(*reactome(tmp_path), species="BTA").dag) == ["P9"]


def test_bad_reactome_files_are_refused(tmp_path):
    relation, members = reactome(tmp_path)
    with pytest.raises(DataError, match="no pathway of species='human', whose ids begin with 'R-human-'"):
        read_reactome(relation, members, species="human")
    with pytest.raises(DataError, match="cannot read"):
        read_reactome(relation, tmp_path / "no.txt")
    relation.write_text("R-HSA-1 R-HSA-2\n")
    with pytest.raises(DataError, match=r"relation\.txt, line 1: expected at least 2 cells between tabs"):
        read_reactome(relation, members)
    relation.write_text("R-HSA-1\tR-HSA-2\nR-HSA-2\tR-HSA-4\nR-HSA-4\tR-HSA-1\n")
    with pytest.raises(CycleError, match="the edges form a cycle: R-HSA-2 -> R-HSA-1 -> R-HSA-4 -> R-HSA-2"):
        read_reactome(relation, members)
