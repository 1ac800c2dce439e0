"""Run a user's loop over micro-batches and record the gradient that its optimizers find at every step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from dagnn.accumulation.check.arithmetic import widened
from dagnn.accumulation.check.report import line_in
from dagnn.accumulation.check.subject import Gradients, Subject, TrainStep, num_arguments
from dagnn.errors import AccumulationError, ConfigError, DagnnError


class Group(NamedTuple):
    """Parameters that step together, and the gradients of their steps."""

    held: list[int]  # indices of the parameters
    steps: list[Gradients]  # .grad at every step
    incoming: list[Gradients]  # sum over the backward passes since the step before


def steps_of(groups: Sequence[Group], held: list[int]) -> list[Gradients]:
    """The steps of the group that holds exactly these parameters; none without such a group."""
    return next((group.steps for group in groups if group.held == held), [])


@dataclass
class Recording:
    """What a loop did."""

    groups: list[Group] = field(default_factory=list)
    left: Gradients = field(default_factory=list)  # .grad when the loop ended
    incoming_left: Gradients = field(default_factory=list)  # sum over the backward passes after the last step
    unstepped: list[int] = field(default_factory=list)  # parameters of optimizers that the loop made and never stepped
    stale: bool = False  # the first gradient after a step was added to what that step had used
    zeroed: bool = False  # a gradient was taken out of .grad before its step
    random: bool = False  # the loop drew from torch's generator
    scaled: bool = False  # a GradScaler scaled a loss
    idle: bool = False  # a step found no gradient, after no backward pass
    foreign: int = 0  # tensors that optimizers of the model hold beside its parameters
    moved: bool = False  # a forward pass with gradients found other parameters than the window's first one
    unscaled: bool = False  # a GradScaler was there, but disabled
    scheduler_steps: int = 0  # of the scheduler that stepped most
    rates: list[float] = field(default_factory=list)  # the learning rate at each step of any optimizer
    rate_moves: bool = False  # the learning rate took several values within one window
    lines: dict[str, str] = field(default_factory=dict)  # "step", "backward", "schedule": where the loop calls it


def record(
    subject: Subject,
    train_step: TrainStep,
    calls: Sequence[Sequence[Any]],
    *,
    scale: float = 1.0,
    loss_scale: float = 1.0,
    fading: float = 1.0,
    held: bool = True,
) -> Recording:
    """Run ``train_step`` for each of ``calls``, lists of micro-batches, and record the gradient of every step.

    After each step, and before each forward pass, all parameters get back the values they had at the start. So every
    gradient belongs to the same parameters, whatever the loop steps with, and a right step is a combination of the
    micro-batches' gradients. Random numbers of Python, NumPy and the user's own generators start again in each backward
    pass.

    Args:
        scale: multiplies all gradients on their way to ``.grad``; recorded gradients are divided by it. A small one
            keeps a clipping from acting, a large one makes it act, 0 leaves what the loop adds by itself.
        loss_scale: multiplies the scale of every ``GradScaler``, which must change nothing.
        fading: multiplies ``scale`` after each step. Norms that only fall keep a clipping that remembers earlier
            ones from acting.
        held: False lets parameters move within a window: only the first forward pass of one puts them back.

    Raises:
        AccumulationError: the loop raised.
        ConfigError: the loop steps another model than the one it gets, or moves parameters without an optimizer.
    """
    subject.reset()
    random_state = torch.get_rng_state()
    watch = _Watch(subject, train_step, scale, loss_scale, fading)
    watch.holds = held
    try:
        with watch, subject.computing():
            optimizer = torch.optim.SGD(subject.parameters, lr=0.1)
            arguments: list[Any] = []
            if num_arguments(train_step) == 4:
                arguments = [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))]
            for micro_batches in calls:
                train_step(subject.model, optimizer, list(micro_batches), *arguments)
    except DagnnError:
        raise
    except Exception as error:
        text = str(error).strip().partition("\n")[0][:300]
        raise AccumulationError(f"the loop could not be run, it raised {type(error).__name__}: {text}") from error
    result = watch.result()
    result.random = not torch.equal(torch.get_rng_state(), random_state)
    return result


class _Watch:
    """The hooks on parameters, modules and optimizers while a loop runs, and what they record."""

    def __init__(self, subject: Subject, train_step: TrainStep, scale: float, loss_scale: float, fading: float) -> None:
        self.holds = True  # as ``held`` of `record`
        self._opens = True  # no backward pass has come since the last step
        self._trains = False  # the whole model was last called with gradients
        self._subject, self._train_step, self._scale, self._fading = subject, train_step, scale, fading
        self._index = {id(p): i for i, p in enumerate(subject.parameters)}
        self._incoming: Gradients = [None] * len(subject.parameters)
        self._steps: dict[int, tuple[dict[int, int], list[Gradients], list[Gradients]]] = {}
        self._values = {
            id(module): [(name, p, p.detach().clone()) for name, p in module.named_parameters(recurse=False)]
            for module in subject.model.modules()
        }
        self._stepping: list[tuple[torch.optim.Optimizer, list[tuple[Tensor, Tensor]]]] = []
        self._pending: Callable[[], None] | None = None
        self._rate_at_backward: float | None = None
        self._reseeds: int | None = None  # the parameter whose gradient marks a new backward pass
        self._patches = _Patches(loss_scale, on_schedule=lambda: self._note_line("schedule"))
        self._recording = Recording()
        self._moved: list[str] = []  # parameters that a forward pass found at other values
        self._buffers_moved = False  # a backward pass or a step came since the buffers had the values of the start

    def __enter__(self) -> None:
        with ExitStack() as stack:
            for index, p in enumerate(self._subject.parameters):
                stack.callback(p.register_hook(lambda g, index=index: self._on_gradient(index, g)).remove)  # type: ignore[no-untyped-call]
            stack.callback(register_optimizer_step_pre_hook(self._before_step).remove)
            stack.callback(register_optimizer_step_post_hook(self._after_step).remove)
            stack.callback(nn.modules.module.register_module_forward_pre_hook(self._before_forward).remove)
            stack.enter_context(self._patches)
            self._exit = stack.pop_all()

    def __exit__(self, *error: Any) -> None:
        self._exit.close()

    def result(self) -> Recording:
        found, patches, subject = self._recording, self._patches, self._subject
        found.left, found.incoming_left = [self._wide(p.grad) for p in subject.parameters], list(self._incoming)
        moved = subject.restore_parameters() + self._moved
        subject.model.zero_grad()
        if moved and all(g is None for _, steps, _ in self._steps.values() for step in steps for g in step):
            raise ConfigError(
                "the loop changes parameters by other means than the gradients that an optimizer's step() finds in "
                f".grad (by hand, or as eager='momentum' does), {moved[0]} for one: let it call step() of the "
                "optimizer it gets, or of one that it makes of model.parameters()."
            )
        for held, *both in self._steps.values():
            group = Group(sorted(set(held.values())), *both)
            found.groups.append(_without_idle(group))
            found.idle |= len(found.groups[-1].steps) < len(group.steps)
        found.groups = _merge_groups(found.groups)
        found.scheduler_steps, found.scaled, found.unscaled = patches.scheduler_steps, patches.scaled, patches.disabled
        if patches.scaled:
            subject.narrowest = max(subject.narrowest, torch.float32, key=lambda dtype: torch.finfo(dtype).eps)
        stepped = {i for group in found.groups for i in group.held}
        found.unstepped = sorted(
            index
            for optimizer in patches.optimizers[1:]
            if id(optimizer) not in self._steps
            for index in self._held(optimizer).values()
            if index not in stepped
        )
        return found

    def _on_gradient(self, index: int, gradient: Tensor) -> Tensor:
        wide, sum_ = widened(gradient), self._incoming[index]
        before = self._subject.parameters[index].grad
        empty = before is None or not bool((widened(before) != 0).any())
        self._recording.stale |= sum_ is None and bool(self._steps) and not empty
        self._recording.zeroed |= sum_ is not None and empty and bool((sum_ != 0).any())
        self._reseeds = index if self._reseeds is None else self._reseeds
        if index == self._reseeds:
            self._subject.repeat_draws()
        self._incoming[index] = wide.clone() if sum_ is None else sum_ + wide  # .grad may be changed in place
        self._opens = False
        self._buffers_moved = self._subject.stateful
        self._note_line("backward")
        rate = self._rate()
        if rate is not None and self._rate_at_backward is not None and rate != self._rate_at_backward:
            self._recording.rate_moves = True
        self._rate_at_backward = rate
        return gradient if self._scale == 1.0 else gradient * self._scale

    def _rate(self) -> float | None:
        """The learning rate of the last optimizer that steps, or of the last one made if none has stepped."""
        made = self._patches.optimizers
        candidates = [o for o in made if id(o) in self._steps] or made
        return float(candidates[-1].param_groups[0]["lr"]) if candidates else None

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        again = any(optimizer is other for other, _ in self._stepping)  # a step() that calls that of its base class
        self._stepping.append((optimizer, []))
        if again or any(isinstance(value, torch.optim.Optimizer) for value in vars(optimizer).values()):
            return None  # it wraps another optimizer, whose step counts
        held = self._held(optimizer)
        if not held:
            if optimizer in self._patches.optimizers:
                return None
            raise ConfigError(
                f"the loop steps an optimizer ({type(optimizer).__name__}) whose parameters are not those of the model "
                "that it gets: the check runs on a copy, so use the optimizer it gets, or make one of "
                "model.parameters() inside."
            )
        self._note_line("step")
        self._stepping[-1][1].extend((p, p.detach().clone()) for g in optimizer.param_groups for p in g["params"])

        def note() -> None:
            self._pending = None
            _, steps, incoming = self._steps.setdefault(id(optimizer), (held, [], []))
            steps.append(self._read_held(optimizer, held))
            incoming.append([self._incoming[i] for i in sorted(set(held.values()))])
            for index in held.values():
                self._incoming[index] = None
            self._recording.rates.append(float(optimizer.param_groups[0]["lr"]))
            self._rate_at_backward = None
            self._scale *= self._fading

        closure = next((a for a in [*args[1:], *kwargs.values()] if callable(a)), None)
        if closure is None:
            note()
            return None
        self._pending = note  # the gradient that counts is the one after the first call of the closure

        def noted() -> Any:
            result = closure()
            if self._pending is not None:
                self._pending()
            return result

        return (
            tuple(noted if a is closure else a for a in args),
            {key: noted if a is closure else a for key, a in kwargs.items()},
        )

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._pending is not None:
            self._pending()
        for p, value in self._stepping.pop()[1]:
            p.data.copy_(value)
        self._opens = self._buffers_moved = True  # by the loop, once per step: windows start alike

    def _before_forward(self, module: nn.Module, inputs: Any) -> None:
        if self._buffers_moved:  # not in the backward pass itself, which may still read them
            self._subject.restore_buffers()
            self._buffers_moved = False
        # An embedding with a largest norm moves its rows by itself, in the forward pass.
        if module is self._subject.model:
            self._trains = torch.is_grad_enabled()  # else it evaluates, maybe with other weights
        within = not self._opens and getattr(module, "max_norm", None) is None
        within = within and (self._trains or torch.is_grad_enabled())  # a teacher inside runs without gradients
        for name, p, value in self._values.get(id(module), ()):
            if not torch.equal(p.data, value):
                self._recording.moved |= within
                self._moved.append(f"{type(module).__name__}.{name}")
                if self.holds or self._opens:
                    p.data.copy_(value)

    def _held(self, optimizer: torch.optim.Optimizer) -> dict[int, int]:
        """Index in the model of every parameter of ``optimizer``, by the parameter's id."""
        tensors = [p for group in optimizer.param_groups for p in group["params"]]
        found = {id(p): self._index[id(p)] for p in tensors if id(p) in self._index}
        if found:
            self._recording.foreign = max(self._recording.foreign, len({*map(id, tensors)} - found.keys()))
        made_here = any(optimizer is other for other in self._patches.optimizers)
        if not found and made_here and [p.shape for p in tensors] == [p.shape for p in self._subject.parameters]:
            return {id(p): i for i, p in enumerate(tensors)}  # master weights in another precision
        return found

    def _read_held(self, optimizer: torch.optim.Optimizer, held: dict[int, int]) -> Gradients:
        tensors = {held[id(p)]: p for group in optimizer.param_groups for p in group["params"] if id(p) in held}
        # A fused optimizer unscales by itself: it finds the scale of the GradScaler here.
        scale = float(getattr(optimizer, "grad_scale", None) or 1.0)
        return [self._wide(tensors[i].grad, scale) for i in sorted(tensors)]

    def _wide(self, gradient: Tensor | None, scale: float = 1.0) -> Tensor | None:
        return None if gradient is None else widened(gradient).clone() / ((self._scale or 1.0) * scale)

    def _note_line(self, what: str) -> None:
        if what not in self._recording.lines and (line := line_in(self._train_step)) is not None:
            self._recording.lines[what] = line


