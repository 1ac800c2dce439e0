"""Which alignment trains a graph decoder best? The same network and costs, three ways to match slots to target nodes.

A network reads a small labelled DAG, squeezes it into one vector, and predicts the graph again as 8 slots. The loss
must decide which slot stands for which target node. All three charge the same negative log-likelihoods; they differ
in the alignment alone: by node costs (Hungarian, as in DETR), by fused Gromov-Wasserstein (POT, if it is installed),
and by `dagnn.GedLoss`. Each trains for the same time; the score is the exact graph edit distance on graphs never
trained on.

    python examples/ged_decoder.py                            # a first impression, seconds
    python examples/ged_decoder.py --seconds 55 --seeds 3     # the experiment, 9 minutes on one core
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import dagnn
from dagnn.ged import GraphTargets, decode

SLOTS, LABELS, BATCH = 8, 4, 64
TRAINING = 6_000

Logits = tuple[Tensor, Tensor, Tensor]
Align = Callable[[Logits, GraphTargets], Tensor | None]


def random_graphs(count: int, seed: int) -> GraphTargets:
    """DAGs of 4 to 8 nodes with 4 labels, about 1.2 edges a node, their nodes in random slots."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(4, SLOTS + 1, (count,), generator=generator)
    exists = torch.arange(SLOTS) < sizes[:, None]
    chance = (2.5 / (sizes - 1)).clamp(max=0.5)[:, None, None]
    drawn = torch.rand((count, SLOTS, SLOTS), generator=generator) < chance
    adjacency = drawn.triu(1) & exists[:, :, None] & exists[:, None, :]
    labels = torch.randint(LABELS, (count, SLOTS), generator=generator)
    return shuffled(GraphTargets(exists, adjacency, labels), generator)


def shuffled(graphs: GraphTargets, generator: torch.Generator) -> GraphTargets:
    """The same graphs, each with its slots in a new order: nobody can learn an order that is not there."""
    return graphs.permuted(torch.rand(graphs.exists.shape, generator=generator).argsort(1))


def chosen(graphs: GraphTargets, index: Tensor) -> GraphTargets:
    assert graphs.labels is not None
    return GraphTargets(graphs.exists[index], graphs.adjacency[index], graphs.labels[index])


class AutoEncoder(nn.Module):
    """Message passing both ways, one vector per graph, and a small transformer over slots."""

    def __init__(self, width: int = 96, code: int = 192, slot: int = 64) -> None:
        super().__init__()
        self.slot = slot
        self.read = nn.Linear(LABELS, width)
        self.pass_on = nn.ModuleList([nn.Linear(3 * width, width) for _ in range(3)])
        self.code = nn.Linear(3 * width, code)
        self.write = nn.Sequential(nn.Linear(code, 256), nn.ReLU(), nn.Linear(256, SLOTS * slot))
        self.names = nn.Parameter(0.3 * torch.randn(SLOTS, slot))  # without names, all slots would be alike
        layers = [nn.TransformerEncoderLayer(slot, 4, 128, dropout=0.0, batch_first=True) for _ in range(2)]
        self.mix = nn.Sequential(*layers)
        self.existence, self.labels = nn.Linear(slot, 1), nn.Linear(slot, LABELS)
        self.source, self.target = nn.Linear(slot, 64), nn.Linear(slot, 64)
        self.edge = nn.Sequential(nn.ReLU(), nn.Linear(64, 1))

    def forward(self, graphs: GraphTargets) -> Logits:
        assert graphs.labels is not None
        mask, edges = graphs.exists[:, :, None].float(), graphs.adjacency.float()
        node = self.read(F.one_hot(graphs.labels, LABELS).float()) * mask
        sums = []
        for layer in self.pass_on:
            node = torch.relu(layer(torch.cat([node, edges @ node, edges.transpose(1, 2) @ node], -1))) * mask
            sums.append(node.sum(1) / 4)
        code = torch.relu(self.code(torch.cat(sums, -1)))
        slots = self.mix(self.write(code).view(-1, SLOTS, self.slot) + self.names)
        edge = self.edge(self.source(slots)[:, :, None] + self.target(slots)[:, None, :]).squeeze(-1)
        return self.existence(slots).squeeze(-1), self.labels(slots), edge


# ---- three alignments ----


def node_costs(logits: Logits, graphs: GraphTargets) -> Tensor:
    """Negative log-likelihood of slot i standing for target node a: float ``[B, M, M]``."""
    existence, labels, _ = logits
    assert graphs.labels is not None
    wanted = graphs.labels[:, None, :].expand(-1, SLOTS, -1)
    node = F.softplus(-existence)[:, :, None] - labels.log_softmax(-1).gather(2, wanted)
    return torch.where(graphs.exists[:, None, :], node, F.softplus(existence)[:, :, None])


