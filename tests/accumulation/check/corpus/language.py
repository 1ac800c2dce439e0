"""Language models: losses over tokens."""

import math

import torch
from accumulation.check.corpus.registry import ends, items_around, loop, windows_of
from torch import nn
from torch.nn import functional as F

K, VOCABULARY, LENGTH, WIDTH = 4, 11, 6, 8


class TinyGPT(nn.Module):
    """One block with causal attention; embedding and head share their weight."""

    def __init__(self, tied=True, dropout=0.0):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.drop = nn.Dropout(dropout)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + self.drop(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.head(x + self.mlp(x))


def tokens(items=24, padded=False):
    ids = torch.randint(0, VOCABULARY, (items, LENGTH))
    targets = torch.randint(0, VOCABULARY, (items, LENGTH))
    if padded:
        for row, length in enumerate(torch.randint(1, LENGTH + 1, (items,)).tolist()):
            targets[row, length:] = -100
    return ids, targets


def token_loss(model, batch, **options):
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), **options)


def count(targets):
    return int((targets != -100).sum())


@loop(
    "nanoGPT: lr set at every iteration",
    {
        "no division": "not scaled",
        "divided twice": "scaled twice",
        "step inside": "early or extra step",
        "never zeroed": "not zeroed",
        "lr set per micro-batch": "schedule per micro-batch",
        "clip per micro-batch": "clip per micro-batch",
        "backward on the last only": "missing backward",
    },
)
def nanogpt(mistake):
    def rate(iteration):
        return 1e-3 * (iteration + 1) / 10 if iteration < 10 else 1e-4

    def train_step(model, optimizer, micro_batches):
        batches, count_micro = iter(micro_batches), 0
        for iteration in range(math.ceil(len(micro_batches) / K)):
            for group in optimizer.param_groups:
                group["lr"] = rate(iteration)
            for micro_step in range(K):
                ids, targets = next(batches)
                if mistake == "lr set per micro-batch":
                    for group in optimizer.param_groups:
                        group["lr"] = rate(count_micro)
                count_micro += 1
                loss = token_loss(model, (ids, targets))
                if mistake != "no division":
                    loss = loss / K
                if mistake == "divided twice":
                    loss = loss / K
                if mistake != "backward on the last only" or micro_step == K - 1:
                    loss.backward()
                if mistake == "clip per micro-batch":
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if mistake == "step inside":
                    optimizer.step()
            if mistake != "clip per micro-batch":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if mistake != "step inside":
                optimizer.step()
            if mistake != "never zeroed":
                optimizer.zero_grad(set_to_none=True)

    return {
        "train_step": train_step,
        "model": TinyGPT(),
        "batch": tokens(),
        "loss_fn": token_loss,
        "ragged": False,
        "tail": False,
    }


@loop(
    "torchtune: sum over tokens, gradients divided by them",
    {
        "divided by the last micro-batch's tokens": "wrong denominator",
        "padding counted": "wrong denominator",
        "token count not reset": "wrong denominator",
        "never divided": "sum loss",
        "division before the clip forgotten in the tail": "sum loss",
    },
)
def torchtune(mistake):
    def train_step(model, optimizer, micro_batches):
        running, total = 0, len(micro_batches)
        optimizer.zero_grad()
        for i, (ids, targets) in enumerate(micro_batches):
            valid = targets.numel() if mistake == "padding counted" else count(targets)
            running = valid if mistake == "divided by the last micro-batch's tokens" else running + valid
            (token_loss(model, (ids, targets)) * count(targets)).backward()
            if ends(i, total, K):
                tail = (i + 1) % K
                if mistake != "never divided" and not (tail and mistake.endswith("in the tail")):
                    for p in model.parameters():
                        p.grad *= 1.0 / running
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                if mistake != "token count not reset":
                    running = 0

    return {"train_step": train_step, "model": TinyGPT(), "batch": tokens(padded=True), "loss_fn": token_loss}


@loop(
    "transformers without a trainer",
    {
        "K on the tail": "short last window scaled by K",
        "tail lost": "lost remainder",
        "scheduler per micro-batch": "schedule per micro-batch",
        "zeroed in every micro-batch": "zeroed too often",
        "no division": "not scaled",
    },
)
def no_trainer(mistake):
    def train_step(model, optimizer, micro_batches, scheduler):
        total = len(micro_batches)
        for step, batch in enumerate(micro_batches):
            window = min(K, total - (step - step % K))
            loss = token_loss(model, (batch["input_ids"], batch["labels"]))
            if mistake != "no division":
                loss = loss / (K if mistake == "K on the tail" else window)
            if mistake == "zeroed in every micro-batch":
                optimizer.zero_grad()
            loss.backward()
            if step % K == K - 1 or (step == total - 1 and mistake != "tail lost"):
                optimizer.step()
                if mistake != "scheduler per micro-batch":
                    scheduler.step()
                optimizer.zero_grad()
            if mistake == "scheduler per micro-batch":
                scheduler.step()

    ids, targets = tokens()
    return {
        "train_step": train_step,
        "model": TinyGPT(tied=False),
        "batch": {"input_ids": ids, "labels": targets},
        "loss_fn": lambda m, b: token_loss(m, (b["input_ids"], b["labels"])),
        "ragged": False,
    }


