"""A network in the shape of a pathway: named nodes, one weight per edge, skip edges as plain edges.

A hidden network with the same wiring makes the data; ours, started at random, learns to agree with
it. Runs in a few seconds.
"""

import torch

from dagnn.graph import Dag
from dagnn.nn import DagNN

GENES = [f"gene{i}" for i in range(8)]
EDGES = [
    *((gene, "repair") for gene in GENES[:4]),
    *((gene, "growth") for gene in GENES[2:]),
    ("repair", "survival"),
    ("growth", "survival"),
    ("gene0", "survival"),  # skips a level, needs nothing special
]


def main() -> float:
    torch.manual_seed(0)
    dag = Dag(EDGES, inputs=GENES, outputs=["survival"])
    planted, net = DagNN(dag, activation="tanh"), DagNN(dag, activation="tanh")
    x = torch.randn(512, len(GENES))
    with torch.no_grad():
        y = planted(x)

    for step in range(501):
        net.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        norm = net.clip_gradients(1.0)
        net.step(lr=0.1)
        if step % 100 == 0:
            print(f"step {step:3d}  loss {loss.item():.6f}  gradient norm {norm:.4f}")

    print(f"gene0 -> survival: learned {net.weight_of('gene0', 'survival'):+.3f}, ", end="")
    print(f"planted {planted.weight_of('gene0', 'survival'):+.3f}")
    return loss.item()


if __name__ == "__main__":
    main()
