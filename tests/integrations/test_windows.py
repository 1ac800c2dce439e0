"""The window inside somebody else's trainer, against the gradient of the full batch in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, ctc_loss, kl_div, mse_loss

import dagnn
from dagnn.accumulation.check.arithmetic import relative_error
from dagnn.accumulation.check.causes import judge
from dagnn.errors import AccumulationError, AccumulationWarning
from dagnn.integrations.windows import CoupledWindows, TrainerWindows

CLASSES = 5


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, CLASSES)).double()


def tokens(model, batch):
    return cross_entropy(model(batch["x"]), batch["labels"])


def smoothed(model, batch):
    return cross_entropy(model(batch["x"]), batch["labels"], label_smoothing=0.1)


def weighted(model, batch):
    return cross_entropy(model(batch["x"]), batch["labels"], weight=torch.linspace(0.5, 2, CLASSES).double())


def summed(model, batch):
    return model(batch["x"]).square().sum()


def masked(model, batch):
    mask = (batch["labels"] >= 0).double()
    return (model(batch["x"]).square().sum(-1) * mask).sum() / mask.sum()


def several_labels(model, batch):
    return binary_cross_entropy_with_logits(model(batch["x"]), batch["y"].sigmoid())


def two_means(model, batch):
    logits = model(batch["x"])
    return (cross_entropy(logits, batch["labels"]) + cross_entropy(logits, batch["others"])) / 2


def mean_and_sum(model, batch):
    return tokens(model, batch) + 0.3 * summed(model, batch)


def transcripts(model, batch):
    log_probs = model(batch["x"])[None].expand(4, -1, -1).log_softmax(-1)
    n = len(batch["x"])
    return ctc_loss(log_probs, torch.ones(n, 2).long(), torch.full((n,), 4), torch.full((n,), 2))


def divergence(model, batch):
    return kl_div(model(batch["x"]).log_softmax(-1), batch["y"].softmax(-1), reduction="batchmean")


def stacked(model, batch):
    return torch.stack([tokens(model, batch), mse_loss(model(batch["x"]), batch["y"])]).mean()


def smoothed_and_mean(model, batch):
    return smoothed(model, batch) + 0.5 * mse_loss(model(batch["x"]), batch["y"])


LOSSES = [tokens, smoothed, weighted, summed, masked, several_labels, two_means, mean_and_sum, transcripts, divergence]
LOSSES += [stacked, smoothed_and_mean]


def batch_of(n, seed=0):
    torch.manual_seed(seed)
    labels, others = (torch.randint(0, CLASSES, (n,)) for _ in range(2))
    labels[torch.rand(n) < 0.4] = -100
    others[torch.rand(n) < 0.4] = -100
    labels[0] = others[-1] = 0
    y = torch.randn(n, CLASSES).double()
    return {"x": torch.randn(n, 3).double(), "labels": labels, "others": others, "y": y}


def split(batch, sizes):
    pieces = {key: value.split(sizes) for key, value in batch.items()}
    return [{key: values[i] for key, values in pieces.items()} for i in range(len(sizes))]


def full_gradient(model, loss_fn, batch):
    model.zero_grad()
    loss = loss_fn(model, batch)
    loss.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return gradients, float(loss.detach())


def run_window(windows, model, loss_fn, micros):
    model.zero_grad()
    losses = [windows.add(m, lambda b: loss_fn(model, b), last=i + 1 == len(micros)) for i, m in enumerate(micros)]
    assert all(loss is None for loss in losses[:-1])
    return [p.grad for p in model.parameters()], float(losses[-1])


@pytest.mark.parametrize("loss_fn", LOSSES, ids=lambda f: f.__name__)
@settings(max_examples=8, deadline=None)
@given(sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4), seed=st.integers(0, 99))
@pytest.mark.filterwarnings("ignore:whether the loss couples")
def test_ragged_windows_have_the_gradient_and_the_loss_of_the_full_batch(loss_fn, sizes, seed):
    model, batch = network(seed), batch_of(sum(sizes), seed)
    expected, loss = full_gradient(model, loss_fn, batch)
    windows = TrainerWindows(model)

    for _ in range(2):  # the second window knows what the first has learned
        found, mean = run_window(windows, model, loss_fn, split(batch, sizes))
        assert relative_error(found, expected) < 1e-6  # shares are float32 where the loss is
        assert mean == pytest.approx(loss, rel=1e-6)


def test_a_micro_batch_in_which_nothing_counts_adds_nothing():
    model, batch = network(), batch_of(6)
    batch["labels"][2:4] = -100
    expected, loss = full_gradient(model, tokens, batch)

    found, mean = run_window(TrainerWindows(model), model, tokens, split(batch, [2, 2, 2]))

    assert relative_error(found, expected) < 1e-6 and mean == pytest.approx(loss, rel=1e-6)


def test_dropout_draws_the_same_numbers_when_a_window_runs_again():
    """Two means of other proportions: the window runs again, and must be the mean of what ran the first time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.5), nn.Linear(6, CLASSES)).double()
    micros = split(batch_of(6), [3, 3])
    states = []

    def loss_fn(model, batch):
        states.append(torch.get_rng_state())
        return two_means(model, batch)

    windows = TrainerWindows(model)
    torch.manual_seed(5)
    run_window(windows, model, loss_fn, micros)
    first, again = states[3:5], states[-2:]  # after the three runs of two items each

    assert windows._waits
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def contrastive(model, batch):
    z = model(batch["x"])
    return cross_entropy(z @ z.T, torch.arange(len(z)))


