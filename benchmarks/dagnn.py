"""DagNN is the fastest way to run and train a DAG with a weight per edge on a CPU: peers, one thread, float32.

Every case is a forward and a backward pass, the gradient of x included. PyG is compared where it is installed
(`pip install torch-geometric`). Claims without a competitor are compared with ourselves: what is left after pruning,
the compiled passes without PyTorch around them. At the end the hardware's limits, which nothing needs to reach.
"""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from benchmarks import dagnn_peers, dagnn_topologies
from benchmarks.harness import Case, Contestant, main
from dagnn.graph import Dag
from dagnn.kernels.network import compiled_plan, passes
from dagnn.kernels.network.passes import Gradients
from dagnn.nn import DagNN

# Smallest ratios, per topology, batch and peer.
REQUIRED = {
    ("layered", 256): {"autograd": 15, "Function": 7, "sparse": 2.5, "PyG": 15, "masked": 5, "SparseProp": 2},
    ("random", 256): {"autograd": 25, "Function": 10, "sparse": 7, "PyG": 15, "masked": 50, "SparseProp": 4},
    ("deep", 1): {"autograd": 100, "Function": 100, "sparse": 100, "PyG": 100},
    ("deep", 32): {"autograd": 100, "Function": 100, "sparse": 100, "PyG": 100},
}
REPORTED = {
    ("layered", 1): ("sparse",),
    ("layered", 32): ("Function", "sparse"),
    ("random", 1): ("sparse",),
    ("random", 32): ("sparse",),
    ("deep", 256): ("Function",),
}
NAMES = {
    "autograd": "autograd per level",
    "Function": "custom Function per level",
    "sparse": "torch.sparse Function",
    "sparse autograd": "torch.sparse per level",
    "PyG": "PyG per level",
    "masked": "masked dense per level",
    "SparseProp": "SparseProp per level",
}
PACKAGES = {"PyG": "torch_geometric", "SparseProp": "sparseprop"}


def network(dag: Dag) -> DagNN:
    """A tanh network with fixed weights; biases are not 0."""
    torch.manual_seed(0)
    net = DagNN(dag, activation="tanh", output_activation="tanh", dtype=torch.float32)
    with torch.no_grad():
        net.edge_weight.mul_(0.5)  # at full size 2,000 levels are chaos: one rounding error changes the output
    torch.nn.init.normal_(net.bias, std=0.1)
    return net


def batch_for(net: DagNN, batch: int) -> tuple[Tensor, Tensor]:
    """x, which needs a gradient, and a gradient of y."""
    x = torch.randn(batch, len(net.dag.inputs), requires_grad=True)
    return x, torch.randn(batch, len(net.dag.outputs))


def step(function: Callable[..., Tensor], parameters: list[Tensor], grad_y: Tensor) -> tuple[Tensor, ...]:
    """Output and gradients of a forward and a backward pass."""
    y = function(*parameters)
    return y, *torch.autograd.grad(y, parameters, grad_y)


