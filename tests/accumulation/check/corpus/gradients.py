"""Loops that zero, divide or change gradients in places of their own."""

import contextlib

import torch
from accumulation.check.corpus.projects import TwoHeads, simple, two_head_batch
from accumulation.check.corpus.registry import K, arguments, ends, loop, loss_fn, share_of, windows_of
from torch import nn
from torch.nn import functional as F


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body = nn.Embedding(7, 5), nn.Linear(5, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.body(self.embed(tokens))))


@loop(
    "tied embeddings, decay groups by name",
    {"divided by K in ragged batches": "mean of means", "twice": "scaled twice"},
)
def tied(mistake):
    def loss(model, b):
        return F.cross_entropy(model(b[0]).flatten(0, 1), b[1].flatten())

    def train_step(model, optimizer, micro_batches):
        decayed = [p for p in model.parameters() if p.ndim > 1]
        rest = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        opt = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
        for window in windows_of(micro_batches, K):
            opt.zero_grad(set_to_none=True)
            items = sum(len(x) for x, _ in window)
            for x, y in window:
                share = 1 / len(window) if mistake.startswith("divided") else len(x) / items
                if mistake == "twice":
                    share /= len(window)
                (loss(model, (x, y)) * share).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()

    data = torch.randint(0, 7, (24, 4)), torch.randint(0, 7, (24, 4))
    return arguments(train_step, model=Tied(), batch=data, loss_fn=loss)


@loop("weight decay scheduled by hand per step", {"per micro-batch": "another loss", "no zero": "not zeroed"})
def decay_schedule(mistake):
    def train_step(model, optimizer, micro_batches):
        steps = 0
        for i, b in enumerate(micro_batches):
            (loss_fn(model, b) * share_of(micro_batches, i)).backward()
            if mistake == "per micro-batch":
                for p in model.parameters():
                    p.grad.add_(p.detach(), alpha=0.01)
            if ends(i, len(micro_batches), K):
                for group in optimizer.param_groups:
                    group["weight_decay"] = 0.1 * 0.5**steps
                optimizer.step()
                if mistake != "no zero":
                    optimizer.zero_grad()
                steps += 1

    return arguments(train_step)


@loop("warm restarts, scheduler outside", {"stepped per micro-batch": "schedule per micro-batch"})
def warm_restarts(mistake):
    def train_step(model, optimizer, micro_batches):
        scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=3)
        for i, b in enumerate(micro_batches):
            (loss_fn(model, b) * share_of(micro_batches, i)).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()
            if mistake or ends(i, len(micro_batches), K):
                scheduler.step()

    return arguments(train_step)


@loop("annealed gradient noise per step", {"no division": "not scaled"})
def noise(mistake):
    def train_step(model, optimizer, micro_batches):
        t = 0
        for i, b in enumerate(micro_batches):
            share = 1.0 if mistake else share_of(micro_batches, i)
            (loss_fn(model, b) * share).backward()
            if ends(i, len(micro_batches), K):
                t += 1
                for p in model.parameters():
                    p.grad.add_(torch.randn_like(p.grad) * (0.01 / (1 + t)) ** 0.5)
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step)


class Distributed(nn.Module):
    """The interface of a replicated model on one process."""

    def __init__(self, module):
        super().__init__()
        self.module, self.sync = module, True

    def forward(self, *inputs):
        return self.module(*inputs)

    @contextlib.contextmanager
    def no_sync(self):
        self.sync, before = False, self.sync
        try:
            yield
        finally:
            self.sync = before


@loop(
    "no_sync but for the last",
    {"last step of the window only": "missing backward", "tail divided by K": "short last window scaled by K"},
)
def no_sync(mistake):
    def train_step(model, optimizer, micro_batches):
        wrapped = Distributed(model)
        total = len(micro_batches)
        for i, b in enumerate(micro_batches):
            last = ends(i, total, K)
            with contextlib.nullcontext() if last else wrapped.no_sync():
                if mistake.startswith("last") and not last:
                    with torch.no_grad():
                        loss_fn(wrapped, b)
                    continue
                share = share_of(micro_batches, i)
                if mistake.startswith("tail"):
                    share = len(b[0]) / (K * len(micro_batches[0][0])) if total % K else share
                (loss_fn(wrapped, b) * share).backward()
            if last:
                nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

    return arguments(train_step)


