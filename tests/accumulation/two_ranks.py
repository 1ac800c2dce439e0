"""What the tests of test_ranks.py run in two processes: `torchrun --nproc-per-node=2 two_ranks.py FOLDER`.

Each function gets the rank and returns plain data; both ranks' results are written to ``FOLDER/rank<r>.json``.
Models are ``w * x`` with one weight where nothing else is said, so that a gradient is a weighted mean of the inputs.
"""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from dagnn.accumulation import GradientAccumulator, accumulate
from dagnn.errors import DagnnError

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Weight(nn.Module):
    def __init__(self, start=0.0):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x):
        return self.w * x


def tensors(*rows):
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=1.0)


def updates_of(model, loader, **options):
    """Updates of the weight, made with the loss mean(w * x): the mean of x over each window."""
    accumulator = GradientAccumulator(model, sgd(model))
    parameter = next(model.parameters())
    before, moved, losses = float(parameter.detach()), [], []
    for window in accumulator.windows(loader, **options):
        for x in window:
            window.backward(model(x).mean())
        losses.append(window.step().loss)
        moved.append(before - float(parameter.detach()))
        before = float(parameter.detach())
    return moved, losses


@case
def unequal_counts(rank):
    return updates_of(DDP(Weight(1.0)), tensors([[1.0, 1, 1], [9.0]][rank]), micro_batches=1)


@case
def plain_module_with_a_group(rank):
    model = Weight()
    accumulator = GradientAccumulator(model, sgd(model), process_group=dist.group.WORLD)
    for window in accumulator.windows(tensors([[1.0, 1, 1], [9.0]][rank]), micro_batches=1):
        for x in window:
            window.backward(model(x).mean())
        window.step()
    return -float(model.w.detach())


@case
def plain_module_warns(rank):
    model = Weight()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        GradientAccumulator(model, sgd(model))
    return [str(w.message) for w in caught]


@case
def unequal_numbers_of_batches(rank):
    loader = tensors(*[[[1.0], [2.0], [3.0], [4.0], [5.0]], [[7.0]]][rank])
    return updates_of(DDP(Weight()), loader, micro_batches=2)[0]


@case
def empty_window_on_one_rank(rank):
    loader = tensors([2.0, 4.0]) if rank == 0 else tensors([0.0, 0.0])
    return updates_of(DDP(Weight()), loader, micro_batches=1, weight=lambda x: int((x > 0).sum()))[0]


@case
def collectives_per_window(rank):
    counts = []
    original = dist.all_reduce

    def counting(tensor, *args, **kwargs):
        counts[-1] += tensor.is_floating_point()
        return original(tensor, *args, **kwargs)

    dist.all_reduce = counting
    try:
        model = DDP(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)).double())
        accumulator = GradientAccumulator(model, sgd(model))
        for window in accumulator.windows([torch.ones(2, 3).double()] * 4, micro_batches=4):
            counts.append(0)
            for x in window:
                window.backward(model(x).mean())
            window.step()
    finally:
        dist.all_reduce = original
    return counts


class TwoBranches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Weight(), Weight()

    def forward(self, x, branch):
        return self.first(x) if branch == 0 else self.second(x)


@case
def parameter_used_in_one_micro_batch_only(rank):
    results = []
    for find_unused in (False, True):
        model = DDP(TwoBranches(), find_unused_parameters=find_unused)
        accumulator = GradientAccumulator(model, sgd(model))
        for _ in range(2):
            for window in accumulator.windows(
                [(torch.tensor([rank + 1.0]).double(), b) for b in (0, 1)], micro_batches=2
            ):
                for x, branch in window:
                    window.backward(2 * model(x, branch).mean())
                window.step()
        results.append([-float(p.detach()) / 2 for p in model.parameters()])
    return results


