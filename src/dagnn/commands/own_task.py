"""`dagnn train --task MODULE:NAME`: a task of the user's own. The command line alone names the module, never a file."""

import importlib
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch

from dagnn.accumulation.random_states import seed_everything
from dagnn.commands import complain, users_error, users_errors
from dagnn.data import Record, read_records
from dagnn.errors import ConfigError, DagnnError, DataError, GraphError
from dagnn.files import replace_file
from dagnn.training.config import TrainingConfig
from dagnn.training.evaluation import Meter
from dagnn.training.lr_finder import LrCurve
from dagnn.training.processes import Processes
from dagnn.training.run.checkpoint_commands import run_and_checkpoint
from dagnn.training.run.directory import open_run
from dagnn.training.run.tensors import check_initialised, load_weights
from dagnn.training.settings import at_least, setting
from dagnn.training.step import check_functions
from dagnn.training.trainer import Trainer, TrainingTask

if TYPE_CHECKING:
    from dagnn.rewriting import GraphRewriter, RewritingTask, Signature
    from dagnn.rewriting.learning import Term

RESULTS = "results.json"
_STEP_BUDGET = 20_000  # rewrite steps of a term
# While more neighbourhoods than this are wrong hardly a term comes out right, and such a network may never stop.
_WRONG_AT_MOST = 0.03
_STAGE = 1


def _dataset() -> Any:
    return setting("", "file or folder that the task reads; empty: none", allowed="a path", accepts=lambda value: True)


def _run_directory() -> Any:
    return setting("runs/task", "where the run is kept", allowed="a path", accepts=lambda value: value.strip() != "")


@dataclass(frozen=True)
class DatasetConfig:
    """What the task learns from."""

    dataset: str = _dataset()


@dataclass(frozen=True)
class TermsConfig:
    """What the rewriting system is learned from: terms of a dataset, or random ones."""

    dataset: str = _dataset()
    terms: int = setting(10_000, "random terms to learn from, where there is no dataset", **at_least(1))
    eval_terms: int = setting(200, "terms of an evaluation", **at_least(1))
    test_terms: int = setting(1000, "terms of the final evaluation, at each depth", **at_least(1))


@dataclass(frozen=True)
class NetworkConfig:
    """Size of the network."""

    width: int = setting(128, "features of the residual blocks", **at_least(1))
    blocks: int = setting(1, "residual blocks", **at_least(1))


@dataclass(frozen=True)
class FactoryConfig(TrainingConfig):
    """Every setting of a task that a function of the user's makes."""

    run_directory: str = _run_directory()
    task: DatasetConfig = DatasetConfig()


@dataclass(frozen=True)
class RewritingConfig(TrainingConfig):
    """Every setting of a rewriting system of the user's."""

    run_directory: str = _run_directory()
    task: TermsConfig = TermsConfig()
    model: NetworkConfig = NetworkConfig()


