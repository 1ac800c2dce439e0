"""The benchmark harness on a clock of its own: ratios, their range, the exit code and the JSON rows."""

import json

import pytest
import torch

from benchmarks.harness import Case, Row, main, measure, table


class Clock:
    """A clock that stands still until a contestant moves it on."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def __call__(self):
        return self.now

    def contestant(self, name, *seconds):
        """Takes the given seconds in turn, the last one for ever."""
        left = list(seconds)

        def call():
            self.calls.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


def test_ratio_is_taken_within_a_round():
    clock = Clock()
    # The first two calls of each warm up and find the number of repeats.
    ours = clock.contestant("ours", 9, 1, 1, 2, 4)
    peer = clock.contestant("peer", 9, 3, 3, 4, 20)

    (row,) = measure(Case("c", ours, {"peer": peer}, required=2.5), rounds=3, clock=clock)

    assert row == Row("c", "peer", 4, 2, ratio=3, lowest=2, highest=5, required=2.5, ok=True, threads=row.threads)


def test_contestants_alternate_and_take_turns_to_begin():
    clock = Clock()
    peers = {name: clock.contestant(name, 1) for name in ("a", "b")}

    measure(Case("c", clock.contestant("ours", 1), peers), rounds=4, clock=clock)

    assert clock.calls[6:] == ["ours", "a", "b", "a", "b", "ours", "b", "ours", "a", "ours", "a", "b"]


def test_short_calls_are_repeated():
    clock = Clock()

    (row,) = measure(
        Case("c", clock.contestant("ours", 0.005), {"peer": clock.contestant("peer", 0.05)}), rounds=2, clock=clock
    )

    assert clock.calls.count("ours") == 2 + 2 * 20
    assert clock.calls.count("peer") == 2 + 2 * 2
    assert row.ratio == pytest.approx(10)
    assert row.ok and row.required is None


@pytest.mark.parametrize(("took", "rounds"), [(0.25, 6), (0.1, 10), (2.0, 2)])
def test_short_cases_run_more_rounds(took, rounds):
    clock = Clock()

    measure(
        Case("c", clock.contestant("ours", took), {"peer": clock.contestant("peer", took)}),
        rounds=2, seconds=3.0, clock=clock,
    )  # fmt: skip

    assert clock.calls.count("ours") == clock.calls.count("peer") == 2 + rounds


@pytest.mark.parametrize(("limit", "ok"), [(1.0, True), (0.4, False)])
def test_limit_requires_that_ours_is_not_slower(limit, ok):
    clock = Clock()

    (row,) = measure(Case("c", clock.contestant("ours", 0.5), limits={"limit": limit}), rounds=3, clock=clock)

    assert (row.against, row.seconds, row.required, row.ok) == ("limit", limit, 1.0, ok)


def test_threads_are_set_for_the_case_alone():
    before = torch.get_num_threads()
    seen = []

    (row,) = measure(
        Case("c", lambda: seen.append(torch.get_num_threads()), limits={"limit": 1}, threads=before + 1), rounds=1
    )

    assert set(seen) == {before + 1}
    assert row.threads == before + 1
    assert torch.get_num_threads() == before


def cases(ratio):
    def listed(quick):
        clock = Clock()
        name = "small" if quick else "large"
        yield Case(name, lambda: None, limits={"limit": ratio}, check=lambda: clock())

    return listed


def test_main_prints_the_claim_and_a_table_and_writes_json(tmp_path, capsys):
    file = tmp_path / "rows.json"

    assert main("The claim.\n\nMore.", cases(1e9), ["--quick", "--json", str(file)]) == 0

    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "The claim."
    assert printed[1].split()[:2] == ["case", "against"]
    assert printed[2].startswith("small  limit")
    written = json.loads(file.read_text())
    assert written["claim"] == "The claim." and written["quick"] is True
    assert len(written["date"]) == 10 and written["command"].startswith("python ")
    assert "--json" not in written["command"]
    assert {"processor", "cores", "system"} <= written["machine"].keys()
    assert {"python", "torch"} <= written["versions"].keys()
    assert {"case", "against", "seconds", "ours_seconds", "ratio", "required", "ok"} <= written["rows"][0].keys()


def test_missed_ratio_is_exit_code_1(capsys):
    assert main("The claim.", cases(1e-12), []) == 1

    output = capsys.readouterr()
    assert "MISSED" in output.out
    assert output.err.splitlines() == ["0 s: large", "missed: large against limit: 0.00, required 1.0"]


def test_disagreement_is_exit_code_1_and_is_not_timed(capsys):
    def disagree():
        raise AssertionError("3 is not 4")

    def one_case(quick):
        yield Case("c", lambda: pytest.fail("timed"), limits={"limit": 1}, check=disagree)

    assert main("The claim.", one_case, []) == 1
    assert "c: ours and the peers disagree: 3 is not 4" in capsys.readouterr().err


def test_table_aligns_its_columns():
    row = Row("a case", "peer", 0.25, 0.125, 2, 1.5, 2.5, None, True, 1)

    lines = table([row]).splitlines()

    assert lines == [
        "case    against  threads  ours ms  peer ms  ratio  lowest .. highest  required",
        "a case  peer           1  125.000  250.000   2.00       1.50 .. 2.50            ok",
    ]