@case
def static_graph(rank):
    model = DDP(Weight(), static_graph=True)
    moved = []
    for _ in range(2):
        moved += updates_of(model, tensors([rank + 1.0], [rank + 1.0]), micro_batches=2)[0]
    return moved


@case
def forward_before_the_window(rank):
    """The manual form: the first forward pass runs before the library knows of a window."""
    model = DDP(Weight())
    accumulator = GradientAccumulator(model, sgd(model))
    for _ in range(2):
        for x in tensors([rank + 1.0], [rank + 1.0]):
            accumulator.backward(model(x).mean(), weight=1)
        accumulator.step()
    return -float(model.module.w.detach())


@case
def ddp_works_as_usual_after_a_window(rank):
    model = DDP(Weight())
    updates_of(model, tensors([1.0]), micro_batches=1)
    model.zero_grad()
    model(torch.tensor([rank + 1.0]).double()).mean().backward()
    return float(model.module.w.grad)


@case
def aux_loss_with_its_own_denominator(rank):
    model = DDP(TwoBranches())
    accumulator = GradientAccumulator(model, sgd(model))
    loader = tensors([[1.0, 1, 1], [9.0]][rank], [1.0, 1.0])
    weight = lambda x: {"main": len(x), "aux": 1}  # noqa: E731
    for window in accumulator.windows(loader, micro_batches=2, weight=weight):
        for x in window:
            main, aux = model(x, 0).mean(), model(torch.ones(1).double(), 1).mean()
            window.backward({"main": main, "aux": 0.1 * aux})
        update = window.step()
    return [-float(p.detach()) for p in model.parameters()] + [update.weight]


@case
def non_finite_on_one_rank_skips_on_both(rank):
    model = DDP(Weight())
    accumulator = GradientAccumulator(model, sgd(model))
    skipped = []
    for window in accumulator.windows(tensors([[1.0], [float("inf")]][rank], [2.0]), micro_batches=1):
        for x in window:
            window.backward(model(x).mean())
        skipped.append(window.step().skipped)
    return skipped, -float(model.module.w.detach())


@case
def undivided_losses_add_up_over_ranks(rank):
    model = DDP(Weight())
    accumulator = GradientAccumulator(model, sgd(model))
    for window in accumulator.windows(tensors(*[[[1.0], [3.0, 5.0]], [[7.0]]][rank]), micro_batches=2):
        for x in window:
            window.backward(model(x).sum(), reduction="undivided")
        update = window.step()
    return -float(model.module.w.detach()), update.weight, update.micro_batches


@case
def buffers_follow_rank_0(rank):
    class Counting(Weight):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            self.seen.add_(float(x[0].detach()))
            return super().forward(x)

    model = DDP(Counting())
    updates_of(model, tensors([rank + 1.0], [rank + 1.0]), micro_batches=2)
    return float(model.module.seen)


@case
def random_ragged_training_equals_one_process(rank):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    reference = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    reference.load_state_dict(model.state_dict())
    data = [[torch.randn(n, 3).double() for n in sizes] for sizes in ((3, 1, 4, 2, 2), (2, 5, 1))]
    wrapped = DDP(model)
    accumulator = GradientAccumulator(wrapped, torch.optim.Adam(model.parameters(), lr=0.1), max_norm=0.1)
    norms = []
    for window in accumulator.windows(data[rank], micro_batches=2):
        for x in window:
            window.backward(wrapped(x).square().mean())
        norms.append(window.step().grad_norm)

    optimizer = torch.optim.Adam(reference.parameters(), lr=0.1)
    expected_norms = []
    for start in (0, 2, 4):
        optimizer.zero_grad()
        reference(torch.cat(data[0][start : start + 2] + data[1][start : start + 2])).square().mean().backward()
        expected_norms.append(float(nn.utils.clip_grad_norm_(reference.parameters(), 0.1)))
        optimizer.step()
    with torch.no_grad():
        pairs = zip(model.parameters(), reference.parameters(), strict=True)
        return max(float((a - b).abs().max()) for a, b in pairs), norms, expected_norms


