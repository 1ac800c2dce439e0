"""What loops do around a step: optimizers of their own, closures, schedules, clipping."""

import torch
from accumulation.check.corpus.registry import K, arguments, ends, items_around, loop, loss_fn, windows_of
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler


def weighted(model, micro_batches, i):
    return loss_fn(model, micro_batches[i]) * len(micro_batches[i][0]) / items_around(micro_batches, i, K)


@loop(
    "LBFGS with a closure over the window",
    {"closure without division": "not scaled", "closure without zero_grad": "not zeroed"},
)
def lbfgs(mistake):
    def train_step(model, _, micro_batches):
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
        for window in windows_of(micro_batches, K):

            def closure(window=window):
                if mistake != "closure without zero_grad":
                    optimizer.zero_grad()
                total = 0.0
                for inputs in window:
                    share = len(inputs[0]) / sum(len(x) for x, _ in window)
                    loss = loss_fn(model, inputs) * (1.0 if mistake == "closure without division" else share)
                    loss.backward()
                    total += loss.item()
                return total

            optimizer.step(closure)

    return arguments(train_step)


@loop("SGD with a closure", {"closure of the last micro-batch": "missing backward"})
def closure(mistake):
    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):

            def closure(window=window):
                optimizer.zero_grad()
                items = sum(len(x) for x, _ in window)
                for inputs in window[-1:] if mistake else window:
                    loss = loss_fn(model, inputs) * len(inputs[0]) / items
                    loss.backward()
                return loss

            optimizer.step(closure)

    return arguments(train_step)


class SharpnessAware(torch.optim.Optimizer):
    """Two passes: climb a little, take the gradient there, come back and step."""

    def __init__(self, parameters, base, rho=0.05):
        super().__init__(parameters, {"rho": rho})
        self.base_optimizer = base(self.param_groups, lr=0.1)

    @torch.no_grad()
    def climb(self):
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        for p in parameters:
            self.state[p]["before"] = p.detach().clone()
            p.add_(p.grad * self.param_groups[0]["rho"] / (norm + 1e-12))
        self.zero_grad()

    @torch.no_grad()
    def descend(self):
        for p, state in self.state.items():
            p.copy_(state["before"])
        self.base_optimizer.step()
        self.zero_grad()


@loop("sharpness-aware: two passes over the window", {"second pass not divided": "not scaled"})
def sharpness(mistake):
    def train_step(model, _, micro_batches):
        optimizer = SharpnessAware(model.parameters(), torch.optim.SGD)
        for window in windows_of(micro_batches, K):
            items = sum(len(x) for x, _ in window)
            for inputs in window:
                (loss_fn(model, inputs) * len(inputs[0]) / items).backward()
            optimizer.climb()
            for inputs in window:
                (loss_fn(model, inputs) * (1.0 if mistake else len(inputs[0]) / items)).backward()
            optimizer.descend()

    return arguments(train_step)


@loop(
    "OneCycleLR built inside",
    {"stepped per micro-batch": "schedule per micro-batch", "no division": "not scaled"},
)
def one_cycle(mistake):
    def train_step(model, optimizer, micro_batches):
        scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=100)
        for i in range(len(micro_batches)):
            loss = loss_fn(model, micro_batches[i]) if mistake == "no division" else weighted(model, micro_batches, i)
            loss.backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()
            if ends(i, len(micro_batches), K) or mistake == "stepped per micro-batch":
                scheduler.step()

    return arguments(train_step)


@loop("warm-up, then cosine, built inside", {"stepped per micro-batch": "schedule per micro-batch"})
def sequential(mistake):
    def train_step(model, _, micro_batches):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scheduler = lr_scheduler.SequentialLR(
            optimizer,
            [lr_scheduler.LinearLR(optimizer, total_iters=1), lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)],
            milestones=[1],
        )
        for i in range(len(micro_batches)):
            weighted(model, micro_batches, i).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()
            if ends(i, len(micro_batches), K) or mistake:
                scheduler.step()

    return arguments(train_step)


@loop("plateau once per epoch, restarts by the part of the epoch done", {"tail lost": "lost remainder"})
def restarts(mistake):
    def train_step(model, _, micro_batches):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        restarts = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=10)
        plateau = lr_scheduler.ReduceLROnPlateau(optimizer)
        for i in range(len(micro_batches)):
            weighted(model, micro_batches, i).backward()
            if (i + 1) % K == 0 or (i + 1 == len(micro_batches) and not mistake):
                optimizer.step()
                optimizer.zero_grad()
            restarts.step(i / len(micro_batches))
        plateau.step(1.0)

    return arguments(train_step)


@loop("lr by the part of the epoch done, set by hand", {"by the number of micro-batches": "schedule per micro-batch"})
def progress(mistake):
    def train_step(model, optimizer, micro_batches):
        for i in range(len(micro_batches)):
            done = i / 50 if mistake else i / len(micro_batches)
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * (1 - 0.5 * done)
            weighted(model, micro_batches, i).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step)


@loop("an optimizer of its own with parameter groups", {"bias group divided by K again": "scaled twice"})
def own_groups(mistake):
    def train_step(model, _, micro_batches):
        decayed = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim == 1]
        optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others}], lr=1e-3)
        for i in range(len(micro_batches)):
            weighted(model, micro_batches, i).backward()
            if ends(i, len(micro_batches), K):
                if mistake:
                    for p in decayed:
                        p.grad /= K
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step, tail=not mistake)


