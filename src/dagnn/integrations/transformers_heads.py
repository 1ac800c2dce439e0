"""Every head of the installed transformers, tiny and random: is its accumulated gradient that of the full batch?"""

import contextlib
import signal
import tempfile
import time
import types
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from transformers.models.auto import modeling_auto

from dagnn.accumulation.check.arithmetic import ratio_of, relative_error, widened
from dagnn.accumulation.check.diagnosis import fit_finite
from dagnn.accumulation.check.subject import Gradients
from dagnn.errors import ConfigError, DagnnError, closest
from dagnn.integrations.transformers import ExactTrainer
from dagnn.integrations.transformers_tiny import ITEMS, SkipError, first_line, tiny_batch, tiny_model
from dagnn.integrations.windows import judge

__all__ = ["Verdict", "head_classes", "judge_head"]

SIZES = (2, 2, 2, 1)  # micro-batches of one window: the last is short
assert sum(SIZES) == ITEMS
_SECONDS = 30  # for one class

# The tables of heads in transformers, and what a batch for them holds.
_TASKS = {
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "tokens",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "tokens",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": "tokens",
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES": "pretraining",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "items",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": "token classes",
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": "spans",
    "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES": "choices",
    "MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES": "items",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": "items",
    "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES": "items",
    "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES": "pixels",
    "MODEL_FOR_MASKED_IMAGE_MODELING_MAPPING_NAMES": "masked patches",
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES": "items",
    "MODEL_FOR_AUDIO_FRAME_CLASSIFICATION_MAPPING_NAMES": "frames",
    "MODEL_FOR_AUDIO_XVECTOR_MAPPING_NAMES": "items",
    "MODEL_FOR_CTC_MAPPING_NAMES": "transcripts",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES": "tokens",
}


@dataclass(frozen=True)
class Verdict:
    """What one head class does with a window of four micro-batches.

    Attributes:
        name: the class.
        factor: what the stock Trainer's weights of the micro-batches add up to, over what the right ones do: 1 is
            right, 4 is a mean that nothing divides. Where no weights explain its gradient, the projection on that of
            the full batch. None if skipped.
        error: of the stock Trainer's gradient, relative to the full batch's.
        exact: the same of ExactTrainer's.
        exact_float32, full_float32: errors of ExactTrainer and of the full batch itself in float32, against the full
            batch in float64: the first can be no smaller than the second is by rounding. None where not asked for.
        cause: why the stock gradient is off, in words; empty if it is not.
        note: why the class was skipped, why ExactTrainer refused it, or what was changed to judge it.
        precision: dtype in which it ran.
        seconds: CPU time.
    """

    name: str
    factor: float | None = None
    error: float | None = None
    exact: float | None = None
    exact_float32: float | None = None
    full_float32: float | None = None
    cause: str = ""
    note: str = ""
    precision: str = ""
    seconds: float = 0.0

    @property
    def judged(self) -> bool:
        return self.factor is not None


def head_classes() -> dict[str, tuple[str, str]]:
    """Class name -> (model type, what its batch holds), of every text, vision and audio head, in the tables' order."""
    found: dict[str, tuple[str, str]] = {}
    for table, task in _TASKS.items():
        for model_type, names in getattr(modeling_auto, table, {}).items():
            for name in (names,) if isinstance(names, str) else names:
                found.setdefault(name, (model_type, task))
    return found


def judge_head(name: str, *, float32: bool = False) -> Verdict:
    """The verdict on one class, with a tiny random configuration of it; nothing is downloaded.

    Args:
        name: the class.
        float32: run ExactTrainer and the full batch in float32 too.

    Raises:
        ConfigError: transformers has no such class in its tables of heads.
    """
    classes = head_classes()
    if name not in classes:
        nearest = closest(name, classes)
        raise ConfigError(
            f"transformers {transformers.__version__} has no head class {name!r} in its tables of text, vision and "
            f"audio models{f': did you mean {nearest}?' if nearest else '.'}"
        )
    start = time.process_time()
    try:
        with _quiet(), _time_limit(_SECONDS):
            verdict = _judged(name, *classes[name], float32=float32)
    except SkipError as error:
        verdict = Verdict(name, note=f"skipped: {error}")
    except Exception as error:  # whatever a foreign model raises is a reason to skip it, and is named
        verdict = Verdict(name, note=f"skipped: {type(error).__name__}: {first_line(error)}")
    return Verdict(**{**vars(verdict), "seconds": time.process_time() - start})


