"""Readers of gene sets (GMT, Reactome's tables) and ontologies (OBO, such as the Gene Ontology), each to a `Reading`.

Genes are the inputs, and values flow from genes to sets and from children to parents.
"""

import contextlib
import logging
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dagnn.errors import ConfigError, DataError, GraphError, library
from dagnn.graph import Dag
from dagnn.visible.edge_files import PathLike, lines_of, open_text, path_of, table_rows
from dagnn.visible.reading import EdgeList, Reading, checked_choice, checked_list, listed

_REDUNDANT = "a nested set brings the gene"


def read_gmt(
    path: PathLike,
    *,
    hierarchy: Any = None,
    redundant: str = "drop",
    root: Hashable | None = None,
    reverse: bool = False,
) -> Reading:
    """A Dag from a GMT file: a gene set in each line, ``name <tab> description <tab> gene <tab> gene ...``.

    Genes feed sets, and nested sets feed those that hold them. Sets without a gene, their own or of a nested set, are
    dropped and reported; so is a gene that a set lists twice. Descriptions become ``Reading.labels``.

    Args:
        path: a file, also with ``.gz``.
        hierarchy: how sets are nested. None: not at all. ``"containment"``: a set feeds the smallest sets that hold all
            its genes and more. Or pairs (child, parent) in any form that `read_edges` takes, with these columns where
            it is a file or frame; or a `Dag` or `Reading` of them. Parents that are no sets of the file become nodes.
        redundant: ``"drop"``: a gene that reaches a set through a nested one does not feed it directly as well, since
            files list the genes of a child again at all its ancestors. ``"keep"``: every line as it is.
        root: a node that every set without a parent shall feed; it is made if it is not there.
        reverse: turn every edge round: values flow from sets to genes.

    Raises:
        DataError: a file that cannot be read, a line without a name, or a name twice.
        GraphError: a name that is both a gene and a set.
        CycleError: the hierarchy has a cycle; the message names its nodes in order.

    Source: the Broad Institute's "GSEA data formats", GMT.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "small.gmt"
    >>> _ = path.write_text("growth\\tGO:1\\tA\\tB\\tC\\ndivision\\tGO:2\\tA\\tB\\nempty\\tGO:3\\n")
    >>> reading = read_gmt(path, hierarchy="containment")
    >>> [(reading.dag.name_of(u), reading.dag.name_of(v)) for u, v in reading.dag.edges.tolist()]
    [('C', 'growth'), ('division', 'growth'), ('A', 'division'), ('B', 'division')]
    >>> print(reading.report)
    small.gmt: 6 nodes, 6 edges read; the Dag has 5 nodes, 4 edges
      2 edges dropped, a nested set brings the gene: 'A' -> 'growth', 'B' -> 'growth'
      1 node dropped, no gene feeds them: 'empty'
    """
    checked_choice("redundant", redundant, ("drop", "keep"))
    path = path_of("path", path)
    members: dict[Hashable, dict[Hashable, None]] = {}
    labels: dict[Hashable, str] = {}
    repeated: list[tuple[Hashable, Hashable]] = []
    for number, line in enumerate(lines_of(path), start=1):
        cells = [cell.strip() for cell in line.split("\t")]
        if not any(cells):
            continue
        title, label, genes = cells[0], "".join(cells[1:2]), list(filter(None, cells[2:]))
        if not title:
            raise DataError(f"{path.name}, line {number}: a set without a name: the line is {line[:60]!r}.")
        if title in members:
            raise DataError(f"{path.name}, line {number}: the set {title!r} is there twice: merge the two lines.")
        members[title] = dict.fromkeys(genes)
        repeated += [(gene, title) for place, gene in enumerate(genes) if genes.index(gene) < place]
        if label:
            labels[title] = label
    pairs = _contained(members) if isinstance(hierarchy, str) and hierarchy == "containment" else _pairs(hierarchy)
    found = EdgeList(path.name)
    for gene, name in repeated:
        found.skip(gene, name, "listed twice in a set")
    return reading_of_sets(found, pairs, members, redundant, root=root, reverse=reverse, labels=labels)