@loop(
    "sparse embeddings with an optimizer for them",
    {"dense part only zeroed": "not zeroed", "no division": "not scaled"},
)
def sparse(mistake):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(15, 6, sparse=True), nn.Linear(6, 3)

        def forward(self, ids):
            return self.head(self.words(ids).mean(dim=1).tanh())

    def train_step(model, _, micro_batches):
        of_words = torch.optim.SparseAdam(model.words.parameters())
        of_head = torch.optim.Adam(model.head.parameters())
        for i in range(len(micro_batches)):
            loss = loss_fn(model, micro_batches[i]) if mistake == "no division" else weighted(model, micro_batches, i)
            loss.backward()
            if ends(i, len(micro_batches), K):
                of_words.step()
                of_head.step()
                of_head.zero_grad()
                if mistake != "dense part only zeroed":
                    of_words.zero_grad()

    data = torch.randint(0, 15, (24, 4)), torch.randint(0, 3, (24,))
    return arguments(train_step, model=Words(), batch=data)


@loop("an optimizer for each parameter, stepped from hooks", {"in every micro-batch": "early or extra step"})
def hooks(mistake):
    def train_step(model, _, micro_batches):
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
        last = [False]

        def step(p):
            if last[0] or mistake:
                optimizers[p].step()
                optimizers[p].zero_grad()

        handles = [p.register_post_accumulate_grad_hook(step) for p in model.parameters()]
        for i in range(len(micro_batches)):
            last[0] = ends(i, len(micro_batches), K)
            weighted(model, micro_batches, i).backward()
        for handle in handles:
            handle.remove()

    return arguments(train_step)


@loop("clipping by value once", {"per micro-batch": "clip per micro-batch"})
def by_value(mistake):
    def train_step(model, optimizer, micro_batches):
        for i in range(len(micro_batches)):
            weighted(model, micro_batches, i).backward()
            last = ends(i, len(micro_batches), K)
            if last or mistake:
                nn.utils.clip_grad_value_(model.parameters(), 0.01)
            if last:
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step)


@loop("clipping at a percentile of the norms so far", {"per micro-batch": "clip per micro-batch"})
def percentile(mistake):
    def train_step(model, optimizer, micro_batches):
        norms = []

        def clip():
            norms.append(torch.cat([p.grad.flatten() for p in model.parameters()]).norm())
            nn.utils.clip_grad_norm_(model.parameters(), float(torch.stack(norms).quantile(0.1)) / 2)

        for i in range(len(micro_batches)):
            weighted(model, micro_batches, i).backward()
            last = ends(i, len(micro_batches), K)
            if last or mistake:
                clip()
            if last:
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step)


@loop("weight decay added to gradients by hand", {"in every micro-batch": "another loss"})
def decay(mistake):
    def train_step(model, optimizer, micro_batches):
        for i in range(len(micro_batches)):
            weighted(model, micro_batches, i).backward()
            last = ends(i, len(micro_batches), K)
            if last or mistake:
                for p in model.parameters():
                    p.grad.add_(p.detach(), alpha=0.01)
            if last:
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step)


@loop("gradients centred, then normalised", {"normalised per micro-batch": "clip per micro-batch"})
def normalised(mistake):
    def train_step(model, optimizer, micro_batches):
        for i in range(len(micro_batches)):
            weighted(model, micro_batches, i).backward()
            last = ends(i, len(micro_batches), K)
            if last or mistake:
                for p in model.parameters():
                    if p.ndim > 1:
                        p.grad.sub_(p.grad.mean(dim=1, keepdim=True))
                    p.grad.div_(p.grad.norm() + 1e-12)
            if last:
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step)


@loop("steps left out when the norm is a spike", {"divided twice": "scaled twice"})
def spikes(mistake):
    def train_step(model, optimizer, micro_batches):
        for i in range(len(micro_batches)):
            (weighted(model, micro_batches, i) / (K if mistake else 1)).backward()
            if ends(i, len(micro_batches), K):
                if nn.utils.clip_grad_norm_(model.parameters(), 1e9) < 1e3:
                    optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step, tail=not mistake)


@loop("gradients taken with autograd.grad and added by hand", {"overwritten": "zeroed too often"})
def by_hand(mistake):
    def train_step(model, optimizer, micro_batches):
        parameters = list(model.parameters())
        for i in range(len(micro_batches)):
            found = torch.autograd.grad(weighted(model, micro_batches, i), parameters)
            for p, g in zip(parameters, found, strict=True):
                p.grad = g if p.grad is None or mistake else p.grad + g
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step)


@loop("the first layer in no_grad", {"as it is": "unused parameter"})
def frozen_part(mistake):
    def train_step(model, _, micro_batches):
        optimizer = torch.optim.SGD(model.parameters() if mistake else model[2].parameters(), lr=0.1)
        for i, (x, y) in enumerate(micro_batches):
            with torch.no_grad():
                hidden = model[1](model[0](x))
            loss = F.cross_entropy(model[2](hidden), y) * len(x) / items_around(micro_batches, i, K)
            loss.backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step)


@loop("two tasks in turn, summed", {"second task not divided": "not scaled", "no step at all": "missing step"})
def tasks(mistake):
    class Tasks(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def losses(model, inputs):
        hidden = model.body(inputs[0]).tanh()
        return F.cross_entropy(model.first(hidden), inputs[1]), model.second(hidden).square().mean()

    def train_step(model, optimizer, micro_batches):
        for i, inputs in enumerate(micro_batches):
            share = len(inputs[0]) / items_around(micro_batches, i, K)
            first, second = losses(model, inputs)
            (first * share).backward(retain_graph=True)
            (second * (1.0 if mistake.startswith("second") else share)).backward()
            if ends(i, len(micro_batches), K):
                if mistake != "no step at all":
                    optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step, model=Tasks(), loss_fn=lambda m, b: sum(losses(m, b)))
