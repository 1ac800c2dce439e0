"""Loops in the shapes of whole projects: several passes per step, parts that share parameters, losses of many parts."""

import torch
from accumulation.check.corpus.registry import K, arguments, ends, loop, loss_fn, share_of, windows_of
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def simple(loss, mistake="", **options):
    """Each micro-batch times its share; ``loss(model, inputs)`` is its mean loss."""

    def train_step(model, optimizer, micro_batches):
        optimizer.zero_grad()
        for i in range(len(micro_batches)):
            value = loss(model, micro_batches[i])
            if mistake == "divided by K":
                value = value / K
            elif mistake != "no division":
                value = value * share_of(micro_batches, i)
            value.backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step, **({"loss_fn": loss} | options))


@loop("sharpness-aware with two steps per window", {"second pass not zeroed": "wrong scale"})
def sam_two_step(mistake):
    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            items = sum(len(x) for x, _ in window)
            for phase in range(2):
                for inputs in window:
                    (loss_fn(model, inputs) * len(inputs[0]) / items).backward()
                if phase == 0:
                    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
                    kept = [p.detach().clone() for p in model.parameters()]
                    with torch.no_grad():
                        for p in model.parameters():
                            p.add_(p.grad * (0.0 / (norm + 1e-12)))
                    if not mistake:
                        optimizer.zero_grad()
                else:
                    with torch.no_grad():
                        for p, value in zip(model.parameters(), kept, strict=True):
                            p.copy_(value)
                    optimizer.step()
                    optimizer.zero_grad()

    return arguments(train_step)


@loop("matrices orthogonalised, the rest by AdamW", {"no division": "not scaled", "tail lost": "lost remainder"})
def muon(mistake):
    class Orthogonal(torch.optim.Optimizer):
        def __init__(self, params, lr=0.02):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    u, _, v = torch.linalg.svd(p.grad, full_matrices=False)
                    p.add_(u @ v, alpha=-group["lr"])

    def train_step(model, optimizer, micro_batches):
        matrices = [p for p in model.parameters() if p.ndim == 2]
        others = [p for p in model.parameters() if p.ndim != 2]
        optimizers = [Orthogonal(matrices), torch.optim.AdamW(others, lr=1e-3)]
        for i in range(len(micro_batches)):
            share = 1.0 if mistake == "no division" else share_of(micro_batches, i)
            (loss_fn(model, micro_batches[i]) * share).backward()
            if (i + 1) % K == 0 or (i + 1 == len(micro_batches) and mistake != "tail lost"):
                for opt in optimizers:
                    opt.step()
                for opt in optimizers:
                    opt.zero_grad(set_to_none=True)

    return arguments(train_step)


@loop("averaged by swa_utils", {"average and zero in every micro-batch": "zeroed too often"})
def averaged(mistake):
    def train_step(model, optimizer, micro_batches):
        ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        for i in range(len(micro_batches)):
            (loss_fn(model, micro_batches[i]) * share_of(micro_batches, i)).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()
                ema.update_parameters(model)
            elif mistake:
                ema.update_parameters(model)
                model.zero_grad()

    return arguments(train_step)


@loop(
    "SWALR and AveragedModel from swa_utils",
    {"no division": "not scaled", "stepped per micro-batch": "schedule per micro-batch"},
)
def swa(mistake):
    def train_step(model, optimizer, micro_batches):
        average = torch.optim.swa_utils.AveragedModel(model)
        scheduler = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=3)
        for i in range(len(micro_batches)):
            share = 1.0 if mistake == "no division" else share_of(micro_batches, i)
            (loss_fn(model, micro_batches[i]) * share).backward()
            if mistake.startswith("stepped"):
                scheduler.step()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()
                average.update_parameters(model)
                if not mistake.startswith("stepped"):
                    scheduler.step()

    return arguments(train_step)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.first, self.second = nn.Linear(8, 3), nn.Linear(8, 1)
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        return self.first(hidden), self.second(hidden).squeeze(1)


def two_head_batch(items=24):
    return torch.randn(items, 6), torch.randint(0, 3, (items,)), torch.randn(items)


