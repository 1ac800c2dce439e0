"""Handwritten digits through a sparse DAG: every hidden node sees a small patch, and skip edges lead past it.

8x8 images of scikit-learn, two layers of hidden nodes with their own neighbourhoods, 10 outputs. Halfway, 30 %
of the edges are pruned and the rest trains on with its Adam state. Runs in a few seconds.
"""

import sys
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dagnn.graph import Dag
from dagnn.nn import DagNN

SIDE, PATCH, MAPS = 8, 3, 6


def sparse_dag() -> Dag:
    """Pixels -> nodes that see a 3x3 patch -> nodes that see 3x3 of those -> digits; and pixels -> digits directly."""
    edges: list[tuple[str, str]] = []
    size = SIDE
    below = [[[f"pixel {row} {column}"] for column in range(SIDE)] for row in range(SIDE)]
    pixels = [nodes[0] for row in below for nodes in row]
    for layer in range(2):
        size -= PATCH - 1
        above = [
            [[f"layer {layer} map {k} at {row} {column}" for k in range(MAPS)] for column in range(size)]
            for row in range(size)
        ]
        for row in range(size):
            for column in range(size):
                patch = [
                    node
                    for other in below[row : row + PATCH]
                    for nodes in other[column : column + PATCH]
                    for node in nodes
                ]
                edges += [(u, v) for v in above[row][column] for u in patch]
        below = above
    digits = [f"digit {digit}" for digit in range(10)]
    last = [node for row in below for nodes in row for node in nodes]
    edges += [(u, v) for v in digits for u in last + pixels]
    return Dag(edges, inputs=pixels, outputs=digits)


def accuracy(net: DagNN, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return (net(x).argmax(1) == y).double().mean().item()


def main() -> float:
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(x))
    train, test = order[: int(0.8 * len(x))], order[int(0.8 * len(x)) :]

    net = DagNN(sparse_dag(), activation="tanh")
    print(f"{net.dag.num_nodes} nodes, {net.dag.num_edges} edges, {len(train)} images to train on")
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for epoch in range(30):
        if epoch == 15:
            net.prune(fraction=0.3).carry_over(optimizer)
            print(f"pruned to {net.dag.num_edges} edges: test accuracy {accuracy(net, x[test], y[test]):.3f}")
        for batch in train[torch.randperm(len(train))].split(32):
            optimizer.zero_grad()
            cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1:2d}  test accuracy {accuracy(net, x[test], y[test]):.3f}")
    return accuracy(net, x[test], y[test])


if __name__ == "__main__":
    if find_spec("sklearn") is None:
        print("This example reads the digits of scikit-learn: pip install scikit-learn")
        sys.exit(0)
    main()
