"""Batches of windows: what is drawn, how often, and that mistakes are learned from in the same way after a resume."""

from collections import Counter

import numpy as np
import pytest
import torch

from dagnn.curriculum.engine import RuleEngine
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.traces import collect_windows, is_held_out
from dagnn.errors import CheckpointError
from dagnn.rewriting import GraphRewriter
from dagnn.rewriting.dataset import Mistake, WindowSource, mistakes_of
from dagnn.training.config import TrainingConfig


@pytest.fixture(scope="module")
def windows():
    return collect_windows({1: 60, 2: 10}, seed=5)


@pytest.fixture(scope="module")
def unseen(windows):
    """Mistakes in windows that are not among the collected ones, nor held out at 0.2."""
    others = collect_windows({2: 40, 5: 20}, seed=6)
    return [
        Mistake(2, window, replacement)
        for window, replacement in zip(others.windows, others.replacements, strict=True)
        if window not in set(windows.windows) and not is_held_out(window, 0.2)
    ]


def source_of(windows, **flags) -> WindowSource:
    flags = {key.replace("__", "."): value for key, value in flags.items()}
    given = {"batch_size": 64, "micro_batches": 1, "curriculum.levels": [1, 2], **flags}
    config = TrainingConfig.resolve(environment={}, flags=given)
    torch.manual_seed(0)
    model = GraphRewriter.from_windows(SIGNATURE, windows.windows, width=16, blocks=1)
    source = WindowSource(windows, model, config)
    source.open_levels((1, 2))
    return source


def drawn(source: WindowSource, batches: int) -> Counter:
    """How often each row was drawn."""
    rows = [tuple(row) for _ in range(batches) for row in source.next_batch().rows.tolist()]
    return Counter(rows)


def row_of(source: WindowSource, item: int) -> tuple[int, ...]:
    return tuple(source.rows[item].tolist())


def test_a_window_that_went_wrong_is_drawn_more_often(windows):
    item = int(windows.counts.sum(1).argmin())
    mistake = Mistake(int(windows.first_level[item]), windows.windows[item], windows.replacements[item])
    before, source = drawn(source_of(windows), 60), source_of(windows)
    for _ in range(6):
        assert source.learn_from([mistake]) == 0
    after = drawn(source, 60)
    assert after[row_of(source, item)] > 20 * max(1, before[row_of(source, item)])
    assert len(source.rows) == len(windows)


def test_a_window_met_for_the_first_time_is_learned(windows, unseen):
    unseen = unseen[:30]
    source = source_of(windows)
    count = len(source.rows)
    assert source.learn_from(unseen) == len(unseen) == 30
    assert len(source.rows) == len(source.targets) == count + len(unseen)
    features, slots = source._model.features, source._model.num_slots
    targets = features.encode_targets([m.window for m in unseen], [m.replacement for m in unseen], slots)
    assert torch.equal(source.targets[count:, 0], targets)
    assert source.windows_of((2,)).tolist()[-1] == count + len(unseen) - 1
    often = drawn(source, 100)
    assert all(often[row_of(source, count + i)] for i in range(len(unseen)))


@pytest.mark.parametrize("alignment", ["order", "searched"])
def test_what_was_learned_comes_back_with_the_state(windows, unseen, alignment):
    flags = {"loss__alignment": alignment}
    source = source_of(windows, **flags)
    known = Mistake(1, windows.windows[0], windows.replacements[0])
    for lesson in ([known, unseen[0]], [unseen[1], unseen[0]], [known]):
        source.learn_from(lesson)
        drawn(source, 3)
    state = source.state_dict()

    fresh, other = source_of(windows, **flags), source_of(windows, **flags)
    other.learn_from(unseen[5:9])
    shorter = source_of(windows, **flags)
    shorter.learn_from([known, unseen[0]])
    for resumed in (fresh, other, shorter):
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
    expected = [source.next_batch() for _ in range(30)]
    for resumed in (fresh, other, shorter):
        for batch in expected:
            rows, targets = resumed.next_batch()
            assert torch.equal(rows, batch.rows)
            assert torch.equal(targets, batch.targets)


def test_a_source_that_learned_nothing_has_the_state_of_its_batches(windows):
    source = source_of(windows)
    source.learn_from([])
    drawn(source, 2)
    assert sorted(source.state_dict()) == ["order", "position"]
    assert mistakes_of(source.state_dict()) == []
    with pytest.raises(CheckpointError, match="holds no windows"):
        mistakes_of({"mistakes": [[1, 2]]})


def test_draws_begin_anew_after_a_lesson(windows):
    source, taught = source_of(windows), source_of(windows)
    taught.learn_from([Mistake(1, windows.windows[0], windows.replacements[0])])
    batches = [each.next_batch().rows.tolist() for each in (source, taught)]
    assert batches[0] != batches[1]


def test_windows_that_are_held_out_are_never_drawn(windows):
    source = source_of(windows, curriculum__held_out_windows=0.2)
    held_out = [i for i, window in enumerate(windows.windows) if is_held_out(window, 0.2)]
    assert len(held_out) > 100
    assert not set(held_out) & set(source.windows_of((1, 2)).tolist())
    # By what is drawn, not by rows: two windows may differ only in a feature that the network does not know.
    items = np.concatenate([source._opened().next_batch() for _ in range(100)])
    assert not set(held_out) & set(items.tolist())
    mistake = Mistake(1, windows.windows[held_out[0]], windows.replacements[held_out[0]])
    source.learn_from([mistake] * 5)
    assert source.state_dict().keys() == {"order", "position"}


def test_wrong_windows_are_those_that_the_network_gets_wrong(windows):
    source = source_of(windows, curriculum__held_out_windows=0.2)
    model = source._model.eval()
    with torch.no_grad():
        wrong = {mistake.window for mistake in source.wrong_windows(model, (1,))}
    for item in source.windows_of((1,)).tolist():
        right = model.rewrite([windows.windows[item]])[0] == windows.replacements[item]
        # A replacement that spells nothing leaves the window, and is wrong all the same.
        assert right or windows.windows[item] in wrong
    assert RuleEngine().rewrite(sorted(wrong)) == [
        mistake.replacement for mistake in sorted(source.wrong_windows(model, (1,)), key=lambda each: each.window)
    ]
