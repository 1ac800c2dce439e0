"""Several losses, several models and optimizers, tied weights; warnings about losses."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from dagnn.accumulation import AccumulationWarning, GradientAccumulator
from dagnn.errors import AccumulationError, ConfigError


def sgd(model, lr=1.0):
    return torch.optim.SGD(model.parameters(), lr=lr)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.main, self.aux = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(4, 1)
        self.double()

    def forward(self, x):
        hidden = self.body(x).tanh()
        return self.main(hidden), self.aux(hidden)


def token_batches():
    generator = torch.Generator().manual_seed(1)
    batches = []
    for n, ignored in ((4, 1), (2, 0), (5, 4), (3, 3)):
        targets = torch.randint(0, 5, (n,), generator=generator)
        targets[:ignored] = -100
        batches.append((torch.randn(n, 3, generator=generator).double(), targets))
    return batches


def losses_of(model, x, targets):
    logits, aux = model(x)
    return {"tokens": cross_entropy(logits, targets), "aux": 0.1 * aux.square().mean()}


def weight(batch):
    return {"tokens": (batch[1] >= 0).sum(), "aux": len(batch[0])}


def test_each_loss_has_its_own_denominator_in_one_backward():
    model = TwoHeads()
    reference = copy.deepcopy(model)
    batches = token_batches()
    whole = losses_of(reference, torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))
    sum(whole.values()).backward()

    accumulator = GradientAccumulator(model, sgd(model))
    window = next(accumulator.windows(batches, micro_batches=4, weight=weight))
    for x, targets in window:
        window.backward(losses_of(model, x, targets))
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-12, atol=1e-15)
    update = window.step()
    assert update.losses["tokens"] == pytest.approx(float(whole["tokens"].detach()), rel=1e-12)
    assert update.losses["aux"] == pytest.approx(float(whole["aux"].detach()), rel=1e-12)
    assert update.loss == pytest.approx(sum(update.losses.values()), rel=1e-12)
    assert update.weight == 6  # of the first denominator


def test_separate_backward_calls_share_the_graph_when_asked():
    model = TwoHeads()
    together, apart = copy.deepcopy(model), copy.deepcopy(model)
    for subject, split in ((together, False), (apart, True)):
        window = next(GradientAccumulator(subject, sgd(subject)).windows(token_batches()[:2], micro_batches=2))
        for x, targets in window:
            losses = losses_of(subject, x, targets)
            if split:
                window.backward({"tokens": losses["tokens"]}, retain_graph=True)
                window.backward({"aux": losses["aux"]})
            else:
                window.backward(losses)
    for a, b in zip(together.parameters(), apart.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-12, atol=1e-15)


def test_a_loss_without_a_weight_of_its_name_is_an_error():
    model = TwoHeads()
    window = next(GradientAccumulator(model, sgd(model)).windows(token_batches(), micro_batches=4, weight=weight))
    with pytest.raises(AccumulationError, match=r"loss 'main' has no weight: .* gave weights for aux, tokens"):
        for x, targets in window:
            window.backward({"main": losses_of(model, x, targets)["tokens"]})


def test_a_loss_that_some_micro_batches_lack_is_an_error():
    model = TwoHeads()
    window = next(GradientAccumulator(model, sgd(model)).windows(token_batches(), micro_batches=4, weight=weight))
    with pytest.raises(AccumulationError, match=r"micro-batch 2 has the weight 5 for 'aux', but no such loss"):
        for index, (x, targets) in enumerate(window):
            losses = losses_of(model, x, targets)
            window.backward(losses if index != 2 else {"tokens": losses["tokens"]})


def test_weights_of_several_losses_cannot_come_with_backward():
    model = TwoHeads()
    window = next(GradientAccumulator(model, sgd(model)).windows(token_batches(), micro_batches=4))
    with pytest.raises(AccumulationError, match="need their totals before the window runs"):
        for x, targets in window:
            window.backward(losses_of(model, x, targets), weight={"tokens": 3, "aux": 1})


class TestAdversarial:
    """A generator and a discriminator whose losses flow through each other."""

    def setup_method(self):
        torch.manual_seed(0)
        self.generator, self.discriminator = nn.Linear(2, 3).double(), nn.Linear(3, 1).double()
        self.noise = [torch.randn(n, 2).double() for n in (3, 2)]
        self.real = [torch.randn(n, 3).double() for n in (3, 2)]

    def losses(self, g, d, noise, real):
        fake = g(noise)
        return d(fake).mean() - d(real).mean(), -d(fake).mean()

    def test_gradients_of_the_other_loss_do_not_leak_even_interleaved(self):
        accumulate_g = GradientAccumulator(self.generator, sgd(self.generator))
        accumulate_d = GradientAccumulator(self.discriminator, sgd(self.discriminator))
        window_g = next(accumulate_g.windows(self.noise, micro_batches=2))
        window_d = next(accumulate_d.windows(self.real, micro_batches=2))
        for noise, real in zip(window_g, window_d, strict=True):
            loss_d, loss_g = self.losses(self.generator, self.discriminator, noise, real)
            window_d.backward(loss_d, retain_graph=True)  # also flows into the generator
            window_g.backward(loss_g)  # also flows into the discriminator
        for window in (window_g, window_d):
            window.settle()

        loss_d, loss_g = self.losses(self.generator, self.discriminator, torch.cat(self.noise), torch.cat(self.real))
        expected_d = torch.autograd.grad(loss_d, list(self.discriminator.parameters()), retain_graph=True)
        expected_g = torch.autograd.grad(loss_g, list(self.generator.parameters()))
        for model, expected in ((self.discriminator, expected_d), (self.generator, expected_g)):
            for p, e in zip(model.parameters(), expected, strict=True):
                assert torch.allclose(p.grad, e, rtol=1e-12, atol=1e-15)

    def test_discriminator_gets_nothing_from_a_generator_step(self):
        accumulator = GradientAccumulator(self.generator, sgd(self.generator))
        before = [p.detach().clone() for p in self.discriminator.parameters()]
        for window in accumulator.windows(self.noise, micro_batches=2):
            for noise in window:
                window.backward(-self.discriminator(self.generator(noise)).mean())
            window.step()
        accumulator = GradientAccumulator(self.discriminator, sgd(self.discriminator))
        for window in accumulator.windows(self.real, micro_batches=2):
            for real in window:
                window.backward(0.0 * self.discriminator(real).mean())
            window.step()
        assert all(torch.equal(a, b) for a, b in zip(before, self.discriminator.parameters(), strict=True))


def test_several_models_and_optimizers_step_together():
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()
    references = copy.deepcopy(encoder), copy.deepcopy(decoder)
    loader = [torch.randn(n, 3).double() for n in (2, 5)]
    accumulator = GradientAccumulator(
        [encoder, decoder], [sgd(encoder, 0.1), torch.optim.Adam(decoder.parameters(), lr=0.2)], max_norm=0.3
    )
    for window in accumulator.windows(loader, micro_batches=2):
        for x in window:
            window.backward(decoder(encoder(x)).square().mean())
        update = window.step()
    optimizers = sgd(references[0], 0.1), torch.optim.Adam(references[1].parameters(), lr=0.2)
    references[1](references[0](torch.cat(loader))).square().mean().backward()
    norm = nn.utils.clip_grad_norm_([p for r in references for p in r.parameters()], 0.3)
    for optimizer in optimizers:
        optimizer.step()
    assert update.grad_norm == pytest.approx(float(norm), rel=1e-12)
    for model, reference in zip((encoder, decoder), references, strict=True):
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-12)


def test_ema_moves_once_per_update_and_not_for_a_skipped_one():
    model = nn.Linear(1, 1)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    calls = []
    accumulator = GradientAccumulator(model, sgd(model, 0.1), ema=averaged)
    other = GradientAccumulator(model, sgd(model, 0.1), ema=calls.append)
    for current in (accumulator, other):
        for window in current.windows([torch.ones(1, 1)] * 6, micro_batches=3, weight=lambda x: 1):
            for x in window:
                window.backward(model(x).mean())
            window.step()
    assert int(averaged.n_averaged) == 2
    assert calls == [model, model]


def test_plateau_schedule_is_refused():
    model = nn.Linear(1, 1)
    optimizer = sgd(model)
    with pytest.raises(ConfigError, match="ReduceLROnPlateau follows a metric"):
        GradientAccumulator(model, optimizer, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))


class TestLossChecks:
    def run(self, loss_of, micro_batches=4, **options):
        model = nn.Linear(3, 2)
        loader = [(torch.randn(5, 3), torch.randn(5, 2)) for _ in range(micro_batches)]
        window = next(GradientAccumulator(model, sgd(model)).windows(loader, micro_batches=micro_batches))
        for x, y in window:
            window.backward(loss_of(model, x, y), **options)

    @pytest.mark.parametrize(
        "loss_of",
        [
            lambda m, x, y: mse_loss(m(x), y) / 4,
            lambda m, x, y: mse_loss(m(x), y) * 0.25,
            lambda m, x, y: mse_loss(m(x), y) / torch.tensor(4.0),
        ],
    )
    def test_loss_divided_by_the_number_of_micro_batches_warns(self, loss_of):
        with pytest.warns(AccumulationWarning, match="the loss was divided by 4, the number of micro-batches"):
            self.run(loss_of)

    @pytest.mark.parametrize(
        "loss_of",
        [
            lambda m, x, y: (m(x) - y).square().sum() / 4,  # a mean by hand
            lambda m, x, y: mse_loss(m(x), y) / 3,
            lambda m, x, y: mse_loss(m(x), y) + mse_loss(m(x), y) / 4,
        ],
    )
    def test_other_divisions_do_not(self, loss_of):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.run(loss_of)

    @pytest.mark.parametrize(
        ("loss_of", "options", "message"),
        [
            (lambda m, x, y: (m(x) - y).square().mean(dim=1), {}, r"must be one number for reduction='mean'"),
            (lambda m, x, y: mse_loss(m(x), y)[None], {}, r"must be 0-dimensional, got the shape \[1\]"),
            (lambda m, x, y: mse_loss(m(x), y).detach(), {}, "does not depend on a parameter"),
        ],
    )
    def test_loss_that_cannot_be_used(self, loss_of, options, message):
        with pytest.raises(AccumulationError, match=message):
            self.run(loss_of, **options)

    @pytest.mark.parametrize(
        ("loss_of", "options", "message"),
        [
            (lambda m, x, y: mse_loss(m(x), y).item(), {}, "must be a tensor, got float"),
            (lambda m, x, y: mse_loss(m(x), y), {"reduction": "avg"}, "reduction must be"),
            (lambda m, x, y: mse_loss(m(x), y), {"weight": -1}, "weight must be finite and at least 0"),
        ],
    )
    def test_argument_that_cannot_be_used(self, loss_of, options, message):
        with pytest.raises(ConfigError, match=message):
            self.run(loss_of, **options)


class TestCopies:
    """An accumulator that is copied or pickled with its model, optimizer and average acts on these copies alone."""

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda parts: pickle.loads(pickle.dumps(parts))])
    @pytest.mark.parametrize("several", [False, True])
    def test_the_copy_of_an_average_moves_with_the_copy(self, copied, several):
        model = nn.Linear(1, 1)
        optimizer, average = torch.optim.SGD(model.parameters(), lr=1.0), AveragedModel(model)
        accumulator = GradientAccumulator(model, optimizer, ema=[average] if several else average)
        own, _, its_average, its_accumulator = copied((model, optimizer, average, accumulator))
        its_accumulator.backward(own(torch.ones(1, 1)).mean(), weight=1)
        its_accumulator.step()
        assert (average.n_averaged.item(), its_average.n_averaged.item()) == (0, 1)
        assert torch.equal(its_average.module.weight, own.weight)
        assert not torch.equal(own.weight, model.weight)

    def test_a_copy_still_knows_that_its_optimizer_needs_a_closure(self):
        model = nn.Linear(1, 1)
        accumulator = GradientAccumulator(model, torch.optim.LBFGS(model.parameters()))
        own, its_accumulator = copy.deepcopy((model, accumulator))
        its_accumulator.backward(own(torch.ones(1, 1)).mean(), weight=1)
        with pytest.raises(AccumulationError, match="LBFGS computes the loss several times per step"):
            its_accumulator.step()


class TestNames:
    """Losses and weights meet by the text of their names."""

    def accumulated(self, weight, losses_of):
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0))
        for window in accumulator.windows([torch.ones(1, 1), torch.full((1, 1), 3.0)], micro_batches=2, weight=weight):
            for x in window:
                window.backward(losses_of(model(x).mean()))
            update = window.step()
        return model.weight.item(), dict(update.losses)

    def test_numbers_name_losses_as_their_texts_do(self):
        for names in ((0, 1), ("0", "1"), (0, "1")):
            found = self.accumulated(lambda x: {0: 1, 1: 1}, lambda loss, names=names: dict.fromkeys(names, loss))
            assert found == (-4.0, {"0": 0.0, "1": 0.0})

    def test_names_that_are_the_same_text_are_refused(self):
        with pytest.raises(ConfigError, match="the losses have the names 1 and '1', which are the same text"):
            self.accumulated(lambda x: 1, lambda loss: {1: loss, "1": loss})
        with pytest.raises(ConfigError, match=r"the weights of weight\(micro_batch\) have the names 1 and '1'"):
            self.accumulated(lambda x: {1: 1, "1": 3}, lambda loss: {"1": loss})


def test_weights_that_add_up_to_inf_are_refused():
    model = nn.Linear(1, 1)
    accumulator = GradientAccumulator(model, torch.optim.SGD(model.parameters(), lr=1.0))
    batches = [torch.ones(1, 1)] * 2
    for weight, name in ((lambda x: 1e308, ""), (lambda x: {"a": 1, "b": 1e308}, "'b' ")):
        with pytest.raises(AccumulationError, match=f"the weights {name}of this window add up to inf"):
            next(accumulator.windows(batches, micro_batches=2, weight=weight))
    for x in batches:
        accumulator.backward(model(x).mean(), weight=1e308)
    with pytest.raises(AccumulationError, match="the weights of this window add up to inf"):
        accumulator.step()
    accumulator.discard()