class OwnTask(NamedTuple):
    """A `RewritingTask`, or a function ``make(config) -> TrainingTask``, and the name that the user gave it."""

    name: str
    value: Any

    @classmethod
    def load(cls, name: str) -> "OwnTask":
        """Imports the module of ``MODULE:NAME``, from the current folder or what is installed.

        ConfigError for another form, a module that is missing or fails, and a NAME that is neither kind of task.
        """
        module, _, member = name.partition(":")
        if module.endswith(".py") or "/" in module or not module or not member.isidentifier():
            raise ConfigError(f"--task must be MODULE:NAME, such as my_tasks:arithmetic, got {name!r}.")
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise users_error(error, f"--task {name}", module) from error
            raise ConfigError(
                f"--task {name}: there is no module {error.name!r}, neither in {Path.cwd()} nor installed."
            ) from None
        except (Exception, SystemExit) as error:
            raise users_error(error, f"--task {name}", module) from error
        if not hasattr(found, member):
            raise ConfigError(f"--task {name}: the module {module} has no {member!r}.")
        own = cls(name, getattr(found, member))
        if not own.is_rewriting and not callable(own.value):
            raise ConfigError(
                f"--task {name}: expected a RewritingTask or a function that returns a TrainingTask, got a "
                f"{type(own.value).__name__}."
            )
        return own

    @property
    def is_rewriting(self) -> bool:
        # Without its module there is none of its objects; importing it needs numba.
        learning = sys.modules.get("dagnn.rewriting.learning")
        return learning is not None and isinstance(self.value, learning.RewritingTask)

    @property
    def config_class(self) -> type[TrainingConfig]:
        return RewritingConfig if self.is_rewriting else FactoryConfig

    def parts(self, config: TrainingConfig, note: Callable[[str], object]) -> TrainingTask:
        """Model, loss, data and evaluation. The same settings give the same first weights.

        Raises:
            ConfigError: the user's function fails, or returns something else, or its parts are of the wrong kind.
            DataError, GraphError: the dataset, or what a rule returned.
        """
        seed_everything(config.seed)
        if self.is_rewriting:
            with self._users_errors():
                return _rewriting(self.value, cast(RewritingConfig, config), note)
        try:
            made = self.value(config)
        except DagnnError:
            raise
        except (Exception, SystemExit) as error:
            raise users_error(error, f"--task {self.name}", self._module) from error
        if not isinstance(made, TrainingTask):
            raise ConfigError(f"--task {self.name}: it must return a TrainingTask, got a {type(made).__name__}.")
        check_initialised(made.model)
        check_functions(loss_fn=made.loss_fn, evaluate=made.evaluate, weight=made.weight, test=made.test)
        return made

    def train(
        self,
        config: TrainingConfig,
        *,
        resume: bool = False,
        step: int | None = None,
        reschedule: str | None = None,
        note: Callable[[str], object] = print,
    ) -> None:
        """Trains in ``config.run_directory``; arguments and errors as of `dagnn.curriculum.run.train`.

        ConfigError, which names the line, for an error in a function of the user's.
        """
        processes = Processes()
        parts = self.parts(config, note)  # a mistake in it makes no directory
        with open_run(config, resume, processes) as run:
            trainer = self._trainer(parts, config, run=run)
            with self._users_errors():
                if resume:
                    trainer.resume(step, reschedule=reschedule)
                trainer.fit()
            if parts.test is not None:
                with trainer.averaged() as model, torch.no_grad():
                    processes.by_first(lambda: _write(run.path, trainer.step, self._tested(parts, model)))

    def search_lr(self, config: TrainingConfig, *, note: Callable[[str], object] = print) -> LrCurve:
        """Losses at rising learning rates; nothing is kept."""
        trainer = self._trainer(self.parts(config, note), config)
        with self._users_errors():
            return trainer.find_lr()

    def evaluate(self, run: str | Path, *, note: Callable[[str], object] = print) -> dict[str, Any]:
        """The final evaluation again, of a run's newest checkpoint or of the one that ``run`` names.

        Raises:
            RunError, CheckpointError: there is no run of this task, or no whole checkpoint.
            ConfigError: the task has no ``test``.
        """
        directory, checkpoint = run_and_checkpoint(run)
        parts = self.parts(directory.config(self.config_class), note)
        if parts.test is None:
            raise ConfigError(f"--task {self.name}: its TrainingTask has no test=, which the evaluation calls.")
        load_weights(parts.model, checkpoint.tensors)
        parts.model.eval()
        with torch.no_grad():
            return {"step": checkpoint.step, **self._tested(parts, parts.model)}

    def _tested(self, parts: TrainingTask, model: torch.nn.Module) -> dict[str, float]:
        """What the task's test returned: numbers by name; else a ConfigError."""
        assert parts.test is not None
        with self._users_errors():
            returned = parts.test(model)
        where = f"--task {self.name}: test"
        if not isinstance(returned, Mapping):
            raise ConfigError(f"{where} returned a {type(returned).__name__}: return numbers by name, such as a dict.")
        results: dict[str, float] = {}
        for name, value in returned.items():
            if str(name) == "step" or str(name) in results:
                taken = "has the step of the training" if str(name) == "step" else "holds another"
                raise ConfigError(
                    f"{where} returned a number called {name!r}, and {RESULTS} {taken} under that name: call it "
                    "otherwise."
                )
            try:
                results[str(name)] = float("text" if isinstance(value, str | bytes) else value)
            except (TypeError, ValueError, OverflowError, RuntimeError, NotImplementedError):
                kind = type(value).__name__
                raise ConfigError(f"{where}'s {name} is {value!r:.60}, a {kind}: it must be a number.") from None
        return results

    def _users_errors(self) -> AbstractContextManager[None]:
        return users_errors(f"--task {self.name}", self._module)

    @property
    def _module(self) -> str:
        return self.name.partition(":")[0]

    def _trainer(self, parts: TrainingTask, config: TrainingConfig, **options: Any) -> Trainer:
        return Trainer(
            parts.model,
            parts.loss_fn,
            parts.loader,
            config,
            evaluate=parts.evaluate,
            weight=parts.weight,
            description={"task": self.name},
            **options,
        )


