"""Images and pairs: losses of segmentation, detection and contrast, generative models."""

import torch
from accumulation.check.corpus.registry import ends, items_around, loop, windows_of
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

K = 4


def convolutional(outputs=5):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, outputs))


def images(items=24, classes=5):
    return torch.randn(items, 1, 6, 6), torch.randint(0, classes, (items,))


def classify(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


@loop(
    "timm: divisor of the tail known in advance",
    {
        "tail divided by K": "short last window scaled by K",
        "tail divisor used for all": "wrong scale",
        "step at every micro-batch": "early or extra step",
        "EMA's parameters trained": "missing backward",
    },
)
def timm(mistake):
    def train_step(model, optimizer, micro_batches):
        average = AveragedModel(model)
        total = len(micro_batches)
        last_accum = total % K or K
        last_start = total - last_accum
        optimizer.zero_grad()
        for i, batch in enumerate(micro_batches):
            divisor = last_accum if i >= last_start and mistake != "tail divided by K" else K
            if mistake == "tail divisor used for all":
                divisor = 3
            network = average if mistake == "EMA's parameters trained" else model
            (classify(network, batch) / divisor).backward()
            if not ends(i, total, K) and mistake != "step at every micro-batch":
                continue
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)

    return {"train_step": train_step, "model": convolutional(), "batch": images(), "loss_fn": classify, "ragged": False}


@loop("adaptive gradient clipping", {"per micro-batch": "clip per micro-batch"})
def adaptive(mistake):
    def clip(parameters, factor=0.01):
        for p in parameters:
            axes = tuple(range(1, p.ndim))
            size, norm = (t.square().sum(axes, keepdim=True).sqrt() if axes else t.norm() for t in (p.detach(), p.grad))
            largest = size.clamp(min=1e-3) * factor
            p.grad.mul_(torch.where(norm > largest, largest / norm.clamp(min=1e-6), torch.ones_like(norm)))

    def train_step(model, optimizer, micro_batches):
        for i, batch in enumerate(micro_batches):
            (classify(model, batch) * len(batch[0]) / items_around(micro_batches, i, K)).backward()
            last = ends(i, len(micro_batches), K)
            if last or mistake:
                clip(model.parameters())
            if last:
                optimizer.step()
                optimizer.zero_grad()

    return {"train_step": train_step, "model": convolutional(), "batch": images(), "loss_fn": classify}


@loop("clipping layer by layer", {"per micro-batch": "clip per micro-batch"})
def per_layer(mistake):
    def train_step(model, optimizer, micro_batches):
        for i, batch in enumerate(micro_batches):
            (classify(model, batch) * len(batch[0]) / items_around(micro_batches, i, K)).backward()
            last = ends(i, len(micro_batches), K)
            if last or mistake:
                for layer in model:
                    if any(p.grad is not None for p in layer.parameters()):
                        nn.utils.clip_grad_norm_(layer.parameters(), 0.1)
            if last:
                optimizer.step()
                optimizer.zero_grad()

    return {"train_step": train_step, "model": convolutional(), "batch": images(), "loss_fn": classify}


@loop("Dice over items", {"Dice over the batch": "batch-coupled loss", "no division": "not scaled"})
def dice_per_item(mistake):
    def dice(model, batch, over=(1, 2, 3)):
        p, y = model(batch[0]).sigmoid(), batch[1]
        return (1 - (2 * (p * y).sum(over) + 1) / (p.sum(over) + y.sum(over) + 1)).mean()

    def train_step(model, optimizer, micro_batches):
        for i, batch in enumerate(micro_batches):
            share = 1 if mistake == "no division" else len(batch[0]) / items_around(micro_batches, i, K)
            over = (0, 1, 2, 3) if mistake == "Dice over the batch" else (1, 2, 3)
            (dice(model, batch, over) * share).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1))
    batch = torch.randn(24, 1, 5, 5), (torch.rand(24, 1, 5, 5) > 0.6).float()
    return {"train_step": train_step, "model": model, "batch": batch, "loss_fn": dice}