@loop(
    "truncated backpropagation through time",
    {"a step per chunk": "early or extra step", "chunks not divided": "wrong scale"},
)
def truncated(mistake):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 1)

        def forward(self, x, state=None):
            hidden, state = self.rnn(x, state)
            return self.out(hidden), state

    def chunks(model, b):
        state = None
        for start in (0, 3):
            output, state = model(b[0][:, start : start + 3], state)
            state = state.detach()
            yield F.mse_loss(output, b[1][:, start : start + 3])

    def train_step(model, optimizer, micro_batches):
        for i, b in enumerate(micro_batches):
            for loss in chunks(model, b):
                (loss * share_of(micro_batches, i) / (1 if mistake.startswith("chunks") else 2)).backward()
                if mistake.startswith("a step"):
                    optimizer.step()
                    optimizer.zero_grad()
            if not mistake.startswith("a step") and ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    data = torch.randn(24, 6, 3), torch.randn(24, 6, 1)
    return arguments(train_step, model=Net(), batch=data, loss_fn=lambda m, b: sum(chunks(m, b)) / 2)


@loop("contrastive over the window with cached features", {"over micro-batches": "batch-coupled loss"})
def cached(mistake):
    def nce(z):
        a, b = F.normalize(z[:, 0], dim=-1), F.normalize(z[:, 1], dim=-1)
        return F.cross_entropy(a @ b.T / 0.2, torch.arange(len(a)))

    def whole(model, b):
        return nce(model(b[0]))

    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            if mistake:
                for b in window:
                    (whole(model, b) * len(b[0]) / sum(len(x[0]) for x in window)).backward()
            else:
                with torch.no_grad():
                    features = torch.cat([model(b[0]) for b in window])
                features.requires_grad_()
                nce(features).backward()
                start = 0
                for b in window:
                    z = model(b[0])
                    z.backward(features.grad[start : start + len(z)])
                    start += len(z)
            optimizer.step()
            optimizer.zero_grad()

    return arguments(train_step, model=nn.Linear(6, 4), batch=(torch.randn(24, 2, 6),), loss_fn=whole)


@loop(
    "distillation, teacher outside in evaluation mode",
    {"student's logits detached": "another loss", "no division": "not scaled"},
)
def teacher(mistake):
    taught = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).double().eval()

    def distill(model, b, detached=False):
        with torch.no_grad():
            soft = (taught(b[0].double()) / 2).softmax(-1).to(b[0].dtype)
        logits = model(b[0])
        kd = F.kl_div(F.log_softmax((logits.detach() if detached else logits) / 2, -1), soft, reduction="batchmean") * 4
        return 0.5 * kd + 0.5 * F.cross_entropy(logits, b[1])

    if mistake == "no division":
        return simple(distill, mistake)
    case = simple(lambda m, b: distill(m, b, bool(mistake)))
    return case | {"loss_fn": distill}


@loop(
    "zeroed at the top, for the first of a window only", {"for the second": "zeroed too often", "never": "not zeroed"}
)
def odd_zero(mistake):
    def train_step(model, optimizer, micro_batches):
        for i, b in enumerate(micro_batches):
            if mistake != "never" and i % K == (1 if mistake else 0):
                for p in model.parameters():
                    p.grad = None
            (loss_fn(model, b) * share_of(micro_batches, i)).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()

    return arguments(train_step)


@loop("forward first, zero between forward and backward", {"in every micro-batch": "zeroed too often"})
def zero_between(mistake):
    def train_step(model, optimizer, micro_batches):
        for i, b in enumerate(micro_batches):
            loss = loss_fn(model, b) * share_of(micro_batches, i)
            if mistake or i % K == 0:
                optimizer.zero_grad()
            loss.backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()

    return arguments(train_step)


@loop("gradients zeroed in place by a helper", {"half of the parameters": "not zeroed"})
def zero_half(mistake):
    def train_step(model, optimizer, micro_batches):
        for i, b in enumerate(micro_batches):
            (loss_fn(model, b) * share_of(micro_batches, i)).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                for p in list(model.parameters())[: 2 if mistake else None]:
                    p.grad.detach_().zero_()

    return arguments(train_step)


@loop("divided once before the step", {"and in the loss": "scaled twice", "by items per window wrongly": "wrong scale"})
def late_division(mistake):
    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            items = sum(len(x) for x, _ in window)
            for x, y in window:
                loss = F.cross_entropy(model(x), y, reduction="sum")
                (loss / len(window) if mistake.startswith("and") else loss).backward()
            for p in model.parameters():
                p.grad /= items * (2 if mistake.startswith("by") else 1)
            optimizer.step()
            optimizer.zero_grad()

    return arguments(train_step)


@loop("foreach division", {"not at all": "sum loss"})
def foreach(mistake):
    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            items = sum(len(x) for x, _ in window)
            for x, y in window:
                F.cross_entropy(model(x), y, reduction="sum").backward()
            if not mistake:
                torch._foreach_div_([p.grad for p in model.parameters()], float(items))
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
            optimizer.zero_grad()

    return arguments(train_step)