def case(name: str, net: DagNN, batch: int, peer: str, required: float | None) -> Case:
    """The network against one peer."""
    x, grad_y = batch_for(net, batch)
    own = [x, net.edge_weight, net.bias]
    ours = partial(step, lambda x, *_: net(x), own, grad_y)
    if peer == "masked":
        function, matrices = dagnn_peers.masked_dense(net)
        theirs = partial(step, function, [x, *matrices, net.bias], grad_y)
    else:
        make = dagnn_peers.PEERS[NAMES[peer]]
        if peer == "autograd" and int(net.dag.levels.max()) > 500:
            make = dagnn_peers.level_autograd_growing
        theirs = partial(step, make(net), own, grad_y)

    def check() -> None:
        (y, grad_x, *_), (other_y, other_x, *_) = ours(), theirs()
        torch.testing.assert_close(y, other_y, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(grad_x, other_x, rtol=1e-3, atol=1e-3)

    return Case(f"{name}, B={batch}", ours, {NAMES[peer]: theirs}, required=required, check=check, threads=1)


def against_peers(quick: bool) -> Iterable[Case]:
    for topology in ("layered", "random", "deep"):
        net = network(getattr(dagnn_topologies, topology)())
        for (name, batch), bars in REQUIRED.items():
            if name != topology or (quick and batch == 1):
                continue
            for peer, required in bars.items():
                if peer in PACKAGES and find_spec(PACKAGES[peer]) is None:
                    print(f"not installed, so its row is left out: {peer}", file=sys.stderr)
                    continue
                if not (quick and topology == "random" and peer == "masked"):
                    yield case(name, net, batch, peer, required)
        for (name, batch), peers in REPORTED.items():
            if name == topology and not quick:
                yield from (case(name, net, batch, peer, None) for peer in peers)


def against_sequential(quick: bool) -> Iterable[Case]:
    net = network(dagnn_topologies.mlp())
    model = dagnn_peers.sequential(net, dagnn_topologies.MLP_SIZES)
    for batch, required in ((1, 1 / 2), (32, 1 / 1.3), (256, 1 / 1.3)):
        x, grad_y = batch_for(net, batch)
        ours = partial(step, lambda x, *_: net(x), [x, net.edge_weight, net.bias], grad_y)
        theirs = partial(step, lambda x, *_: model(x), [x, *model.parameters()], grad_y)

        def check(ours: Contestant = ours, theirs: Contestant = theirs) -> None:
            torch.testing.assert_close(ours()[:2], theirs()[:2], rtol=1e-3, atol=1e-4)

        yield Case(f"MLP, B={batch}", ours, {"nn.Sequential": theirs}, required=required, check=check, threads=1)


def own_limits(quick: bool) -> Iterable[Case]:
    """Claims without a competitor."""
    edges = dagnn_topologies.local(100_000).edges
    more = dagnn_topologies.local(400_000).edges
    plan = lambda edges: network(Dag(edges))._cpu_plan().compiled  # noqa: E731
    yield Case("build 100,000 edges and the plan", lambda: plan(edges), limits={"2 seconds": 2.0})
    yield Case(
        "build 400,000 edges and the plan",
        lambda: plan(more),
        {"4 times 100,000": lambda: [plan(edges) for _ in range(4)]},
        required=0.5,
    )

    net, pruned = (network(dagnn_topologies.random()) for _ in range(2))
    pruned.prune(fraction=0.9, allow_disconnected=True)
    whole, rest = training_step(net, 256), training_step(pruned, 256)
    yield Case("random without 90 % of its edges, B=256", rest, {"all edges": whole}, required=3, threads=1)
    net = network(dagnn_topologies.layered())
    x, grad_y = batch_for(net, 256)
    whole = partial(step, lambda x, *_: net(x), [x, net.edge_weight, net.bias], grad_y)
    yield Case(
        "layered, B=256",
        whole,
        {"its compiled passes alone": compiled_passes(net, x.detach(), grad_y)},
        required=0.8,
        threads=1,
    )

    def first_call() -> None:
        compiled_plan.tile_functions.cache_clear()
        net._plan_on[torch.device("cpu")].compiled.forget()
        whole()

    yield Case("first call", first_call, limits={"0.3 seconds": 0.3}, threads=1)

    size = 1_000_000 if quick else 4_000_000
    small, large = network(Dag(edges)), network(dagnn_topologies.local(size))
    times = size // 100_000
    steps = [training_step(net, 64) for net in (large, small)]
    yield Case(
        f"{size:,} edges with local sources, B=64",
        steps[0],
        {f"{times} times 100,000": lambda: [steps[1]() for _ in range(times)]},
        required=0.5,
        threads=1,
    )


def training_step(net: DagNN, batch: int) -> Contestant:
    """Forward and backward, gradients summed into `.grad`; x needs none, as in training."""
    x, grad_y = batch_for(net, batch)
    x = x.detach()
    return lambda: net(x).backward(grad_y)


def compiled_passes(net: DagNN, x: Tensor, grad_y: Tensor) -> Contestant:
    """Forward and backward as the compiled path runs them, without autograd."""
    plan, weight, bias = net._cpu_plan().compiled, net.edge_weight.detach(), net.bias.detach()
    into = Gradients(torch.empty_like(weight), torch.empty_like(bias), accumulate=False)

    def run() -> None:
        _, saved = passes.forward(plan, x, weight, bias)
        passes.backward(plan, grad_y, saved, weight, bias, into, needs_x=True)

    return run


def against_the_machine(quick: bool) -> Iterable[Case]:
    """Which share of the hardware's limits is reached: the ratio is that share. Nothing is required."""
    del quick
    for topology in ("layered", "random"):
        net = network(getattr(dagnn_topologies, topology)())
        x, grad_y = batch_for(net, 256)
        run = compiled_passes(net, x.detach(), grad_y)
        work = 3 * net.dag.num_edges * 256  # multiply-adds: one forward, two backward
        square = torch.randn(round(work ** (1 / 3)), round(work ** (1 / 3)))
        block = torch.randn(1 << 17)  # half a MiB: it lies in the second-level cache
        reads = round(2 * net.dag.num_edges * 256 / len(block))  # every edge reads a row forward and one backward
        yield Case(
            f"{topology}, B=256, share of the limit",
            run,
            {
                "as many multiply-adds in one matrix product": partial(torch.mm, square, square),
                "as many bytes read from the L2 cache": lambda block=block, reads=reads: [
                    block.sum() for _ in range(reads)
                ],
            },
            threads=1,
        )


def cases(quick: bool) -> Iterable[Case]:
    """All of them."""
    yield from against_peers(quick)
    yield from against_sequential(quick)
    yield from own_limits(quick)
    yield from against_the_machine(quick)


if __name__ == "__main__":
    sys.exit(main(__doc__, cases))