@case
def out_of_memory_on_one_rank_halves_on_both(rank):
    model = DDP(Weight())

    def loss_fn(model, x):
        if rank == 1 and len(x) > 1:
            raise torch.OutOfMemoryError("simulated")
        return model(x).mean()

    loss = accumulate(model, loss_fn, tensors([[1.0, 1, 1, 1], [2.0, 4, 6, 8]][rank])[0], micro_batch_size="auto")
    return loss.micro_batch_size, float(model.module.w.grad)


def sharded(dtype=torch.float32, **policy):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)
    reference = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    reference.load_state_dict(model.state_dict())
    options = {"mp_policy": MixedPrecisionPolicy(**policy)} if policy else {}
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model, reference


def train_sharded(rank, dtype, sync, policy, sizes):
    model, reference = sharded(dtype, **policy)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), max_norm=0.5, fsdp_sync=sync)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    data = [[torch.randn(n, 4) for n in counts] for counts in sizes]
    norms = []
    for index, window in enumerate(accumulator.windows(data[rank], micro_batches=2)):
        for x in window:
            window.backward(model(x.to(dtype)).double().square().mean())
        update = window.step()
        optimizer.zero_grad()
        whole = torch.cat([x for part in data for x in part[2 * index : 2 * index + 2]])
        reference(whole.double()).square().mean().backward()
        norms.append([update.grad_norm, float(nn.utils.clip_grad_norm_(reference.parameters(), 0.5))])
        optimizer.step()
    with torch.no_grad():
        pairs = zip(model.parameters(), reference.parameters(), strict=True)
        return max(float((a.full_tensor().double() - b).abs().max()) for a, b in pairs), norms


@case
def fully_shard_each_and_last(rank):
    sizes = ((3, 1, 4, 2), (2, 5, 1, 1))
    return [train_sharded(rank, torch.float64, sync, {}, sizes) for sync in ("each", "last")]


@case
def fully_shard_in_bfloat16_with_float32_reduction(rank):
    policy = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    return train_sharded(rank, torch.float32, "each", policy, ((4, 4), (4, 4)))


@case
def fully_shard_parameter_first_used_in_the_last_micro_batch(rank):
    torch.manual_seed(0)
    model = TwoBranches()
    model.first, model.second = nn.Linear(2, 2).bfloat16(), nn.Linear(2, 2).bfloat16()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    fully_shard(model.first, mesh=mesh, mp_policy=policy)
    fully_shard(model.second, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.5))
    before = [p.full_tensor().detach().clone() for p in model.parameters()]
    loader = [(torch.full((1, 2), rank + 1.0).bfloat16(), branch) for branch in (0, 1)]
    for window in accumulator.windows(loader, micro_batches=2):
        for x, branch in window:
            window.backward(2 * model(x, branch).float().mean())
        window.step()
    after = [p.full_tensor().detach() for p in model.parameters()]
    # mean over two outputs of 2 * (w . x), x = 1 and 2 on the ranks, half of the weight each: 0.75 per weight.
    return [((b - a).float() / 0.5).flatten().tolist() for a, b in zip(after, before, strict=True)]


@case
def fully_shard_with_unequal_micro_batches(rank):
    model, _ = sharded()
    accumulator = GradientAccumulator(model, sgd(model))
    try:
        next(accumulator.windows([torch.ones(1, 4)] * (2 - rank), micro_batches=2))
    except DagnnError as error:
        return str(error)


@case
def fully_shard_refuses_drop(rank):
    model, _ = sharded()
    try:
        GradientAccumulator(model, sgd(model), on_nonfinite="drop")
    except DagnnError as error:
        return str(error)


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    results = {}
    for name, function in CASES.items():
        torch.manual_seed(0)
        try:
            results[name] = function(rank)
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
        dist.barrier()
    Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
