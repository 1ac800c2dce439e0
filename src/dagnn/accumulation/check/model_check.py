"""check_equivalence: whether a loss has the weighted sum of its micro-batches' gradients, and if not, why."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dagnn.accumulation.check.arithmetic import close, combine, relative_error, total_norm
from dagnn.accumulation.check.diagnosis import fall_short, fit_finite, leaves_out
from dagnn.accumulation.check.layouts import split_by
from dagnn.accumulation.check.report import Cause, Kind, Report, cause, coupled, make_report
from dagnn.accumulation.check.subject import Gradients, LossFn, Subject, notes_on_precision, own_precision_note
from dagnn.accumulation.items import count_items
from dagnn.accumulation.partition import WeightFn
from dagnn.accumulation.random_states import RandomState
from dagnn.accumulation.shares import check_weights
from dagnn.errors import ConfigError


def check_equivalence(
    model: nn.Module,
    loss_fn: LossFn,
    batch: Any,
    *,
    splits: Sequence[Sequence[int]] | None = None,
    weight: WeightFn | None = None,
) -> Report:
    """Whether accumulating ``loss_fn`` over micro-batches gives the gradient of the full batch, and if not, why.

    Runs on a copy in float64, casts inside the model included. The caller's model, buffers and random numbers do not
    change.

    Args:
        model: any module that can be copied.
        loss_fn: ``loss_fn(model, micro_batch)`` returns the mean loss, a tensor of one element.
        batch: tensors ``[items, ...]`` of any dtype, alone or in tuples, mappings and dataclasses; see ``accumulate``
            for what else can be split. At least 2 items.
        splits: sizes of the micro-batches, one list per split, each with the sum ``items``; default: two halves, and a
            ragged one.
        weight: function of a micro-batch that returns its weight, as in ``accumulate``; default: its number of items.

    Raises:
        ConfigError: the model cannot be copied or has no parameter that requires a gradient, the batch has one item, a
            split does not add up, all weights are 0, or the loss is no single finite number or does not depend on the
            model.

    >>> import torch, dagnn
    >>> batch = (torch.randn(8, 3), torch.tensor([0, 1, -100, -100, -100, 1, 0, 1]))
    >>> def loss_fn(model, batch):
    ...     return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    >>> report = dagnn.check_equivalence(torch.nn.Linear(3, 2), loss_fn, batch)
    >>> report.equal, [str(cause.kind) for cause in report.causes]
    (False, ['wrong denominator'])
    >>> bool(dagnn.check_equivalence(torch.nn.Linear(3, 2), loss_fn, batch, weight=lambda b: (b[1] >= 0).sum()))
    True
    """
    random_state, subject = RandomState.now(), None
    try:
        subject = Subject(model, loss_fn, batch)
        sizes = _check_splits(splits, count_items(batch))
        return _check(subject, sizes, weight)
    finally:
        random_state.restore()
        if subject is not None:
            subject.generators.restore()
            subject.kept.restore()


def _check(subject: Subject, splits: list[list[int]], weight: WeightFn | None) -> Report:
    full = subject.gradient()
    worst = max(splits, key=lambda sizes: relative_error(_accumulated(subject, sizes, weight), full))
    accumulated = _accumulated(subject, worst, weight)
    equal = relative_error(accumulated, full) <= subject.tolerance
    notes = []
    unused = [name for name, gradient in zip(subject.names, full, strict=True) if gradient is None]
    if unused:
        notes.append(f"the loss does not use {', '.join(unused[:5])}: no gradient there, with any splitting.")
    found, more = model_causes(subject)
    causes = [] if equal else [*found, *_loss_causes(subject, worst, weight)]
    causes += [c for c in found if c.kind is Kind.RECOMPUTATION and c not in causes]
    notes += [*more, *own_precision_note(subject), *notes_on_precision(subject)]
    return make_report(
        causes, subject.names, accumulated, full, equal=equal and not causes, precision=subject.dtype, notes=notes
    )


def model_causes(subject: Subject) -> tuple[list[Cause], list[str]]:
    """Causes that lie in the model's state, and notes. Leaves ``subject`` without them.

    Afterwards every item draws the same random numbers, BatchNorm layers are in eval mode, and where a forward pass
    reads a buffer that an earlier one wrote, a recorded loop gets the buffers back after each backward pass.
    """
    causes: list[Cause] = []
    notes: list[str] = []
    first = subject.gradient()
    random = relative_error(subject.gradient(seed=1), first) > subject.tolerance
    slope_is_wrong = _slope_is_wrong(subject, first)
    subject.still = subject.draws  # also with a generator that this seed does not reach
    if random:
        subject.still = True
        layers = ", ".join(name for name, _ in subject.dropout_layers()) or "a function that draws random numbers"
        text = f"two runs of the same batch differ by their random numbers ({layers})."
        causes.append(cause(Kind.DROPOUT, text))
        first = subject.gradient()
        if slope_is_wrong and not (slope_is_wrong := _slope_is_wrong(subject, first)):
            text = "a finite difference of the loss disagrees with the gradient, but agrees without random numbers."
            causes[-1] = cause(Kind.RECOMPUTATION, text)
        if relative_error(subject.gradient(seed=1), first) > subject.tolerance:
            notes.append(
                "the loss draws random numbers of Python or NumPy: each micro-batch gets the same ones here, so what "
                "it draws item by item counts as a difference."
            )

    layers_in_training = subject.batch_norm_layers()
    if layers_in_training:
        names = ", ".join(name or "the model" for name, _ in layers_in_training)
        causes.append(cause(Kind.BATCH_NORM, f"{names}: each micro-batch is normalised by its own mean and variance."))
        for _, layer in layers_in_training:
            _freeze(layer)

    first = subject.gradient()
    subject.repeat_draws()
    subject.stateful = relative_error(subject.next_gradient(subject.batch), first) > subject.tolerance
    if subject.stateful:
        causes.append(
            cause(
                Kind.BUFFER,
                "a second run of the same batch differs from the first: a pass changes a buffer, or a number that the "
                "loss keeps, and the next one reads it.",
            )
        )
    if slope_is_wrong:
        notes.append(
            "the gradient is not the slope of the loss: a finite difference along it disagrees. That is right if the "
            "loss stops a gradient on purpose (detach, a straight-through estimator), and a fault otherwise."
        )
    return causes, notes


def _slope_is_wrong(subject: Subject, gradient: Gradients) -> bool:
    if subject.narrowest is not torch.float64:
        return False  # rounding drowns the difference of two losses
    norm = total_norm(gradient)
    return norm > 0 and abs(subject.slope(gradient) - norm) > 0.05 * norm


def _loss_causes(subject: Subject, sizes: list[int], weight: WeightFn | None) -> list[Cause]:
    """Causes in how the loss divides, for a subject that ``model_causes`` has left without causes of its own."""
    pieces = split_by(subject.batch, sizes)
    full, parts = subject.gradient(), [subject.gradient(piece) for piece in pieces]
    shares = _shares(pieces, weight)

    def explains(coefficients: Sequence[float]) -> bool:
        return relative_error(combine(parts, coefficients), full) <= subject.tolerance

    if explains(shares):
        return []
    by_items = [size / sum(sizes) for size in sizes]
    if explains([1.0] * len(sizes)):
        return [cause(Kind.SUM_LOSS, "the loss of the whole is the sum of the losses of its parts, not their mean.")]
    if explains(by_items) and close(shares, [1 / len(sizes)] * len(sizes), 1e-9):
        return [
            cause(
                Kind.MEAN_OF_MEANS,
                f"micro-batches of {_list(sizes)} items all have the same weight; right are shares of "
                f"{_list(by_items)}.",
            )
        ]
    try:
        found, rest = fit_finite(parts, full, subject.parameters)
    except ConfigError:
        found, rest = [], 1.0
    if rest <= 10 * subject.tolerance and not leaves_out(found, parts, subject.parameters) and not fall_short(found):
        return [
            cause(
                Kind.WRONG_DENOMINATOR,
                f"the shares of the micro-batches are {_list(found)}, but their weights give "
                f"{_list(shares)}: the loss divides by something else.",
            )
        ]
    return [coupled()]


def _freeze(module: nn.Module) -> None:
    """Put a module of the copy into eval mode, where a ``model.train()`` inside a loop cannot reach it."""
    module.eval()
    for part in module.modules():
        object.__setattr__(part, "train", lambda mode=True, part=part: part)


def _accumulated(subject: Subject, sizes: list[int], weight: WeightFn | None) -> Gradients:
    pieces = split_by(subject.batch, sizes)
    subject.reset()
    gradients = []
    for seed, piece in enumerate(pieces):
        torch.manual_seed(seed)  # so that no piece draws the numbers that the full batch drew
        gradients.append(subject.next_gradient(piece))
    return combine(gradients, _shares(pieces, weight))


def _shares(pieces: Sequence[Any], weight: WeightFn | None) -> list[float]:
    weights = [_weight_of(piece, weight) for piece in pieces]
    total = sum(weights)
    if not total:
        raise ConfigError(f"the weights of all micro-batches are 0, got {weights}: use a batch with items that count.")
    return [w / total for w in weights]


def _weight_of(piece: Any, weight: WeightFn | None) -> float:
    if weight is None:
        return float(count_items(piece))
    return next(iter(check_weights(weight(piece), "weight(micro_batch)").values()))


def _check_splits(splits: Sequence[Sequence[int]] | None, num_items: int) -> list[list[int]]:
    if num_items < 2:
        raise ConfigError(f"the batch has {num_items} item: give at least 2, so that there is something to split.")
    if splits is None:
        halves = [num_items - num_items // 2, num_items // 2]
        # Ragged, but with two items or more where there are enough: BatchNorm cannot normalise one.
        least = 2 if num_items >= 8 else 1
        rest = num_items - least - num_items // 3
        return [halves, [least, num_items // 3, rest]] if num_items >= 5 else [halves, [1, num_items - 1]]
    for sizes in splits:
        if sum(sizes) != num_items or min(sizes, default=0) < 1:
            raise ConfigError(
                f"splits must be lists of positive sizes that add up to the {num_items} items of the batch, got "
                f"{list(sizes)}, which add up to {sum(sizes)}."
            )
    return [list(sizes) for sizes in splits]


def _list(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers)
