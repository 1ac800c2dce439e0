"""What an installation must be able to do, wherever it is: run by the hosted tests on every platform, or by you.

    python -W error scripts/check_install.py [--only accumulation networks graphs training]

Exit code 1 with a traceback when something fails. Uses the installed dagnn, no test tools and no network; 20 seconds.
"""

import argparse
import platform
import sys
import tempfile
from pathlib import Path


def accumulation() -> None:
    """Needs torch and NumPy alone."""
    import torch

    import dagnn

    model = torch.nn.Linear(3, 2, dtype=torch.float64)
    batch = torch.randn(7, 3, dtype=torch.float64), torch.randint(2, (7,))

    def loss_fn(model, batch):
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    assert dagnn.check_equivalence(model, loss_fn, batch).equal
    accumulator = dagnn.GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), max_norm=1.0)
    for window in accumulator.windows([batch] * 3, micro_batches=2):
        for micro in window:
            window.backward(loss_fn(model, micro))
        assert window.step().skipped is None

    half = torch.nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        half.weight.fill_(0.0)
    accumulator = dagnn.GradientAccumulator(half, torch.optim.SGD(half.parameters(), lr=1.0))
    for window in accumulator.windows([torch.ones(1, 1, dtype=torch.bfloat16)] * 1000, micro_batches=1000):
        for x in window:
            window.backward(half(x).mean())
        update = window.step()
    # Sums of 16 bits stop growing at 256 of 1,000: each of the 1,000 gradients is 1, and so is their mean.
    assert abs(float(update.grad_norm) - 1) < 1e-2, update


def networks() -> None:
    """Needs the base set: compiled passes, files."""
    import os

    import torch

    import dagnn
    from dagnn.visible import explain

    dag = dagnn.Dag([("a", "c"), ("b", "c"), ("a", "out"), ("c", "out")])
    net = dagnn.DagNN(dag, activation="tanh", dtype=torch.float64)
    x = torch.randn(5, 2, dtype=torch.float64)
    found = {}
    for path in ("compiled", "reference"):
        os.environ["DAGNN_KERNELS"] = path
        net.zero_grad()
        net(x).square().mean().backward()
        found[path] = net.edge_weight.grad.clone()
    del os.environ["DAGNN_KERNELS"]
    torch.testing.assert_close(found["compiled"], found["reference"], rtol=1e-12, atol=1e-14)
    with tempfile.TemporaryDirectory() as folder:
        net.save(Path(folder) / "net.dagnn")
        torch.testing.assert_close(dagnn.DagNN.load(Path(folder) / "net.dagnn")(x), net(x), rtol=0, atol=0)
        net.export(Path(folder) / "net.c")
    assert explain(net, x).node_names
    dagnn.Dag.from_networkx(dag.to_networkx())
    batch = dagnn.DagBatch.from_dags([dag, dag])
    assert batch.num_nodes == 8


def graphs() -> None:
    """Needs the extras ged, curriculum, plot and text."""
    import dagnn
    from dagnn.curriculum import make_sample
    from dagnn.curriculum.engine import trace

    a, b = dagnn.Dag.from_polish("(+ (* 2 x) 5)"), dagnn.Dag.from_polish("(+ (* 3 x) x)")
    distance = dagnn.graph_edit_distance(a, b)
    assert distance.proved and distance.lower == distance.upper
    for level in range(1, 8):
        sample = make_sample(level=level, seed=0, index=0)
        assert sample.answer
    assert trace(make_sample(level=5, seed=0, index=1).input)[1]
    assert dagnn.Dag.from_text("e\u0301x").num_nodes == 2
    with tempfile.TemporaryDirectory() as folder:
        a.draw(Path(folder) / "a.png")
        assert (Path(folder) / "a.png").stat().st_size > 1000


def training() -> None:
    """Needs the extra curriculum: the command trains, stops and goes on."""
    import dagnn.cli

    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        small = ["--max-steps", "4", "--batch-size", "8", "--eval-every", "2", "--eval-samples", "2"]
        small += [
            "--curriculum.levels",
            "1",
            "--curriculum.samples",
            "50",
            "--test-samples",
            "2",
            "--model.width",
            "16",
        ]
        flags = ["--run-directory", run, *small, "--schedule.name", "constant"]
        assert dagnn.cli.main(["train", *flags]) == 0
        assert dagnn.cli.main(["train", "--resume", run, "--max-steps", "6"]) == 0
        assert dagnn.cli.main(["evaluate", run, "--expressions", "2", "--json"]) == 0


PARTS = {"accumulation": accumulation, "networks": networks, "graphs": graphs, "training": training}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    chosen = parser.parse_args().only
    import torch

    import dagnn

    print(f"dagnn {dagnn.__version__}, Python {platform.python_version()}, torch {torch.__version__}, {sys.platform}")
    for name in chosen:
        PARTS[name]()
        print(f"{name}: done", flush=True)


if __name__ == "__main__":
    main()
