"""Loops of shapes that are seldom seen: gradients of gradients, functional calls, buffers of their own, retries."""

import contextlib
import random

import torch
from accumulation.check.corpus.registry import K, arguments, ends, loop, loss_fn, share_of, windows_of
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm


def simple(compute, after=None, **options):
    """A loop that is right but for ``compute(model, micro_batches, i)``, which goes back itself."""

    def train_step(model, optimizer, micro_batches):
        for i in range(len(micro_batches)):
            compute(model, micro_batches, i)
            if ends(i, len(micro_batches), K):
                if after:
                    after(model, optimizer)
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)

    return arguments(train_step, **options)


@loop("gradient penalty", {"penalty not divided": "not scaled", "no division": "not scaled"})
def penalty(mistake):
    def parts(model, inputs):
        x = inputs[0].clone().requires_grad_()
        output = model(x)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return F.cross_entropy(output, inputs[1]), (slope.norm(dim=1) - 1).square().mean()

    def compute(model, micro_batches, i):
        main, penalty = parts(model, micro_batches[i])
        share = 1.0 if mistake == "no division" else share_of(micro_batches, i)
        (main * share + penalty * (1.0 if mistake.startswith("penalty") else share)).backward()

    return simple(compute, loss_fn=lambda m, b: sum(parts(m, b)))


@loop("gradients per item with vmap, averaged by hand", {"summed": "sum loss"})
def per_item(mistake):
    def train_step(model, optimizer, micro_batches):
        def item_loss(parameters, x, y):
            return F.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

        for window in windows_of(micro_batches, K):
            parameters = {name: p.detach() for name, p in model.named_parameters()}
            items = sum(len(x) for x, _ in window)
            for inputs in window:
                found = vmap(grad(item_loss), in_dims=(None, 0, 0))(parameters, *inputs)
                for name, p in model.named_parameters():
                    g = found[name].sum(dim=0) / (1 if mistake else items)
                    p.grad = g if p.grad is None else p.grad + g
            optimizer.step()
            optimizer.zero_grad()

    return arguments(train_step)


@loop("backward with a gradient of its own", {"of one": "not scaled", "called twice": "wrong scale"})
def own_gradient(mistake):
    def compute(model, micro_batches, i):
        loss = loss_fn(model, micro_batches[i])
        weight = torch.tensor(1.0 if mistake == "of one" else share_of(micro_batches, i))
        if mistake == "called twice":
            loss.backward(weight, retain_graph=True)
        torch.autograd.backward([loss], [weight.to(loss.dtype)])

    return simple(compute)


@loop("sums in buffers of its own, filled by hooks", {"buffers never cleared": "not zeroed"})
def buffers(mistake):
    def train_step(model, optimizer, micro_batches):
        sums = {}

        def take(p):
            sums[p] = sums.get(p, 0.0) + p.grad
            p.grad = None

        handles = [p.register_post_accumulate_grad_hook(take) for p in model.parameters()]
        for i in range(len(micro_batches)):
            (loss_fn(model, micro_batches[i]) * share_of(micro_batches, i)).backward()
            if ends(i, len(micro_batches), K):
                for p in model.parameters():
                    p.grad = sums[p].clone()
                if not mistake:
                    sums.clear()
                optimizer.step()
                optimizer.zero_grad()
        for handle in handles:
            handle.remove()

    return arguments(train_step)


@loop("two halves after running out of memory", {"halves not weighted": "wrong scale"})
def retry(mistake):
    def compute(model, micro_batches, i):
        x, y = micro_batches[i]
        with contextlib.suppress(MemoryError):
            raise MemoryError
        half = (len(x) + 1) // 2
        for part in (slice(0, half), slice(half, None)):
            if len(x[part]):
                share = share_of(micro_batches, i) * (1.0 if mistake else len(x[part]) / len(x))
                (loss_fn(model, (x[part], y[part])) * share).backward()

    return simple(compute, ragged=not mistake)


@loop("evaluation with averaged weights in between", {"and the gradient of it kept": "wrong scale"})
def evaluation(mistake):
    def after(model, optimizer):
        kept = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.9)
        with contextlib.nullcontext() if mistake else torch.inference_mode():
            model(torch.ones(2, 6))
        if mistake:
            for p in model.parameters():
                p.grad += p.grad
        with torch.no_grad():
            for p, value in zip(model.parameters(), kept, strict=True):
                p.copy_(value)

    def compute(model, micro_batches, i):
        (loss_fn(model, micro_batches[i]) * share_of(micro_batches, i)).backward()

    return simple(compute, after)


