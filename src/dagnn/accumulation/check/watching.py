"""Looks on while training runs: ``watch`` at a loop, and ``FirstWindow`` at a trainer of somebody else.

``watch`` says whether the steps had the mean over what ran. ``FirstWindow`` keeps what ran, and runs it again.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss
from torch.nn.modules.module import register_module_forward_hook
from torch.optim import Optimizer

from dagnn.accumulation.check.arithmetic import close, widened
from dagnn.accumulation.check.causes import judge
from dagnn.accumulation.check.diagnosis import scale_cause
from dagnn.accumulation.check.report import Cause, Kind, Report, cause, line_in
from dagnn.accumulation.check.subject import Gradients
from dagnn.accumulation.random_states import RandomState, Snapshot
from dagnn.errors import AccumulationError, AccumulationWarning, ConfigError, warn

# Relative error up to which gradients of a trainer are equal.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}


class Watched(NamedTuple):
    """One step that `watch` saw.

    Attributes:
        items: of each micro-batch, the length of the first tensor that went into the model; 0 if there was none.
        weights: what each micro-batch's mean loss counted in ``.grad`` at the step, or None if the loss was not seen.
            Right are shares of the items, which add up to 1.
        stale: micro-batches of earlier steps that were still in ``.grad``.
        lost: micro-batches that were not in it.
        explained: ``.grad`` was a weighted sum of the backward passes.

    >>> Watched((4, 4), (0.5, 0.5), 0, 0, True).weights
    (0.5, 0.5)
    """

    items: tuple[int, ...]
    weights: tuple[float, ...] | None
    stale: int
    lost: int
    explained: bool


@dataclass
class _MicroBatch:
    items: int
    factors: list[Tensor] = field(default_factory=list)  # the derivative of what ran backward by each mean loss
    gradient: dict[int, Tensor] = field(default_factory=dict)  # parameter -> some elements of what backward gave it


class watch:
    """Looks on while a training loop runs: whether each step had the mean over what went through the model.

    A ``with`` block around the loop. Hooks read 16 elements of at most 64 parameters in every backward pass and step;
    they change no bit of the training, and go at the end of the block, also after an error, or once ``windows`` steps
    were seen. The first step is not judged, as it may hold what came before.

    From hooks alone, the weight of a micro-batch is known where its mean loss is: a loss module such as
    ``nn.CrossEntropyLoss``, or a scalar that the model returns, alone or as ``loss``. After ``torch.nn.functional``
    losses, ``verdict`` is None unless gradients of earlier steps are left or some are lost: use `check_loop` then.
    Neither ignored tokens, nor other processes, nor what the optimizer does with the gradient are seen.

    Args:
        model: the module that the loop calls once per micro-batch.
        optimizer: what the loop steps, its parameters among those of the model.
        windows: how many steps to judge.

    Raises:
        ConfigError: no module, no optimizer or one without parameters of the model, or ``windows`` is below 1.

    Cost: some 25 us (one CPU core) per watched parameter and backward pass, until ``windows`` steps were seen.

    >>> import torch, dagnn
    >>> model, loss_fn = torch.nn.Linear(20, 2), torch.nn.MSELoss()
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with dagnn.watch(model, optimizer) as watch:
    ...     for i in range(12):
    ...         loss_fn(model(torch.randn(4, 20)), torch.randn(4, 2)).backward()  # not divided by 4
    ...         if (i + 1) % 4 == 0:
    ...             optimizer.step()
    ...             optimizer.zero_grad()
    >>> watch.verdict, watch.steps[0].weights, [str(cause.kind) for cause in watch.causes]
    (False, (1.0, 1.0, 1.0, 1.0), ['not scaled'])
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, windows: int = 4) -> None:
        if isinstance(windows, bool) or not isinstance(windows, int) or windows < 1:
            raise ConfigError(f"windows must be a whole number of at least 1, got {windows!r}.")
        inner = getattr(optimizer, "optimizer", None)  # Accelerate's wrapper
        self._optimizer = inner if isinstance(inner, Optimizer) else optimizer
        if not isinstance(model, nn.Module) or not hasattr(self._optimizer, "param_groups"):
            given = f"{type(model).__name__}, {type(optimizer).__name__}"
            raise ConfigError(f"watch takes a module and an optimizer, in this order, got {given}.")
        of_model = {id(p) for p in model.parameters() if p.requires_grad}
        held = [p for group in self._optimizer.param_groups for p in group["params"] if id(p) in of_model]
        if not held:
            raise ConfigError("the optimizer holds no parameter of the model: watch the model that the loop steps.")
        self._parameters: list[Tensor] = held[:: -(-len(held) // 64)]
        self._model, self._windows, self._exit = model, windows, ExitStack()
        self._now: list[_MicroBatch] = []
        self._before: list[_MicroBatch] = []
        self._steps_seen = 0
        self._line: str | None = None
        self.steps: list[Watched] = []
        self.causes: list[Cause] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._model.register_forward_hook(self._after_model).remove)
            stack.callback(register_module_forward_hook(self._after_module).remove)
            for index, p in enumerate(self._parameters):
                stack.callback(p.register_hook(partial(self._on_gradient, index)).remove)  # type: ignore[no-untyped-call]
            stack.callback(self._optimizer.register_step_pre_hook(self._before_step).remove)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._exit.close()

    @property
    def verdict(self) -> bool | None:
        """True: every step seen had the mean; False: one had not; None: that cannot be told."""
        if self.causes:
            return False
        return True if self.steps and all(s.weights is not None and s.explained for s in self.steps) else None

    def __str__(self) -> str:
        heads = {True: "RIGHT", False: "WRONG", None: "NOT JUDGED"}
        lines = [f"{heads[self.verdict]}: {len(self.steps)} steps seen."]
        for one in self.causes:
            lines += [f"{one.kind}: {one.explanation}", *([f"  at      {one.line}"] if one.line else [])]
            lines.append(f"  change  {one.change}")
        if self.steps and any(step.weights is None for step in self.steps):
            lines.append("note: no mean loss was seen, so its scale is not judged: use a module of nn, or check_loop.")
        if any(not step.explained for step in self.steps):
            lines.append("note: .grad is no weighted sum of the backward passes: something else changes it.")
        return "\n".join(lines)

    def _after_model(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        tensor = next((value for value in inputs if isinstance(value, Tensor) and value.ndim), None)
        if not self._now or self._now[-1].gradient:
            self._now.append(_MicroBatch(0))
        self._now[-1].items += 0 if tensor is None else len(tensor)
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", output)
        self._note_loss(loss)

    def _after_module(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, _Loss) and module.reduction == "mean":
            self._note_loss(output)

    def _note_loss(self, loss: Any) -> None:
        if isinstance(loss, Tensor) and loss.ndim == 0 and loss.requires_grad and self._now:
            loss.register_hook(self._now[-1].factors.append)  # type: ignore[no-untyped-call]

    def _on_gradient(self, index: int, gradient: Tensor) -> None:
        if self._now and not gradient.is_sparse:
            kept = self._now[-1].gradient
            new = _some(gradient)
            kept[index] = kept[index] + new if index in kept else new

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        window = [one for one in self._now if one.gradient]
        self._steps_seen += 1
        if self._steps_seen > 1 and window:
            self._line = line_in(watch.__init__)
            self._judge(window, float(getattr(optimizer, "grad_scale", None) or 1.0))
        self._before, self._now = window, []
        if len(self.steps) >= self._windows:
            self._exit.close()

    def _judge(self, window: list[_MicroBatch], scale: float) -> None:
        actual = {i: _some(p.grad) / scale for i, p in enumerate(self._parameters) if p.grad is not None}
        both = [*self._before, *window]
        found, rest = _fitted(actual, both)
        slack = 1e-3 if all(p.dtype in (torch.float32, torch.float64) for p in self._parameters) else 3e-2
        largest = max(map(abs, found), default=0.0)
        old, new = found[: len(self._before)], found[len(self._before) :]
        stale = sum(abs(w) > slack * largest for w in old)
        lost = sum(abs(w) <= slack * largest for w in new)
        factors = [sum(map(float, one.factors)) if one.factors else None for one in window]
        known = [f for f in factors if f is not None]
        weights = None
        if all(abs(w - 1) <= slack for w in new):
            new = [1.0] * len(new)  # .grad is the plain sum of the backward passes
        if len(known) == len(window) and rest <= slack:
            weights = tuple(round(f * w, 6) for f, w in zip(known, new, strict=True))
        items = tuple(one.items for one in window)
        self.steps.append(Watched(items, weights, stale, lost, rest <= slack))
        if rest <= slack:
            self._blame(self.steps[-1], known, slack)

    def _blame(self, step: Watched, factors: list[float], slack: float) -> None:
        """The causes that the weights of a step show."""
        k = len(step.items)
        if step.stale:
            text = f"a step still held the gradient of {step.stale} micro-batches of the step before."
            self._add(Kind.NOT_ZEROED, text)
        elif step.lost:
            text = f"a step held {k - step.lost} of the {k} micro-batches since the step before."
            self._add(Kind.ZEROED_TOO_OFTEN, text)
        elif step.weights is not None:
            total, raw = sum(step.weights), sum(factors)
            # Clipping makes all weights smaller by one factor: then the losses' own factors add up to 1.
            if k == 1 and 0 < total < 1 - slack and abs(1 / total - round(1 / total)) < slack:
                text = f"every micro-batch has a step of its own, with its loss divided by {round(1 / total)}."
                self._add(Kind.EXTRA_STEP, text)
            elif not any(abs(t - 1) <= slack for t in (total, raw)):
                # Clipping hides the scale in the step, a loss scale hides it in the losses' own factors.
                of_losses, of_step = (scale_cause(t, k, -1, slack) for t in (raw, total))
                found = of_step if of_losses.kind is Kind.WRONG_SCALE else of_losses
                self._add(found.kind, found.explanation)
            elif all(step.items) and not close(
                [w / total for w in step.weights], [n / sum(step.items) for n in step.items], slack
            ):
                text = f"micro-batches of {list(step.items)} items count {[round(w, 4) for w in step.weights]}."
                self._add(Kind.MEAN_OF_MEANS, text)

    def _add(self, kind: Kind, text: str) -> None:
        if all(one.kind is not kind for one in self.causes):
            self.causes.append(cause(kind, text, self._line))


def _some(gradient: Tensor) -> Tensor:
    """Some elements, spread evenly, in float64."""
    flat = gradient.detach().reshape(-1)
    chosen = flat[:: max(1, flat.numel() // 16)][:16]
    return torch.view_as_real(chosen).flatten().double() if chosen.is_complex() else chosen.double()


def _fitted(actual: dict[int, Tensor], parts: list[_MicroBatch]) -> tuple[list[float], float]:
    """The weights of ``parts`` that fit ``actual`` best, and the relative rest; infinite if several weights do."""
    keys = sorted(set(actual).union(*(one.gradient for one in parts)))

    def column(values: dict[int, Tensor]) -> Tensor:
        like = {key: next(v[key] for v in (actual, *(one.gradient for one in parts)) if key in v) for key in keys}
        return torch.cat([values.get(key, torch.zeros_like(like[key])) for key in keys]).cpu()

    target, columns = column(actual), torch.stack([column(one.gradient) for one in parts], dim=1)
    norms = torch.linalg.vector_norm(columns, dim=0)
    if not bool(torch.isfinite(columns).all() and torch.isfinite(target).all() and (norms > 0).all()):
        return [0.0] * len(parts), float("inf")
    scaled = columns / norms
    if columns.shape[0] < columns.shape[1] or float(torch.linalg.svdvals(scaled)[-1]) < 1e-6:
        return [0.0] * len(parts), float("inf")
    found = torch.linalg.lstsq(scaled, target[:, None]).solution[:, 0]
    rest = torch.linalg.vector_norm(target - scaled @ found) / torch.linalg.vector_norm(target).clamp_min(1e-300)
    return (found / norms).tolist(), float(rest)


class Ran(NamedTuple):
    """A micro-batch that a trainer ran: its mean loss, and the random numbers it began with."""

    batch: Any
    loss_of: Callable[[Any], Tensor]
    random: RandomState


class FirstWindow:
    """The first window of a trainer, which runs again afterwards to judge the gradient that the trainer found.

    Args:
        on_unequal: "warn", or "raise" an AccumulationError; else a ConfigError.
        remedy: what to change where the gradient is wrong, in one sentence.

    Attributes:
        report: the verdict; None before ``judge``, and where the window cannot be judged, of which a warning says why.
        ran: what ran so far, until it is judged.
        judged: ``judge`` has run.
    """

    def __init__(self, on_unequal: str, remedy: str) -> None:
        if on_unequal not in ("warn", "raise"):
            raise ConfigError(f"on_unequal must be 'warn' or 'raise', got {on_unequal!r}.")
        self.report: Report | None = None
        self.ran: list[Ran] = []
        self.judged = False
        self._on_unequal = on_unequal
        self._remedy = remedy

    def add(self, batch: Any, loss_of: Callable[[Any], Tensor]) -> None:
        """Keep a micro-batch that is about to run."""
        self.ran.append(Ran(batch, loss_of, RandomState.now()))

    def judge(
        self,
        model: nn.Module,
        found: Gradients | None,
        *,
        full: Callable[[list[Ran]], Gradients],
        mean: Callable[[Ran], Gradients],
        low_precision: bool,
        coupled: bool,
    ) -> None:
        """Compare ``found``, or what is in ``.grad``, with the gradient of the full batch; the model stays as it is.

        Args:
            full: computes the gradient of the full batch; an AccumulationError says why there is none.
            mean: computes that of the mean loss of one micro-batch.
            low_precision: the trainer computes in 16 bits.
            coupled: the loss of an item depends on others.
        """
        self.judged = True
        actual = gradients_of(model) if found is None else found
        before, gradients = Snapshot([model]), [(p, p.grad) for p in model.parameters()]
        inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        named = [(name, p) for name, p in inner.named_parameters() if p.requires_grad]
        dtypes = {p.dtype for _, p in named} | ({torch.bfloat16} if low_precision else set())
        try:
            expected, parts = full(self.ran), [mean(ran) for ran in self.ran]
            self.report = judge(
                [name for name, _ in named],
                [p for _, p in named],
                actual,
                expected,
                parts,
                remedy=self._remedy,
                tolerance=max(_TOLERANCE.get(dtype, 1e-4) for dtype in dtypes),
                coupled=coupled,
            )
        except AccumulationError as error:
            warn(f"the gradient of this training cannot be judged: {error}", AccumulationWarning)
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
            before.restore()
            self.ran = []
        if self.report is not None and not self.report.equal:
            if self._on_unequal == "raise":
                raise AccumulationError(str(self.report))
            warn(str(self.report), AccumulationWarning)


def gradients_of(model: nn.Module) -> Gradients:
    """Copies of what is in ``.grad``, widened, of all parameters that require a gradient."""
    return [None if p.grad is None else widened(p.grad).clone() for p in model.parameters() if p.requires_grad]