@loop(
    "several tasks with learned uncertainties",
    {"regularisation not divided": "not scaled", "no division": "not scaled", "divided by K": "mean of means"},
)
def uncertain(mistake):
    def parts(model, b):
        logits, value = model(b[0])
        first, second = F.cross_entropy(logits, b[1]), F.mse_loss(value, b[2])
        weights = torch.exp(-model.log_var)
        return weights[0] * first + weights[1] * second, model.log_var.sum()

    def train_step(model, optimizer, micro_batches):
        for i, b in enumerate(micro_batches):
            share = {"no division": 1.0, "divided by K": 1 / K}.get(mistake, share_of(micro_batches, i))
            if mistake == "divided by K" and i // K == (len(micro_batches) - 1) // K and len(micro_batches) % K:
                share = 1 / (len(micro_batches) % K)
            main, rest = parts(model, b)
            (main * share + rest * (1.0 if mistake.startswith("reg") else share)).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step, model=TwoHeads(), batch=two_head_batch(), loss_fn=lambda m, b: sum(parts(m, b)))


@loop("two losses, each its own backward", {"second not divided": "not scaled"})
def two_backwards(mistake):
    def losses(model, b):
        logits, value = model(b[0])
        return F.cross_entropy(logits, b[1]), F.mse_loss(value, b[2])

    def train_step(model, optimizer, micro_batches):
        for i, b in enumerate(micro_batches):
            share = share_of(micro_batches, i)
            first, second = losses(model, b)
            (first * share).backward(retain_graph=True)
            (second * (1.0 if mistake else share)).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    def whole(model, b):
        return sum(losses(model, b)) + 0.0 * model.log_var.sum()

    return arguments(train_step, model=TwoHeads(), batch=two_head_batch(), loss_fn=whole)


@loop("mixup by items drawn in the loop", {"no division": "not scaled", "divided by K": "mean of means"})
def mixup(mistake):
    # Each item is mixed with its own other view, so that the pairs do not depend on how the batch is cut.
    def mixed(model, b):
        x, other, y, z = b
        weight = torch.distributions.Beta(torch.tensor(0.8), torch.tensor(0.8)).sample().item()
        logits = model(weight * x + (1 - weight) * other)
        return weight * F.cross_entropy(logits, y) + (1 - weight) * F.cross_entropy(logits, z)

    data = torch.randn(24, 6), torch.randn(24, 6), torch.randint(0, 3, (24,)), torch.randint(0, 3, (24,))
    case = simple(mixed, mistake, batch=data)
    if mistake == "divided by K":
        case["tail"] = False
    return case


@loop(
    "label smoothing and class weights", {"weights left out": "another loss", "divided by items": "wrong denominator"}
)
def smoothed(mistake):
    weight = torch.tensor([1.0, 2.0, 5.0])

    def whole(model, b):
        return F.cross_entropy(model(b[0]), b[1], weight=weight.to(model[0].weight.dtype), label_smoothing=0.1)

    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            # With smoothing too, torch divides by the class weights of the targets.
            total = sum(float(weight[y].sum()) for _, y in window)
            items = sum(len(y) for _, y in window)
            for x, y in window:
                if mistake == "weights left out":
                    (F.cross_entropy(model(x), y, label_smoothing=0.1) * len(y) / items).backward()
                elif mistake:
                    (whole(model, (x, y)) * len(y) / items).backward()
                else:
                    (whole(model, (x, y)) * float(weight[y].sum()) / total).backward()
            optimizer.step()
            optimizer.zero_grad()

    return arguments(train_step, loss_fn=whole)


@loop(
    "focal loss over anchors, per positive",
    {"per positive of the micro-batch": "wrong denominator", "positives of one": "wrong denominator"},
)
def focal(mistake):
    def total(model, b):
        logits, y = model(b[0]), F.one_hot(b[1], 3).to(b[0].dtype)
        p = logits.sigmoid()
        ce = F.binary_cross_entropy_with_logits(logits, y, reduction="none")
        return (ce * (1 - (p * y + (1 - p) * (1 - y))) ** 2).sum()

    def positives(b):
        return float((b[1] > 0).sum().clamp(min=1))

    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            count = sum(float((y > 0).sum()) for _, y in window)
            for j, b in enumerate(window):
                if mistake == "per positive of the micro-batch":
                    (total(model, b) / positives(b) / len(window)).backward()
                elif mistake:
                    (total(model, b) / (positives(b) if j == 0 else count)).backward()
                else:
                    (total(model, b) / count).backward()
            optimizer.step()
            optimizer.zero_grad()

    return arguments(train_step, loss_fn=lambda m, b: total(m, b) / positives(b))