@loop("weights normalised by a parametrisation", {"divided by the epoch's length": "wrong scale"})
def parametrised(mistake):
    def compute(model, micro_batches, i):
        share = 1 / len(micro_batches) if mistake else share_of(micro_batches, i)
        (loss_fn(model, micro_batches[i]) * share).backward()

    model = nn.Sequential(weight_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3))
    return simple(compute, model=model)


@loop("a queue of negatives that fills up", {"as it is": "in-place buffer"})
def queue(mistake):
    class Queued(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(6, 4)
            self.register_buffer("queue", torch.randn(5, 4))

        def forward(self, x):
            features = F.normalize(self.body(x), dim=-1)
            scores = features @ self.queue.clone().T
            if mistake:
                self.queue.copy_(torch.cat([features.detach()[:1], self.queue[:-1]]))
            return scores

    def compute(model, micro_batches, i):
        (loss_fn(model, micro_batches[i]) * share_of(micro_batches, i)).backward()

    return simple(compute, model=Queued())


@loop("layers thawed one after the other", {"the thawed one detached": "unused parameter"})
def thawing(mistake):
    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            for p in model.parameters():
                p.requires_grad_(True)
            items = sum(len(x) for x, _ in window)
            for x, y in window:
                hidden = model[1](model[0](x))
                loss = F.cross_entropy(model[2](hidden.detach() if mistake else hidden), y)
                (loss * len(x) / items).backward()
            optimizer.step()
            optimizer.zero_grad()

    return arguments(train_step)


@loop("an iterator drawn from until it ends", {"one micro-batch too few": "missing backward"})
def drawn(mistake):
    def train_step(model, optimizer, micro_batches):
        stream, left = iter(micro_batches), len(micro_batches)
        while left:
            window = [next(stream) for _ in range(min(K, left))]
            left -= len(window)
            items = sum(len(x) for x, _ in window)
            for inputs in window[: K - 1] if mistake else window:
                (loss_fn(model, inputs) * len(inputs[0]) / items).backward()
            optimizer.step()
            optimizer.zero_grad()

    return arguments(train_step)


@loop("noise added to gradients once per step", {"clipped per micro-batch": "clip per micro-batch"})
def langevin(mistake):
    def after(model, optimizer):
        for p in model.parameters():
            p.grad.add_(torch.randn_like(p.grad), alpha=0.01)

    def compute(model, micro_batches, i):
        (loss_fn(model, micro_batches[i]) * share_of(micro_batches, i)).backward()
        if mistake:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    return simple(compute, after)


@loop("only signs of gradients", {"signs of micro-batches": "clip per micro-batch"})
def signs(mistake):
    def sign(model, optimizer):
        for p in model.parameters():
            p.grad.sign_()

    def compute(model, micro_batches, i):
        (loss_fn(model, micro_batches[i]) * share_of(micro_batches, i)).backward()
        if mistake:
            sign(model, None)

    return simple(compute, sign)


@loop("running mean of the gradients of a window", {"of the whole epoch": "wrong denominator"})
def running(mistake):
    def train_step(model, optimizer, micro_batches):
        seen = 0
        for i, inputs in enumerate(micro_batches):
            if i % K == 0 and not mistake:
                seen = 0
            before = [p.grad for p in model.parameters()]
            for p in model.parameters():
                p.grad = None
            loss_fn(model, inputs).backward()
            seen += len(inputs[0])
            for p, old in zip(model.parameters(), before, strict=True):
                new = p.grad * (len(inputs[0]) / seen)
                p.grad = new if old is None else old * (1 - len(inputs[0]) / seen) + new
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step)


@loop("step before backward, one window late", {"as it is": "early or extra step"})
def late(mistake):
    def train_step(model, optimizer, micro_batches):
        for i, inputs in enumerate(micro_batches):
            if i % K == 0 and i and mistake:
                optimizer.step()
                optimizer.zero_grad()
            loss = loss_fn(model, inputs) * share_of(micro_batches, i)
            loss.backward()
            if not mistake and ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()
        if mistake:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            optimizer.step()

    return arguments(train_step)


