"""Loops that leave something behind when they end, or move more than their optimizer does: right all the same."""

import copy

import torch
from accumulation.check.corpus.registry import K, arguments, ends, loss_fn, network, share_of, windows_of
from accumulation.check.corpus.registry import loop as listed
from torch import nn
from torch.nn import functional as F

UNDIVIDED, MOVED = {"no division": "not scaled"}, "parameters moved within a window"


def stepping(before=None, after=None, *, mistake="", loss=loss_fn, optimizer_of=None, in_window=None, **options):
    """The usual loop, with what a project does at its start, within windows, after every step, and at its end."""

    def train_step(model, optimizer, micro_batches):
        kept = before(model) if before else None
        optimizer = optimizer_of(model) if optimizer_of else optimizer
        for i, inputs in enumerate(micro_batches):
            share = 1.0 if mistake == "no division" else share_of(micro_batches, i)
            (loss(model, inputs) * share).backward()
            is_last = ends(i, len(micro_batches), K)
            if in_window and (not is_last or mistake != "in every micro-batch"):
                in_window(model, kept, i)
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
                if after:
                    after(model, kept)
        if options.get("end"):
            options["end"](model)

    given = {name: value for name, value in options.items() if name != "end"}
    return arguments(train_step, loss_fn=loss, **given)


@listed("evaluation mode left on at the end", UNDIVIDED)
def evaluation_mode(mistake):
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    return stepping(lambda model: model.train() and None, mistake=mistake, model=model, end=lambda model: model.eval())


@listed("a backbone frozen by the loop, which makes its own optimizer", UNDIVIDED)
def frozen_by_the_loop(mistake):
    def freeze(model):
        model[0].requires_grad_(False)

    def head(model):
        return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)

    return stepping(freeze, mistake=mistake, optimizer_of=head)


@listed("parameters frozen at the end, as a GAN leaves its critic", UNDIVIDED)
def frozen_at_the_end(mistake):
    return stepping(
        lambda model: model.requires_grad_(True) and None,
        mistake=mistake,
        end=lambda model: model.requires_grad_(False),
    )


class WithTeacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Linear(6, 3)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x):
        return F.mse_loss(self.student(x), self.teacher(x.flip(1)).tanh())


def follow(model, kept=None, i=0):
    with torch.no_grad():
        for old, new in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
            old.lerp_(new + 0.1, 0.5)


@listed("a frozen teacher in the model that follows once per step", UNDIVIDED)
def teacher_once_per_step(mistake):
    return stepping(
        after=lambda model, kept: follow(model),
        mistake=mistake,
        loss=lambda model, b: model(b[0]),
        model=WithTeacher(),
    )


@listed("a frozen teacher that follows", {"in every micro-batch": MOVED})
def teacher_per_micro_batch(mistake):
    return stepping(
        after=None if mistake else lambda model, kept: follow(model),
        in_window=follow if mistake else None,
        mistake=mistake,
        loss=lambda model, b: model(b[0]),
        model=WithTeacher(),
    )


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)
        self.register_buffer("centre", torch.tensor(0.5))

    def forward(self, x):
        y = self.net(x)
        return y.square().mean() * self.centre + y.sin().mean()


class WithCopy(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Linear(6, 3)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x):
        own = self.student(x)
        with torch.no_grad():
            goal = self.teacher(x)
        return own.square().mean() + F.mse_loss(own, goal)


def approach(model, kept=None, i=0):
    with torch.no_grad():
        for old, new in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
            old.lerp_(new, 0.5)


@listed("a teacher that begins as a copy", {"in every micro-batch": MOVED})
def teacher_as_a_copy(mistake):
    return stepping(
        after=None if mistake else lambda model, kept: approach(model),
        in_window=approach if mistake else None,
        mistake=mistake,
        loss=lambda model, b: model(b[0]),
        model=WithCopy(),
    )


class Renormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(9, 4, max_norm=5.0)
        nn.init.normal_(self.rows.weight, std=2.4)
        with torch.no_grad():
            self.rows.weight.renorm_(2, 0, 4.99)

    def forward(self, rows):
        return self.rows(rows) @ self.rows.weight.T


@listed("an embedding renormed on the way, tied to the head", UNDIVIDED)
def renormed(mistake):
    return stepping(mistake=mistake, model=Renormed(), batch=(torch.randint(0, 9, (24,)), torch.randint(0, 9, (24,))))


@listed("a buffer that the loop moves once per step", UNDIVIDED)
def moved_buffer(mistake):
    return stepping(
        after=lambda model, kept: model.centre.add_(0.1),
        mistake=mistake,
        loss=lambda model, b: model(b[0]),
        model=Centred(),
    )


@listed("hooks that divide, registered once and left", UNDIVIDED)
def dividing_hooks(mistake):
    def train_step(model, optimizer, micro_batches):
        if not hasattr(model, "length"):
            for p in model.parameters():
                p.register_hook(lambda gradient: gradient if mistake else gradient / model.length)
        for window in windows_of(micro_batches, K):
            model.length = sum(len(x) for x, _ in window)
            for inputs in window:
                loss = loss_fn(model, inputs)
                (loss if mistake else loss * len(inputs[0])).backward()
            optimizer.step()
            optimizer.zero_grad()

    return arguments(train_step)


@listed("hooks that clamp, registered once and left", {"in every micro-batch": "clip per micro-batch"})
def clamping_hooks(mistake):
    def hooked(model):
        if mistake and not hasattr(model, "hooked"):
            model.hooked = True
            for p in model.parameters():
                p.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))

    return stepping(hooked, mistake=mistake)


@listed("a trainer that counts its updates", {"divides by the count": "wrong scale"})
def counting_trainer(mistake):
    class Trainer:
        updates = 3

        def run(self, model, optimizer, micro_batches):
            for window in windows_of(micro_batches, K):
                items = sum(len(x) for x, _ in window) * (self.updates if mistake else 1)
                for inputs in window:
                    (loss_fn(model, inputs) * len(inputs[0]) / items).backward()
                optimizer.step()
                optimizer.zero_grad()
                self.seen = getattr(self, "seen", 0) + 1

    return arguments(Trainer().run)


@listed("weight decay by hand", {"in every micro-batch": MOVED})
def decay_by_hand(mistake):
    def decay(model, kept=None, i=0):
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.9)

    return stepping(after=None if mistake else decay, in_window=decay if mistake else None, mistake=mistake)


@listed("averaged weights swapped in to evaluate, in mid-window", {"and not swapped back": MOVED})
def swapped_in(mistake):
    def before(model):
        return [p.detach() * 0.5 for p in model.parameters()]

    def swap(model, averages, i):
        if i % K != 1:
            return
        own = [p.detach().clone() for p in model.parameters()]
        with torch.no_grad():
            for p, average in zip(model.parameters(), averages, strict=True):
                p.copy_(average)
            model(torch.ones(1, 6))
            for p, value in zip(model.parameters(), averages if mistake else own, strict=True):
                p.copy_(value)

    return stepping(before, in_window=swap, mistake=mistake)


@listed("steps from hooks after backward", {"registered once, in every micro-batch": "early or extra step"})
def steps_from_hooks(mistake):
    def train_step(model, optimizer, micro_batches):
        if mistake and not hasattr(model, "own"):
            model.own = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

            def step(p):
                model.own[p].step()
                model.own[p].zero_grad()

            for p in model.parameters():
                p.register_post_accumulate_grad_hook(step)
        for i, inputs in enumerate(micro_batches):
            (loss_fn(model, inputs) * share_of(micro_batches, i)).backward()
            if not mistake and ends(i, len(micro_batches), K):
                optimizer.step()
                optimizer.zero_grad()

    return arguments(train_step, model=network())
