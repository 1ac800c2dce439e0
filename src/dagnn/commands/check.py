"""Loops judged from the command line: ``dagnn check`` runs them, or transformers' heads; ``dagnn lint`` reads them."""

import importlib.util
import io
import json
import sys
import tokenize
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dagnn import __version__
from dagnn.accumulation.check.loop_check import check_loop
from dagnn.accumulation.check.model_check import check_equivalence
from dagnn.accumulation.check.report import Report
from dagnn.errors import ConfigError, DagnnError, DataError, closest, did_you_mean
from dagnn.lint import RULES, Finding, lint_source
from dagnn.lint.source import find_files

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
    """Print a table of head classes of transformers: what its Trainer makes of a window, and why. The exit code:

    0 if every class that could be judged has the full batch's gradient, 1 if one has not, 2 if none was judged.

    Args:
        names: classes; none of them means all.
        as_json: one JSON object per class and line, in place of the table.
    """
    try:
        from dagnn.integrations.transformers_heads import head_classes, judge_head

        for name in set(names) - set(head_classes()):
            judge_head(name)  # refuses it, before hours of others
    except ImportError as error:
        return _could_not_run(f'--transformers needs more packages ({error}): pip install "dagnn[transformers]"')
    except DagnnError as error:
        return _could_not_run(str(error))
    if not as_json:
        print(f"{'class':<46} {'factor':>8} {'error':>9} {'exact':>9}  cause", flush=True)
    equal, judged = True, 0
    for name in names or head_classes():
        verdict = judge_head(name)
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
    """The function that ``"path/to/file.py:function"`` names; ConfigError where there is none."""
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


CLEAN, FOUND, COULD_NOT_READ = 0, 1, 2
_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def run_lint(
    paths: Sequence[str], *, select: Sequence[str] = (), ignore: Sequence[str] = (), form: str = "text"
) -> int:
    """Print what the rules find in files and folders, and return the exit code: 0 nothing, 1 something, 2 unreadable.

    Args:
        paths: Python files, notebooks and folders; ``-`` reads standard input.
        select, ignore: rules to use, all if empty, and rules to leave out.
        form: ``"text"``, ``"json"`` or ``"sarif"``.

    Raises:
        ConfigError: there is no such rule.
        DataError: there is nothing at a path.
    """
    rules = (set(_known(select)) or set(RULES)) - set(_known(ignore))
    found: list[Finding] = []
    code = CLEAN
    for path in dict.fromkeys(find_files(paths)):
        try:
            name = "<stdin>" if path == "-" else path
            found += [finding for finding in lint_source(_text_of(path), name) if finding.rule in rules]
        except DataError as error:
            print(f"dagnn lint: {error}", file=sys.stderr)
            code = COULD_NOT_READ
    print({"text": _as_text, "json": _as_json, "sarif": _as_sarif}[form](found))
    return code or (FOUND if found else CLEAN)


def _known(names: Sequence[str]) -> list[str]:
    """Names of rules, also several in one word with commas."""
    found = [part.strip() for name in names for part in name.split(",") if part.strip()]
    for name in found:
        if name not in RULES:
            nearest = closest(name, RULES)
            advice = did_you_mean([nearest] if nearest else [], f"the rules are {', '.join(RULES)}.")
            raise ConfigError(f"there is no rule {name!r}: {advice}")
    return found


def _text_of(path: str) -> str:
    """The text of a file, in the encoding that Python reads it in; DataError if it is not in that."""
    data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    try:
        encoding = "utf-8" if path.endswith(".ipynb") else tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise DataError(f"{path}:1: no valid Python: {error}.") from None


def _as_text(found: Collection[Finding]) -> str:
    lines = []
    for finding in found:
        rule = RULES[finding.rule]
        lines += [str(finding), f"  why  {rule.why}", f"  fix  {rule.fix}"]
    files = len({finding.path for finding in found})
    lines.append(f"{len(found)} found in {files} file{'s' * (files != 1)}." if found else "Nothing found.")
    return "\n".join(lines)


def _as_json(found: Collection[Finding]) -> str:
    return json.dumps([_described(finding) for finding in found], indent=1)


def _described(finding: Finding) -> dict[str, Any]:
    rule = RULES[finding.rule]
    return {
        "path": finding.path,
        "cell": finding.cell or None,
        "line": finding.line,
        "column": finding.column,
        "end_line": finding.end_line,
        "rule": finding.rule,
        "summary": rule.summary,
        "why": rule.why,
        "fix": rule.fix,
    }


def _as_sarif(found: Collection[Finding]) -> str:
    """SARIF 2.1.0, as code hosts show it beside the lines."""
    names = list(RULES)
    rules = [
        {
            "id": name,
            "shortDescription": {"text": rule.summary},
            "fullDescription": {"text": rule.why},
            "help": {"text": rule.fix},
            "defaultConfiguration": {"level": "warning"},
        }
        for name, rule in RULES.items()
    ]
    results = [
        {
            "ruleId": finding.rule,
            "ruleIndex": names.index(finding.rule),
            "level": "warning",
            "message": {"text": f"{RULES[finding.rule].summary}: {RULES[finding.rule].fix}"},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": Path(finding.path).as_posix()},
                        "region": {
                            "startLine": finding.line,
                            "startColumn": finding.column,
                            "endLine": finding.end_line,
                        },
                    }
                }
            ],
        }
        for finding in found
    ]
    driver = {"name": "dagnn lint", "version": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": _SARIF, "version": "2.1.0", "runs": [run]}, indent=1)
