"""The picture of the home page: a small network with the gradients that a window left on its edges.

python scripts/site_pictures.py     # writes docs/pictures/gradients.svg
"""

from pathlib import Path

import torch
from torch.nn.functional import mse_loss

import dagnn

OUT = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "gradients.svg"
EDGES = [
    ("BRCA1", "repair"),
    ("TP53", "repair"),
    ("TP53", "cycle"),
    ("CDK4", "cycle"),
    ("CDK4", "growth"),
    ("EGFR", "growth"),
    ("repair", "survival"),
    ("cycle", "survival"),
    ("growth", "survival"),
    ("EGFR", "survival"),
]


def main() -> None:
    torch.manual_seed(23)
    torch.set_num_threads(1)
    dag = dagnn.Dag(EDGES, inputs=["BRCA1", "TP53", "CDK4", "EGFR"], outputs=["survival"])
    net = dagnn.DagNN(dag, activation="tanh", dtype=torch.float64)
    accumulator = dagnn.GradientAccumulator(net, torch.optim.SGD(net.parameters(), lr=0.1))
    x = torch.randn(22, 4, dtype=torch.float64)
    target = (x[:, :1] * x[:, 1:2] - x[:, 3:]).tanh()
    for window in accumulator.windows(list(zip(x.split(8), target.split(8), strict=True)), micro_batches=3):
        for inputs, wanted in window:
            window.backward(mse_loss(net(inputs), wanted))
        net.draw(OUT, show="gradients")  # what the window left: the gradient of the mean over all 22
        window.step()


if __name__ == "__main__":
    main()
