"""P-NET's shape on Reactome for benchmarks, and the same network as kpnn2, edge2torch and binn build it.

Five levels of pathways below a root, by their distance from it, and proteins below the fifth. What is deeper gives its
proteins to its ancestors on the fifth level; a pathway with proteins of its own that is nearer to the root is copied
down to there. So every edge leads to the next level, which edge2torch and binn need: they keep a dense matrix, most of
it zeros, for each. All compute tanh of the sum, the root the sum alone; binn has a batch norm before each tanh besides,
which it cannot leave out.
"""

import runpy
from collections import defaultdict
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from dagnn.graph import Dag
from dagnn.nn import DagNN

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "dagnn_reactome.py"
LEVELS = 5


def pnet_like(num_proteins: int | None = None) -> Dag:
    """Proteins, five levels of pathways, the root; of so many proteins, or all. The package binn has the tables."""
    whole, _ = runpy.run_path(str(EXAMPLE))["reactome"]()
    names = [whole.name_of(node) for node in range(whole.num_nodes)]
    proteins = {names[node] for node in whole.inputs.tolist()[:num_proteins]}
    members, parents, children = defaultdict[str, set[str]](set), defaultdict[str, list[str]](list), dict[str, Any]()
    inputs = {names[node] for node in whole.inputs.tolist()}
    for source, target in ((names[u], names[v]) for u, v in whole.edges.tolist()):
        if source in proteins:
            members[target].add(source)
        elif source not in inputs:
            parents[source].append(target)
            children.setdefault(target, []).append(source)
    distance, waiting = {"root": 0}, ["root"]
    for parent in waiting:
        for child in children.get(parent, ()):
            if child not in distance:
                distance[child] = distance[parent] + 1
                waiting.append(child)

    lowest = defaultdict[str, set[str]](set)  # proteins of the fifth level
    for pathway, own in list(members.items()):
        for place in {pathway} if distance[pathway] <= LEVELS else _on_level(pathway, parents, distance):
            lowest[place] |= own
    edges = {(protein, _copy(p, LEVELS, distance)) for p, own in lowest.items() for protein in own}
    edges |= {
        (_copy(p, level, distance), _copy(p, level - 1, distance))
        for p in lowest
        for level in range(distance[p] + 1, LEVELS + 1)
    }
    alive, waiting = set(lowest), list(lowest)
    for pathway in waiting:
        for parent in parents[pathway]:
            if distance[parent] == distance[pathway] - 1:
                edges.add((pathway, parent))
                if parent not in alive:
                    alive.add(parent)
                    waiting.append(parent)
    return Dag(sorted(edges), inputs=sorted(proteins & {source for source, _ in edges}))


def _on_level(pathway: str, parents: dict[str, list[str]], distance: dict[str, int]) -> set[str]:
    found, waiting = {pathway}, [pathway]
    for node in waiting:
        new = [parent for parent in parents[node] if parent not in found and distance[parent] >= LEVELS]
        found.update(new)
        waiting += new
    return {node for node in found if distance[node] == LEVELS}


def _copy(pathway: str, level: int, distance: dict[str, int]) -> str:
    return pathway if level == distance[pathway] else f"{pathway} ({level})"


def levels_of(net: DagNN) -> list[list[str]]:
    """Names of the nodes, level by level, the inputs first."""
    levels = net.dag.levels.tolist()
    found: list[list[str]] = [[] for _ in range(max(levels) + 1)]
    for node, level in enumerate(levels):
        found[level].append(str(net.dag.name_of(node)))
    assert all(levels[v] == levels[u] + 1 for u, v in net.dag.edges.tolist())
    return found


class _Layers(nn.Module):
    """Layers with tanh between; ``columns`` are those of x that the first one takes."""

    is_same = True

    def __init__(self, layers: list[nn.Module], columns: list[int]) -> None:
        super().__init__()
        self.layers, self.columns = nn.ModuleList(layers), columns

    def forward(self, x: Tensor) -> Tensor:
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            x = layer(x) if number == last else torch.tanh(layer(x))
        return x

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return mse_loss(self(x), y)