def _judged(name: str, model_type: str, task: str, *, float32: bool) -> Verdict:
    model = tiny_model(
        name, model_type, num_labels=2 if task in ("spans", "sentences") or "NextSentence" in name else 3
    )
    notes = _make_repeatable(model)
    batch, precision = tiny_batch(model, task), torch.float32
    try:
        model.double()
        wide = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
        full = _gradient_of(model, wide)
        batch, precision = wide, torch.float64
    except Exception:  # something in it is written for float32: a kernel, a constant, a cast
        model.float()
        full = _gradient_of(model, batch)
    if not all(g is None or bool(g.isfinite().all()) for g in full) or all(g is None or not g.any() for g in full):
        raise SkipError("the gradient of the full batch is not finite, or zero")
    if relative_error(_gradient_of(model, batch), full) > _tolerance(precision):
        raise SkipError("two runs of one batch differ")

    micros = _split(batch)
    parts = [_gradient_of(model, micro) for micro in micros]
    stock = _trained(transformers.Trainer, model, micros)
    try:
        exact = relative_error(_trained(ExactTrainer, model, micros), full)
    except DagnnError as error:
        exact, notes = None, [*notes, f"ExactTrainer refuses: {first_line(error)}"]
    parameters = [p for p in model.parameters() if p.requires_grad]
    report = judge(
        [n for n, p in model.named_parameters() if p.requires_grad],
        parameters,
        stock,
        full,
        parts,
        remedy="",
        tolerance=_tolerance(precision),
    )
    narrow: dict[str, float] = {}
    if float32 and precision is torch.float64 and exact is not None:
        model.float()
        batch = {k: v.float() if v.is_floating_point() else v for k, v in batch.items()}
        narrow["full_float32"] = relative_error(_gradient_of(model, batch), full)
        narrow["exact_float32"] = relative_error(_trained(ExactTrainer, model, _split(batch)), full)
    return Verdict(
        name,
        factor=_factor(stock, full, parts, parameters),
        error=report.error,
        exact=exact,
        **narrow,
        cause="; ".join(f"{cause.kind}: {cause.explanation}" for cause in report.causes),
        note="; ".join(notes),
        precision=str(precision).removeprefix("torch."),
    )


def _split(batch: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    pieces = {key: torch.split(value, list(SIZES)) for key, value in batch.items()}
    return [{key: values[i] for key, values in pieces.items()} for i in range(len(SIZES))]


def _factor(stock: Gradients, full: Gradients, parts: Sequence[Gradients], parameters: Sequence[Tensor]) -> float:
    with contextlib.suppress(ConfigError):
        (shares, rest), (right, right_rest) = (fit_finite(parts, each, parameters) for each in (stock, full))
        if max(rest, right_rest) < 1e-4:
            return sum(shares) / sum(right)  # those of a sum add up to the number of micro-batches, of a mean to 1
    return ratio_of(stock, full)[0]


def _tolerance(precision: torch.dtype) -> float:
    return 1e-6 if precision is torch.float64 else 2e-5


def _trained(trainer_class: type[Any], model: nn.Module, micros: Sequence[dict[str, Tensor]]) -> Gradients:
    """The gradient that the trainer finds after one window, before it clips."""
    model.zero_grad()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, gradient_accumulation_steps=len(micros), use_cpu=True, report_to="none", disable_tqdm=True
        )
        trainer = trainer_class(model=model, args=arguments)
    samples, num_items = trainer.get_batch_samples(iter(micros), len(micros), arguments.device)
    trainer.current_gradient_accumulation_steps = len(samples)
    for i, inputs in enumerate(samples):
        trainer.accelerator.gradient_state._set_sync_gradients(i == len(samples) - 1)
        trainer.training_step(model, inputs, num_items)
    return _gradients(model)


def _run(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    model.train()
    outputs = model(**batch)
    loss = outputs["loss"] if isinstance(outputs, dict) and "loss" in outputs else None
    if loss is None:
        raise SkipError("it returns no loss for these inputs")
    if loss.numel() != 1 or not loss.requires_grad:
        raise SkipError("its loss is not one number with a gradient")
    return loss.squeeze()  # type: ignore[no-any-return]


def _gradient_of(model: nn.Module, batch: dict[str, Tensor]) -> Gradients:
    model.zero_grad()
    _run(model, batch).backward()  # type: ignore[no-untyped-call]
    return _gradients(model)


def _gradients(model: nn.Module) -> Gradients:
    found: Gradients = [None if p.grad is None else widened(p.grad).clone() for p in model.parameters()]
    model.zero_grad()
    return [g for g, p in zip(found, model.parameters(), strict=True) if p.requires_grad]


def _make_repeatable(model: nn.Module) -> list[str]:
    """Take the random numbers out of the model, and freeze BatchNorm; says what it changed where that matters."""
    notes = []
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        if isinstance(module, _BatchNorm):
            module.eval()
            module.train = types.MethodType(lambda self, mode=True: self, module)  # type: ignore[method-assign]
            notes = ["BatchNorm in eval mode"]
    return notes


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(50)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(level)


@contextlib.contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Raise SkipError in what takes more CPU time; without effect where there are no such alarms."""

    def stop(*_: Any) -> None:
        raise SkipError(f"it took more than {seconds} CPU seconds")

    try:
        before = signal.signal(signal.SIGPROF, stop)
    except (AttributeError, ValueError):
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
