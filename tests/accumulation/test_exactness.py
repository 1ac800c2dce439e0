"""Every kind of model, every split: the accumulated gradient is that of the full batch."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from dagnn.accumulation import GradientAccumulator

CLASSES, LENGTH = 5, 4


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.rnn, self.head = nn.Embedding(7, 6), nn.GRU(6, 5, batch_first=True), nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.head(self.rnn(self.embedding(x))[0][:, -1])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(self.block(self.embedding(x)).mean(dim=1))


class Tied(nn.Module):
    """The embedding is also the output layer."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.embedding(x).mean(dim=1).tanh())[:, :CLASSES]


class Weighted(nn.Module):
    """One weight per edge of a small DAG, nodes in topological order: what a DagNN is."""

    def __init__(self):
        super().__init__()
        self.edges = [(u, v) for v in range(3, 3 + 4 + CLASSES) for u in range(v) if (u * 7 + v) % 3]
        self.weight = nn.Parameter(torch.randn(len(self.edges)))

    def forward(self, x):
        values = list(x.unbind(1))
        for v in range(3, 3 + 4 + CLASSES):
            terms = [w * values[u] for w, (u, t) in zip(self.weight, self.edges, strict=True) if t == v]
            values.append(torch.tanh(sum(terms)))
        return torch.stack(values[-CLASSES:], dim=1)


def floats(items, generator):
    return torch.randn(items, 3, generator=generator, dtype=torch.float64)


def images(items, generator):
    return torch.randn(items, 2, 5, 5, generator=generator, dtype=torch.float64)


def tokens(items, generator):
    return torch.randint(0, 7, (items, LENGTH), generator=generator)


MODELS = {
    "linear": (lambda: nn.Linear(3, CLASSES), floats),
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, CLASSES)), floats),
    "conv": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, CLASSES)), images),
    "embedding": (lambda: nn.Sequential(nn.Embedding(7, 6), nn.Flatten(), nn.Linear(24, CLASSES)), tokens),
    "sparse embedding": (
        lambda: nn.Sequential(nn.Embedding(7, 6, sparse=True), nn.Flatten(), nn.Linear(24, CLASSES)),
        tokens,
    ),
    "rnn": (Recurrent, tokens),
    "transformer block": (Block, tokens),
    "tied": (Tied, tokens),
    "dag": (Weighted, floats),
}


def make(name, sizes, seed, dtype):
    torch.manual_seed(seed)
    build, inputs = MODELS[name]
    generator = torch.Generator().manual_seed(seed)
    loader = []
    for n in sizes:
        x = inputs(n, generator)
        targets = torch.randint(0, CLASSES, (n,), generator=generator)
        targets[torch.rand(n, generator=generator) < 0.3] = -100  # ignored, so that weights are not numbers of items
        loader.append((x.to(dtype) if x.is_floating_point() else x, targets))
    return build().to(dtype), loader


def valid(batch):
    return (batch[1] >= 0).sum()


def accumulated(model, loader, known):
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    weight = valid if known else None
    window = next(accumulator.windows(loader, micro_batches=len(loader), weight=weight))
    for x, targets in window:
        window.backward(cross_entropy(model(x), targets), None if known else valid((x, targets)))
    return flat(model)


def full_batch(model, loader):
    model = copy.deepcopy(model)
    x, targets = torch.cat([x for x, _ in loader]), torch.cat([y for _, y in loader])
    cross_entropy(model(x), targets).backward()
    return flat(model)


def flat(model):
    return torch.cat([p.grad.to_dense().flatten().double() for p in model.parameters() if p.grad is not None])


def error(actual, expected):
    return float((actual - expected).norm() / expected.norm())


def check_float64(name, sizes, seed, known):
    model, loader = make(name, sizes, seed, torch.float64)
    if not any(int(valid(batch)) for batch in loader):
        return
    expected = full_batch(model, loader)
    assert error(accumulated(model, loader, known), expected) <= 1e-12


SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=6)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=6, deadline=None)
@given(sizes=SIZES, seed=st.integers(0, 1000), known=st.booleans())
def test_float64_gradient_is_that_of_the_full_batch(name, sizes, seed, known):
    check_float64(name, sizes, seed, known)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=20), seed=st.integers(0, 10**6), known=st.booleans())
def test_float64_gradient_is_that_of_the_full_batch_at_length(name, sizes, seed, known):
    check_float64(name, sizes, seed, known)


@pytest.mark.parametrize("name", MODELS)
def test_float32_error_is_at_most_twice_that_of_the_full_batch_itself(name):
    # Errors of single runs scatter: means over several seeds and many small micro-batches are compared.
    ours, theirs = [], []
    for seed in range(12):
        model, loader = make(name, [3, 1, 5, 2, 4, 1, 6, 2, 3, 5], seed, torch.float32)
        exact = copy.deepcopy(model).double()
        wide = [(x.double() if x.is_floating_point() else x, y) for x, y in loader]
        expected = full_batch(exact, wide)
        theirs.append(error(full_batch(model, loader), expected))
        ours.append(error(accumulated(model, loader, known=True), expected))
    assert sum(ours) <= 2 * sum(theirs)


KINDS = st.lists(
    st.sampled_from(["mean", "weighted", "mapping", "narrow", "wide", "twice", "none"]), min_size=2, max_size=9
)


@settings(max_examples=60, deadline=None)
@given(kinds=KINDS, bits=st.sampled_from([torch.float32, torch.bfloat16]), seed=st.integers(0, 100))
def test_losses_of_several_kinds_in_one_window(kinds, bits, seed):
    """What one micro-batch left behind for the next ones to be quick does not fit another kind of loss."""
    torch.manual_seed(seed)
    model = nn.Linear(4, 1).to(bits)
    loader = [torch.randn(n, 4).to(bits) for n in torch.randint(1, 4, (len(kinds),)).tolist()]
    exact = copy.deepcopy(model).double()
    total = sum(map(len, loader))
    for x, kind in zip(loader, kinds, strict=True):
        (exact(x.double()).square().sum() * (2 if kind == "twice" else 1) / total).backward()

    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=0.1))
    window = next(accumulator.windows(iter(loader), micro_batches=len(loader), weight=len))
    for x, kind in zip(window, kinds, strict=True):
        out = model(x)
        loss = out.square().mean()
        if kind == "weighted":
            window.backward(loss, weight=len(x))
        elif kind == "mapping":
            window.backward({"loss": loss})
        elif kind == "narrow":
            window.backward(loss.bfloat16())
        elif kind == "wide":
            window.backward(out.double().square().mean())
        elif kind == "none":
            window.backward(out[:, 0].square(), reduction="none")
        else:
            window.backward(loss, retain_graph=kind == "twice")
            if kind == "twice":
                window.backward(loss)
    rounding = torch.finfo(torch.bfloat16 if bits == torch.bfloat16 or "narrow" in kinds else bits).eps
    assert error(flat(model), flat(exact)) <= 16 * rounding
