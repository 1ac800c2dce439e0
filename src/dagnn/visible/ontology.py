"""The reader of ontologies in OBO, such as the Gene Ontology, to a `Reading`."""

import contextlib
import logging
from collections.abc import Collection, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dagnn.errors import ConfigError, DataError, library
from dagnn.visible.edge_files import PathLike, open_text, table_rows
from dagnn.visible.gene_sets import reading_of_sets
from dagnn.visible.reading import EdgeList, Reading, checked_choice, listed

_ALWAYS_READ = ("name", "is_a", "relationship", "is_obsolete", "alt_id")


def read_obo(
    path: PathLike,
    *,
    members: Any = None,
    relations: Collection[str] = ("is_a",),
    obsolete: str = "drop",
    attributes: Collection[str] = (),
    redundant: str = "keep",
    root: Hashable | None = None,
    reverse: bool = False,
) -> Reading:
    """A Dag from an ontology in OBO, such as the Gene Ontology: terms feed those that they are a part or a kind of.

    Names of terms become ``Reading.labels``. Terms that no gene reaches are dropped and reported, if ``members`` says
    which genes there are; without it every term without a child is an input.

    Args:
        path: a file, also with ``.gz``.
        members: genes of terms: pairs (gene, term) in any form that `read_edges` takes, with the columns "gene" and
            "term" where it is a file or frame; or a mapping from term to genes. A term that the ontology lacks is
            dropped and reported, but the ``alt_id`` of a term is that term.
        relations: those to read, such as ``("is_a", "part_of")``. Edges of others are dropped and reported.
        obsolete: ``"drop"`` or ``"keep"``: terms that are marked so, which as a rule have no relations.
        attributes: tags of terms to keep as node attributes, such as ``"namespace"``: as the file has them, a list
            where it allows several, None for a term without. All other tags are reported.
        redundant: ``"drop"``: a gene that reaches a term through a child does not feed it directly as well.
        root: a node that every term without a parent shall feed; it is made if it is not there. The Gene Ontology has
            three roots.
        reverse: turn every edge round: values flow from parents to children.

    Raises:
        DataError: a file that cannot be read.
        ConfigError: an unknown relation or tag.
        MissingPackageError: obonet is missing (``pip install "dagnn[visible]"``).
        CycleError: the chosen relations have a cycle; the message names its nodes in order.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "small.obo"
    >>> terms = [("T:1", "life", ""), ("T:2", "growth", "is_a: T:1"), ("T:3", "old", "is_obsolete: true")]
    >>> text = "".join(f"[Term]\\nid: {id}\\nname: {name}\\n{more}\\n\\n" for id, name, more in terms)
    >>> _ = path.write_text(f"format-version: 1.2\\nontology: small\\n\\n{text}")
    >>> reading = read_obo(path, members={"T:2": ["A", "B"]})
    >>> reading.dag.names
    ('T:1', 'T:2', 'A', 'B')
    """
    checked_choice("redundant", redundant, ("drop", "keep"))
    checked_choice("obsolete", obsolete, ("drop", "keep"))
    path = Path(path)
    if isinstance(relations, str):
        raise ConfigError(f"relations must be a list of relations, got the text {relations!r}: give [{relations!r}].")
    graph = _ontology(path)
    data = dict(graph.nodes(data=True))
    there = {relation for _, _, relation in graph.edges(keys=True)}
    unknown = [relation for relation in relations if relation not in there and relation != "is_a"]
    if unknown:
        raise ConfigError(f"{path.name}: no relation {unknown[0]!r}; there is {listed(sorted(there), shown=8)}.")
    tags = dict.fromkeys(tag for row in data.values() for tag in row)
    lacking = [tag for tag in attributes if tag not in tags]
    if lacking:
        raise ConfigError(f"{path.name}: no term has the tag {lacking[0]!r}; there is {listed(list(tags), shown=12)}.")

    found = EdgeList(path.name)
    for term, row in data.items():
        if not row:
            found.drop("nodes", "not a term of this file", term)
        elif obsolete == "drop" and row.get("is_obsolete") == "true":
            found.drop("nodes", "obsolete", term)
        else:
            found.nodes[term] = None
    pairs: dict[tuple[Hashable, Hashable], None] = {}
    for child, parent, relation in graph.edges(keys=True):
        if child not in found.nodes or parent not in found.nodes:
            found.skip(child, parent, "from or to a term that was dropped")
        elif relation not in relations:
            found.skip(child, parent, f"relation {relation!r}")
        elif (child, parent) in pairs:
            found.skip(child, parent, "repeated")
        else:
            pairs[child, parent] = None
    unread = [tag for tag in tags if tag not in (*attributes, *_ALWAYS_READ)]
    if unread:
        found.notes.append(f"tags not read: {listed(unread, shown=8)}")
    labels = {term: str(row["name"]) for term, row in data.items() if "name" in row}
    chosen = {tag: {term: row[tag] for term, row in data.items() if tag in row} for tag in attributes}
    if members is None:
        for child, parent in pairs:
            found.add(child, parent)
        return found.reading(root=root, reverse=reverse, labels=labels, attributes=chosen)
    same = {alias: term for term, row in data.items() for alias in row.get("alt_id", ())}
    genes_of = _annotations(members, found, same)
    return reading_of_sets(
        found, pairs, genes_of, redundant, root=root, reverse=reverse, labels=labels, attributes=chosen
    )


def _ontology(path: Path) -> Any:
    """The file as obonet reads it: a MultiDiGraph with edges child -> parent, keyed by their relation."""
    obonet = library("obonet", "an OBO file", "dagnn[visible]")
    text = open_text(path)
    try:
        with _quiet(logging.getLogger()):
            graph = obonet.read_obo(text, ignore_obsolete=False)
    except Exception as error:  # its parser raises whatever it meets
        raise DataError(f"{path.name} is no OBO file: {error}") from error
    if not graph.number_of_nodes():
        raise DataError(f"{path.name} is no OBO file: it has no [Term].")
    return graph


@contextlib.contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """obonet warns of a header without a name, which nothing here reads."""
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _annotations(members: Any, found: EdgeList, same: Mapping[str, str]) -> dict[Hashable, dict[Hashable, None]]:
    """Term -> its genes; an edge that is repeated or leads to no term is noted as dropped."""
    if isinstance(members, Mapping):
        wrong = next((term for term, genes in members.items() if isinstance(genes, str)), None)
        if wrong is not None:
            raise ConfigError(f"members[{wrong!r}] must be a list of genes, got the text {members[wrong]!r}.")
        members = [(gene, term) for term, genes in members.items() for gene in genes]
    genes_of: dict[Hashable, dict[Hashable, None]] = {}
    for _, (gene, name, _) in table_rows(members, ("gene", "term")).cells:
        term = same.get(str(name), name)
        if term not in found.nodes:
            found.skip(gene, term, "to a term that was dropped or is not there")
        elif gene in genes_of.setdefault(term, {}):
            found.skip(gene, term, "repeated")
        else:
            genes_of[term][gene] = None
    return genes_of