@loop("gradients gathered in one flat buffer", {"buffer overwritten": "zeroed too often"})
def flat(mistake):
    def train_step(model, optimizer, micro_batches):
        params = list(model.parameters())
        buffer = torch.zeros(sum(p.numel() for p in params))
        for i, b in enumerate(micro_batches):
            grads = torch.autograd.grad(loss_fn(model, b) * share_of(micro_batches, i), params)
            vector = nn.utils.parameters_to_vector(grads)
            buffer = vector if mistake else buffer + vector
            if ends(i, len(micro_batches), K):
                start = 0
                for p in params:
                    p.grad = buffer[start : start + p.numel()].view_as(p).clone()
                    start += p.numel()
                optimizer.step()
                buffer = torch.zeros_like(buffer)

    return arguments(train_step)


@loop("conflicting gradients projected per window", {"not divided": "not scaled"})
def projected(mistake):
    def losses(model, b):
        logits, value = model(b[0])
        return F.cross_entropy(logits, b[1]), F.mse_loss(value, b[2])

    def project(a, b):
        dot = sum((x * y).sum() for x, y in zip(a, b, strict=True))
        if dot >= 0:
            return [x + y for x, y in zip(a, b, strict=True)]
        square = sum((y * y).sum() for y in b)
        return [x - y * (dot / square) + y for x, y in zip(a, b, strict=True)]

    def train_step(model, optimizer, micro_batches):
        params = [p for n, p in model.named_parameters() if n != "log_var" and n.startswith("body")]
        opt = torch.optim.SGD(params, lr=0.1)
        for window in windows_of(micro_batches, K):
            items = sum(len(b[0]) for b in window)
            sums = [[torch.zeros_like(p) for p in params] for _ in range(2)]
            for b in window:
                both = []
                for loss in losses(model, b):
                    share = 1.0 if mistake else len(b[0]) / items
                    both.append(torch.autograd.grad(loss * share, params, retain_graph=True))
                for task in range(2):
                    for s, g in zip(sums[task], both[task], strict=True):
                        s += g
            for p, g in zip(params, project(*sums), strict=True):
                p.grad = g
            opt.step()
            opt.zero_grad()

    model = TwoHeads()
    return arguments(
        train_step, model=model, batch=two_head_batch(), loss_fn=lambda m, b: sum(losses(m, b)) + 0 * m.log_var.sum()
    )


def changed_once(change, mistake, **options):
    """Gradients of a window are changed before the step."""

    def train_step(model, optimizer, micro_batches):
        for i, (x, y) in enumerate(micro_batches):
            loss = F.cross_entropy(model(x), y, label_smoothing=0.3 if mistake == "smoothed" else 0.0)
            (loss * share_of(micro_batches, i)).backward()
            if ends(i, len(micro_batches), K):
                change(list(model.parameters()))
                optimizer.step()
                if mistake != "never zeroed":
                    optimizer.zero_grad()
            elif mistake == "zeroed":
                optimizer.zero_grad()

    return arguments(train_step, **options)


WRONG_ALL_THE_SAME = {"never zeroed": "not zeroed", "smoothed": "another loss", "zeroed": "zeroed too often"}


@loop("signs of the window's gradient", WRONG_ALL_THE_SAME)
def signs(mistake):
    return changed_once(lambda parameters: [p.grad.sign_() for p in parameters], mistake)


@loop("each layer's gradient normalised", WRONG_ALL_THE_SAME)
def layers(mistake):
    return changed_once(lambda parameters: [p.grad.div_(p.grad.norm() + 1e-6) for p in parameters], mistake)


@loop("gradients centred and nothing else", WRONG_ALL_THE_SAME)
def centred(mistake):
    def change(parameters):
        for p in parameters:
            if p.ndim > 1:
                p.grad -= p.grad.mean(dim=1, keepdim=True)

    return changed_once(change, mistake)


@loop("noise as large as the gradient", WRONG_ALL_THE_SAME)
def relative_noise(mistake):
    return changed_once(
        lambda parameters: [p.grad.add_(p.grad.norm() * torch.randn_like(p.grad), alpha=0.1) for p in parameters],
        mistake,
    )


@loop("clipping by a running mean of norms", {"smoothed": "another loss"})
def running_norm(mistake):
    data = batch_that_grows()
    means = []

    def change(parameters):
        norm = torch.stack([p.grad.norm() for p in parameters]).norm().item()
        limit = 1.2 * means[-1] if means else norm
        if norm > limit:
            for p in parameters:
                p.grad *= limit / norm
        means.append(0.9 * means[-1] + 0.1 * norm if means else norm)

    made = changed_once(change, mistake, batch=data)
    inner = made["train_step"]

    def train_step(model, optimizer, micro_batches):
        means.clear()
        inner(model, optimizer, micro_batches)

    return made | {"train_step": train_step}


def batch_that_grows():
    x, y = torch.randn(24, 6), torch.randint(0, 3, (24,))
    x[12:] *= 5
    return x, y
