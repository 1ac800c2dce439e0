"""Survival: the Cox partial likelihood with ties as a loss, and the concordance index as a score."""

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dagnn.errors import DtypeError
from dagnn.visible.reading import checked_choice

TIES = ("efron", "breslow")


def cox_loss(risk: Tensor, event: Tensor, time: Tensor, *, weight: Tensor | None = None, ties: str = "efron") -> Tensor:
    """The negative log partial likelihood of Cox's model, divided by the weight of all events.

    With r the log hazard ratio of a sample: the sum over events i of ``log sum_{j: time_j >= time_i} exp(r_j) - r_i``.
    Where several events have one time, Breslow's form leaves each of them in the sum of the others, and Efron's takes
    them out one after another, each by the same share.

    Args:
        risk: float ``[n]``, the log hazard ratio.
        event: bool ``[n]``; False where the sample was censored at its time.
        time: float ``[n]``.
        weight: float ``[n]``, not negative; a sample of weight 0 is left out. As in R's ``coxph``, Efron's form gives
            tied events their mean weight.
        ties: ``"efron"`` or ``"breslow"``.

    Returns:
        A scalar. In a batch, the risk sets are those of the batch.

    Raises:
        DtypeError: anything but tensors, ``risk`` is not float or ``event`` not bool, the shapes differ, a time is NaN,
            a weight negative or not finite, or no event has a weight.
        ConfigError: another value of ``ties``.

    Source: Breslow, Biometrics 30(1), 1974; Efron, "The efficiency of Cox's likelihood function for censored data",
    JASA 72, 1977, section 6.

    >>> time, event = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, True, False])
    >>> cox_loss(torch.zeros(3), event, time)  # (log 3 + log 2) / 2
    tensor(0.8959)
    """
    checked_choice("ties", ties, TIES)
    for name, given in (("risk", risk), ("event", event), ("time", time), ("weight", weight)):
        if not isinstance(given, Tensor) and (name != "weight" or given is not None):
            raise DtypeError(f"{name} must be a tensor, got a {type(given).__name__}: convert it with torch.as_tensor.")
    if not risk.is_floating_point() or time.is_complex():
        raise DtypeError(f"risk must be float and time real, got {risk.dtype} and {time.dtype}: convert them.")
    if event.dtype != torch.bool or not risk.shape == event.shape == time.shape or risk.dim() != 1:
        raise DtypeError(
            f"cox_loss takes risk, event (bool) and time, all [n], got {list(risk.shape)}, {event.dtype} "
            f"{list(event.shape)} and {list(time.shape)}."
        )
    weight = torch.ones_like(risk) if weight is None else weight.to(risk)
    if weight.shape != risk.shape or not ((weight >= 0) & weight.isfinite()).all():
        found = f"the shape {list(weight.shape)}"
        if weight.shape == risk.shape:
            found = f"{weight[~((weight >= 0) & weight.isfinite())][0].item()} among them"
        raise DtypeError(f"weight must be [{len(risk)}], all finite and at least 0, got {found}.")
    if time.isnan().any():
        raise DtypeError(f"the time of sample {int(time.isnan().nonzero()[0])} is NaN: drop it.")
    total = weight[event].sum()
    if not total > 0:
        raise DtypeError("no event: all samples are censored, so nothing says who is at risk.")
    # Of weight 0 before all others, exp(log 0 + risk) has a gradient of 0 / 0.
    counts = weight > 0
    risk, event, time, weight = risk[counts], event[counts], time[counts], weight[counts]
    order = time.argsort(descending=True, stable=True)
    risk, event, time, weight = risk[order], event[order], time[order], weight[order]
    _, group, sizes = torch.unique_consecutive(time, return_inverse=True, return_counts=True)
    # exp(log weight + risk) summed over all samples from the latest to the last of the group: those still at risk.
    at_risk = torch.logcumsumexp(risk + weight.log(), 0)[sizes.cumsum(0) - 1]

    events = event.nonzero().flatten()
    group_of = group[events]
    log_sum = at_risk[group_of]
    each = weight[events]
    if ties == "efron":
        # Relative to the risk set, of which they are a part: no share is above 1, and nothing overflows.
        shares = torch.zeros_like(at_risk).index_add(0, group_of, each * (risk[events] - log_sum).exp())
        tied = torch.bincount(group_of, minlength=len(sizes))
        first = tied.cumsum(0) - tied
        turn = torch.arange(len(events), device=risk.device) - first[group_of]  # events of one time are neighbours
        count = tied[group_of].to(risk)
        log_sum = log_sum + torch.log1p(-(turn / count) * shares[group_of])
        mean = torch.zeros_like(at_risk).index_add(0, group_of, each)[group_of] / count
        return ((mean * log_sum).sum() - (each * risk[events]).sum()) / total
    return (each * (log_sum - risk[events])).sum() / total


