"""A network in the shape of human biology: proteins, the pathways they take part in, their parents, one root.

The hierarchy is Reactome's, as the package `binn` ships it (14,628 nodes, 49,737 edges, 14 levels); nothing of the
package runs, only its tables are read. The patients are made up: six pathways are active or not, their proteins follow
with noise, and the disease follows the pathways. The network sees proteins and disease, and finds the pathways.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dagnn.graph import Dag
from dagnn.nn import DagNN

PATIENTS, PLANTED = 1_500, 6
Edges = list[tuple[str, str]]


def reactome() -> tuple[Dag, dict[str, list[str]]]:
    """The hierarchy with proteins as inputs and the root as output; and the proteins of every pathway."""
    spec = find_spec("binn")
    assert spec is not None and spec.submodule_search_locations
    tables = Path(spec.submodule_search_locations[0]) / "data" / "downloads"
    human = "R-HSA-"
    membership: set[tuple[str, str]] = set()
    with next(tables.glob("uniprot_2_reactome_*")).open() as file:
        for line in file:
            protein, pathway, *_ = line.split("\t", 2)
            if pathway.startswith(human):
                membership.add((protein, pathway))
    with next(tables.glob("reactome_pathways_relation_*")).open() as file:
        pairs = [line.split() for line in file]
    relations: Edges = [(child, parent) for parent, child in pairs if child.startswith(human)]

    pathways = {pathway for edge in relations for pathway in edge} | {pathway for _, pathway in membership}
    tops = pathways - {child for child, _ in relations}
    edges = sorted(membership) + sorted(relations) + [(top, "root") for top in sorted(tops)]
    proteins = sorted({protein for protein, _ in membership})
    proteins_of: dict[str, list[str]] = {}
    for protein, pathway in sorted(membership):
        proteins_of.setdefault(pathway, []).append(protein)
    return Dag(edges, inputs=proteins, outputs=["root", *sorted(pathways)]), proteins_of


def patients(dag: Dag, proteins_of: dict[str, list[str]]) -> tuple[Tensor, Tensor, list[str]]:
    """Expression ``[patients, proteins]``, disease ``[patients]`` and the pathways behind it."""
    names = [dag.name_of(node) for node in dag.inputs.tolist()]
    column = {name: place for place, name in enumerate(names)}
    # Pathways of 20 to 40 proteins, top-level ones or just below, that share no protein with each other.
    planted: list[str] = []
    used: set[str] = set()
    candidates = [
        pathway
        for pathway, members in sorted(proteins_of.items())
        if 20 <= len(members) <= 40 and dag.heights[dag.index_of(pathway)] <= 2
    ]
    for place in torch.randperm(len(candidates)).tolist():
        members = proteins_of[candidates[place]]
        if len(planted) < PLANTED and used.isdisjoint(members):
            planted.append(candidates[place])
            used.update(members)
    activity = torch.randn(PATIENTS, PLANTED)
    x = torch.randn(PATIENTS, len(names))
    for k, pathway in enumerate(planted):
        x[:, [column[protein] for protein in proteins_of[pathway]]] += activity[:, k : k + 1]
    direction = torch.tensor([1.0, -1.0]).repeat(PLANTED // 2)
    disease = torch.rand(PATIENTS) < torch.sigmoid(3 * activity @ direction)
    return x, disease.float(), planted


def auc(score: Tensor, label: Tensor) -> float:
    """Share of (ill, healthy) pairs that the score puts in the right order."""
    rank = score.argsort().argsort().double() + 1
    ill = label.sum().item()
    return (rank[label > 0].sum().item() - ill * (ill + 1) / 2) / (ill * (len(label) - ill))


def main() -> tuple[float, int]:
    torch.manual_seed(0)
    dag, proteins_of = reactome()
    x, disease, planted = patients(dag, proteins_of)
    train, test = torch.arange(PATIENTS).split([PATIENTS * 2 // 3, PATIENTS - PATIENTS * 2 // 3])
    net = DagNN(dag, activation="tanh", output_activation="tanh")
    print(
        f"{dag.num_nodes:,} nodes, {dag.num_edges:,} edges, {int(dag.levels.max()) + 1} levels, {len(train)} patients"
    )

    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=6.0)
    for epoch in range(9):
        for batch in train[torch.randperm(len(train))].split(50):
            optimizer.zero_grad()
            logit = 4 * net(x[batch])[:, 0]
            loss = binary_cross_entropy_with_logits(logit, disease[batch])
            loss.backward()
            optimizer.step()
        if epoch % 3 == 2:
            with torch.no_grad():
                held_out = auc(net(x[test])[:, 0], disease[test])
            print(f"epoch {epoch + 1:2d}  loss {loss.item():.3f}  held-out AUC {held_out:.3f}")

    # What the root makes of a pathway: how much it varies over patients, times how the root follows it.
    values = net(x[train])
    net.zero_grad()
    values[:, 0].mean().backward()
    influence = net.bias.grad
    assert influence is not None
    follows = {name: influence[slot].item() for slot, name in enumerate(net.bias_names())}
    spread = values.detach().std(0)
    outputs = [str(dag.name_of(node)) for node in dag.outputs.tolist()]
    importance = {name: abs(follows[name]) * spread[k].item() for k, name in enumerate(outputs) if name != "root"}
    ranking = sorted(importance, key=importance.__getitem__, reverse=True)
    ranks = sorted(ranking.index(pathway) + 1 for pathway in planted)
    found = sum(rank <= 50 for rank in ranks)
    print(f"planted pathways among {len(ranking):,}: ranks {ranks}, {found} of {PLANTED} in the first 50")
    return held_out, found


if __name__ == "__main__":
    if find_spec("binn") is None:
        print("This example reads Reactome from the package binn: pip install --no-deps binn")
        sys.exit(0)
    main()
