"""OBO as Dags: chosen relations, obsolete terms, ragged tags, genes, and bad files."""

import pytest
from read_graphs import adds_up, edges_of, inputs_of

from dagnn.errors import ConfigError, CycleError, DataError
from dagnn.visible import read_obo

OBO = """format-version: 1.2
ontology: test

[Term]
id: T:1
name: life
namespace: process

[Term]
id: T:2
name: growth
namespace: process
alt_id: T:7
is_a: T:1 ! life

[Term]
id: T:3
name: division
is_a: T:2 ! growth
relationship: part_of T:1 ! life
relationship: regulates T:2 ! growth
synonym: "splitting" EXACT []

[Term]
id: T:4
name: obsolete thing
is_obsolete: true

[Term]
id: T:5
name: foreign child
is_a: X:9 ! of another file

[Typedef]
id: part_of
name: part of
"""


@pytest.fixture
def obo(tmp_path):
    pytest.importorskip("obonet")
    path = tmp_path / "test.obo"
    path.write_text(OBO)
    return path


def test_obo_relations_are_chosen_and_the_rest_reported(obo):
    reading = read_obo(obo)
    assert edges_of(reading.dag) == {("T:2", "T:1"), ("T:3", "T:2")} and adds_up(reading.report)
    assert reading.report.names("edges", "relation 'part_of'") == (("T:3", "T:1"),)
    assert reading.report.names("edges", "relation 'regulates'") == (("T:3", "T:2"),)
    assert reading.report.names("nodes", "obsolete") == ("T:4",)
    assert reading.report.names("nodes", "not a term of this file") == ("X:9",)
    assert reading.report.names("edges", "from or to a term that was dropped") == (("T:5", "X:9"),)
    assert reading.labels == {"T:1": "life", "T:2": "growth", "T:3": "division", "T:5": "foreign child"}
    assert reading.report.notes == ("tags not read: 'namespace', 'synonym'",)
    both = read_obo(obo, relations=["is_a", "part_of"], attributes=["namespace", "synonym"], obsolete="keep")
    assert edges_of(both.dag) == {("T:2", "T:1"), ("T:3", "T:2"), ("T:3", "T:1")} and "T:4" in both.dag.names
    namespace = dict(zip(both.dag.names, both.dag.node_attributes["namespace"], strict=True))
    assert namespace == {"T:1": "process", "T:2": "process", "T:3": None, "T:4": None, "T:5": None}


def test_obo_with_genes(obo):
    members = {"T:3": ["A", "B"], "T:7": ["C"], "T:1": ["A"], "T:4": ["D"], "T:99": ["E"]}
    reading = read_obo(obo, members=members, root="T:1")
    genes = {("A", "T:3"), ("B", "T:3"), ("C", "T:2"), ("A", "T:1")}
    assert edges_of(reading.dag) == {("T:2", "T:1"), ("T:3", "T:2")} | genes
    assert inputs_of(reading.dag) == ["A", "B", "C"] and adds_up(reading.report)
    why = "to a term that was dropped or is not there"
    assert reading.report.names("edges", why) == (("D", "T:4"), ("E", "T:99"))
    assert {*reading.report.names("nodes", "none of their edges was kept")} == {"D", "E", "T:99"}
    assert reading.report.names("nodes", "no gene feeds them") == ("T:5",)
    lean = read_obo(obo, members=members, redundant="drop")
    assert edges_of(lean.dag) == edges_of(reading.dag) - {("A", "T:1")}
    table = obo.parent / "genes.tsv"
    table.write_text("term\tgene\n" + "".join(f"{term}\t{gene}\n" for term, genes in members.items() for gene in genes))
    assert edges_of(read_obo(obo, members=table).dag) == edges_of(reading.dag)


def test_a_term_with_no_more_than_its_id_is_a_term(obo):
    text = "format-version: 1.2\n\n[Term]\nid: T:1 ! the root\n\n[Term]\nid: T:2\nname: b\nis_a: T:1\nis_a: T:9\n"
    obo.write_text(text + "\n[Typedef]\nid: T:9\n")
    reading = read_obo(obo)
    assert edges_of(reading.dag) == {("T:2", "T:1")} and adds_up(reading.report)
    assert reading.report.names("nodes", "not a term of this file") == ("T:9",)


def test_bad_ontologies_are_refused(obo):
    with pytest.raises(ConfigError, match=r"no relation 'has_part'; there is 'is_a', 'part_of', 'regulates'"):
        read_obo(obo, relations=["has_part"])
    with pytest.raises(ConfigError, match="relations must be a list"):
        read_obo(obo, relations="is_a")
    with pytest.raises(ConfigError, match="no term has the tag 'size'"):
        read_obo(obo, attributes=["size"])
    with pytest.raises(ConfigError, match=r"members\['T:1'\] must be a list, got the text 'AB'"):
        read_obo(obo, members={"T:1": "AB"})
    with pytest.raises(ConfigError, match=r"members\['T:1'\] must be a list, got None"):
        read_obo(obo, members={"T:1": None})
    with pytest.raises(ConfigError, match="relations must be a list, got None"):
        read_obo(obo, relations=None)
    with pytest.raises(ConfigError, match="attributes must be a list, got the text 'namespace'"):
        read_obo(obo, attributes="namespace")
    obo.write_text(OBO.replace("namespace: process\n\n[Term]\nid: T:2", "is_a: T:3\n\n[Term]\nid: T:2"))
    with pytest.raises(CycleError, match=r"test\.obo: .*T:1 -> T:3 -> T:2 -> T:1"):
        read_obo(obo)
    obo.write_text("nothing of the kind")
    with pytest.raises(DataError, match=r"test\.obo is no OBO file"):
        read_obo(obo)