@loop("Dice over the batch, of whole windows", {"of micro-batches": "batch-coupled loss"})
def dice_batch(mistake):
    def dice(model, batch):
        p, y = model(batch[0]).sigmoid(), batch[1]
        return 1 - 2 * (p * y).sum() / (p.sum() + y.sum())

    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            if mistake:
                for batch in window:
                    (dice(model, batch) * len(batch[0]) / sum(len(b[0]) for b in window)).backward()
            else:
                dice(model, tuple(torch.cat(parts) for parts in zip(*window, strict=True))).backward()
            optimizer.step()
            optimizer.zero_grad()

    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1))
    batch = torch.randn(24, 1, 5, 5), (torch.rand(24, 1, 5, 5) > 0.6).float()
    return {"train_step": train_step, "model": model, "batch": batch, "loss_fn": dice}


@loop(
    "contrastive, with representations of the window kept",
    {"each micro-batch by itself": "batch-coupled loss", "and not scaled": "not scaled"},
)
def contrastive(mistake):
    def loss_of(a, b):
        logits = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T / 0.2
        return F.cross_entropy(logits, torch.arange(len(a)))

    def loss_fn(model, batch):
        return loss_of(model(batch[0]), model(batch[1]))

    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            if mistake:
                for batch in window:
                    share = len(batch[0]) / sum(len(b[0]) for b in window)
                    (loss_fn(model, batch) * (1.0 if "not scaled" in mistake else share)).backward()
            else:
                with torch.no_grad():
                    kept = [[model(part).requires_grad_() for part in batch] for batch in window]
                loss_of(*(torch.cat(side) for side in zip(*kept, strict=True))).backward()
                for batch, leaves in zip(window, kept, strict=True):
                    for part, leaf in zip(batch, leaves, strict=True):
                        model(part).backward(leaf.grad)
            optimizer.step()
            optimizer.zero_grad()

    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    return {
        "train_step": train_step,
        "model": model,
        "batch": (torch.randn(24, 6), torch.randn(24, 6)),
        "loss_fn": loss_fn,
    }


@loop(
    "GAN: two optimizers, one after the other",
    {
        "the critic keeps the generator's gradient": "not zeroed",
        "the generator is not divided": "not scaled",
        "the generator never steps": "missing step",
        "the critic is zeroed in every micro-batch": "zeroed too often",
    },
)
def gan(mistake):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 5))
            self.critic = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))

    def critic_loss(model, noise, real):
        fake = model.generator(noise).detach()
        return F.softplus(-model.critic(real)).mean() + F.softplus(model.critic(fake)).mean()

    def generator_loss(model, noise):
        return F.softplus(-model.critic(model.generator(noise))).mean()

    def loss_fn(model, batch):
        model.critic.requires_grad_(False)
        generator = generator_loss(model, batch[0])
        model.critic.requires_grad_(True)
        return generator + critic_loss(model, *batch)

    def train_step(model, _, micro_batches):
        of_critic = torch.optim.Adam(model.critic.parameters(), lr=1e-3)
        of_generator = torch.optim.Adam(model.generator.parameters(), lr=1e-3)
        for window in windows_of(micro_batches, K):
            items = sum(len(noise) for noise, _ in window)
            if mistake != "the critic keeps the generator's gradient":
                of_critic.zero_grad()
            for noise, real in window:
                if mistake == "the critic is zeroed in every micro-batch":
                    of_critic.zero_grad()
                (critic_loss(model, noise, real) * len(noise) / items).backward()
            of_critic.step()
            if mistake == "the critic keeps the generator's gradient":
                of_critic.zero_grad()
            of_generator.zero_grad()
            for noise, _ in window:
                share = 1.0 if mistake == "the generator is not divided" else len(noise) / items
                (generator_loss(model, noise) * share).backward()
            if mistake != "the generator never steps":
                of_generator.step()

    return {
        "train_step": train_step,
        "model": Pair(),
        "batch": (torch.randn(24, 3), torch.randn(24, 5)),
        "loss_fn": loss_fn,
    }


@loop("variational autoencoder", {"reconstruction summed": "sum loss", "no division": "not scaled"})
def vae(mistake):
    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(6, 6), nn.Linear(3, 6)

        def forward(self, x):
            mean, log_variance = self.encoder(x).chunk(2, -1)
            sample = mean + torch.randn_like(mean) * (log_variance / 2).exp()
            return self.decoder(sample), mean, log_variance

    def loss_fn(model, batch, reduction="mean"):
        output, mean, log_variance = model(batch[0])
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1).mean()
        return F.mse_loss(output, batch[0], reduction=reduction) + divergence

    def train_step(model, optimizer, micro_batches):
        for i, batch in enumerate(micro_batches):
            share = 1.0 if mistake == "no division" else len(batch[0]) / items_around(micro_batches, i, K)
            (loss_fn(model, batch, "sum" if "summed" in mistake else "mean") * share).backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    return {"train_step": train_step, "model": Autoencoder(), "batch": (torch.randn(24, 6),), "loss_fn": loss_fn}


