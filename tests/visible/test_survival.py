"""Cox's partial likelihood against its definition, with ties and weights; concordance against counting pairs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dagnn.errors import ConfigError, DtypeError
from dagnn.visible import concordance_index, cox_loss
from dagnn.visible.survival import cumulative_hazard

SAMPLES = st.lists(
    st.tuples(st.floats(-3, 3), st.booleans(), st.integers(0, 4), st.sampled_from([0.5, 1.0, 2.0])),
    min_size=1,
    max_size=9,
).filter(lambda samples: any(event for _, event, _, _ in samples))


def tensors(samples):
    risk, event, time, weight = zip(*samples, strict=True)
    return (
        torch.tensor(risk, dtype=torch.float64, requires_grad=True),
        torch.tensor(event),
        torch.tensor(time, dtype=torch.float64),
        torch.tensor(weight, dtype=torch.float64),
    )


def by_definition(samples, ties):
    total = 0.0
    for time in {t for _, event, t, _ in samples if event}:
        at_risk = sum(w * math.exp(r) for r, _, t, w in samples if t >= time)
        tied = [(r, w) for r, event, t, w in samples if event and t == time]
        share = sum(w * math.exp(r) for r, w in tied)
        mean = sum(w for _, w in tied) / len(tied)
        total -= sum(w * r for r, w in tied)
        for turn in range(len(tied)):
            total += mean * math.log(at_risk - (turn / len(tied) * share if ties == "efron" else 0))
    return total / sum(w for _, event, _, w in samples if event)


@given(SAMPLES, st.sampled_from(["efron", "breslow"]))
def test_the_loss_is_its_definition_with_ties_and_weights(samples, ties):
    risk, event, time, weight = tensors(samples)
    loss = cox_loss(risk, event, time, weight=weight, ties=ties)
    assert loss.item() == pytest.approx(by_definition(samples, ties), rel=1e-10, abs=1e-10)
    assert torch.autograd.gradcheck(lambda r: cox_loss(r, event, time, weight=weight, ties=ties), risk)


def test_a_weight_of_two_is_the_sample_twice_in_breslow_s_form():
    samples = [(0.3, True, 1, 2.0), (-0.2, False, 2, 1.0), (1.1, True, 3, 1.0)]
    risk, event, time, weight = tensors(samples)
    twice = torch.tensor([0, 0, 1, 2])
    expected = cox_loss(risk[twice], event[twice], time[twice], ties="breslow")
    assert cox_loss(risk, event, time, weight=weight, ties="breslow").item() == pytest.approx(expected.item())


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("last_event", [True, False])
def test_a_sample_of_weight_0_is_as_if_it_were_not_there(ties, last_event):
    risk = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    event, time = torch.tensor([True, True, last_event]), torch.tensor([1.0, 2.0, 3.0])
    loss = cox_loss(risk, event, time, weight=torch.tensor([1.0, 1.0, 0.0]), ties=ties)
    loss.backward()
    # log(1 + e) / 2, of the first event alone: the second is the last at risk.
    assert loss.item() == pytest.approx(math.log(1 + math.e) / 2, rel=1e-6)
    assert risk.grad.tolist() == pytest.approx([-0.3655293, 0.3655293, 0.0], abs=1e-6)


def test_risks_far_apart_neither_overflow_nor_vanish():
    risk = torch.tensor([-400.0, 500.0, 400.0, -300.0], requires_grad=True)
    loss = cox_loss(risk, torch.tensor([True] * 4), torch.tensor([1.0, 2.0, 2.0, 3.0]))
    loss.backward()
    # Sorted by time: 500 - -400, then the pair at 2: (500 - 400) + log(1/2 of it) of the second turn, then 0.
    assert loss.item() == pytest.approx((900 + 100 + math.log(0.5)) / 4, rel=1e-6)
    assert risk.grad.isfinite().all()


def test_bad_survival_data_are_refused():
    risk, time = torch.zeros(2), torch.ones(2)
    with pytest.raises(DtypeError, match="no event: all samples are censored"):
        cox_loss(risk, torch.tensor([False, False]), time)
    with pytest.raises(DtypeError, match=r"all \[n\], got \[2\], torch.int64 \[2\] and \[2\]"):
        cox_loss(risk, torch.tensor([0, 1]), time)
    with pytest.raises(ConfigError, match="ties must be one of 'efron', 'breslow', got 'exact'"):
        cox_loss(risk, torch.tensor([True, False]), time, ties="exact")
    both, nan = torch.tensor([True, True]), torch.tensor([1.0, float("nan")])
    with pytest.raises(DtypeError, match="the time of sample 1 is NaN"):
        cox_loss(risk, both, nan)
    with pytest.raises(DtypeError, match=r"weight must be \[2\], all finite and at least 0, got -1.0 among them"):
        cox_loss(risk, both, time, weight=torch.tensor([1.0, -1.0]))
    with pytest.raises(DtypeError, match=r"weight must be \[2\], all finite and at least 0, got the shape \[1\]"):
        cox_loss(risk, both, time, weight=torch.ones(1))
    with pytest.raises(DtypeError, match="all finite and at least 0, got inf among them"):
        cox_loss(risk, both, time, weight=torch.tensor([1.0, math.inf]))
    with pytest.raises(DtypeError, match=r"risk must be a tensor, got a list: convert it with torch\.as_tensor"):
        cox_loss([1.0, 2.0], both, time)
    with pytest.raises(DtypeError, match="weight must be a tensor, got a list"):
        cox_loss(risk, both, time, weight=[1, 2])
    with pytest.raises(DtypeError, match=r"risk must be float and time real, got torch\.int64 and torch\.float32"):
        cox_loss(torch.tensor([1, 2]), both, time)
    with pytest.raises(DtypeError, match=r"takes risk, event \(bool\) and time, all \[n\], got \[3\], int64 \[3\]"):
        concordance_index([1, 2, 3], [3, 2, 1], [1, 1, 1])
    with pytest.raises(DtypeError, match="concordance_index takes risk and time as numbers: could not convert"):
        concordance_index(["high", "low"], both.numpy(), time.numpy())
    pair = torch.tensor([1.0, 0.0], requires_grad=True), both, torch.tensor([1.0, 2.0])
    assert concordance_index(*pair) == 1.0
    with pytest.raises(DtypeError, match=r"sample 1 has the risk nan and the time 1\.0"):
        concordance_index(nan.numpy(), both.numpy(), time.numpy())
    with pytest.raises(DtypeError, match="no two samples are comparable"):
        concordance_index(np.zeros(2), np.array([False, True]), np.array([1.0, 2.0]))


@given(SAMPLES)
def test_concordance_counts_pairs(samples):
    risk, event, time, _ = (np.array(column) for column in zip(*samples, strict=True))
    risk = risk.round()
    pairs = [
        1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0
        for i in range(len(samples))
        for j in range(len(samples))
        if event[i] and (time[i] < time[j] or (time[i] == time[j] and not event[j]))
    ]
    if not pairs:
        with pytest.raises(DtypeError):
            concordance_index(risk, event, time)
        return
    assert concordance_index(risk, event, time) == pytest.approx(sum(pairs) / len(pairs))


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_the_optimum_and_the_score_are_those_of_scikit_survival(ties):
    pytest.importorskip("sksurv")
    from sksurv.linear_model import CoxPHSurvivalAnalysis
    from sksurv.metrics import concordance_index_censored

    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    time, event = np.ceil(4 * np.exp(-x[:, 0] + rng.normal(size=80))), rng.random(80) < 0.7
    y = np.array([*zip(event, time, strict=True)], dtype=[("event", bool), ("time", float)])
    model = CoxPHSurvivalAnalysis(ties=ties, tol=1e-12).fit(x, y)
    weights = torch.tensor(model.coef_, requires_grad=True)
    risk = torch.from_numpy(x) @ weights
    cox_loss(risk, torch.from_numpy(event), torch.from_numpy(time), ties=ties).backward()
    assert weights.grad.abs().max() < 1e-6
    expected = concordance_index_censored(event, time, risk.detach().numpy())[0]
    assert concordance_index(risk.detach().numpy(), event, time) == pytest.approx(expected)


@given(SAMPLES)
def test_the_cumulative_hazard_is_that_of_its_definition(samples):
    risk, event, time, weight = (np.array(column) for column in zip(*samples, strict=True))

    times, found = cumulative_hazard(risk, event, time.astype(float), weight)

    assert times.tolist() == sorted({t for _, event, t, _ in samples if event})
    for at, value in zip(times, found, strict=True):
        expected = 0.0
        for moment in [t for t in times if t <= at]:
            events = sum(w for _, event, t, w in samples if event and t == moment)
            expected += events / sum(w * math.exp(r) for r, _, t, w in samples if t >= moment)
        assert value == pytest.approx(expected, rel=1e-12)