def _frame(net: DagNN) -> Any:
    import pandas

    return pandas.DataFrame([(str(u), str(v)) for u, v in net.edge_names()], columns=["source", "target"])


def _matrix(net: DagNN, sources: list[str], targets: list[str]) -> Tensor:
    """The weights between two levels, 0 without an edge: ``[targets, sources]``."""
    row, column = ({name: k for k, name in enumerate(names)} for names in (targets, sources))
    matrix = torch.zeros(len(targets), len(sources))
    for (u, v), weight in net.edge_weights().items():
        if v in row:
            matrix[row[str(v)], column[str(u)]] = float(weight)
    return matrix


def kpnn2_layers(net: DagNN, *, is_packed: bool) -> _Layers:
    """kpnn2 with a weight for each edge (`PackedLinear`), or a matrix and a mask (`MaskedLinear`)."""
    import kpnn2

    spec = kpnn2.parse_layered(_frame(net))
    weights, biases, made = net.edge_weights(), net.biases(), []
    for hop, sources, targets in zip(spec.hops, spec.layer_nodes[:-1], spec.layer_nodes[1:], strict=True):
        if is_packed:
            layer = kpnn2.PackedLinear.from_hop(hop)
            ends = zip(layer.source_index.tolist(), layer.target_index.tolist(), strict=True)
            own = torch.tensor([float(weights[sources[u], targets[v]]) for u, v in ends])
        else:
            layer = kpnn2.MaskedLinear(hop.to_mask())
            own = _matrix(net, list(sources), list(targets))
        layer.weight.data.copy_(own)
        layer.bias.data.copy_(torch.tensor([float(biases[name]) for name in targets]))
        made.append(layer)
    column = {str(name): k for k, name in enumerate(net.input_names)}
    return _Layers(made, [column[name] for name in spec.layer_nodes[0]])


def edge2torch_layers(net: DagNN) -> _Layers:
    """The blocks of edge2torch's feedforward backend; it adds no activation of its own."""
    import edge2torch

    model, artifact = edge2torch.compile_graph(_frame(net), backend="feedforward")
    biases = net.biases()
    for block, sources, targets in zip(
        model.blocks, list(model._execution_plan.node_names_by_layer.values())[:-1],
        list(model._execution_plan.node_names_by_layer.values())[1:], strict=True,
    ):  # fmt: skip
        block.linear.raw_weight.data.copy_(_matrix(net, list(sources), list(targets)))
        block.linear.bias.data.copy_(torch.tensor([float(biases[name]) for name in targets]))
    column = {str(name): k for k, name in enumerate(net.input_names)}
    return _Layers(list(model.blocks), [column[name] for name in artifact.input_nodes])


class BinnLayers(nn.Module):
    """The layers that binn makes of these levels, by the function it makes them with; finding levels is left out."""

    is_same = False  # for its batch norm

    def __init__(self, net: DagNN) -> None:
        super().__init__()
        import pandas
        from binn.model.binn import _generate_sequential

        *levels, _ = levels_of(net)  # its output layer is dense: all of the last level feed the root
        frames = [
            pandas.DataFrame((_matrix(net, below, above) != 0).T.float().numpy(), index=below, columns=above)
            for below, above in pairwise(levels)
        ]
        self.layers = _generate_sequential(list(map(len, levels)), frames, activation="tanh", n_outputs=1)
        column = {str(name): k for k, name in enumerate(net.input_names)}
        self.columns = [column[name] for name in levels[0]]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return mse_loss(self.layers(x), y)


PathwayPeer = _Layers | BinnLayers


def pathway_peers(net: DagNN) -> dict[str, PathwayPeer]:
    """Those that are installed."""
    found = dict[str, PathwayPeer]()
    if find_spec("kpnn2") is not None:
        found |= {f"kpnn2, {kind}": kpnn2_layers(net, is_packed=kind == "packed") for kind in ("packed", "masked")}
    if find_spec("edge2torch") is not None:
        found["edge2torch"] = edge2torch_layers(net)
    found["binn, with batch norm"] = BinnLayers(net)
    return found
