"""Checks every loop of the corpus of the checker, and prints: loop, mistake, verdict, cause, seconds of CPU time.

    python scripts/check_corpus.py [WORD ...]     loops whose name or mistake holds a word; all without one

Exit code 1 when the checker rejects a right loop, passes a wrong one, or names too few causes right.
"""

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from accumulation.check.corpus import CASES

from dagnn.accumulation.check import check_loop
from dagnn.errors import DagnnError

SECONDS, CAUSES = 5.0, 0.95


def main(words: list[str]) -> int:
    torch.set_num_threads(1)
    cases = [case for case in CASES if not words or any(word in str(case) for word in words)]
    if cases:
        check_loop(**cases[0].arguments())  # untimed: torch imports parts of itself at the first step of an optimizer
    false_alarms = passed = misnamed = slow = 0
    print(f"{'loop':<52} {'mistake':<48} {'verdict':<10} {'cause':<40} seconds")
    for case in cases:
        start = time.process_time()
        try:
            report = check_loop(**case.arguments())
            verdict, found = "EQUAL" if report.equal else "NOT EQUAL", [str(c.kind) for c in report.causes]
        except DagnnError as error:
            verdict, found = "ERROR", [str(error)[:80]]
        seconds = time.process_time() - start
        false_alarms += case.cause is None and verdict != "EQUAL"
        passed += case.cause is not None and verdict != "NOT EQUAL"
        misnamed += case.cause is not None and case.cause not in found
        slow += seconds > SECONDS
        wrong = (verdict == "EQUAL") != (case.cause is None) or (case.cause and case.cause not in found)
        causes = ", ".join(found) + (f"  <- {case.cause}" if wrong else "")
        print(f"{case.name:<52} {case.mistake:<48} {verdict:<10} {causes:<40} {seconds:.2f}", flush=True)
    wrong_loops = sum(case.cause is not None for case in cases)
    named = 1 - misnamed / max(1, wrong_loops)
    loops = len({case.name for case in cases})
    print(
        f"\n{loops} loops, {wrong_loops} of {len(cases)} cases with a mistake: {false_alarms} "
        f"right ones condemned, {passed} wrong ones passed, {named:.1%} of causes named, {slow} over {SECONDS:.0f} s."
    )
    return int(bool(false_alarms or passed or slow or named < CAUSES))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
