"""How every benchmark measures and reports: interleaved rounds, ratios with their range, one table, one exit code.

A benchmark is a module with its claim in the docstring's first line and a function that lists its cases:

    def cases(quick: bool) -> Iterable[Case]:
        yield Case("100,000 edges", ours=build, peers={"NetworkX": build_networkx}, required=1.0, check=agree)

    if __name__ == "__main__":
        sys.exit(main(__doc__, cases))

`python -m benchmarks.<name>` prints its table and exits with 1 when a required ratio is missed. `--quick` takes
smaller cases and fewer rounds (a minute at most on a quiet machine), `--json FILE` also writes the rows.
What is being measured stands on stderr: the table comes last.
"""

import argparse
import datetime
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

ROUNDS, QUICK_ROUNDS = 9, 3
MIN_SECONDS = 0.1  # a shorter call is repeated until a round takes this long: clocks and caches jitter below it
# Short cases run more rounds, up to five times as many, until these seconds are measured: of three rounds of 0.1 s on a
# machine that others use too, the median is off by 3 % and more.
CASE_SECONDS = 3.0
VERSIONS_OF = ("torch", "numpy", "numba", "scipy", "networkx")

Contestant = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One line of measurement: our code and what it is compared with, all doing the same work.

    Attributes:
        name: sizes that matter, such as ``"100,000 edges, B=64, float32"``.
        ours: our code; everything that is not to be timed is done before.
        peers: name -> the peer at its best settings.
        limits: name -> seconds that ours may take at most, where the claim is a time and not a comparison.
        required: smallest ratio (seconds of the peer / seconds of ours) that the claim needs; None only reports.
            Limits always require 1.
        check: raises AssertionError when ours and the peers disagree; runs once, before the timing.
        threads: threads of torch for all contestants; None leaves them as they are.
    """

    name: str
    ours: Contestant
    peers: Mapping[str, Contestant] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    required: float | None = None
    check: Callable[[], None] | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Row:
    """One result. ``ratio`` is the median over the rounds of ``seconds / ours_seconds``: above 1, ours is faster."""

    case: str
    against: str
    seconds: float
    ours_seconds: float
    ratio: float
    lowest: float
    highest: float
    required: float | None
    ok: bool
    threads: int


def main(
    claim: str | None,
    cases: Callable[[bool], Iterable[Case]],
    argv: Sequence[str] | None = None,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Runs a benchmark from the command line.

    Args:
        claim: the module's docstring; its first line is the headline.
        cases: the cases, given whether the run is a quick one.
        argv: arguments; None reads the command line.
        clock: ``time.process_time`` for a claim about CPU time.

    Returns:
        The exit code: 0, or 1 when a required ratio was missed or contestants disagree.
    """
    headline = (claim or "").strip().splitlines()[0]
    parser = argparse.ArgumentParser(description=headline)
    parser.add_argument("--quick", action="store_true", help="smaller cases and fewer rounds, a minute at most")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to this file")
    arguments = parser.parse_args(argv)

    print(headline, flush=True)
    begin = time.perf_counter()
    rows: list[Row] = []
    disagreements = 0
    for case in cases(arguments.quick):
        print(f"{time.perf_counter() - begin:.0f} s: {case.name}", file=sys.stderr, flush=True)
        try:
            rows += measure(case, rounds=QUICK_ROUNDS if arguments.quick else ROUNDS, seconds=CASE_SECONDS, clock=clock)
        except AssertionError as error:
            disagreements += 1
            print(f"{case.name}: ours and the peers disagree: {error}", file=sys.stderr)
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(as_json(headline, rows, quick=arguments.quick), indent=1) + "\n")
    missed = [row for row in rows if not row.ok]
    for row in missed:
        print(f"missed: {row.case} against {row.against}: {row.ratio:.2f}, required {row.required}", file=sys.stderr)
    return 1 if missed or disagreements else 0


