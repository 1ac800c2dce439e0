"""The check of graph edit distances against brute force and NetworkX, in short."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "check_edit_distance.py"


def test_no_distance_differs_from_brute_force_or_networkx(capsys, monkeypatch):
    spec = importlib.util.spec_from_file_location("check_edit_distance", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.main(["--pairs", "150", "--networkx", "15"]) == 0
    assert "brute force: 0 of 150 differ" in capsys.readouterr().out

    # The comparison can fail: with another oracle every pair with a node is wrong.
    monkeypatch.setattr(script, "brute_force", lambda *_: -1.0)
    assert script.against_brute_force(5) == 5
