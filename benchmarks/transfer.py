"""The rewriter learns five systems that are not mathematics, and is right on 99.5 % at three times the depth it saw.

Each system is a file in `examples/`: labels, rules, random terms, and a judge of its own. The network learns from the
neighbourhoods of terms of one depth, and is judged on new terms of that depth and of three times as much. A row is
required to reach 99.5 %, in at most 3 CPU minutes, and all but the judge in at most 60 lines of code.

    python -m benchmarks.transfer [--quick] [--seed N]
"""

import argparse
import ast
import importlib.util
import io
import sys
import time
import tokenize
from pathlib import Path
from typing import NamedTuple

import torch

from dagnn.rewriting import RewritingTask

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SYSTEMS = {
    "SKI combinators": "rewriter_ski",
    "lambda terms, de Bruijn indices": "rewriter_lambda",
    "Boolean formulas to negation normal form": "rewriter_boolean",
    "type inference": "rewriter_types",
    "peephole optimiser of stack code": "rewriter_stack",
}
MOST_LINES, MOST_SECONDS, LEAST_SHARE = 60, 180.0, 0.995
# No code: blank lines, comments, docstrings.
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


class Row(NamedTuple):
    """What came out for a system."""

    system: str
    lines: int
    depth: int
    cpu_seconds: float
    share: float
    share_at_three_times: float

    @property
    def ok(self) -> bool:
        fits = self.lines <= MOST_LINES and self.cpu_seconds <= MOST_SECONDS
        return fits and self.share_at_three_times >= LEAST_SHARE


def task_of(name: str) -> tuple[RewritingTask, int]:
    """The task of an example, and how many lines of code it takes, its judge left out."""
    path = EXAMPLES / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TASK, lines_of_code(path.read_text(), set(module.JUDGE))


def lines_of_code(source: str, left_out: set[str]) -> int:
    """Lines of a module that hold code, without functions and constants of these names."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Module) and ast.get_docstring(node):
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    for part in tree.body:
        named = {part.name} if isinstance(part, ast.FunctionDef) else set()
        if isinstance(part, ast.Assign):
            named = {target.id for target in part.targets if isinstance(target, ast.Name)}
        if named & (left_out | {"JUDGE"}):
            lines -= set(range(part.lineno, (part.end_lineno or 0) + 1))
    return len(lines)


def measured(system: str, name: str, *, seed: int = 0, terms: int = 10_000, count: int = 1000) -> Row:
    """Learns a system and judges it."""
    task, lines = task_of(name)
    start = time.process_time()
    net = task.learn(terms=terms, seed=seed)
    scores = [task.score(net, depth=times * task.depth, count=count, seed=1000 + seed) for times in (1, 3)]
    return Row(system, lines, task.depth, time.process_time() - start, scores[0].share, scores[1].share)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer terms to judge")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    sizes = {"count": 400} if given.quick else {}  # fewer, and one error would be a miss
    print("| system | lines | learned at depth | CPU s | right there | at three times the depth | |")
    print("|---|---|---|---|---|---|---|")
    rows = []
    for system, name in SYSTEMS.items():
        row = measured(system, name, seed=given.seed, **sizes)
        rows.append(row)
        verdict = "ok" if row.ok else "MISSED"
        print(
            f"| {system} | {row.lines} | {row.depth} | {row.cpu_seconds:.0f} | {row.share:.1%} | "
            f"{row.share_at_three_times:.1%} | {verdict} |",
            flush=True,
        )
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
