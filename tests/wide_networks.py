"""Networks of wide nodes, what their passes are given, and the same function by the reference and module by module."""

from itertools import pairwise

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from strategies import edge_lists
from torch import Tensor, nn

from dagnn.graph import Dag
from dagnn.kernels.wide.plan import WideParameters, WideState, run_reference
from dagnn.nn import WideDagNN

EPSILON = 1e-5


@st.composite
def wide_networks(draw: DrawFn, *, max_nodes: int = 8, activations: tuple[str, ...] = ("tanh", "relu")) -> WideDagNN:
    """A network in float64 with ragged widths, any norm, residuals, heads, constants and several kinds of outputs."""
    edges, num_nodes = draw(edge_lists(1, max_nodes))
    bare = Dag(torch.tensor(edges, dtype=torch.int64).reshape(-1, 2), num_nodes)
    sources = (bare.in_degree == 0).nonzero().flatten().tolist()
    inputs = draw(st.permutations(draw(st.lists(st.sampled_from(sources), unique=True, min_size=1))))
    outputs = draw(st.lists(st.integers(0, num_nodes - 1), unique=True, min_size=1))
    dag = Dag(bare.edges, num_nodes, inputs=inputs, outputs=outputs)
    normalise = draw(st.sampled_from([None, "batch", "layer"]))
    widths = st.sampled_from([2, 3, 7] if normalise == "layer" else [1, 2, 3, 7])
    computed = [node for node in range(num_nodes) if node not in inputs]
    heads = draw(st.lists(st.sampled_from(computed), unique=True)) if computed else []
    settings = {
        "width": {node: draw(widths) for node in range(num_nodes)},
        "activation": [draw(st.sampled_from(activations)) for _ in range(num_nodes)],
        "normalise": normalise,
        "residual": draw(st.booleans()),
        "heads": {node: draw(st.integers(1, 3)) for node in heads},
        "head_activation": draw(st.sampled_from([None, "tanh"])),
        "bias": computed if draw(st.booleans()) else [node for node in sources if node not in inputs],
    }
    net = WideDagNN(dag, **settings, dtype=torch.float64)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9)))
    with torch.no_grad():
        net.bias.uniform_(-1, 1, generator=generator)
        if net.scale is not None and net.shift is not None:
            net.scale.uniform_(0.5, 1.5, generator=generator)
            net.shift.uniform_(-1, 1, generator=generator)
    return net


def by_modules(net: WideDagNN, x: Tensor, dropped: dict[int, Tensor] | None = None) -> tuple[Tensor, dict[int, Tensor]]:
    """Outputs and heads, node by node with PyTorch's own functions; the node's index is its name.

    Args:
        dropped: node -> factor of dropout ``[B]``.
    """
    dag, nodes, blocks, biases = net.dag, net._wide.nodes, net.edge_weights(), net.biases()
    norms = _norm_entries(net)
    inputs = dag.inputs.tolist()
    columns = dict(zip(inputs, x.split([net.widths[node] for node in inputs], dim=1), strict=True))
    values: list[Tensor] = [x[:, :0]] * dag.num_nodes
    for node in dag.levels.argsort(stable=True).tolist():
        if node in columns:
            values[node] = columns[node]
            continue
        parents = [u for u, v in dag.edges.tolist() if v == node]
        total = x.new_zeros(len(x), net.widths[node])
        if node in biases:
            total = total + biases[node]
        for u in parents:
            total = total + nn.functional.linear(values[u], blocks[(u, node)])
        value = getattr(torch, net.activations[node], lambda z: z)(total)
        if nodes.normed[node]:
            assert net.scale is not None and net.shift is not None
            scale, shift = net.scale[norms[node]], net.shift[norms[node]]
            if net.normalise == "layer":
                value = nn.functional.layer_norm(value, value.shape[1:], scale, shift, EPSILON)
            else:
                running = (
                    [None, None] if net.training else [net.running_mean[norms[node]], net.running_var[norms[node]]]
                )
                value = nn.functional.batch_norm(value, *running, scale, shift, net.training, eps=EPSILON)
        if dropped and node in dropped:
            value = value * dropped[node].unsqueeze(1)
        alike = [values[u] for u in parents if net.widths[u] == net.widths[node]]
        if nodes.residual[node] and alike:
            value = value + sum(alike) / len(alike)
        values[node] = value
    heads = {}
    for node, layers in net.head_weights().items():
        value = values[node]
        for number, (matrix, bias) in enumerate(layers):
            value = nn.functional.linear(torch.tanh(value) if number else value, matrix, bias)
        heads[node] = value
    return torch.cat([heads.get(node, values[node]) for node in dag.outputs.tolist()], dim=1), heads


