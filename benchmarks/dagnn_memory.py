"""A training step of DagNN takes a tenth of the memory that autograd takes over the levels of the same graph.

Peak of all tensors that a forward and a backward pass allocate, gradients included, the parameters and the batch not.
Autograd keeps the gathered value of every edge for every sample; DagNN keeps the value of every node. Allocations are
those that torch's CPU allocator tells the profiler.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks import dagnn_peers, dagnn_topologies
from benchmarks.accumulation_memory import peak_bytes
from benchmarks.dagnn import NAMES, batch_for, network, step
from benchmarks.harness import Row, as_json
from dagnn.nn import DagNN

BATCH = 256
REQUIRED = {"autograd": 10.0, "Function": None, "sparse": None}


def peak_of(net: DagNN, function: Callable[..., Tensor]) -> int:
    """Bytes at the peak of one step."""
    x, grad_y = batch_for(net, BATCH)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step(function, [x, net.edge_weight, net.bias], grad_y)
    return peak_bytes(profiler)


def rows(topology: str) -> list[Row]:
    """Ours against every peer."""
    dag = getattr(dagnn_topologies, topology)()
    own = network(dag)
    # Twice: what the first step makes and keeps for the next ones counts too, compiled code does not.
    ours = max(peak_of(net, lambda x, *_, net=net: net(x)) for net in (own, network(dag)))
    result = []
    for peer, required in REQUIRED.items():
        function = dagnn_peers.PEERS[NAMES[peer]](own)
        peak_of(own, function)  # the first step of torch.sparse converts its matrix
        theirs = peak_of(own, function)
        ratio = theirs / ours
        name = f"{topology}, B={BATCH}, bytes at the peak"
        row = Row(name, NAMES[peer], theirs, ours, ratio, ratio, ratio, required, ratio >= (required or 0.0), 1)
        print(
            f"{'ok' if row.ok else 'MISSED':6}  {ratio:5.1f} times {ours / 1e6:.1f} MB  {topology}, B={BATCH}, "
            f"{NAMES[peer]}{f', required {required:g}' if required else ''}"
        )
        result.append(row)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 when a peer takes less than it must."""
    headline = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=headline)
    parser.add_argument("--quick", action="store_true", help="the small graph only, where nothing is required")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)

    print(headline)
    found = [row for topology in (["layered"] if arguments.quick else ["layered", "random"]) for row in rows(topology)]
    if arguments.json:
        arguments.json.write_text(json.dumps(as_json(headline, found, quick=arguments.quick), indent=1) + "\n")
    return 0 if all(row.ok for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
