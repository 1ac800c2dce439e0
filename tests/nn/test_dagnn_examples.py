"""The examples of `dagnn.nn` run as they are and reach what they promise."""

import runpy
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_network_recovers_the_planted_function(capsys):
    loss = runpy.run_path(str(EXAMPLES / "dagnn_network.py"))["main"]()
    assert loss < 0.005
    assert "gene0 -> survival: learned" in capsys.readouterr().out


def test_sweep_answers_larger_expressions_than_it_saw(capsys):
    accuracy = runpy.run_path(str(EXAMPLES / "dagnn_sweep.py"))["main"]()
    assert accuracy[3] > 0.98 and accuracy[7] > 0.95
    assert "depth 7" in capsys.readouterr().out
