"""The division by the window's total weight: done here, exactly once.

Legend: ``w`` weight of one micro-batch (the number that its mean loss divided by), ``N`` total weight of the window
over all micro-batches and processes. A mean loss must be multiplied by ``w / N``, a sum loss by ``1 / N``, and a loss
that is to stay undivided by 1, as if ``N`` were 1.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from dagnn.accumulation.sums import as_numbers
from dagnn.errors import AccumulationError, ConfigError

Reduction = Literal["mean", "sum", "none", "undivided"]
Divisor = Literal["planned", "counted", "undivided"]  # what losses are divided by: weights known before or after, or 1
Weights = dict[str, float]
_HOW_DIVIDED: dict[Divisor, str] = {
    "planned": "by weights known before the window",
    "counted": "by weight=...",
    "undivided": "undivided",
}
SINGLE = "loss"  # the name of a loss, and of a denominator, that was given without one


class KnownWeights(NamedTuple):
    """The weights of a window where they are known before it runs."""

    weights: list[Weights]  # per micro-batch of this process: denominator name -> w
    totals: Weights  # denominator name -> N, over all processes
    declared: bool  # by the user, not taken from the first dimension


class Contribution(NamedTuple):
    """What one process adds to the window; ``window_totals`` adds up those of all processes."""

    used: Weights  # denominator name -> weight that went into the gradients
    losses: dict[str, tuple[str, float]]  # loss name -> (denominator, sum of w * loss)
    divisor: Divisor | None  # "counted": weights came with backward, so the total was not known before
    dropped: bool
    overflowed: bool  # a micro-batch was dropped because it was not finite
    reference: float | None  # what counted weights were divided by


class _Record(NamedTuple):
    micro: int
    name: str
    denominator: str
    factor: float  # w for a mean, 1 for a sum
    loss: Tensor


class Shares:
    """Coefficients of the losses of one window, and the record that turns them into exact means at its end.

    With weights known before the window runs, the coefficient is final (``w / N``). With weights that arrive only with
    the loss it is provisional (``w / reference``), and ``correction`` is the factor ``reference / N`` for the sum.
    """

    def __init__(self, known: KnownWeights | None, reference: float | None, *, final: bool = False) -> None:
        self._known = known
        self._reference = reference
        self._final = final  # gradients cannot be corrected at the end
        self._divisor: Divisor | None = None  # None until the first backward decides
        self._weights: dict[int, Weights] = {}  # micro-batch -> weights that were used
        self._records: list[_Record] = []
        self._values: list[float] = []  # of the records that were read
        self._dropped = self._overflowed = False

    def coefficient(self, micro: int, name: str, weight: float | None, reduction: Reduction) -> float:
        """Factor for the loss ``name`` of micro-batch ``micro``; 0.0 when it must not be run at all."""
        if reduction == "undivided":
            if weight is not None:
                raise AccumulationError(
                    f"weight={weight:g} came with reduction='undivided', which divides by nothing: leave weight=... "
                    "out, or give a loss that is a 'mean' or a 'sum'."
                )
            self._decide("undivided")
            self._weights[micro] = {SINGLE: 1.0}
            return 1.0
        denominator, own, total = self._weight_and_total(micro, name, weight)
        self._weights.setdefault(micro, {})[denominator] = own
        if own == 0.0:
            return 0.0
        return (own if reduction == "mean" else 1.0) / total

    def of_mean(self, micro: int) -> float | None:
        """The coefficient of the one mean loss of ``micro``; None where ``coefficient`` must decide.

        That is where weights were not known before, or have other names, or are 0, or came with a loss.
        """
        if self._known is None or micro in self._weights or self._divisor not in ("planned", None):
            return None
        own = self._known.weights[micro].get(SINGLE)
        return own / self._known.totals[SINGLE] if own else None

    def record_mean(self, micro: int, loss: Tensor) -> None:
        """What ``coefficient`` and ``record`` remember of a loss that ``of_mean`` has given a coefficient."""
        assert self._known is not None
        self._divisor = "planned"
        self._weights[micro] = {SINGLE: (own := self._known.weights[micro][SINGLE])}
        self._records.append(_Record(micro, SINGLE, SINGLE, own, loss))

    def record(self, micro: int, name: str, loss: Tensor, reduction: Reduction) -> None:
        """Remember a detached loss (0-dimensional) for the reported mean."""
        denominator = name if name in self._weights[micro] else SINGLE
        own = self._weights[micro][denominator]
        if own:
            factor = own if reduction == "mean" else 1.0
            self._records.append(_Record(micro, name, denominator, factor, loss))

    def drop(self, micro: int, *, overflowed: bool) -> None:
        """Take micro-batch ``micro`` out of the window: its weight leaves the denominator."""
        self._dropped = True
        self._overflowed |= overflowed
        self._weights.pop(micro, None)
        self._records, self._values = [record for record in self._records if record.micro != micro], []

    def forget(self, micro: int) -> None:
        """Forget micro-batch ``micro``, which was refused; the first decides again how weights come."""
        self._weights.pop(micro, None)
        self._records, self._values = [record for record in self._records if record.micro != micro], []
        if not self._weights:
            self._divisor = None

    def contribution(self) -> Contribution:
        """Everything this process contributes, as plain numbers (waits for the device once).

        AccumulationError where a loss of some micro-batches is missing in one that has a weight for it.
        """
        self._check_all_came()
        used: Weights = {}
        for weights in self._weights.values():
            for name, weight in weights.items():
                used[name] = used.get(name, 0.0) + weight
        losses: dict[str, tuple[str, float]] = {}
        for record, loss in zip(self._records, self.loss_values(), strict=True):
            previous = losses[record.name][1] if record.name in losses else 0.0
            losses[record.name] = (record.denominator, previous + record.factor * loss)
        return Contribution(used, losses, self._divisor, self._dropped, self._overflowed, self._reference)

    def parts(self) -> list[dict[str, tuple[float, float]]]:
        """For every micro-batch that was not dropped: denominator -> (sum of weight * mean loss, weight)."""
        found: dict[int, dict[str, tuple[float, float]]] = {}
        for micro, used in self._weights.items():
            weights = self._known.weights[micro] if self._known and self._divisor == "planned" else used
            found[micro] = {name: (0.0, weight) for name, weight in weights.items()}
        for record, loss in zip(self._records, self.loss_values(), strict=True):
            total, weight = found[record.micro][record.denominator]
            found[record.micro][record.denominator] = (total + record.factor * loss, weight)
        return [found[micro] for micro in sorted(found)]

    def _check_all_came(self) -> None:
        # A loss that is missing would be missing in the gradient, whose denominator counts it.
        if self._known is None or len(self._known.totals) < 2 or self._divisor != "planned":
            return
        names = {name for weights in self._weights.values() for name in weights}
        for micro, used in self._weights.items():
            for name, weight in self._known.weights[micro].items():
                if weight and name in names and name not in used:
                    raise AccumulationError(
                        f"micro-batch {micro} has the weight {weight:g} for {name!r}, but no such loss came to "
                        "backward, as in other micro-batches: pass it there, or give it the weight 0 in "
                        "windows(weight=...)."
                    )

    def loss_values(self) -> list[float]:
        """The recorded losses as numbers, in the order of the backward calls. Waits for the device once."""
        known = len(self._values)
        if known < len(self._records):
            self._values += as_numbers([record.loss for record in self._records[known:]])
        return self._values

    def state(self) -> dict[str, Any]:
        """The record so far, as plain values."""
        return {
            "divisor": self._divisor,
            "planned": None if self._known is None else self._known._asdict(),
            "reference": self._reference,
            "dropped": self._dropped,
            "overflowed": self._overflowed,
            "weights": {micro: dict(weights) for micro, weights in self._weights.items()},
            "records": [
                [record.micro, record.name, record.denominator, record.factor, loss]
                for record, loss in zip(self._records, self.loss_values(), strict=True)
            ],
        }

    def load_state(self, state: Mapping[str, Any], done: int) -> None:
        """Inverse of ``state``, in whose window ``done`` micro-batches had run.

        ConfigError where they were divided by weights that this window does not have.
        """
        if state["divisor"] == "planned" and state.get("planned") is not None:
            self._check_same_weights(state["planned"]["weights"][:done], state["planned"]["totals"])
        self._divisor, self._reference = state["divisor"], state["reference"]
        self._dropped, self._overflowed = state["dropped"], state["overflowed"]
        self._weights = {int(micro): dict(weights) for micro, weights in state["weights"].items()}
        self._records = [
            _Record(micro, name, denominator, factor, torch.tensor(loss, dtype=torch.float64))
            for micro, name, denominator, factor, loss in state["records"]
        ]

    def _check_same_weights(self, weights: list[Weights], totals: Weights) -> None:
        # The saved gradients are divided by them already: other batches would have other shares.
        known = self._known or KnownWeights([{}] * len(weights), {}, False)
        both = enumerate(zip(weights, known.weights, strict=False))
        pairs = [(f"micro-batch {micro}", before, now) for micro, (before, now) in both]
        for where, before, now in [*pairs, ("all micro-batches together", totals, known.totals)]:
            for name in (*before, *now):
                if not math.isclose(old := before.get(name, 0.0), new := now.get(name, 0.0), rel_tol=1e-9):
                    raise ConfigError(
                        f"the saved window had the weight {old:g} of {name!r} in {where}, but this one has {new:g}: "
                        "start the loader at the first micro-batch of the saved window, with the same batches and the "
                        "same windows(weight=...)."
                    )

    def _weight_and_total(self, micro: int, name: str, weight: float | None) -> tuple[str, float, float]:
        if weight is None:
            return self._planned_weight(micro, name)
        if self._known is not None and self._known.declared:
            denominator, own, total = self._planned_weight(micro, name)
            if own != weight:
                raise AccumulationError(
                    f"micro-batch {micro} was counted as {own:g} by windows(weight=...), but backward got "
                    f"weight={weight:g}: give the weight in one place only."
                )
            return denominator, own, total
        if self._final:
            raise AccumulationError(
                f"with eager updates weights must be known before the window runs, but backward got weight={weight:g}: "
                "use windows(weight=...)."
            )
        self._decide("counted")
        before = self._weights.get(micro, {}).get(SINGLE)
        if before is not None and before != weight:
            raise AccumulationError(
                f"micro-batch {micro} got weight={before:g} and then weight={weight:g}: losses with different weights "
                "need windows(weight=lambda micro: {'main': ..., 'aux': ...}) and window.backward({'main': ...})."
            )
        if self._reference is None and weight:
            self._reference = weight
        return SINGLE, weight, self._reference or 1.0

    def _planned_weight(self, micro: int, name: str) -> tuple[str, float, float]:
        if self._known is None:
            raise AccumulationError(
                f"the weight of micro-batch {micro} is not known: pass weight=... to backward (the number of items or "
                "tokens that the loss is the mean of; weight=1 if all micro-batches count the same). If the batches "
                "are lists [inputs, targets], tuples in their place are counted."
            )
        self._decide("planned")
        weights, totals = self._known.weights[micro], self._known.totals
        denominator = name if name in totals else SINGLE
        if denominator not in totals:
            raise AccumulationError(
                f"loss {name!r} has no weight: windows(weight=...) gave weights for {', '.join(sorted(totals))}. Call "
                "window.backward({name: loss}) with those names, or add the name there."
            )
        return denominator, weights.get(denominator, 0.0), totals[denominator] or 1.0

    def _decide(self, divisor: Divisor) -> None:
        if self._divisor is None:
            self._divisor = divisor
        elif "undivided" in (self._divisor, divisor) and self._divisor != divisor:
            raise AccumulationError(
                "some losses of this window came with reduction='undivided' and some did not (the first "
                f"{_HOW_DIVIDED[self._divisor]}, this one {_HOW_DIVIDED[divisor]}): give it to all of them, or to none."
            )
        elif self._divisor != divisor:
            raise AccumulationError(
                "some micro-batches of this window got weight=... in backward and some did not (the first "
                f"{_HOW_DIVIDED[self._divisor]}, this one {_HOW_DIVIDED[divisor]}): give it to all of them, or to none."
            )


def check_saved_window(state: Any) -> None:
    """ConfigError where the parts of what ``Window.state_dict`` gave are missing, of another kind, or do not agree."""
    part = "done"
    try:
        done, run, parts = state["done"], state["num_run"], state["shares"]
        sound = all(type(number) is int for number in (done, run)) and 0 <= run <= done
        if sound:
            part = "sums"
            sums = state["sums"]
            sound = all(each is None or isinstance(each, Tensor) for each in sums)
            num_sums = sum(each is not None for each in sums)
            sound = sound and num_sums == state.get("num_sums", num_sums)
        if sound:
            part = "shares"
            micros = [*map(int, parts["weights"]), *(micro for micro, *_ in parts["records"])]
            sound = (run == done or bool(parts["dropped"])) and all(0 <= micro < done for micro in micros)
            sound = sound and parts["divisor"] in (None, *_HOW_DIVIDED) and all(len(r) == 5 for r in parts["records"])
        if sound:
            part = "scale"
            sound = {*state["scale"]} == {"scale", "residual"} if state["scale"] is not None else not parts["records"]
    except (KeyError, TypeError, ValueError, AttributeError):
        sound = False
    if not sound:
        raise ConfigError(
            f"the saved window is not what state_dict(inside_window=True) gave: its part {part!r} is missing, or does "
            "not fit the others. Without it, load_state_dict({**state, 'window': None}), the window runs again from "
            "its first micro-batch, with the same result."
        )


class WindowTotals(NamedTuple):
    """The whole window over all processes."""

    weight: float  # total of the first denominator; 1 where nothing is divided
    loss: float  # sum over losses of their means over the window; nan if nothing was counted
    losses: dict[str, float]
    correction: float  # factor that makes the summed gradients exact means
    overflowed: bool  # a micro-batch of some process was dropped because it was not finite
    empty: bool  # nothing had weight: no gradient, no update


def window_totals(contributions: list[Contribution], totals: Mapping[str, float] | None) -> WindowTotals:
    """The sum over the ``contributions`` of all processes; ``totals`` are those known before the window ran.

    Raises:
        AccumulationError: the processes disagree on how weights were given, or a micro-batch was dropped while
            several denominators shrank by different ratios (one factor cannot repair that); or a sum is inf.
    """
    if len(contributions) == 1 and (quick := _usual_totals(contributions[0])):
        return quick
    used: Weights = {}
    sums: dict[str, tuple[str, float]] = {}
    for contribution in contributions:
        for name, weight in contribution.used.items():
            used[name] = used.get(name, 0.0) + weight
        check_finite_totals(used)
        for name, (denominator, value) in contribution.losses.items():
            sums[name] = (denominator, (sums[name][1] if name in sums else 0.0) + value)
    running = [contribution for contribution in contributions if contribution.used]
    divisors = {contribution.divisor for contribution in running if contribution.divisor is not None}
    if len(divisors) > 1:
        raise AccumulationError(
            "some processes gave weight=... or reduction='undivided' in backward and others did not (some "
            f"{', some '.join(sorted(_HOW_DIVIDED[divisor] for divisor in divisors))}): do the same on every process."
        )
    if any(contribution.divisor == "undivided" for contribution in running):
        used, totals = {SINGLE: 1.0}, None

    correction = 1.0
    if any(contribution.divisor == "counted" for contribution in running):
        correction = (running[0].reference or 1.0) / (used.get(SINGLE) or 1.0)
    elif totals is not None and any(contribution.dropped for contribution in contributions):
        ratios = {total / used[name] for name, total in totals.items() if used.get(name)}
        if len(ratios) > 1 and max(ratios) / min(ratios) > 1 + 1e-12:
            raise AccumulationError(
                "a micro-batch was dropped from a window whose losses have different denominators "
                f"({', '.join(totals)}), which shrank by different ratios: use on_nonfinite='skip', or one denominator."
            )
        correction = ratios.pop() if ratios else 1.0
    losses = {name: value / used[den] for name, (den, value) in sums.items() if used.get(den)}
    first = next(iter(totals), SINGLE) if totals else SINGLE
    return WindowTotals(
        weight=used.get(first, 0.0),
        loss=sum(losses.values()) if losses else math.nan,
        losses=losses,
        correction=correction,
        overflowed=any(contribution.overflowed for contribution in contributions),
        empty=not any(used.values()),
    )


def _usual_totals(only: Contribution) -> WindowTotals | None:
    """The totals of one process, one loss and weights that were known before: this runs at every update."""
    if only.divisor != "planned" or only.dropped or len(only.losses) != 1 or len(only.used) != 1:
        return None
    ((name, (denominator, value)),) = only.losses.items()
    weight = only.used.get(denominator, 0.0)
    if denominator != SINGLE or not weight:
        return None
    return WindowTotals(weight, value / weight, {name: value / weight}, 1.0, only.overflowed, False)


def declared_weight(weight: Any) -> float | None:
    """The ``weight`` that came with a loss, as a number; None if none came."""
    if isinstance(weight, Mapping):
        raise AccumulationError(
            f"several losses with weights of their own ({', '.join(map(str, weight))}) need their totals before the "
            "window runs: use windows(weight=lambda micro: {'main': ..., 'aux': ...}), not backward(weight={...})."
        )
    return None if weight is None else _check_weight(weight, "weight")


def check_weights(value: Any, where: str) -> Weights:
    """A number, or a mapping from loss names to numbers, as named weights."""
    if isinstance(value, Mapping):
        if not value:
            raise ConfigError(f"{where} returned an empty mapping: return a weight for every loss name.")
        named = by_name(value, f"the weights of {where}")
        return {name: _check_weight(weight, f"{where}[{name!r}]") for name, weight in named.items()}
    return {SINGLE: _check_weight(value, where)}


def by_name(values: Mapping[Any, Any], what: str) -> dict[str, Any]:
    """``values`` with their names as text; ConfigError where two names are the same text, as 1 and "1" are."""
    named = {str(name): value for name, value in values.items()}
    if len(named) < len(values):
        first: dict[str, Any] = {}
        twice = next(name for name in values if first.setdefault(str(name), name) is not name)
        raise ConfigError(
            f"{what} have the names {first[str(twice)]!r} and {twice!r}, which are the same text: call one otherwise."
        )
    return named


def check_finite_totals(totals: Weights) -> Weights:
    """``totals`` themselves; AccumulationError where a sum of weights is too large for a float."""
    for name, total in totals.items():
        if total == math.inf:
            raise AccumulationError(
                f"the weights {'' if name == SINGLE else f'{name!r} '}of this window add up to inf, so each share "
                "would be 0: give weights whose sum a float can hold, such as numbers of items."
            )
    return totals


def _check_weight(value: Any, where: str) -> float:
    """``value`` as a float; a number or a one-element tensor, finite and at least 0."""
    try:
        weight = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ConfigError(f"{where} must be a number of items, got {type(value).__name__}: {value!r:.60}.") from error
    if not math.isfinite(weight) or weight < 0:
        raise ConfigError(f"{where} must be finite and at least 0, got {weight}: return the number of items or tokens.")
    return weight
