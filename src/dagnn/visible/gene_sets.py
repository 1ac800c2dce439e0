"""Readers of gene sets, GMT and Reactome's tables, each to a `Reading`.

Genes are the inputs, and values flow from genes to sets and from children to parents.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dagnn.errors import DataError, GraphError, library
from dagnn.graph import Dag
from dagnn.visible.edge_files import PathLike, open_text, table_rows
from dagnn.visible.reading import EdgeList, Reading, checked_choice, listed

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
    path = Path(path)
    members: dict[Hashable, dict[Hashable, None]] = {}
    labels: dict[Hashable, str] = {}
    repeated: list[tuple[Hashable, Hashable]] = []
    for number, line in enumerate(open_text(path).read().splitlines(), start=1):
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
    relations, members = Path(relations), Path(members)
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
    for number, line in enumerate(open_text(path).read().splitlines(), start=1):
        cells = [cell.strip() for cell in line.split("\t")]
        if not any(cells):
            continue
        if len(cells) < least or not all(cells[:least]):
            raise DataError(f"{path.name}, line {number}: expected at least {least} cells between tabs, got {line!r}.")
        yield cells
