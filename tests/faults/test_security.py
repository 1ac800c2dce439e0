"""What a stranger may put into a checkpoint, a configuration or a .pt file: refused in one line, nothing is run."""

import ast
import hashlib
import json
import os
import pickle
import re
import time
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dagnn.cli import main
from dagnn.errors import CheckpointError, ConfigError, DagnnError
from dagnn.training.config import TrainingConfig
from dagnn.training.run import checkpoint_commands as foreign
from dagnn.training.run import checkpoints as module
from dagnn.training.run.checkpoint_commands import export_weights, import_weights
from dagnn.training.run.checkpoints import Checkpoint, read_checkpoint, verify_checkpoint, write_checkpoint
from dagnn.training.run.directory import RunDirectory

SOURCE = Path(__file__).resolve().parents[2] / "src" / "dagnn"


class Attack:
    """Unpickled without care, it makes a file."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return (Path(self.canary).touch, ())


@pytest.fixture
def canary(tmp_path):
    place = tmp_path / "canary"
    yield place
    assert not place.exists(), "code of the file was run"


@pytest.fixture(autouse=True)
def refused_soon():
    began = time.monotonic()
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20
    # A bound on the work, not a benchmark: what fills memory or unpacks bombs takes minutes.
    assert time.monotonic() - began < 60


# ---- .pt files: `dagnn checkpoint import` ----


def refused(path, tmp_path, text, **options):
    target = tmp_path / "imported.safetensors"
    with pytest.raises(CheckpointError, match=text):
        import_weights(path, target, **options)
    assert not target.exists()


def test_weights_of_a_foreign_file_come_in_as_they_are(tmp_path):
    model = torch.nn.Linear(3, 2)
    torch.save({"model": model.state_dict(), "epoch": 3}, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", tmp_path, r"'epoch' is a int|'model' is a \w+; perhaps --key model")
    assert import_weights(tmp_path / "a.pt", tmp_path / "a.safetensors", key="model") == 2
    assert torch.equal(load_file(tmp_path / "a.safetensors")["weight"], model.weight)
    assert main(["checkpoint", "import", str(tmp_path / "a.pt"), str(tmp_path / "b"), "--key", "model"]) == 0
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a.safetensors").read_bytes()


def test_tied_weights_come_in_as_two(tmp_path):
    shared = torch.randn(100, 100)
    torch.save({"a": shared, "b": shared}, tmp_path / "tied.pt")
    assert import_weights(tmp_path / "tied.pt", tmp_path / "tied.safetensors") == 2


def test_code_in_a_pickle_is_not_run(tmp_path, canary):
    torch.save({"w": torch.ones(2), "x": Attack(str(canary))}, tmp_path / "attack.pt")
    refused(tmp_path / "attack.pt", tmp_path, "cannot be read safely.*not tried in another way")


def test_no_second_try_without_checks(tmp_path, canary, monkeypatch):
    calls = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda *a, **k: calls.append(k) or load(*a, **k))
    torch.save(Attack(str(canary)), tmp_path / "attack.pt")
    refused(tmp_path / "attack.pt", tmp_path, "cannot be read safely")
    torch.save({"w": torch.ones(2)}, tmp_path / "fine.pt")
    import_weights(tmp_path / "fine.pt", tmp_path / "fine.safetensors")
    assert [call["weights_only"] for call in calls] == [True, True, True]


def test_plain_pickle_and_other_files_are_no_archives(tmp_path, canary):
    (tmp_path / "old.pt").write_bytes(pickle.dumps(Attack(str(canary))))
    refused(tmp_path / "old.pt", tmp_path, "is no archive of torch.save")
    torch.save({"w": torch.ones(2)}, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    refused(tmp_path / "legacy.pt", tmp_path, "files from before torch 1.6 are not read")
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("x/y", b"z")
    refused(tmp_path / "other.pt", tmp_path, "has no data.pkl")


def test_tensor_that_claims_a_terabyte_is_refused(tmp_path):
    torch.save({"w": torch.zeros(1).expand(1 << 38)}, tmp_path / "bomb.pt")
    assert (tmp_path / "bomb.pt").stat().st_size < 4096
    refused(tmp_path / "bomb.pt", tmp_path, r"claims tensors of 1,099,511,627,776 bytes")


def test_compressed_archive_is_refused(tmp_path):
    torch.save({"w": torch.zeros(1)}, tmp_path / "plain.pt")
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for entry in plain.infolist():
            bomb.writestr(entry.filename, plain.read(entry) if not entry.filename.endswith("/0") else bytes(1 << 24))
    refused(tmp_path / "bomb.pt", tmp_path, "compressed entries")


def test_damaged_archive_is_refused_at_every_cut(tmp_path):
    torch.save({"w": torch.arange(100.0)}, tmp_path / "whole.pt")
    content = (tmp_path / "whole.pt").read_bytes()
    for part in range(16):
        (tmp_path / "cut.pt").write_bytes(content[: len(content) * part // 16])
        refused(tmp_path / "cut.pt", tmp_path, "cut.pt")


def test_things_that_are_no_dense_tensors_by_name_are_refused(tmp_path):
    for value in ([torch.ones(2)], {"w": torch.ones(2).to_sparse()}, {3: torch.ones(2)}, {"w": 1.0}, {}):
        torch.save(value, tmp_path / "x.pt")
        refused(tmp_path / "x.pt", tmp_path, "is no mapping of names to|cannot be read safely")
    torch.save({"w": torch.ones(2)}, tmp_path / "x.pt")
    refused(tmp_path / "x.pt", tmp_path, "has no key 'v': it has w", key="v")


def test_link_is_refused_and_an_existing_target_is_kept(tmp_path, capsys):
    torch.save({"w": torch.ones(2)}, tmp_path / "x.pt")
    (tmp_path / "link.pt").symlink_to(tmp_path / "x.pt")
    refused(tmp_path / "link.pt", tmp_path, "is no plain file")
    (tmp_path / "taken").write_bytes(b"mine")
    assert main(["checkpoint", "import", str(tmp_path / "x.pt"), str(tmp_path / "taken")]) == 2
    assert "taken: File exists" in capsys.readouterr().err
    assert (tmp_path / "taken").read_bytes() == b"mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.pt", "taken", "x.pt"]


def test_torch_with_known_holes_is_refused(tmp_path, monkeypatch):
    torch.save({"w": torch.ones(2)}, tmp_path / "x.pt")
    for version in ("2.5.1", "2.9.1+cpu"):
        monkeypatch.setattr(foreign.torch, "__version__", version)
        refused(tmp_path / "x.pt", tmp_path, "it takes torch 2.10 or newer")


# ---- checkpoints of ours, forged ----


def forge(path, contents=None, **changes):
    """Other contents under a manifest that is right about them, its own hash too."""
    files = json.loads((path / "manifest.json").read_bytes())["files"]
    for name, content in (contents or {}).items():
        (path / name).write_bytes(content)
        files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = json.loads((path / "manifest.json").read_bytes()) | {"files": files} | changes
    manifest.pop("sha256")
    (path / "manifest.json").write_bytes(module._manifest_bytes(manifest))


@pytest.fixture
def path(tmp_path):
    tensors = {"model": {"w": torch.ones(3)}, "optimizer": {}}
    write_checkpoint(tmp_path / "step-00000001", Checkpoint("run-1", 1, None, tensors, {"a": 1}, {"seconds": 1.0}))
    return tmp_path / "step-00000001"


@pytest.mark.parametrize("size", [1 << 40, 1 << 62, 10**30])
def test_size_that_a_manifest_makes_up_takes_no_memory(path, size):
    files = json.loads((path / "manifest.json").read_bytes())["files"]
    files["state.json"]["bytes"] = size
    forge(path, files=files)
    with pytest.raises(CheckpointError, match=r"state.json is damaged: 8 bytes, the manifest says"):
        read_checkpoint(path)


def tensor_file(shape):
    header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


@pytest.mark.parametrize(
    "content",
    [
        (1 << 60).to_bytes(8, "little") + b"{}",
        tensor_file([1 << 40]),
        tensor_file([1 << 32, 1 << 32, 9]),
        b"\x80\x04K.",
    ],
    ids=["header", "shape", "overflow", "pickle"],
)
def test_tensor_file_that_claims_more_than_it_has_is_refused(path, content):
    forge(path, {"model.safetensors": content})
    with pytest.raises(CheckpointError, match=r"model.safetensors cannot be read"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "content", [b"[" * 200_000, b'{"a":' * 200_000, b"9" * 10_000, b"\xff\xfe", b'{"a": nope}'], ids=range(5)
)
def test_json_bombs_are_refused(path, content):
    forge(path, {"state.json": content})
    with pytest.raises(CheckpointError, match=r"state.json is damaged"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "text", ['{"format": NaN}', '{"format": Infinity, "sha256": ""}', "[" * 100_000, "{}", "null", '{"step": 1e999}']
)
def test_strange_manifests_are_refused(path, text):
    (path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest.json is"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "changes",
    [{"format": "1"}, {"format": None}, {"format": 0}, {"format": True}, {"step": "x"}, {"files": {"state.json": {}}}],
)
def test_manifest_with_values_of_the_wrong_kind_is_refused(path, changes):
    forge(path, **changes)
    with pytest.raises(CheckpointError, match=r"manifest\.json is no manifest of dagnn|manifest.json"):
        read_checkpoint(path)


def test_newer_format_without_a_version_is_still_told(path):
    forge(path, format=7, dagnn=None)
    with pytest.raises(CheckpointError, match="has checkpoint format 7"):
        read_checkpoint(path)


def test_linked_checkpoint_a_pipe_and_foreign_files_are_refused(path, tmp_path):
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(CheckpointError, match="is a symbolic link"):
        read_checkpoint(tmp_path / "link")
    (path / "plugin.py").write_text("raise SystemExit")
    assert read_checkpoint(path).step == 1
    with pytest.raises(CheckpointError, match=r"plugin\.py is not in the manifest"):
        verify_checkpoint(path)
    (path / "plugin.py").unlink()
    (path / "state.json").unlink()
    os.mkfifo(path / "state.json")
    with pytest.raises(CheckpointError, match="is not a plain file"):
        read_checkpoint(path)


def test_names_in_a_checkpoint_are_neither_paths_nor_escape_codes(tmp_path, capsys):
    name = "\x1b[31mred/../../x.weight"
    run_path = tmp_path / "run"
    with RunDirectory.create(run_path, TrainingConfig(run_directory=str(run_path))) as run:
        run.checkpoints_path.mkdir()
        state = {"optimizer": {"names": [[name]]}, "promotion": None}
        tensors = {"model": {name: torch.ones(2)}, "optimizer": {}}
        write_checkpoint(run.checkpoints_path / "step-00000003", Checkpoint(run.run_id, 3, None, tensors, state))
    before = sorted(str(each) for each in tmp_path.rglob("*"))
    assert main(["info", str(run_path)]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told and r"\x1b[31mred" in told
    export_weights(run_path, tmp_path / "weights")
    assert sorted(str(each) for each in tmp_path.rglob("*")) == sorted([*before, str(tmp_path / "weights")])
    assert list(load_file(tmp_path / "weights")) == [name]


def test_run_id_of_a_stranger_is_only_text(tmp_path, capsys):
    with RunDirectory.create(tmp_path / "run", TrainingConfig()):
        pass
    (tmp_path / "run" / "run.json").write_text(json.dumps({"run": "../../etc\x1b[2J", "dagnn": "0"}))
    assert main(["info", str(tmp_path / "run")]) == 0
    assert "\x1b" not in capsys.readouterr().out


# ---- configurations ----


@pytest.mark.parametrize(
    "text",
    [
        '[optimizer]\nname = "os.system"',
        '[optimizer]\n_target_ = "os.system"',
        '[model]\nclass_path = "subprocess.Popen"',
        "[schedule]\nname = \"__import__('os')\"",
        "a = " + "[" * 50_000,
        'run_directory = "a\\u0000b"\nbatch_size = "\\u001b[2J"',
    ],
)
def test_names_in_a_configuration_are_looked_up_and_never_imported(text, tmp_path, capsys):
    (tmp_path / "c.toml").write_text(text)
    assert main(["train", "--dry-run", "--config", str(tmp_path / "c.toml")]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1 and "\x1b" not in output.err


# ---- our own code ----

_FORBIDDEN = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}


def _called(function):
    """A dotted name; empty for what is no name."""
    if isinstance(function, ast.Attribute):
        return f"{_called(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


# Triton compiles functions whose source it can read: it is made of the operations of a formula that were checked, of
# numbers and of names of our own. Nothing of a file gets into it as text.
_WRITES_SOURCE = SOURCE / "kernels" / "gpu" / "mathematics.py"


def test_nothing_but_the_import_of_foreign_files_can_unpickle():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if not re.search(rf"\b(?:{'|'.join(_FORBIDDEN)}|eval|exec|__import__|(?:np|numpy|torch)\s*\.\s*load)\b", text):
            continue  # to read all as syntax trees takes seconds
        imported, calls = set(), set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                imported |= {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").split(".")[0])
            elif isinstance(node, ast.Call):
                calls.add(_called(node.func))
        assert not imported & _FORBIDDEN, path
        run = calls & {"eval", "exec", "__import__", "np.load", "numpy.load"}
        assert run == ({"exec"} if path == _WRITES_SOURCE else set()), path
        assert "torch.load" not in calls or path == SOURCE / "training" / "run" / "checkpoint_commands.py", path


def test_errors_of_these_kinds_are_ours():
    assert issubclass(CheckpointError, DagnnError) and issubclass(ConfigError, DagnnError)