@loop("diffusion: noise and times drawn in the loop", {"mean of means": "mean of means"})
def diffusion(mistake):
    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.time, self.net = nn.Embedding(10, 6), nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 6))

        def forward(self, x, t):
            return self.net(x + self.time(t))

    def loss_fn(model, batch):
        (x,) = batch
        noise, t = torch.randn_like(x), torch.randint(0, 10, (len(x),))
        level = (t[:, None] + 1) / 10
        return F.mse_loss(model(x * (1 - level).sqrt() + noise * level.sqrt(), t), noise)

    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            for batch in window:
                share = 1 / len(window) if mistake else len(batch[0]) / sum(len(b[0]) for b in window)
                (loss_fn(model, batch) * share).backward()
            optimizer.step()
            optimizer.zero_grad()

    return {"train_step": train_step, "model": Denoiser(), "batch": (torch.randn(24, 6),), "loss_fn": loss_fn}


@loop(
    "detector: a mapping of losses",
    {"one loss left out": "another loss", "boxes divided by K, classes not": "not scaled"},
)
def detector(mistake):
    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.classes, self.boxes = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 4)

        def forward(self, x, labels, boxes):
            hidden = self.body(x).tanh()
            return {
                "classes": F.cross_entropy(self.classes(hidden), labels),
                "boxes": F.smooth_l1_loss(self.boxes(hidden), boxes),
            }

    def train_step(model, optimizer, micro_batches):
        for i, batch in enumerate(micro_batches):
            losses = model(*batch)
            share = len(batch[0]) / items_around(micro_batches, i, K)
            if mistake == "one loss left out":
                total = losses["boxes"] * share + 0 * losses["classes"]
            elif mistake:
                total = losses["boxes"] * share + losses["classes"]
            else:
                total = sum(losses.values()) * share
            total.backward()
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    batch = torch.randn(24, 6), torch.randint(0, 3, (24,)), torch.randn(24, 4)
    return {"train_step": train_step, "model": Detector(), "batch": batch, "loss_fn": lambda m, b: m(*b)}


@loop("self-distillation with a momentum teacher", {"losses detached but the last": "missing backward"})
def byol(mistake):
    import copy

    def loss_of(model, teacher, batch):
        with torch.no_grad():
            target = F.normalize(teacher(batch[1]), dim=-1)
        return 2 - 2 * (F.normalize(model(batch[0]), dim=-1) * target).sum(-1).mean()

    def train_step(model, optimizer, micro_batches):
        teacher = copy.deepcopy(model)
        for window in windows_of(micro_batches, K):
            total = 0.0
            items = sum(len(b[0]) for b in window)
            for batch in window:
                loss = loss_of(model, teacher, batch) * len(batch[0]) / items
                total = (total.detach() if mistake and torch.is_tensor(total) else total) + loss
            total.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for ours, theirs in zip(model.parameters(), teacher.parameters(), strict=True):
                    theirs.lerp_(ours, 0.01)

    def loss_fn(model, batch):
        return loss_of(model, lambda x: model(x).detach(), batch)

    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    return {
        "train_step": train_step,
        "model": model,
        "batch": (torch.randn(24, 6), torch.randn(24, 6)),
        "loss_fn": loss_fn,
    }


@loop("Wasserstein critic with clamped weights", {"sum over items": "sum loss"})
def wasserstein(mistake):
    def loss_fn(model, batch):
        return (model(batch[1]) - model(batch[0])).mean()

    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            items = sum(len(b[0]) for b in window)
            for real, fake in window:
                difference = model(fake) - model(real)
                (difference.sum() / (1 if mistake else items)).backward()
            optimizer.step()
            optimizer.zero_grad()
            for p in model.parameters():
                p.data.clamp_(-0.01, 0.01)

    model = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1))
    return {
        "train_step": train_step,
        "model": model,
        "batch": (torch.randn(24, 6), torch.randn(24, 6)),
        "loss_fn": loss_fn,
    }
