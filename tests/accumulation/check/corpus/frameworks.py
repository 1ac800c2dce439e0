"""Loops in the manners of frameworks, each with a small stand-in for the objects it brings."""

import contextlib

import torch
from accumulation.check.corpus.registry import K, arguments, batch, ends, items_around, loop, loss_fn, windows_of
from torch import nn
from torch.nn import functional as F

from dagnn.accumulation import GradientAccumulator, accumulate


class Accelerator:
    """Accelerate's manner: a context that counts, an optimizer that skips, a division by a constant."""

    def __init__(self, steps, divide=True):
        self.steps, self.count, self.sync_gradients, self.divide = steps, 0, True, divide

    def prepare(self, optimizer):
        accelerator = self

        class Prepared(torch.optim.Optimizer):
            def __init__(self):
                self.optimizer, self.param_groups, self.state = optimizer, optimizer.param_groups, optimizer.state

            def step(self):
                if accelerator.sync_gradients:
                    self.optimizer.step()

            def zero_grad(self):
                if accelerator.sync_gradients:
                    self.optimizer.zero_grad()

        return Prepared()

    @contextlib.contextmanager
    def accumulate(self, last):
        self.count += 1
        self.sync_gradients = self.count % self.steps == 0 or last
        yield

    def backward(self, loss):
        (loss / self.steps if self.divide else loss).backward()


@loop(
    "Accelerate: with accumulate(model)",
    {
        "loss.backward() called directly": "not scaled",
        "divided by hand as well": "scaled twice",
        "clipped without sync_gradients": "clip per micro-batch",
    },
)
def accelerate(mistake):
    def train_step(model, optimizer, micro_batches):
        accelerator = Accelerator(K)
        optimizer = accelerator.prepare(optimizer)
        for i, inputs in enumerate(micro_batches):
            with accelerator.accumulate(i + 1 == len(micro_batches)):
                loss = loss_fn(model, inputs)
                if mistake == "loss.backward() called directly":
                    loss.backward()
                else:
                    accelerator.backward(loss / K if mistake.startswith("divided") else loss)
                if accelerator.sync_gradients or mistake.startswith("clipped"):
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step, ragged=False, tail=False)


@loop("Accelerate on tails", {"its constant divisor": "short last window scaled by K"})
def accelerate_tail(mistake):
    def train_step(model, optimizer, micro_batches):
        accelerator = Accelerator(K, divide=bool(mistake))
        optimizer = accelerator.prepare(optimizer)
        for i, inputs in enumerate(micro_batches):
            with accelerator.accumulate(i + 1 == len(micro_batches)):
                loss = loss_fn(model, inputs)
                accelerator.backward(loss if mistake else loss * len(inputs[0]) / items_around(micro_batches, i, K))
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step, ragged=not mistake)


class LightningModule:
    """Lightning's manner in manual optimisation."""

    def __init__(self, model, optimizer):
        self.model, self._optimizer = model, optimizer

    def optimizers(self):
        return self._optimizer

    def manual_backward(self, loss):
        loss.backward()


@loop(
    "Lightning: manual optimisation",
    {
        "no division": "not scaled",
        "zero_grad in every batch": "zeroed too often",
        "index from 0": "early or extra step",
        "last batches lost": "lost remainder",
    },
)
def lightning(mistake):
    def train_step(model, optimizer, micro_batches):
        module, total = LightningModule(model, optimizer), len(micro_batches)

        def training_step(inputs, index):
            optimizer = module.optimizers()
            loss = loss_fn(module.model, inputs)
            if mistake != "no division":
                loss = loss * len(inputs[0]) / items_around(micro_batches, index, K)
            if mistake == "zero_grad in every batch":
                optimizer.zero_grad()
            module.manual_backward(loss)
            if mistake == "index from 0":
                now = index % K == 0
            else:
                now = (index + 1) % K == 0 if mistake == "last batches lost" else ends(index, total, K)
            if now:
                optimizer.step()
                optimizer.zero_grad()

        for index, inputs in enumerate(micro_batches):
            training_step(inputs, index)

    return arguments(train_step)


@loop("Fabric: backward through an object", {"step after the first": "early or extra step"})
def fabric(mistake):
    class Fabric:
        def backward(self, loss):
            loss.backward()

        def no_backward_sync(self, enabled):
            return contextlib.nullcontext(enabled)

    def train_step(model, optimizer, micro_batches):
        fabric = Fabric()
        for i, inputs in enumerate(micro_batches):
            accumulating = i % K != 0 if mistake else not ends(i, len(micro_batches), K)
            with fabric.no_backward_sync(accumulating):
                fabric.backward(loss_fn(model, inputs) * len(inputs[0]) / items_around(micro_batches, i, K))
            if not accumulating:
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step)


@loop(
    "Trainer class: training_step returns a detached loss",
    {"compute_loss divided and training_step too": "scaled twice"},
)
def trainer(mistake):
    class Trainer:
        def __init__(self, model, optimizer):
            self.model, self.optimizer, self.logged = model, optimizer, 0.0

        def compute_loss(self, inputs, items=None):
            loss = F.cross_entropy(self.model(inputs[0]), inputs[1], reduction="mean" if items is None else "sum")
            return loss if items is None else loss / items

        def training_step(self, inputs, items):
            loss = self.compute_loss(inputs, items)
            if mistake:
                loss = loss / K
            loss.backward()
            return loss.detach()

        def train(self, micro_batches):
            for window in windows_of(micro_batches, K):
                items = sum(len(b[0]) for b in window)
                for inputs in window:
                    self.logged += self.training_step(inputs, items).item()
                self.optimizer.step()
                self.model.zero_grad()

    def train_step(model, optimizer, micro_batches):
        Trainer(model, optimizer).train(micro_batches)

    return arguments(train_step, tail=not mistake)


