"""One checkpoint: round trip, and no damage that goes unseen."""

import hashlib
import json
import random
import tracemalloc

import pytest
import torch

from dagnn.errors import CheckpointError
from dagnn.training.run import checkpoints as module
from dagnn.training.run.checkpoints import (
    Checkpoint,
    json_bytes,
    read_checkpoint,
    read_manifest,
    verify_checkpoint,
    write_checkpoint,
)

FILES = ["clock.json", "ema.safetensors", "manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]


def sample(step=3, score=0.5):
    shared = torch.arange(6.0).reshape(2, 3)
    tensors = {
        "model": {"a.weight": shared, "tied.weight": shared, "a.bias": torch.tensor([1.0, float("nan")])},
        "optimizer": {"a.weight/exp_avg": shared.T, "a.weight/step": torch.tensor(3.0)},
        "ema": {"a.weight": shared.to(torch.bfloat16), "empty": torch.empty(0, 2)},
    }
    return Checkpoint("run-1", step, score, tensors, {"counters": {"step": step}, "text": "é"}, {"seconds": 1.5})


@pytest.fixture
def path(tmp_path):
    write_checkpoint(tmp_path / "step-00000003", sample())
    return tmp_path / "step-00000003"


def test_round_trip(path):
    read, wrote = read_checkpoint(path), sample()
    assert sorted(each.name for each in path.iterdir()) == FILES
    assert (read.run_id, read.step, read.score) == ("run-1", 3, 0.5)
    assert (read.state, read.clock) == (wrote.state, wrote.clock)
    assert read.tensors.keys() == wrote.tensors.keys()
    for group, tensors in wrote.tensors.items():
        assert read.tensors[group].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert read.tensors[group][name].dtype == tensor.dtype
            assert torch.equal(read.tensors[group][name].nan_to_num(7), tensor.nan_to_num(7))
    assert verify_checkpoint(path) == read_manifest(path)


def test_equal_contents_are_equal_bytes(path, tmp_path):
    write_checkpoint(tmp_path / "again", sample())
    for name in FILES:
        assert (path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_manifest_lists_sizes_and_hashes(path):
    manifest = json.loads((path / "manifest.json").read_bytes())
    assert (manifest["format"], manifest["run"], manifest["step"], manifest["score"]) == (1, "run-1", 3, 0.5)
    for name, entry in manifest["files"].items():
        content = (path / name).read_bytes()
        assert entry == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_without_averages_there_is_no_file_for_them(tmp_path):
    whole = sample()
    tensors = {group: whole.tensors[group] for group in ("model", "optimizer")}
    write_checkpoint(tmp_path / "c", Checkpoint("r", 1, None, tensors, {}))
    assert not (tmp_path / "c" / "ema.safetensors").exists()
    assert read_checkpoint(tmp_path / "c").tensors.keys() == tensors.keys()
    assert read_checkpoint(tmp_path / "c").score is None


def damaged(path):
    for read in (read_checkpoint, verify_checkpoint):
        with pytest.raises(CheckpointError, match=str(path)):
            read(path)


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_found(path, name):
    (path / name).unlink()
    damaged(path)


@pytest.mark.parametrize("name", FILES)
def test_empty_file_is_found(path, name):
    (path / name).write_bytes(b"")
    damaged(path)


@pytest.mark.parametrize("name", FILES)
def test_longer_file_is_found(path, name):
    (path / name).write_bytes((path / name).read_bytes() + b"\n")
    damaged(path)


def test_truncation_at_any_offset_is_found(path):
    for name in FILES:
        content = (path / name).read_bytes()
        for length in {len(content) * part // 16 for part in range(16)}:
            (path / name).write_bytes(content[:length])
            damaged(path)
        (path / name).write_bytes(content)
    verify_checkpoint(path)


def flip_bits(path, count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        file = path / rng.choice(FILES)
        content = file.read_bytes()
        position, bit = rng.randrange(len(content)), rng.randrange(8)
        flipped = bytearray(content)
        flipped[position] ^= 1 << bit
        file.write_bytes(flipped)
        with pytest.raises(CheckpointError):
            read_checkpoint(path)
        file.write_bytes(content)


def test_flipped_bits_are_found(path):
    flip_bits(path, 200, seed=0)


@pytest.mark.slow
def test_a_thousand_flipped_bits_are_found(path):
    flip_bits(path, 1000, seed=1)


def test_every_bit_of_the_manifest_is_proved(path):
    content = (path / "manifest.json").read_bytes()
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        (path / "manifest.json").write_bytes(flipped)
        with pytest.raises(CheckpointError):
            read_manifest(path)


def test_file_of_another_checkpoint_is_found(path, tmp_path):
    other = Checkpoint("run-1", 4, None, {"model": {"a": torch.zeros(3)}, "optimizer": {}}, {"counters": {}})
    write_checkpoint(tmp_path / "other", other)
    for name in ("model.safetensors", "state.json"):
        content = (path / name).read_bytes()
        (path / name).write_bytes((tmp_path / "other" / name).read_bytes())
        damaged(path)
        (path / name).write_bytes(content)


def forge(path, **changes):
    """Another manifest, its own hash right."""
    manifest = json.loads((path / "manifest.json").read_bytes()) | changes
    manifest.pop("sha256")
    (path / "manifest.json").write_bytes(module._manifest_bytes(manifest))


def test_newer_format_is_refused_in_clear_words(path):
    forge(path, format=2, dagnn="9.0")
    with pytest.raises(CheckpointError, match=r"has checkpoint format 2 \(dagnn 9\.0\), .* update dagnn to read it"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {}},
        {"files": []},
        {"files": {"state.json": 3, "clock.json": 4}},
        {"step": None},
        {"score": "high"},
        {"files": {"../outside": {"bytes": 1, "sha256": ""}}},
    ],
)
def test_forged_manifest_is_refused(path, changes):
    forge(path, **changes)
    damaged(path)


def test_forged_names_never_become_paths(path, tmp_path):
    (tmp_path / "outside").write_bytes(b"x")
    files = json.loads((path / "manifest.json").read_bytes())["files"]
    forge(path, files=files | {"../outside": {"bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()}})
    with pytest.raises(CheckpointError, match=r"lists the wrong files: \.\./outside, clock\.json"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", FILES)
def test_symbolic_links_are_refused(path, tmp_path, name):
    (path / name).rename(tmp_path / "elsewhere")
    (path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="is not a plain file"):
        read_checkpoint(path)


def test_no_more_is_read_than_the_manifest_says(path):
    """A file that has grown to the size of the disk is refused without being read."""
    with (path / "model.safetensors").open("ab") as file:
        file.truncate(1 << 34)
    tracemalloc.start()
    damaged(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()


def test_strict_json():
    assert json_bytes({"b": 1, "a": [True, None]}) == b'{"a":[true,null],"b":1}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_bytes(float("nan"))