def by_nodes(logits: Logits, graphs: GraphTargets) -> Tensor:
    """The cheapest assignment of nodes; edges have no say."""
    costs = node_costs(logits, graphs).double().numpy()
    return torch.from_numpy(np.stack([linear_sum_assignment(cost)[1] for cost in costs]))


def by_gromov_wasserstein(logits: Logits, graphs: GraphTargets) -> Tensor:
    """POT's transport plan of nodes and edges, rounded to an assignment.

    10 steps, beyond which a batch takes 10 times as long; the weight makes an edge count as much as a node, for plans
    of total mass 1.
    """
    from ot.gromov import fused_gromov_wasserstein

    node = node_costs(logits, graphs).double().numpy()
    predicted, wanted = logits[2].sigmoid().double().numpy(), graphs.adjacency.double().numpy()
    mass, alpha = np.full(SLOTS, 1 / SLOTS), SLOTS / (SLOTS + 1)
    found = []
    for cost, slots, target in zip(node, predicted, wanted, strict=True):
        np.fill_diagonal(slots, 0)
        plan = fused_gromov_wasserstein(cost, slots, target, mass, mass, alpha=alpha, symmetric=False, max_iter=10)
        found.append(linear_sum_assignment(-plan)[1])
    return torch.from_numpy(np.stack(found))


def by_ged_loss(logits: Logits, graphs: GraphTargets) -> None:
    """`GedLoss` finds the alignment itself."""


# ---- the experiment ----


def train(align: Align, graphs: GraphTargets, *, seconds: float, seed: int) -> tuple[AutoEncoder, int]:
    """The trained network and its number of steps.

    Seconds are those of the processor: with one thread they are wall-clock seconds, and what else runs on the machine
    does not decide who gets more steps.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    net = AutoEncoder()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    searched, given = dagnn.GedLoss(), dagnn.GedLoss(alignment="order")
    begin, step, share = time.process_time(), 0, 0.0
    while share < 1:
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, max(0.05, (1 - share) / 0.4))
        batch = chosen(graphs, torch.randint(len(graphs.exists), (BATCH,), generator=generator))
        target = shuffled(batch, generator)
        logits = net(batch)
        with torch.no_grad():
            alignment = align(tuple(part.detach() for part in logits), target)
        loss = searched(*logits, target) if alignment is None else given(*logits, target.permuted(alignment))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        step += 1
        share = (time.process_time() - begin) / seconds
    return net, step


def as_dags(graphs: GraphTargets) -> list[dagnn.Dag]:
    assert graphs.labels is not None
    certain = [60.0 * (part.float() - 0.5) for part in (graphs.exists, F.one_hot(graphs.labels, LABELS))]
    return decode(*certain, 60.0 * (graphs.adjacency.float() - 0.5))


def score(net: AutoEncoder, graphs: GraphTargets) -> dagnn.ged.GedSummary:
    """Exact distance between what the network predicts, decoded to DAGs, and the graphs."""
    with torch.no_grad():
        predicted = decode(*net(graphs))
    metric = dagnn.GedMetric()
    metric.update(predicted, as_dags(graphs))
    return metric.compute()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="of training, for each loss and seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--held-out", type=int, default=128, help="graphs to be scored on")
    given = parser.parse_args()

    losses: dict[str, Align] = {"node-only Hungarian": by_nodes}
    try:
        import ot  # noqa: F401
    except ImportError:
        print("POT is not installed (pip install POT): fused Gromov-Wasserstein is left out.")
    else:
        losses["fused Gromov-Wasserstein"] = by_gromov_wasserstein
    losses["dagnn.GedLoss"] = by_ged_loss

    training, held_out = random_graphs(TRAINING, seed=11), random_graphs(given.held_out, seed=99)
    empty = statistics.mean((held_out.num_nodes + held_out.num_edges).tolist())
    print(f"{given.seconds:g} s of training each; predicting nothing scores {empty:.2f}")
    print(f"{'alignment':26} {'seed':>4} {'steps':>6} {'held-out GED':>13} {'exact':>6} {'proved':>7}")
    found: dict[str, list[float]] = {name: [] for name in losses}
    for seed in range(given.seeds):
        for name, align in losses.items():
            net, steps = train(align, training, seconds=given.seconds, seed=seed)
            result = score(net, held_out)
            found[name].append(result.mean_upper)
            shares = f"{result.exact_match:6.0%} {result.proved:7.0%}"
            print(f"{name:26} {seed:4} {steps:6} {result.mean_upper:13.2f} {shares}", flush=True)
    for name, distances in found.items():
        print(f"{name:26} mean {statistics.mean(distances):.2f} of {given.seeds} seed(s)")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