def _contained(members: Mapping[Hashable, Collection[Hashable]]) -> list[tuple[Hashable, Hashable]]:
    """(A, B) where all genes of A are in B, B has more, and no set is between them."""
    sparse = library("scipy.sparse", "a file of gene sets", "dagnn[visible]")
    names = [name for name, genes in members.items() if genes]
    genes = {gene: place for place, gene in enumerate(dict.fromkeys(g for name in names for g in members[name]))}
    sizes = np.array([len(members[name]) for name in names], dtype=np.int64)
    columns = np.array([genes[gene] for name in names for gene in members[name]], dtype=np.int64)
    rows = np.repeat(np.arange(len(names)), sizes)
    shape = (len(names), len(genes))
    within = sparse.csr_array((np.ones(len(rows), np.int32), (rows, columns)), shape=shape)
    shared = (within @ within.T).tocoo()
    i, j = shared.coords
    inside = (shared.data == sizes[i]) & (sizes[i] < sizes[j])
    square = (len(names), len(names))
    holds = sparse.csr_array((np.ones(int(inside.sum()), np.int32), (i[inside], j[inside])), shape=square)
    # "Holds" is transitive, so what is two steps away is what is not next.
    detours = (holds @ holds).tocoo()
    far = set(zip(*(part.tolist() for part in detours.coords), strict=True))
    pairs = zip(i[inside].tolist(), j[inside].tolist(), strict=True)
    return [(names[a], names[b]) for a, b in sorted(pairs) if (a, b) not in far]


def _pairs(hierarchy: Any) -> list[tuple[Hashable, Hashable]]:
    """(child, parent) from what a caller may give."""
    if hierarchy is None:
        return []
    if isinstance(hierarchy, str) and not Path(hierarchy).suffix:
        raise ConfigError(
            f"hierarchy must be 'containment', pairs (child, parent) or a file of them, got {hierarchy!r}."
        )
    if isinstance(hierarchy, Reading):
        hierarchy = hierarchy.dag
    if isinstance(hierarchy, Dag):
        return [(hierarchy.name_of(u), hierarchy.name_of(v)) for u, v in hierarchy.edges.tolist()]
    return [row[:2] for _, row in table_rows(hierarchy, ("child", "parent")).cells]


def reading_of_sets(
    found: EdgeList,
    hierarchy: Iterable[tuple[Hashable, Hashable]],
    members: Mapping[Hashable, Iterable[Hashable]],
    redundant: str,
    *,
    root: Hashable | None,
    reverse: bool,
    labels: Mapping[Hashable, str],
    attributes: Mapping[str, Any] | None = None,
) -> Reading:
    """The Dag of a hierarchy of sets and their genes."""
    pairs = list(hierarchy)
    genes = dict.fromkeys(gene for listed_genes in members.values() for gene in listed_genes)
    sets = dict.fromkeys(members) | dict.fromkeys(name for pair in pairs for name in pair)
    both = [name for name in genes if name in sets]
    if both:
        raise GraphError(
            f"{found.source}: {listed(both)} {'is' if len(both) == 1 else 'are'} both a gene and a set: rename one, or "
            "list what is nested in hierarchy=."
        )
    found.nodes.update(genes | sets)
    for child, parent in pairs:
        found.add(child, parent)
    brought = _genes_of_children(found, pairs, members) if redundant == "drop" else {}
    for name, own in members.items():
        for gene in own:
            if gene in brought.get(name, ()):
                found.skip(gene, name, _REDUNDANT)
            else:
                found.add(gene, name)
    return found.reading(genes=genes, root=root, reverse=reverse, labels=labels, attributes=attributes)


def _genes_of_children(
    found: EdgeList, pairs: Sequence[tuple[Hashable, Hashable]], members: Mapping[Hashable, Iterable[Hashable]]
) -> dict[Hashable, set[Hashable]]:
    """Set -> the genes that its nested sets bring, at any depth."""
    if not pairs:
        return {}
    order = found.dag()  # also the place where a cycle of the hierarchy is found
    brought: dict[Hashable, set[Hashable]] = {}
    children: dict[Hashable, list[Hashable]] = {}
    for child, parent in pairs:
        children.setdefault(parent, []).append(child)
    for node in order.order.tolist():
        name = order.name_of(node)
        for child in children.get(name, ()):
            brought.setdefault(name, set()).update(brought.get(child, ()), members.get(child, ()))
    return brought


