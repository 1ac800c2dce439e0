"""One network over many different DAGs: is a boolean expression true?

A TreeLSTM cell runs over batches of random expressions, shared sub-expressions once, and reads the
answer at the root. Trained on small ones, then asked about larger ones. Runs in a few seconds.
"""

import random

import torch
import torch.nn.functional as F
from torch import Tensor

from dagnn.graph import Dag, DagBatch
from dagnn.nn import DagSweep, Embedding, LearnableModule, NodeHead, TreeLSTMCell

SYMBOLS = {"0": 0, "1": 1, "not": 2, "and": 3, "or": 4}


class Truth(LearnableModule):
    """Symbols -> one logit per graph, read at its output node."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.embedding = Embedding(len(SYMBOLS), dim)
        self.sweep = DagSweep(TreeLSTMCell(dim, dim, max_children=2), "up")
        self.head = NodeHead(dim, 1)

    def forward(self, graphs: DagBatch) -> Tensor:
        symbols = torch.tensor([SYMBOLS[label] for label in graphs.node_attributes["label"]])
        nodes = self.sweep(self.embedding(symbols), graphs)
        return self.head(nodes[graphs.outputs]).squeeze(1)


def expression(pick: random.Random, depth: int) -> tuple[str, bool]:
    """A random expression in Polish notation, and whether it is true."""
    if depth == 0 or pick.random() < 0.2:
        value = pick.random() < 0.5
        return str(int(value)), value
    operator = pick.choice(["not", "and", "or"])
    left, a = expression(pick, depth - 1)
    if operator == "not":
        return f"(not {left})", not a
    right, b = expression(pick, depth - 1)
    return f"({operator} {left} {right})", (a and b) if operator == "and" else (a or b)


def sample(pick: random.Random, count: int, depth: int) -> tuple[DagBatch, Tensor]:
    pairs = [expression(pick, depth) for _ in range(count)]
    graphs = DagBatch.from_dags([Dag.from_polish(text, share=True) for text, _ in pairs])
    return graphs, torch.tensor([value for _, value in pairs]).float()


def main() -> dict[int, float]:
    torch.manual_seed(0)
    pick = random.Random(0)
    model = Truth()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(201):
        graphs, truth = sample(pick, 64, depth=3)
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(graphs), truth)
        loss.backward()
        model.clip_gradients(1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}")

    accuracy = {}
    for depth in (3, 5, 7):
        graphs, truth = sample(pick, 300, depth)
        with torch.no_grad():
            accuracy[depth] = ((model(graphs) > 0).float() == truth).float().mean().item()
        print(f"depth {depth}: {accuracy[depth]:.1%} right on new expressions")
    return accuracy


if __name__ == "__main__":
    torch.set_num_threads(1)  # the matrices are small: waiting for a second thread costs more than it does
    main()