def measure(
    case: Case, *, rounds: int, seconds: float = 0.0, clock: Callable[[], float] = time.perf_counter
) -> list[Row]:
    """One row per peer and limit of a case; with ``seconds`` more rounds, see `CASE_SECONDS`.

    In every round each contestant runs once, beginning with another one each time, so that a slow minute of the
    machine or a warm cache favours nobody. Ratios are taken within a round.
    """
    previous = _set_threads(case.threads)
    try:
        if case.check is not None:
            case.check()
        names = ["ours", *case.peers]
        calls = {"ours": case.ours, **case.peers}
        repeats = {name: _repeats(calls[name], clock) for name in names}
        times: dict[str, list[float]] = {name: [] for name in names}
        gc.collect()  # once: it walks every object, and what ran right after it would run from cold caches
        begin = clock()
        for number in range(5 * rounds if seconds else rounds):
            if number >= rounds and clock() - begin >= seconds:
                break
            for name in names[number % len(names) :] + names[: number % len(names)]:
                times[name].append(_seconds(calls[name], repeats[name], clock))
        threads = _threads()
    finally:
        _set_threads(previous)
    against_peers = [_row(case.name, peer, times[peer], times["ours"], case.required, threads) for peer in case.peers]
    limits = [(name, [limit] * len(times["ours"])) for name, limit in case.limits.items()]
    return against_peers + [_row(case.name, name, limit, times["ours"], 1.0, threads) for name, limit in limits]


def table(rows: Sequence[Row]) -> str:
    """The rows as text: medians in milliseconds, the ratio with its lowest and highest over the rounds."""
    head = ("case", "against", "threads", "ours ms", "peer ms", "ratio", "lowest .. highest", "required", "")
    lines = [
        (
            row.case,
            row.against,
            str(row.threads),
            f"{row.ours_seconds * 1e3:.3f}",
            f"{row.seconds * 1e3:.3f}",
            f"{row.ratio:.2f}",
            f"{row.lowest:.2f} .. {row.highest:.2f}",
            "" if row.required is None else f"{row.required:g}",
            "ok" if row.ok else "MISSED",
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in (head, *lines)) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column < 2 else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (head, *lines)
    )


def as_json(headline: str, rows: Sequence[Row], *, quick: bool) -> dict[str, Any]:
    """What `--json` writes: the claim, the command and its date, the machine and the rows."""
    return {
        "claim": headline,
        "command": _command(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "quick": quick,
        "machine": {"processor": _processor(), "cores": os.cpu_count(), "system": platform.platform()},
        "versions": {"python": platform.python_version()} | _versions(),
        "threads": _threads(),
        "rows": [asdict(row) for row in rows],
    }


def _command() -> str:
    """How this process was called, without where its rows go."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    words = ["python", "-m", spec.name] if spec else ["python", Path(sys.argv[0]).name]
    rest = sys.argv[1:]
    if "--json" in rest:
        del rest[rest.index("--json") : rest.index("--json") + 2]
    return " ".join([*words, *rest])


def _row(
    case: str, against: str, peer: Sequence[float], ours: Sequence[float], required: float | None, threads: int
) -> Row:
    ratios = [theirs / mine for theirs, mine in zip(peer, ours, strict=True)]
    ratio = statistics.median(ratios)
    return Row(
        case,
        against,
        seconds=statistics.median(peer),
        ours_seconds=statistics.median(ours),
        ratio=ratio,
        lowest=min(ratios),
        highest=max(ratios),
        required=required,
        ok=required is None or ratio >= required,
        threads=threads,
    )


def _repeats(call: Contestant, clock: Callable[[], float]) -> int:
    """Calls per round. The first call, which compiles and fills caches, counts for nothing."""
    call()
    return max(1, round(MIN_SECONDS / max(_seconds(call, 1, clock), 1e-9)))


def _seconds(call: Contestant, repeats: int, clock: Callable[[], float]) -> float:
    """Seconds per call. The garbage collector waits meanwhile: it would hit whoever comes next."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        begin = clock()
        for _ in range(repeats):
            call()
        return (clock() - begin) / repeats
    finally:
        if collecting:
            gc.enable()


def _threads() -> int:
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else 1


def _set_threads(threads: int | None) -> int | None:
    """Sets torch's threads and returns what they were; does nothing for None."""
    if threads is None:
        return None
    import torch

    previous: int = torch.get_num_threads()
    torch.set_num_threads(threads)
    return previous


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in VERSIONS_OF if name in sys.modules}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