def read_reactome(
    relations: PathLike,
    members: PathLike,
    *,
    species: str = "HSA",
    redundant: str = "keep",
    root: Hashable | None = None,
    reverse: bool = False,
) -> Reading:
    """A Dag from Reactome's two files: the hierarchy of pathways, and which genes or proteins take part in which.

    The file of relations lists parents first; they are turned round, so that children feed parents. Pathways without a
    gene, their own or of a child, are dropped and reported. Names of pathways become ``Reading.labels``.

    Args:
        relations: ``ReactomePathwaysRelation.txt``: parent, child.
        members: ``UniProt2Reactome.txt`` or another of its kind (NCBI, Ensembl, miRBase): gene, pathway, a link, the
            pathway's name, evidence, species. In ``..._All_Levels.txt`` a gene is listed at all ancestors too:
            ``redundant="drop"`` takes those away again.
        species: the letters in the ids of pathways, ``R-HSA-...`` for humans. What belongs to others is not read; the
            report counts its lines.
        redundant: ``"drop"``: a gene that reaches a pathway through a child does not feed it directly as well.
        root: a node that every top-level pathway shall feed; it is made if it is not there.
        reverse: turn every edge round: values flow from pathways to genes.

    Raises:
        DataError: a file that cannot be read, a line with too few cells, or nothing of this species.
        CycleError: the relations have a cycle; the message names its nodes in order.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "relation.txt").write_text("R-HSA-1\\tR-HSA-2\\nR-HSA-1\\tR-HSA-3\\nR-BTA-1\\tR-BTA-2\\n")
    >>> _ = (folder / "members.txt").write_text("P1\\tR-HSA-2\\thttps://...\\tRepair\\tTAS\\tHomo sapiens\\n")
    >>> reading = read_reactome(folder / "relation.txt", folder / "members.txt")
    >>> reading.dag.names, reading.labels
    (('P1', 'R-HSA-2', 'R-HSA-1'), {'R-HSA-2': 'Repair'})
    """
    checked_choice("redundant", redundant, ("drop", "keep"))
    relations, members = path_of("relations", relations), path_of("members", members)
    prefix, others = f"R-{species}-", 0
    found = EdgeList(f"{relations.name}, {members.name}")
    pairs: list[tuple[Hashable, Hashable]] = []
    for parent, child, *_ in _tab_rows(relations, 2):
        if parent.startswith(prefix) and child.startswith(prefix):
            pairs.append((child, parent))
        else:
            others += 1
    genes_of: dict[Hashable, dict[Hashable, None]] = {}
    labels: dict[Hashable, str] = {}
    for gene, pathway, *rest in _tab_rows(members, 2):
        if not pathway.startswith(prefix):
            others += 1
            continue
        if gene in genes_of.setdefault(pathway, {}):
            found.skip(gene, pathway, "repeated")
        genes_of[pathway][gene] = None
        if len(rest) > 1:
            labels[pathway] = rest[1]
    if not pairs and not genes_of:
        raise DataError(f"{found.source}: no pathway of species={species!r}, whose ids begin with {prefix!r}.")
    if others:
        found.notes.append(f"{others:,} lines of other species not read")
    return reading_of_sets(found, pairs, genes_of, redundant, root=root, reverse=reverse, labels=labels)


def _tab_rows(path: Path, least: int) -> Iterator[list[str]]:
    """The cells of every line that has any; at least ``least``, all of these with text."""
    for number, line in enumerate(lines_of(path), start=1):
        cells = [cell.strip() for cell in line.split("\t")]
        if not any(cells):
            continue
        if len(cells) < least or not all(cells[:least]):
            raise DataError(f"{path.name}, line {number}: expected at least {least} cells between tabs, got {line!r}.")
        yield cells


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
    path = path_of("path", path)
    relations, attributes = checked_list("relations", relations), checked_list("attributes", attributes)
    graph, terms = _ontology(path)
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
        if term not in terms:
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


def _ontology(path: Path) -> tuple[Any, set[str]]:
    """The file as obonet reads it: a MultiDiGraph with edges child -> parent, keyed by their relation; and its terms.

    A term of which the file says no more than ``id:`` is in the graph what one is that the file lacks.
    """
    obonet = library("obonet", "an OBO file", "dagnn[visible]")
    text = open_text(path)
    try:
        with _quiet(logging.getLogger()):
            graph = obonet.read_obo(text, ignore_obsolete=False)
    except Exception as error:  # its parser raises whatever it meets
        raise DataError(f"{path.name} is no OBO file: {error}") from error
    if not graph.number_of_nodes():
        raise DataError(f"{path.name} is no OBO file: it has no [Term].")
    terms = {term for term, row in graph.nodes(data=True) if row}
    stanza = ""
    for line in map(str.strip, lines_of(path)):
        if line.startswith("["):
            stanza = line
        elif stanza == "[Term]" and line.startswith("id:"):
            terms.add(line[3:].partition("!")[0].partition("{")[0].strip())
    return graph, terms


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
        members = [
            (gene, term) for term, genes in members.items() for gene in checked_list(f"members[{term!r}]", genes)
        ]
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
