"""``dagnn check``: run a check of a file, or of the heads of transformers, from the command line."""

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dagnn.accumulation.check.loop_check import check_loop
from dagnn.accumulation.check.model_check import check_equivalence
from dagnn.accumulation.check.report import Report
from dagnn.errors import ConfigError, DagnnError

EQUAL, NOT_EQUAL, COULD_NOT_RUN = 0, 1, 2


def run_check(target: str) -> int:
    """Print the report of ``target`` and return the exit code: 0 equal, 1 not equal, 2 could not run.

    Args:
        target: ``"path/to/file.py:function"``. The function takes no arguments and returns a report, or the arguments
            of a check as a mapping: those of ``check_loop`` if it has the key ``train_step``, else those of
            ``check_equivalence``.
    """
    try:
        report = _report(_load_function(target)())
    except DagnnError as error:
        return _could_not_run(str(error))
    except SystemExit as error:
        # The file's own exit code must not pass for a verdict.
        return _could_not_run(
            f"{target} ended the program with SystemExit({error.code!r}): put what runs the script below "
            "if __name__ == '__main__'."
        )
    except Exception as error:
        text = str(error).strip().partition("\n")[0][:300]  # some of torch's run to hundreds of lines
        return _could_not_run(f"{target} raised {type(error).__name__}: {text}")
    print(report)
    return EQUAL if report.equal else NOT_EQUAL


def run_heads(names: Sequence[str], *, as_json: bool = False) -> int:
    """Print a table of head classes of transformers: what its Trainer makes of a window, and why.

    Returns:
        0 if every class that could be judged has the full batch's gradient, 1 if one has not, 2 if none was judged.

    Args:
        names: classes; none of them means all.
        as_json: one JSON object per class and line, in place of the table.
    """
    try:
        from dagnn.integrations.transformers_heads import head_classes, judge_head
    except ImportError as error:
        return _could_not_run(f"--transformers needs more packages ({error}): pip install dagnn[transformers]")
    except DagnnError as error:
        return _could_not_run(str(error))
    if not as_json:
        print(f"{'class':<46} {'factor':>8} {'error':>9} {'exact':>9}  cause", flush=True)
    equal, judged = True, 0
    for name in names or head_classes():
        try:
            verdict = judge_head(name)
        except DagnnError as error:
            return _could_not_run(str(error))
        judged += verdict.judged
        equal &= not verdict.cause
        print(json.dumps(asdict(verdict)) if as_json else head_row(verdict), flush=True)
    return COULD_NOT_RUN if not judged else EQUAL if equal else NOT_EQUAL


def head_row(verdict: Any) -> str:
    """One line of the table: class, factor and error of the stock Trainer, error of ExactTrainer, cause."""
    if not verdict.judged:
        return f"{verdict.name:<46} {'':>8} {'':>9} {'':>9}  {verdict.note}"
    exact = "refused" if verdict.exact is None else f"{verdict.exact:.1e}"
    text = verdict.cause.partition(":")[0] or "none: equal to the full batch"
    note = f" ({verdict.note})" if verdict.note else ""
    return f"{verdict.name:<46} {verdict.factor:>8.4f} {verdict.error:>9.1e} {exact:>9}  {text}{note}"


def _load_function(target: str) -> Callable[[], Any]:
    """The function that ``"path/to/file.py:function"`` names.

    Raises:
        ConfigError: ``target`` has another form, there is no such file, or it has no such function.
    """
    path, _, name = target.rpartition(":")
    if not path or not name.isidentifier():
        raise ConfigError(f"give the check as path/to/file.py:function, got {target!r}.")
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"there is no file {path}.")
    spec = importlib.util.spec_from_file_location(f"dagnn_check_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no Python file: its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses in the file look their module up
    sys.path.insert(0, str(file.parent.resolve()))  # as `python file.py` does
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent.resolve()))
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{path} has no function {name!r}.")
    return function  # type: ignore[no-any-return]


def _report(result: Any) -> Report:
    if isinstance(result, Report):
        return result
    if isinstance(result, Mapping):
        check = check_loop if "train_step" in result else check_equivalence
        return check(**result)
    raise ConfigError(
        "the function must return a report, or a mapping with model, loss_fn and batch, and train_step if it is about "
        f"a loop; it returned {type(result).__name__}."
    )


def _could_not_run(why: str) -> int:
    print(f"dagnn check: {why}", file=sys.stderr)
    return COULD_NOT_RUN