def centred(model, batch):
    z = model(batch["x"])
    return mse_loss(z - z.mean(0), batch["y"])


def balanced(model, batch):
    p = model(batch["x"]).softmax(-1)
    return tokens(model, batch) + 1e-6 * CLASSES * (p.mean(0) * (p > 0.2).double().mean(0)).sum()


def over_a_constant(model, batch):
    return model(batch["x"]).square().sum() / 7


@pytest.mark.parametrize(
    ("loss_fn", "words"),
    [
        (contrastive, "depends on the other items"),
        (centred, "depends on the other items"),
        (balanced, "reduces over items before the loss does"),
        (over_a_constant, "a sum is divided by a constant"),
        (lambda model, batch: tokens(model, batch).log(), "LogBackward0 is no mean or sum"),
        (lambda model, batch: tokens(model, batch) * summed(model, batch), "multiplies two things that have gradients"),
    ],
)
def test_a_loss_that_no_shares_make_exact_is_refused(loss_fn, words):
    model = network()

    with pytest.raises(AccumulationError, match=words):
        run_window(TrainerWindows(model), model, loss_fn, split(batch_of(6), [3, 3]))

    assert all(p.grad is None for p in model.parameters())


def test_coupled_items_are_noticed_in_micro_batches_of_one():
    model = network()

    with pytest.raises(AccumulationError, match="depends on the other items"):
        run_window(TrainerWindows(model), model, contrastive, split(batch_of(4), [1] * 4))


def test_what_cannot_be_tried_out_is_said():
    model = network()
    micros = [{"x": batch["x"], "labels": batch["labels"], "name": object()} for batch in split(batch_of(4), [1] * 4)]

    with pytest.warns(AccumulationWarning, match="could not be tried out"):
        run_window(TrainerWindows(model), model, tokens, micros)


class Encoded(nn.Module):
    """An encoder, and the losses above of its outputs."""

    def __init__(self, loss_fn):
        super().__init__()
        self.encoder, self.loss_fn = network(), loss_fn

    def forward(self, batch):
        return self.loss_fn(self.encoder, batch)