class Tagger(nn.Module):
    """A linear-chain conditional random field over an LSTM."""

    def __init__(self, tags=3):
        super().__init__()
        self.lstm, self.out = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, tags)
        self.transitions = nn.Parameter(torch.randn(tags, tags) * 0.1)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])
        return self.out(hidden)

    def nll(self, x, lengths, tags):
        scores = self(x, lengths)
        total = 0.0
        for s, t, n in zip(scores, tags, lengths.tolist(), strict=True):
            gold = s[torch.arange(n), t[:n]].sum() + self.transitions[t[: n - 1], t[1:n]].sum()
            alpha = s[0]
            for step in range(1, n):
                alpha = torch.logsumexp(alpha[:, None] + self.transitions, dim=0) + s[step]
            total = total + torch.logsumexp(alpha, dim=0) - gold
        return total


def tagged(items=24):
    lengths = torch.randint(2, 6, (items,))
    return torch.randn(items, 5, 4), lengths, torch.randint(0, 3, (items, 5))


@loop(
    "a random field over packed sequences, per token",
    {"per sentence of micro-batches": "wrong denominator", "no division": "not scaled"},
)
def crf(mistake):
    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            tokens = sum(int(n.sum()) for _, n, _ in window)
            for x, n, t in window:
                loss = model.nll(x, n, t)
                if mistake == "no division":
                    (loss / n.sum()).backward()
                elif mistake:
                    (loss / n.sum() * len(n) / sum(len(m) for _, m, _ in window)).backward()
                else:
                    (loss / tokens).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return arguments(train_step, model=Tagger(), batch=tagged(), loss_fn=lambda m, b: m.nll(*b) / b[1].sum())


@loop("a mixture of experts with a balance loss per item", {"balance of each micro-batch": "batch-coupled loss"})
def mixture(mistake):
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.experts = nn.Linear(6, 3), nn.ModuleList(nn.Linear(6, 3) for _ in range(3))

        def forward(self, x):
            gates = self.gate(x).softmax(-1)
            self.aux = (gates.mean(0).square().sum() if mistake else gates.square().sum(-1).mean()) * 3
            self.z = self.gate(x).logsumexp(-1).square().mean()
            return sum(g[:, None] * e(x) for g, e in zip(gates.unbind(-1), self.experts, strict=True))

    def loss(model, b):
        main = F.cross_entropy(model(b[0]), b[1])
        return main + 0.1 * model.aux + 0.01 * model.z

    return simple(loss, model=Mixture())


@loop("low-rank adapters on a frozen base", {"base steps too": "another loss", "no division": "not scaled"})
def lora(mistake):
    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base
            self.a = nn.Parameter(torch.randn(2, base.in_features) * 0.1)
            self.b = nn.Parameter(torch.randn(base.out_features, 2) * 0.1)
            for p in base.parameters():
                p.requires_grad_(False)

        def forward(self, x):
            return self.base(x) + (x @ self.a.T) @ self.b.T * 2.0

    def train_step(model, optimizer, micro_batches):
        opt = torch.optim.AdamW([p for n, p in model.named_parameters() if p.requires_grad], lr=1e-3)
        for i, b in enumerate(micro_batches):
            value = loss_fn(model, b)
            if mistake == "base steps too":
                value = value + 0.5 * sum(p.square().sum() for p in model.parameters() if p.requires_grad)
            (value * (1.0 if mistake == "no division" else share_of(micro_batches, i))).backward()
            if ends(i, len(micro_batches), K):
                torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
                opt.step()
                opt.zero_grad()

    model = nn.Sequential(Adapted(nn.Linear(6, 8)), nn.Tanh(), Adapted(nn.Linear(8, 3)))
    return arguments(train_step, model=model)