@loop(
    "masked language model, weighted by masked tokens",
    {"mean of means": "wrong denominator", "weighted by sequences": "wrong denominator"},
)
def masked(mistake):
    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            total = sum(count(targets) for _, targets in window)
            for ids, targets in window:
                share = count(targets) / total
                if mistake == "mean of means":
                    share = 1 / len(window)
                if mistake == "weighted by sequences":
                    share = len(ids) / sum(len(a) for a, _ in window)
                (token_loss(model, (ids, targets)) * share).backward()
            optimizer.step()
            optimizer.zero_grad()

    return {"train_step": train_step, "model": TinyGPT(), "batch": tokens(padded=True), "loss_fn": token_loss}


@loop("loss cast to float32", {"weights of the padding": "wrong denominator"})
def float32_loss(mistake):
    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]).float().flatten(0, 1), batch[1].flatten())

    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            counts = [targets.numel() if mistake else count(targets) for _, targets in window]
            for batch, n in zip(window, counts, strict=True):
                (loss_fn(model, batch).float() * (torch.tensor(n).float() / sum(counts))).backward()
            optimizer.step()
            optimizer.zero_grad()

    return {"train_step": train_step, "model": TinyGPT(), "batch": tokens(padded=True), "loss_fn": loss_fn}


@loop(
    "label smoothing, summed in chunks",
    {"without smoothing": "another loss", "mean loss divided again": "wrong denominator"},
)
def smoothing(mistake):
    def loss_fn(model, batch):
        return token_loss(model, batch, label_smoothing=0.1)

    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            optimizer.zero_grad()
            total = sum(targets.numel() for _, targets in window)
            for batch in window:
                if mistake == "mean loss divided again":
                    loss = token_loss(model, batch, label_smoothing=0.1) / (batch[1].numel() / total * K * K)
                else:
                    loss = token_loss(model, batch, label_smoothing=0.0 if mistake else 0.1, reduction="sum") / total
                loss.backward()
            optimizer.step()

    return {"train_step": train_step, "model": TinyGPT(), "batch": tokens(), "loss_fn": loss_fn}


@loop("BERT: key biases without a gradient", {"no division": "not scaled"})
def bert(mistake):
    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(VOCABULARY, WIDTH)
            self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.head = nn.Linear(WIDTH, 3)

        def forward(self, ids):
            x = self.words(ids)
            return self.head(F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x)).mean(dim=1))

    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    def train_step(model, optimizer, micro_batches):
        for i, batch in enumerate(micro_batches):
            share = 1.0 if mistake else len(batch[0]) / items_around(micro_batches, i, K)
            (loss_fn(model, batch) * share).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    batch = torch.randint(0, VOCABULARY, (24, LENGTH)), torch.randint(0, 3, (24,))
    return {"train_step": train_step, "model": Bert(), "batch": batch, "loss_fn": loss_fn}


@loop(
    "DPO: pairs against a frozen reference",
    {"sum over pairs": "sum loss", "only the chosen ones get a gradient": "another loss"},
)
def dpo(mistake):
    policy, reference = TinyGPT(), TinyGPT()
    reference.requires_grad_(False)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.policy, self.reference = policy, reference

    def log_probability(model, ids):
        scores = model(ids[:, :-1]).log_softmax(-1)
        return scores.gather(-1, ids[:, 1:, None]).squeeze(-1).sum(-1)

    def loss_fn(model, batch, reduction="mean"):
        chosen, rejected = (log_probability(model.policy, ids) for ids in batch)
        with torch.no_grad():
            before, other = (log_probability(model.reference, ids) for ids in batch)
        if mistake == "only the chosen ones get a gradient" and reduction == "loop":
            rejected = rejected.detach()
        losses = -F.logsigmoid(0.1 * ((chosen - before) - (rejected - other)))
        return losses.sum() if reduction == "sum" else losses.mean()

    def train_step(model, optimizer, micro_batches):
        for i, batch in enumerate(micro_batches):
            if mistake == "sum over pairs":
                loss = loss_fn(model, batch, "sum") / K
            else:
                loss = loss_fn(model, batch, "loop") * len(batch[0]) / items_around(micro_batches, i, K)
            loss.backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    batch = tuple(torch.randint(0, VOCABULARY, (24, LENGTH)) for _ in range(2))
    return {"train_step": train_step, "model": Both(), "batch": batch, "loss_fn": loss_fn}


@loop("dropout while training", {"no division": "not scaled"})
def with_dropout(mistake):
    def train_step(model, optimizer, micro_batches):
        model.train()
        for window in windows_of(micro_batches, K):
            for batch in window:
                loss = token_loss(model, batch)
                (loss if mistake else loss * len(batch[0]) / sum(len(b[0]) for b in window)).backward()
            optimizer.step()
            optimizer.zero_grad()

    return {"train_step": train_step, "model": TinyGPT(dropout=0.3), "batch": tokens(), "loss_fn": token_loss}