def concordance_index(risk: ArrayLike, event: ArrayLike, time: ArrayLike) -> float:
    """Harrell's C: the share of comparable pairs in which the sample with the earlier event has the higher risk.

    A pair is comparable if the sample with the earlier time had its event, also where the other was censored at the
    same time. Equal risks count half.

    Args:
        risk, event, time: ``[n]``, as of `cox_loss`; ``event`` is bool, True where ``time`` is that of the event.

    Raises:
        DtypeError: ``event`` is not bool, the shapes differ, a risk or time is NaN, or no pair is comparable.

    Cost: O(n^2) time in vectors, linear memory.
    Source: Harrell et al., "Evaluating the yield of medical tests", JAMA 247, 1982.

    >>> concordance_index(np.array([0.9, 0.1, 0.4]), np.array([True, True, False]), np.array([1.0, 2.0, 3.0]))
    0.6666666666666666
    """
    given = [one.detach().cpu() if isinstance(one, Tensor) else one for one in (event, time, risk)]
    try:
        event, time, risk = np.asarray(given[0]), *(np.asarray(one, np.float64) for one in given[1:])
    except (TypeError, ValueError) as error:
        raise DtypeError(f"concordance_index takes risk and time as numbers: {error}.") from None
    if event.dtype != np.bool_ or not risk.shape == event.shape == time.shape or risk.ndim != 1:
        raise DtypeError(
            f"concordance_index takes risk, event (bool) and time, all [n], got {list(risk.shape)}, {event.dtype} "
            f"{list(event.shape)} and {list(time.shape)}."
        )
    if np.isnan(risk).any() or np.isnan(time).any():
        row = int(np.flatnonzero(np.isnan(risk) | np.isnan(time))[0])
        raise DtypeError(f"sample {row} has the risk {risk[row]} and the time {time[row]}: neither may be NaN.")
    agreed = comparable = 0.0
    for i in np.flatnonzero(event):
        later = (time > time[i]) | ((time == time[i]) & ~event)
        comparable += later.sum()
        agreed += (risk[later] < risk[i]).sum() + (risk[later] == risk[i]).sum() / 2
    if not comparable:
        raise DtypeError("no two samples are comparable: each pair needs an event before the other's time.")
    return float(agreed / comparable)


def cumulative_hazard(
    risk: NDArray[np.float64], event: NDArray[np.bool_], time: NDArray[np.float64], weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Breslow's estimate for a sample of log hazard ratio 0; not public.

    At every time of an event it grows by the weight of those events over the sum of ``weight * exp(risk)`` of all that
    are still at risk. Samples of weight 0 do not count.

    Args:
        risk, event, time, weight: ``[n]``, with an event that has a weight. The sum is of ``exp(risk)`` as it is: give
            risks less their maximum.

    Returns:
        The distinct times of events, and the cumulative hazard from each on, ``[times]``.

    Source: Breslow, discussion of Cox, "Regression models and life-tables", JRSS B 34, 1972.

    >>> ones = np.ones(3)
    >>> cumulative_hazard(0 * ones, np.array([True, False, True]), np.array([1.0, 2.0, 3.0]), ones)
    (array([1., 3.]), array([0.33333333, 1.33333333]))
    """
    counts = event & (weight > 0)
    times, place = np.unique(time[counts], return_inverse=True)
    events = np.bincount(place, weight[counts])
    order = np.argsort(time, kind="stable")
    at_risk = np.cumsum((weight * np.exp(risk))[order][::-1])[::-1]
    return times, np.cumsum(events / at_risk[np.searchsorted(time[order], times)])


def read_survival(y: Any) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """(event, time) from a structured array or a data frame with a bool and a number in each row; not public.

    ValueError for another form, and for times that are negative, NaN or infinite.
    """
    fields = getattr(getattr(y, "dtype", None), "names", None) or list(getattr(y, "columns", ()))
    columns = [np.asarray(y[name]) for name in fields]
    events = [column for column in columns if column.dtype.kind == "b"]
    times = [column for column in columns if column.dtype.kind in "iuf"]
    if len(columns) != 2 or len(events) != 1 or len(times) != 1:
        raise ValueError(
            "y must be a structured array or a data frame with two fields, event (bool) and time (a number), got "
            + (f"the fields {fields!r}" if fields else f"a {type(y).__name__}")
            + ": make one with numpy.array(list(zip(event, time)), dtype=[('event', bool), ('time', float)])."
        )
    time = times[0].astype(np.float64)
    wrong = ~(np.isfinite(time) & (time >= 0))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(f"the time in row {row} of y is {time[row]}: it must be a finite number of at least 0.")
    return events[0], time
