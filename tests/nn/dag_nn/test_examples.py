"""The examples of `dagnn.nn` run as they are and reach what they promise."""

import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_network_recovers_the_planted_function(capsys):
    loss = runpy.run_path(str(EXAMPLES / "dagnn_network.py"))["main"]()
    assert loss < 0.005
    assert "gene0 -> survival: learned" in capsys.readouterr().out


def test_sweep_answers_larger_expressions_than_it_saw(capsys):
    accuracy = runpy.run_path(str(EXAMPLES / "dagnn_sweep.py"))["main"]()
    assert accuracy[3] > 0.98 and accuracy[7] > 0.95
    assert "depth 7" in capsys.readouterr().out


if find_spec("sklearn"):  # the digits come with scikit-learn

    def test_sparse_network_reads_digits(capsys):
        assert runpy.run_path(str(EXAMPLES / "dagnn_digits.py"))["main"]() >= 0.97
        assert "pruned to" in capsys.readouterr().out


if find_spec("binn"):  # Reactome's tables come with binn

    def test_network_on_reactome_finds_the_planted_pathways(capsys):
        auc, found = runpy.run_path(str(EXAMPLES / "dagnn_reactome.py"))["main"]()
        assert auc > 0.8 and found >= 4
        assert "14,628 nodes, 49,737 edges, 14 levels" in capsys.readouterr().out


def test_without_its_data_an_example_says_what_to_install():
    scripts = [str(EXAMPLES / f"{name}.py") for name in ("dagnn_digits", "dagnn_reactome")]
    code = (
        "import importlib.util, runpy\n"
        "importlib.util.find_spec = lambda name: None\n"
        f"for script in {scripts!r}:\n"
        "    print('>>>')\n"
        "    try:\n"
        "        runpy.run_path(script, run_name='__main__')\n"
        "    except SystemExit as end:\n"
        "        assert not end.code, end.code\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    before, *told = done.stdout.split(">>>\n")
    assert before == "" and len(told) == 2 and all("pip install" in text for text in told)
