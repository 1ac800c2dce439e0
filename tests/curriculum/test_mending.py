"""A run that ends with certificates: what is trained on, what is mended, and that it repeats itself."""

import json

import numpy as np
import pytest
import torch
from small_curriculum import config_of, last_bytes, rows_without_clock

from dagnn.curriculum import run as job
from dagnn.curriculum import traces
from dagnn.curriculum.accuracy import model_of
from dagnn.curriculum.certificate import certify, closure_of, engine_answer
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.run import CERTIFICATE_FILE, mend, train
from dagnn.curriculum.traces import collect_neighbourhoods, with_more, with_shared_integrals
from dagnn.rewriting import GraphRewriter
from dagnn.rewriting.dataset import NeighbourhoodLoader, NeighbourhoodSet, read_neighbourhoods
from dagnn.training.run.checkpoints import read_checkpoint

LEVEL_1 = {
    "curriculum__levels": [1],
    "curriculum__samples": [50],
    "curriculum__certify": True,
    "model__width": 32,
    "batch_size": 64,
    "optimizer__lr": 3e-3,
    "ema_decay": 0.9,
    "max_steps": 12,
    "eval_every": 0,
    "checkpoint__save_every": 0,
    "checkpoint__keep_best": 0,
}


@pytest.fixture(scope="module", autouse=True)
def quick():
    """A few steps of mending, and no search for expressions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "_MENDING_STEPS", 6)
        patch.setattr(job, "_STEPS_BETWEEN_CHECKS", 3)
        patch.setattr(job, "_EXPRESSIONS", 0)
        yield


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    path, notes = tmp_path_factory.mktemp("certified") / "run", []
    train(config_of(path, **LEVEL_1), note=notes.append)
    return path, notes


def test_a_run_trains_on_the_whole_closure_and_ends_with_its_certificate(certified):
    path, notes = certified
    trained = read_neighbourhoods(path, SIGNATURE)[0]
    assert set(trained.neighbourhoods) >= closure_of(1).keys()
    assert trained.counts.min() == 1
    (written,) = json.loads((path / CERTIFICATE_FILE).read_text())
    assert written["neighbourhoods"] == 6_983
    assert any(line.startswith("level 1: ") for line in notes)
    assert certify(model_of(newest(path)), 1, expressions=0).wrong == written["wrong"]


def newest(path):
    return read_checkpoint(sorted((path / "checkpoints").glob("step-*"))[-1])


def test_a_mended_network_is_a_later_checkpoint_and_a_resume_finds_no_step_left(certified):
    path, notes = certified
    steps = next((int(line.split()[4]) for line in notes if line.startswith("mended the network in ")), 0)
    checkpoint = newest(path)
    assert checkpoint.step == 12 + steps
    if steps:
        for name, tensor in checkpoint.tensors["model"].items():
            assert torch.equal(checkpoint.tensors["ema"].get(name, tensor), tensor)
    told, before = [], rows_without_clock(path)
    train(config_of(path, **LEVEL_1), resume=True, note=told.append)
    assert told == [f"no step was left: the run ended at step {12 + steps}; --max-steps with more goes on"]
    assert rows_without_clock(path) == before


@pytest.mark.slow
def test_the_same_seed_mends_to_the_same_bytes(certified, tmp_path):
    path, _ = certified
    train(config_of(tmp_path / "same", **LEVEL_1), note=lambda line: None)
    assert last_bytes(tmp_path / "same") == last_bytes(path)


@pytest.mark.parametrize("change", [{"curriculum__held_out_windows": 0.1}, {"loss__alignment": "searched"}])
def test_there_is_no_certificate_where_a_network_may_write_otherwise(tmp_path, change):
    changes = {**LEVEL_1, **change, "max_steps": 6, "curriculum__samples": [20]}
    train(config_of(tmp_path / "run", **changes), note=lambda line: None)
    assert not (tmp_path / "run" / CERTIFICATE_FILE).exists()
    assert len(read_neighbourhoods(tmp_path / "run", SIGNATURE)[0]) < 6_983


def test_what_no_trace_met_counts_once_at_its_lowest_level():
    first, second = list(closure_of(1))[:2]
    answer = closure_of(1)[first]
    traced = NeighbourhoodSet([first], [answer], np.array([[0, 7]]), (1, 2))
    closed = with_more(traced, {level: closure_of(level) for level in (2, 1)})
    assert len(closed) == len(closure_of(2))
    assert closed.neighbourhoods == sorted(closure_of(2))
    counts = dict(zip(closed.neighbourhoods, closed.counts.tolist(), strict=True))
    assert counts[first] == [0, 7]
    assert counts[second] == [1, 0]
    assert counts[next(each for each in closure_of(2) if each not in closure_of(1))] == [0, 1]


def test_what_integrals_with_shared_parts_lead_to_counts_once_at_level_6(monkeypatch):
    monkeypatch.setattr(traces, "_SHARED_INTEGRALS", 600)
    traced = collect_neighbourhoods({6: 600, 7: 2})
    more = with_shared_integrals(traced, seed=0, preset="full")
    new = [i for i, each in enumerate(more.neighbourhoods) if each not in set(traced.neighbourhoods)]
    assert len(new) > 60
    assert more.counts[new].tolist() == [[1, 0]] * len(new)
    assert all(more.replacements[i] == engine_answer(more.neighbourhoods[i]) for i in new)
    kept = dict(zip(more.neighbourhoods, more.counts.tolist(), strict=True))
    assert [kept[each] for each in traced.neighbourhoods] == traced.counts.tolist()


def test_no_shared_integral_is_held_out(monkeypatch):
    monkeypatch.setattr(traces, "_SHARED_INTEGRALS", 40)
    monkeypatch.setattr(traces, "has_held_out_part", lambda expression: True)
    traced = collect_neighbourhoods({6: 5})
    assert len(with_shared_integrals(traced, seed=0, preset="full")) == len(traced)


def test_mending_repairs_what_is_wrong_and_keeps_the_rest():
    some = dict(list(closure_of(1).items())[::25])
    stages = np.ones((len(some), 1), np.int64)
    collected = NeighbourhoodSet(list(some), list(some.values()), stages, (1,))
    torch.manual_seed(0)
    net = GraphRewriter.from_neighbourhoods(SIGNATURE, list(some), width=64, blocks=1, num_slots=16)
    loader = NeighbourhoodLoader(collected, net, batch_size=64, seed=0, stage_weights={1: 1.0})
    optimizer = torch.optim.AdamW(net.parameters(), 5e-3)
    for _ in range(60):
        net.zero_grad()
        net.loss(loader.rows, loader.targets).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        net.output.bias[0] += 8.0  # it leaves alone what it should rewrite
        before = len(loader.wrong_neighbourhoods(net, (1,)))
    assert before > 0
    steps = mend(net, loader, [1], seed=0)
    assert 0 < steps <= 6
    with torch.no_grad():
        assert len(loader.wrong_neighbourhoods(net, (1,))) < before
    assert net.rewrite(list(some)).count(()) < len(some) / 2
