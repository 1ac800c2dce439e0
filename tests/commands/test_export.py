"""`dagnn export`."""

from dagnn import Dag, DagNN
from dagnn.cli import main


def test_export_writes_c_and_names_the_files(tmp_path, capsys):
    DagNN(Dag([("a", "b")])).save(tmp_path / "net.safetensors")
    assert main(["export", str(tmp_path / "net.safetensors"), str(tmp_path / "net.c")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / name) for name in ("net.h", "net.c", "net_test.c")]
    assert main(["export", str(tmp_path / "net.safetensors"), str(tmp_path / "net.c")]) == 2
    assert "overwrite" in capsys.readouterr().err
    small = ["--weights", "int8", "--within", "-1", "1", "--overwrite"]
    assert main(["export", str(tmp_path / "net.safetensors"), str(tmp_path / "net.c"), *small]) == 0
    assert "b: off by at most" in capsys.readouterr().out
    assert main(["export", str(tmp_path), str(tmp_path / "other.c")]) == 2
    assert "is a directory" in capsys.readouterr().err