@pytest.mark.parametrize("loss_fn", [contrastive, centred, balanced, over_a_constant, tokens, two_means])
@settings(max_examples=5, deadline=None)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_joined_windows_have_the_gradient_and_the_loss_of_the_full_batch(loss_fn, sizes, seed):
    model, batch = Encoded(loss_fn), batch_of(sum(sizes), seed)
    batch["labels"][:2] = batch["others"][:2] = 1  # what is tried out has a loss
    expected, loss = full_gradient(model, lambda model, batch: model(batch), batch)
    windows = CoupledWindows(model)
    items = []
    model.encoder[1].register_forward_hook(lambda module, args, output: items.append(len(output)))

    for _ in range(2):
        model.zero_grad()
        micros = split(batch, sizes)
        joined = [windows.join(micro, last=i + 1 == len(micros)) for i, micro in enumerate(micros)]
        assert joined[:-1] == [None] * (len(micros) - 1)
        items.clear()
        found = windows.backward(windows.forward(joined[-1], model), scale=2.0)
        assert relative_error([p.grad for p in model.parameters()], [2 * g for g in expected]) < 1e-9
        assert float(found) == pytest.approx(loss, rel=1e-9)
    assert max(items) == max(sizes)  # the second window knows its pieces


def test_a_model_without_such_modules_says_what_memory_it_takes():
    model = nn.Linear(3, CLASSES).double()
    windows, batch = CoupledWindows(model), batch_of(6)
    expected, _ = full_gradient(model, contrastive, batch)
    one, other = split(batch, [3, 3])
    windows.join(one, last=False)

    with pytest.warns(
        AccumulationWarning, match="no module of Linear treats .* the memory of one batch of its 6 items"
    ):
        loss = windows.forward(windows.join(other, last=True), lambda batch: contrastive(model, batch))
    windows.backward(loss)

    assert relative_error([p.grad for p in model.parameters()], expected) < 1e-9


def test_own_weights_replace_the_graph():
    model, batch = network(), batch_of(6)
    expected, _ = full_gradient(model, tokens, batch)
    windows = TrainerWindows(model, weight=dagnn.weights.tokens(-100))

    def unreadable(model, batch):
        return tokens(model, batch) * torch.ones((), requires_grad=True)

    found, _ = run_window(windows, model, unreadable, split(batch, [4, 2]))

    assert relative_error(found, expected) < 1e-6 and windows.weight == int((batch["labels"] >= 0).sum())


def test_an_error_in_the_forward_pass_leaves_a_clean_model():
    model, batch = network(), batch_of(6)
    windows = TrainerWindows(model)
    windows.add(split(batch, [3, 3])[0], lambda b: tokens(model, b), last=False)

    with pytest.raises(ZeroDivisionError):
        windows.add(batch, lambda b: 1 / 0, last=True)

    expected, _ = full_gradient(model, tokens, batch)
    found, _ = run_window(windows, model, tokens, split(batch, [3, 3]))
    assert relative_error(found, expected) < 1e-6


def test_bfloat16_gradients_are_summed_in_float32():
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    micros = [{"x": torch.ones(1, 1, dtype=torch.bfloat16)}] * 600

    found, _ = run_window(TrainerWindows(model), model, lambda m, b: m(b["x"]).sum(), micros)

    assert found[0].dtype == torch.bfloat16 and found[0] == 600


@pytest.mark.parametrize(
    ("coefficients", "kind"),
    [
        ([1, 1, 1], "not scaled"),
        ([1 / 3] * 3, "mean of means"),
        ([0.5, 0.5, 0.5], "wrong scale"),
        ([0.2, 0.2, 0.6], "wrong denominator"),
    ],
)
def test_judge_names_the_weights_that_a_trainer_used(coefficients, kind):
    torch.manual_seed(0)
    parameters = [torch.randn(7).double()]
    parts = [[torch.randn(7).double()] for _ in range(3)]
    actual, expected = (
        [sum(c * part[0] for c, part in zip(shares, parts, strict=True))] for shares in (coefficients, [0.5, 0.3, 0.2])
    )

    report = judge(["w"], parameters, actual, expected, parts, remedy="do it right.", tolerance=1e-6)

    assert not report.equal and [str(cause.kind) for cause in report.causes] == [kind]
    assert report.causes[0].change == "do it right."
    assert judge(["w"], parameters, expected, expected, parts, remedy="", tolerance=1e-6).equal