def _without_idle(group: Group) -> Group:
    """``group`` without steps that found no gradient after no backward pass, as a flush does: it does nothing."""
    pairs = [
        (step, came)
        for step, came in zip(group.steps, group.incoming, strict=True)
        if any(g is not None for g in step + came)
    ]
    return group._replace(steps=[s for s, _ in pairs], incoming=[c for _, c in pairs]) if pairs else group


def _merge_groups(groups: list[Group]) -> list[Group]:
    """Make one group of those that step equally often: several optimizers share the parameters."""
    merged: list[Group] = []
    for group in groups:
        for i, other in enumerate(merged):
            if len(other.steps) == len(group.steps) and not set(other.held) & set(group.held):
                merged[i] = _merge(other, group)
                break
        else:
            merged.append(group)
    return merged


def _merge(one: Group, other: Group) -> Group:
    held = one.held + other.held
    order = sorted(range(len(held)), key=held.__getitem__)

    def in_order(a: Gradients, b: Gradients) -> Gradients:
        both = a + b
        return [both[i] for i in order]

    return Group(
        [held[i] for i in order],
        list(map(in_order, one.steps, other.steps)),
        list(map(in_order, one.incoming, other.incoming)),
    )


class _Patches:
    """Patches of torch's classes that record what optimizers, schedulers and loss scalers do, whoever made them.

    Attributes:
        optimizers: those made while the patches are active, in order.
        scheduler_steps: steps of the scheduler that stepped most; a step to a given epoch does not count.
        scaled, disabled: a ``GradScaler`` scaled a loss, or was disabled.
    """

    def __init__(self, loss_scale: float, on_schedule: Callable[[], None]) -> None:
        self.optimizers: list[Optimizer] = []
        self.scaled = self.disabled = False
        self._loss_scale, self._on_schedule = loss_scale, on_schedule
        self._schedulers: dict[int, tuple[LRScheduler, int]] = {}
        self._scalers: dict[int, tuple[GradScaler, dict[str, Any]]] = {}
        self._depth = 0

    @property
    def scheduler_steps(self) -> int:
        return max((count for _, count in self._schedulers.values()), default=0)

    def __enter__(self) -> None:
        with ExitStack() as stack:
            self._wrap(stack, Optimizer, "__init__", self._make_optimizer)
            for scheduler in _family(LRScheduler):
                if "step" in vars(scheduler):
                    self._wrap(stack, scheduler, "step", self._schedule)
            self._wrap(stack, GradScaler, "__init__", self._make_scaler)
            self._wrap(stack, GradScaler, "scale", self._scale)
            self._wrap(stack, GradScaler, "_lazy_init_scale_growth_tracker", self._start_scale)
            for name in ("unscale_", "step", "update"):
                # A scaler computes in float32, and its kernels take nothing else.
                self._wrap(stack, GradScaler, name, _without_modes)
            self._exit = stack.pop_all()

    def __exit__(self, *error: Any) -> None:
        self._exit.close()
        for scaler, state in self._scalers.values():
            vars(scaler).clear()
            vars(scaler).update(state)

    @staticmethod
    def _wrap(stack: ExitStack, owner: type, name: str, wrapper: Callable[..., Any]) -> None:
        original = vars(owner)[name]

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return wrapper(original, self, *args, **kwargs)

        setattr(owner, name, method)
        stack.callback(setattr, owner, name, original)

    def _make_optimizer(self, original: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        self.optimizers.append(optimizer)

    def _schedule(self, original: Any, scheduler: LRScheduler, *args: Any, **kwargs: Any) -> Any:
        initial = getattr(scheduler, "_is_initial", False)
        plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        to_epoch = (len(args) > plateau and args[plateau] is not None) or kwargs.get("epoch") is not None
        if not self._depth and not initial and not to_epoch:
            _, count = self._schedulers.get(id(scheduler), (scheduler, 0))
            self._schedulers[id(scheduler)] = (scheduler, count + 1)
            self._on_schedule()
        self._depth += 1  # a chained or sequential scheduler steps others, which count once
        try:
            return original(scheduler, *args, **kwargs)
        finally:
            self._depth -= 1

    @staticmethod
    def _make_scaler(original: Any, scaler: GradScaler, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        # On a machine without CUDA a scaler for it disables itself, and the check could not see what it does.
        original(scaler, device if torch.cuda.is_available() else "cpu", *args, **kwargs)

    def _scale(self, original: Any, scaler: GradScaler, outputs: Any) -> Any:
        self.scaled |= scaler.is_enabled()
        self.disabled |= not scaler.is_enabled()
        self._keep(scaler)
        return original(scaler, outputs)

    def _start_scale(self, original: Any, scaler: GradScaler, device: torch.device) -> None:
        with _disable_current_modes():
            original(scaler, device)
            assert scaler._scale is not None
            scaler._scale = scaler._scale * self._loss_scale

    def _keep(self, scaler: GradScaler) -> None:
        """Keep a scaler's state from before its first use, for the end, and apply the loss scale."""
        if id(scaler) in self._scalers:
            return
        with _disable_current_modes():
            state = {
                name: value.clone() if isinstance(value, Tensor) else value.copy() if isinstance(value, dict) else value
                for name, value in vars(scaler).items()
            }
            self._scalers[id(scaler)] = (scaler, state)
            if scaler.is_enabled() and scaler._scale is not None:
                scaler._scale = scaler._scale * self._loss_scale


def _without_modes(original: Any, scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
    with _disable_current_modes():
        return original(scaler, *args, **kwargs)


def _family(base: type[LRScheduler]) -> Iterator[type[LRScheduler]]:
    yield base
    for child in base.__subclasses__():
        yield from _family(child)