@loop(
    "Composer: a window fetched and cut by the loop",
    {"each piece weighs the same": "mean of means", "only the first piece goes back": "missing backward"},
)
def composer(mistake):
    def train_step(model, optimizer, micro_batches):
        items = sum(len(x) for x, _ in micro_batches)
        optimizer.zero_grad()
        for i, (x, y) in enumerate(micro_batches):
            share = 1 / len(micro_batches) if mistake.startswith("each") else len(x) / items
            loss = loss_fn(model, (x, y)) * share
            if i == 0 or not mistake.startswith("only"):
                loss.backward()
        optimizer.step()

    return arguments(train_step, each_call="window", tail=False)


@loop("DeepSpeed: the engine keeps count", {"the engine does not divide": "not scaled"})
def engine(mistake):
    class Engine(nn.Module):
        def __init__(self, module, optimizer, total):
            super().__init__()
            self.module, self.optimizer, self.micro_steps, self.total = module, optimizer, 0, total

        def forward(self, inputs):
            return loss_fn(self.module, inputs)

        def window(self):
            return min(K, self.total - self.micro_steps // K * K)

        def backward(self, loss):
            (loss if mistake else loss / self.window()).backward()

        def step(self):
            self.micro_steps += 1
            if self.micro_steps % K == 0 or self.micro_steps == self.total:
                nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
                self.optimizer.step()
                self.module.zero_grad()

    def train_step(model, optimizer, micro_batches):
        engine = Engine(model, optimizer, len(micro_batches))
        for inputs in micro_batches:
            engine.backward(engine(inputs))
            engine.step()

    return arguments(train_step, ragged=False)


@loop(
    "profiler.step() and a progress bar in the loop",
    {"no division": "not scaled", "step inside": "early or extra step"},
)
def profiled(mistake):
    class Profiler:
        def step(self):
            pass

    def train_step(model, optimizer, micro_batches):
        profiler = Profiler()
        for i, inputs in enumerate(micro_batches):
            profiler.step()
            share = 1.0 if mistake == "no division" else len(inputs[0]) / items_around(micro_batches, i, K)
            (loss_fn(model, inputs) * share).backward()
            if ends(i, len(micro_batches), K) or mistake == "step inside":
                optimizer.step()
            if ends(i, len(micro_batches), K):
                optimizer.zero_grad()

    return arguments(train_step)


@loop("callbacks around each phase", {"a callback zeroes": "zeroed too often"})
def callbacks(mistake):
    def train_step(model, optimizer, micro_batches):
        def after_backward(i):
            if ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

        def before_batch(i):
            if mistake:
                model.zero_grad()

        for i, inputs in enumerate(micro_batches):
            before_batch(i)
            (loss_fn(model, inputs) * len(inputs[0]) / items_around(micro_batches, i, K)).backward()
            after_backward(i)

    return arguments(train_step)


@loop("losses added, one backward", {"added without division": "not scaled", "the sum detached": "missing backward"})
def one_backward(mistake):
    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            total = torch.zeros(())
            for inputs in window:
                loss = loss_fn(model, inputs)
                if mistake != "added without division":
                    loss = loss * len(inputs[0]) / sum(len(x) for x, _ in window)
                total = (total.detach() if mistake == "the sum detached" else total) + loss
            total.backward()
            optimizer.step()
            optimizer.zero_grad()

    return arguments(train_step)


@loop("windows of this library", {"pre-divided all the same": "scaled twice"})
def ours(mistake):
    def train_step(model, optimizer, micro_batches, scheduler):
        accumulator = GradientAccumulator(model, optimizer, scheduler=scheduler, max_norm=1.0)
        for window in accumulator.windows(micro_batches, micro_batches=K):
            for inputs in window:
                window.backward(loss_fn(model, inputs) / (K if mistake else 1))
            window.step()

    return arguments(train_step, tail=not mistake)


@loop("one call of this library", {"a sum loss": "sum loss"})
def one_call(mistake):
    def loss(model, inputs):
        return F.cross_entropy(model(inputs[0]), inputs[1], reduction="sum" if mistake else "mean")

    def train_step(model, optimizer, micro_batches):
        for window in windows_of(micro_batches, K):
            whole = tuple(torch.cat(parts) for parts in zip(*window, strict=True))
            accumulate(model, loss, whole, micro_batch_size=len(window[0][0]))
            optimizer.step()
            optimizer.zero_grad()

    return arguments(train_step)


@loop("K = 1: no accumulation", {"never zeroed": "not zeroed", "sum loss": "sum loss", "divided by 4": "wrong scale"})
def plain(mistake):
    def train_step(model, optimizer, micro_batches):
        for inputs in micro_batches:
            loss = loss_fn(model, inputs)
            if mistake == "sum loss":
                loss = F.cross_entropy(model(inputs[0]), inputs[1], reduction="sum")
            (loss / 4 if mistake == "divided by 4" else loss).backward()
            optimizer.step()
            if mistake != "never zeroed":
                optimizer.zero_grad()

    return arguments(train_step, micro_batches=1)


@loop("K = 16", {"a tail of one divided by K": "short last window scaled by K", "tails of one lost": "lost remainder"})
def many(mistake):
    k = 16

    def train_step(model, optimizer, micro_batches):
        total = len(micro_batches)
        for i, inputs in enumerate(micro_batches):
            share = len(inputs[0]) / items_around(micro_batches, i, k)
            alone = total % k == 1 and i + 1 == total
            (loss_fn(model, inputs) * (share / k if alone and mistake.startswith("a tail") else share)).backward()
            if ends(i, total, k) and not (alone and mistake.startswith("tails")):
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step, batch=batch(80), micro_batches=k)
