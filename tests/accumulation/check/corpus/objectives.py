"""Classifiers and listeners whose losses divide by something of their own: routing, CTC, distillation, weights."""

import torch
from accumulation.check.corpus.registry import ends, items_around, loop, windows_of
from torch import nn
from torch.nn import functional as F

K = 4


@loop(
    "mixture of experts with an auxiliary loss",
    {"auxiliary loss not divided": "not scaled", "auxiliary loss left out": "another loss"},
)
def experts(mistake):
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(5, 3)
            self.experts = nn.ModuleList([nn.Linear(5, 2) for _ in range(3)])

        def forward(self, x):
            scores = self.router(x).softmax(-1)
            best = scores.argmax(-1)
            outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
            return outputs[torch.arange(len(x)), best] * scores.max(-1).values[:, None], scores

    def losses(model, batch):
        outputs, scores = model(batch[0])
        return F.mse_loss(outputs, batch[1]), 0.1 * scores.square().sum(-1).mean()

    def train_step(model, optimizer, micro_batches):
        for i, batch in enumerate(micro_batches):
            share = len(batch[0]) / items_around(micro_batches, i, K)
            main, auxiliary = losses(model, batch)
            if mistake == "auxiliary loss not divided":
                loss = main * share + auxiliary
            elif mistake == "auxiliary loss left out":
                loss = main * share
            else:
                loss = (main + auxiliary) * share
            loss.backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    return {
        "train_step": train_step,
        "model": Experts(),
        "batch": (torch.randn(24, 5), torch.randn(24, 2)),
        "loss_fn": lambda m, b: sum(losses(m, b)),
    }


@loop("top-1 routing over the batch", {"over each micro-batch": "batch-coupled loss"})
def top1(mistake):
    def chosen(model, x):
        return model(x).squeeze(-1).topk(1).values.mean()

    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            if mistake:
                for (x,) in window:
                    (chosen(model, x) * len(x) / sum(len(a) for (a,) in window)).backward()
            else:
                chosen(model, torch.cat([x for (x,) in window])).backward()
            optimizer.step()
            optimizer.zero_grad()

    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    return {
        "train_step": train_step,
        "model": model,
        "batch": (torch.randn(24, 6),),
        "loss_fn": lambda m, b: chosen(m, b[0]),
    }


@loop("CTC, mean over items", {"CTC's own mean in unequal batches": "mean of means", "no division": "not scaled"})
def ctc(mistake):
    class Listener(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.GRU(3, 6, batch_first=True), nn.Linear(6, 5)

        def forward(self, x):
            return self.head(self.rnn(x)[0]).log_softmax(-1)

    def loss_fn(model, batch):
        sounds, targets, lengths = batch
        times = torch.full((len(sounds),), sounds.shape[1])
        return F.ctc_loss(model(sounds).transpose(0, 1), targets, times, lengths, zero_infinity=True)

    def train_step(model, optimizer, micro_batches):
        for i, batch in enumerate(micro_batches):
            share = len(batch[0]) / items_around(micro_batches, i, K)
            if mistake:
                share = 1.0 if mistake == "no division" else 1 / min(K, len(micro_batches) - (i - i % K))
            (loss_fn(model, batch) * share).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    batch = torch.randn(24, 8, 3), torch.randint(1, 5, (24, 3)), torch.randint(1, 4, (24,))
    return {"train_step": train_step, "model": Listener(), "batch": batch, "loss_fn": loss_fn}


@loop("distillation from a teacher", {"temperature squared per micro-batch": "wrong scale"})
def distillation(mistake):
    teacher = nn.Linear(6, 5).double().requires_grad_(False)

    def loss_fn(model, batch):
        wanted = (teacher(batch[0].double()) / 2).log_softmax(-1)
        return F.kl_div((model(batch[0]) / 2).log_softmax(-1).double(), wanted, reduction="batchmean", log_target=True)

    def train_step(model, optimizer, micro_batches):
        for i, batch in enumerate(micro_batches):
            loss = loss_fn(model, batch) * len(batch[0]) / items_around(micro_batches, i, K)
            (loss * (4.0**0.5 * 1.5 if mistake else 1.0)).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    return {"train_step": train_step, "model": model, "batch": (torch.randn(24, 6),), "loss_fn": loss_fn}


@loop("adapters on a frozen base", {"scaled twice": "scaled twice"})
def adapters(mistake):
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(6, 5).requires_grad_(False)
            self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 5, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    def train_step(model, _, micro_batches):
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-3)
        for i, batch in enumerate(micro_batches):
            share = len(batch[0]) / items_around(micro_batches, i, K)
            (loss_fn(model, batch) * share / (K if mistake else 1)).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    batch = torch.randn(24, 6), torch.randint(0, 5, (24,))
    return {"train_step": train_step, "model": Adapted(), "batch": batch, "loss_fn": loss_fn, "tail": not mistake}


@loop("weights of items in the batch", {"divided by items": "wrong denominator"})
def weighted_items(mistake):
    def losses(model, batch):
        return F.cross_entropy(model(batch["x"]), batch["y"], reduction="none") * batch["weight"]

    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            total = sum(len(b["x"]) if mistake else float(b["weight"].sum()) for b in window)
            for batch in window:
                (losses(model, batch).sum() / total).backward()
            optimizer.step()
            optimizer.zero_grad()

    return {
        "train_step": train_step,
        "model": nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)),
        "batch": {"x": torch.randn(24, 6), "y": torch.randint(0, 5, (24,)), "weight": torch.rand(24) + 0.2},
        "loss_fn": lambda m, b: losses(m, b).sum() / b["weight"].sum(),
    }