def evaluated(run: str | Path, task: str, *, as_json: bool = False) -> str:
    """What `dagnn evaluate --task` prints. Errors as of `OwnTask.load` and `OwnTask.evaluate`."""
    results = OwnTask.load(task).evaluate(run, note=complain)
    return json.dumps(results) if as_json else "\n".join(lines_of(results))


def results_of(run: str | Path) -> list[str]:
    """The final evaluation of a run as lines; none where its task has no test."""
    path = Path(run) / RESULTS
    return lines_of(json.loads(path.read_bytes())) if path.exists() else []


def lines_of(results: Mapping[str, Any]) -> list[str]:
    """Names and numbers, one a line."""
    width = max(map(len, results))
    return [f"{name:<{width}}  {value:.6g}" for name, value in results.items()]


def _write(directory: Path, step: int, results: Mapping[str, float]) -> None:
    replace_file(directory / RESULTS, json.dumps({"step": step, **results}, indent=1).encode())


class _Asked(NamedTuple):
    """Terms to judge a network by, and their answers where the dataset has them."""

    terms: list["Term"]
    answers: list["Term | None"]


def _rewriting(task: "RewritingTask", config: RewritingConfig, note: Callable[[str], object]) -> TrainingTask:
    """A `GraphRewriter` on the neighbourhoods that the rules meet on the way to the normal forms of terms."""
    from dagnn.rewriting import GraphRewriter
    from dagnn.rewriting.dataset import NeighbourhoodLoader, NeighbourhoodSet

    settings, seed, processes = config.task, config.seed, Processes()
    splits = _splits(settings.dataset, task.signature) if settings.dataset else None
    if splits is None:
        draw = random.Random(f"{seed} train")
        terms = [task.term(draw, task.depth) for _ in range(settings.terms)]
        validation = _drawn(task, task.depth, settings.eval_terms, f"{seed} validation")
    else:
        terms, validation = splits["train"].terms, splits["validation"]
        validation = _Asked(validation.terms[: settings.eval_terms], validation.answers[: settings.eval_terms])
    seen = sorted(task.neighbourhoods(terms))
    if not seen:
        raise ConfigError(f"none of {len(terms):,} terms has a node to rewrite: give a label a neighbourhood_depth.")
    note(f"{len(seen):,} distinct neighbourhoods in {len(terms):,} terms")
    replacements = [task.replacement(neighbourhood) for neighbourhood in seen]
    network = GraphRewriter.from_neighbourhoods(
        task.signature,
        seen,
        width=config.model.width,
        blocks=config.model.blocks,
        num_slots=max(1, *map(len, replacements)),
    )
    loader = NeighbourhoodLoader(
        NeighbourhoodSet(seen, replacements, np.ones((len(seen), 1), np.int64), (_STAGE,)),
        network,
        batch_size=config.micro_batch_size,
        seed=seed,
        stage_weights={_STAGE: 1.0},
        rank=processes.rank,
        num_ranks=processes.size,
    )
    loader.open_stages((_STAGE,))

    def evaluate(model: torch.nn.Module, step: int) -> dict[str, Any]:
        # Those that are wrong are drawn more often from now on; all processes find the same ones.
        wrong = loader.wrong_neighbourhoods(cast("GraphRewriter", model), (_STAGE,))
        loader.learn_from(wrong)
        found: dict[str, Any] = {"windows_wrong": len(wrong) / len(seen)}
        if len(wrong) > _WRONG_AT_MOST * len(seen):
            return {**found, "accuracy": Meter.of([0.0])}
        mine = slice(processes.rank, None, processes.size)
        share = _Asked(validation.terms[mine], validation.answers[mine])
        return {**found, "accuracy": Meter.of(_right(task, cast("GraphRewriter", model), share))}

    def test(model: torch.nn.Module) -> dict[str, float]:
        asked = (
            {
                f"accuracy, depth {times * task.depth}": _drawn(
                    task, times * task.depth, settings.test_terms, f"{seed} test at {times * task.depth}"
                )
                for times in (1, 2, 3)
            }
            if splits is None
            else {"accuracy, test": splits["test"]}
        )
        return {name: _mean(_right(task, cast("GraphRewriter", model), part)) for name, part in asked.items()}

    return TrainingTask(
        network,
        lambda model, batch: cast("GraphRewriter", model).loss(batch.rows, batch.targets),
        loader,
        evaluate=evaluate,
        test=test,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _drawn(task: "RewritingTask", depth: int, count: int, seed: str) -> _Asked:
    draw = random.Random(seed)
    return _Asked([task.term(draw, depth) for _ in range(count)], [None] * count)


def _right(task: "RewritingTask", network: "GraphRewriter", asked: _Asked) -> list[float]:
    """1 for every term whose normal form is the dataset's answer, or, without one, right by the task's judge."""
    from dagnn.rewriting import decode_term, encode_term

    results = network.solve([encode_term(term, task.signature) for term in asked.terms], budget=_STEP_BUDGET)
    found = [None if each.tokens is None else decode_term(each.tokens, task.signature) for each in results]
    return [
        float(form is not None and (task.is_right(term, form) if answer is None else form == answer))
        for term, answer, form in zip(asked.terms, asked.answers, found, strict=True)
    ]


def _splits(path: str, signature: "Signature") -> dict[str, _Asked]:
    """The terms of a dataset by split: train, validation, test; DataError for a missing one, or a record of no term."""
    splits = {split: _Asked([], []) for split in ("train", "validation", "test")}
    for record in read_records(path):
        if record.split not in splits:
            raise DataError(
                f"{path}: record {record.id!r} has split {record.split!r}: give one of {', '.join(splits)}."
            )
        terms, answers = splits[record.split]
        terms.append(_read_term(record.input, path, record, signature))
        answers.append(_read_term(record.answer, path, record, signature) if record.answer else None)
    if empty := [split for split, found in splits.items() if not found.terms]:
        raise DataError(f"{path} has no record of split {empty[0]!r}: give each of {', '.join(splits)} some.")
    return splits


def _read_term(text: str, path: str, record: Record, signature: "Signature") -> "Term":
    """The term that a text such as ``(plus (next zero) zero)`` spells."""
    from dagnn.rewriting import encode_term

    words = text.replace("(", " ( ").replace(")", " ) ").split()
    open_terms: list[list[Any]] = [[]]
    for word in words:
        if word == "(":
            open_terms.append([])
        elif word != ")":
            open_terms[-1].append(word)
        elif len(open_terms) > 1 and open_terms[-1]:
            done = open_terms.pop()
            open_terms[-1].append(tuple(done) if len(done) > 1 else done[0])
        else:
            break
    else:
        if len(open_terms) == 1 and len(open_terms[0]) == 1:
            term: Term = open_terms[0][0]
            try:
                encode_term(term, signature)
            except GraphError as error:
                raise DataError(f"{path}: record {record.id!r}: {error}") from None
            return term
    raise DataError(f"{path}: record {record.id!r}: {text!r} is no term: write one as (label child ...).")