def _norm_entries(net: WideDagNN) -> dict[int, slice]:
    first, found = net._wide.norm_first.tolist(), {}
    for place, node in enumerate(net._wide.edges.node_at.tolist()):
        found[node] = slice(first[place], first[place + 1])
    return found


def batch_for(net: WideDagNN, batch: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, net._plan.columns, dtype=net.edge_weight.dtype, generator=generator)


def parameters_of(net):
    given = (net.edge_weight, net.bias, net.scale, net.shift)
    return WideParameters(*(None if each is None else each.detach() for each in given))


def state_of(net, batch, *, own_statistics=True, seed=0):
    """A mask for the nodes that drop, and statistics as they are after some training."""
    draws, sizes = torch.Generator().manual_seed(seed), net._plan.sizes
    mask = torch.randint(0, 3, (sizes[3], batch), generator=draws).to(net.bias) if sizes[3] else None
    if net.normalise != "batch" or own_statistics:
        return WideState(mask=mask)
    mean, variance = torch.randn(sizes[2], generator=draws), 0.1 + torch.rand(sizes[2], generator=draws)
    return WideState(mean.to(net.bias), variance.to(net.bias), mask)


def by_reference(net, x, state, gradient):
    """Values, statistics, and gradients of x and the parameters."""
    given = [each.clone().requires_grad_() for each in (x, *parameters_of(net)) if each is not None]
    result = run_reference(net._plan, given[0], WideParameters(*given[1:]), state)
    return result, torch.autograd.grad(result.values, given, gradient, materialize_grads=True)


def gradient_for(net, batch):
    rows = len(net._plan.read_rows)
    return torch.linspace(-1, 1, rows * batch, dtype=net.bias.dtype).sin().view(rows, batch)


def drops(net):
    """With a node that drops, where some node is computed: the strategy draws none, since it has no seed."""
    nodes = net._wide.nodes
    computed = [node for node in range(net.dag.num_nodes) if node not in net.dag.inputs.tolist()]
    if computed:
        nodes.dropout[computed[-1]] = 0.5
        net._take(net.dag, net._wide.edges, nodes, net.head_activation)
    return net


ACTIVATIONS = ("tanh", "gelu", "softplus", "silu", "elu", "sigmoid", "leaky_relu", "identity")


def layered(dtype, **arguments):
    """40 inputs, three levels of ten nodes of six and seven units, an output; every node reads five others."""
    draws = torch.Generator().manual_seed(0)
    levels = [list(range(40)), *([40 + 10 * k + j for j in range(10)] for k in range(3)), [70]]
    edges = [
        (before[u], node)
        for before, level in pairwise(levels)
        for node in level
        for u in torch.randperm(len(before), generator=draws)[:5].tolist()
    ]
    dag = Dag(edges, 71, inputs=list(range(40)), outputs=[70])
    torch.manual_seed(0)
    width = {node: 6 + (node % 2) for node in range(40, 71)}
    settings = {"width": width, "heads": [70, 45, 62], "head_activation": "tanh", "residual": True, "dropout": 0.2}
    return WideDagNN(dag, dtype=dtype, **(settings | arguments))