@loop("two views with consistent outputs", {"consistency left out of the first micro-batches": "another loss"})
def consistency(mistake):
    def parts(model, inputs):
        one, other = model(inputs[0]), model(F.dropout(inputs[0], 0.3))
        near = F.kl_div(one.log_softmax(-1), other.log_softmax(-1), log_target=True, reduction="batchmean")
        return F.cross_entropy(one, inputs[1]), near

    def compute(model, micro_batches, i):
        main, near = parts(model, micro_batches[i])
        ((main + (0 if mistake and i % K < K - 1 else near)) * share_of(micro_batches, i)).backward()

    return simple(compute, loss_fn=lambda m, b: sum(parts(m, b)))


@loop("micro-batches as mappings with lengths", {"longest of each micro-batch as its weight": "wrong denominator"})
def packed(mistake):
    def losses(model, inputs):
        mask = torch.arange(5)[None] < inputs["length"][:, None]
        return (model(inputs["x"])[..., 0].square() * mask).sum(), mask.sum()

    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            total = sum(int(b["length"].max()) * len(b["x"]) if mistake else int(b["length"].sum()) for b in window)
            for inputs in window:
                (losses(model, inputs)[0] / total).backward()
            optimizer.step()
            optimizer.zero_grad()

    data = {"x": torch.randn(24, 5, 6), "length": torch.randint(1, 6, (24,))}

    def mean(model, inputs):
        total, count = losses(model, inputs)
        return total / count

    return arguments(train_step, batch=data, loss_fn=mean)


@loop("uncertainty weights learned beside the model", {"weights' optimizer never zeroed": "not zeroed"})
def uncertainty(mistake):
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.heads = nn.Linear(6, 8), nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 1)])
            self.log_variance = nn.Parameter(torch.zeros(2))

    def loss_of(model, inputs):
        hidden = model.body(inputs[0]).tanh()
        losses = torch.stack(
            [F.cross_entropy(model.heads[0](hidden), inputs[1]), model.heads[1](hidden).square().mean()]
        )
        return (losses * (-model.log_variance).exp() + model.log_variance).sum()

    def train_step(model, _, micro_batches):
        main = torch.optim.Adam([*model.body.parameters(), *model.heads.parameters()])
        weights = torch.optim.SGD([model.log_variance], lr=0.1)
        for i in range(len(micro_batches)):
            (loss_of(model, micro_batches[i]) * share_of(micro_batches, i)).backward()
            if ends(i, len(micro_batches), K):
                main.step()
                weights.step()
                main.zero_grad()
                if not mistake:
                    weights.zero_grad()

    return arguments(train_step, model=Weighted(), loss_fn=loss_of, tail=not mistake)


@loop("an epoch that stops early", {"after the first window": "missing step"})
def stops(mistake):
    def train_step(model, optimizer, micro_batches):
        for number, window in enumerate(windows_of(micro_batches, K)):
            if mistake and number:
                break
            for inputs in window:
                (loss_fn(model, inputs) * len(inputs[0]) / sum(len(x) for x, _ in window)).backward()
            optimizer.step()
            optimizer.zero_grad()

    return arguments(train_step, tail=not mistake)


@loop("augmented by Python's random numbers, the same for all", {"other factors for each": "another loss"})
def augmented(mistake):
    def compute(model, micro_batches, i):
        x, y = micro_batches[i]
        if mistake:
            x = x * random.uniform(0.5, 1.5)
        (loss_fn(model, (x, y)) * share_of(micro_batches, i)).backward()

    return simple(compute)


@loop("logits adjusted by class counts", {"counts of each micro-batch": "batch-coupled loss"})
def adjusted(mistake):
    prior = torch.tensor([0.5, 0.3, 0.2])

    def loss_of(model, inputs, counts=None):
        counts = prior if counts is None else counts
        return F.cross_entropy(model(inputs[0]) + counts.log().to(inputs[0].dtype), inputs[1])

    def compute(model, micro_batches, i):
        counts = torch.bincount(micro_batches[i][1], minlength=3) + 1.0 if mistake else None
        (loss_of(model, micro_batches[i], counts) * share_of(micro_batches, i)).backward()

    return simple(compute, loss_fn=loss_of)
