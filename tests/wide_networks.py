"""Random networks of wide nodes, and the same function written module by module."""

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from strategies import edge_lists
from torch import Tensor, nn

from dagnn.graph import Dag
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
