"""Level promotion, played through evaluation by evaluation."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagnn.curriculum.config import CurriculumConfig
from dagnn.errors import CheckpointError, ConfigError
from dagnn.training.counters import StagePromotion


def test_progressive_opens_one_level_after_another():
    promotion = StagePromotion((1, 3, 4), threshold=0.9)
    assert (promotion.active, promotion.stage) == ((1,), 1)
    assert not promotion.observe(10, {1: 0.89})
    assert promotion.observe(20, {1: 0.9})
    assert (promotion.active, promotion.stage) == ((1, 3), 3)
    assert not promotion.observe(30, {1: 1.0, 3: 0.5, 4: 1.0})
    assert promotion.observe(40, {1: 0.1, 3: 0.95})
    assert promotion.active == (1, 3, 4)
    assert not promotion.finished
    assert not promotion.observe(50, {4: 1.0})
    assert promotion.finished
    assert not promotion.observe(60, {4: 0.0})
    assert promotion.finished and promotion.active == (1, 3, 4)


def test_minimum_steps_count_from_the_opening_of_the_level():
    promotion = StagePromotion((1, 2, 3), threshold=0.5, minimum_steps=10)
    assert not promotion.observe(9, {1: 1.0})
    assert promotion.observe(10, {1: 1.0})
    assert not promotion.observe(19, {2: 1.0})
    assert promotion.observe(20, {2: 1.0})


def test_patience_asks_for_passes_in_a_row():
    promotion = StagePromotion((1, 2), threshold=0.5, patience=3)
    opened = [promotion.observe(step, {1: value}) for step, value in enumerate([1, 1, 0, 1, 1, float("nan"), 1, 1, 1])]
    assert opened == [False] * 8 + [True]


def test_evaluation_without_the_newest_level_changes_nothing():
    promotion = StagePromotion((1, 2), threshold=0.5, patience=2)
    promotion.observe(1, {1: 1.0})
    before = promotion.state_dict()
    assert not promotion.observe(2, {2: 1.0})
    assert promotion.state_dict() == before


def test_mixed_opens_everything_and_promotes_nothing():
    promotion = StagePromotion((1, 2), order="mixed", threshold=0.0)
    assert promotion.active == (1, 2)
    assert not promotion.observe(5, {2: 1.0})
    assert not promotion.finished


def test_from_config():
    flags = {"curriculum.levels": "2 5", "curriculum.order": "progressive", "curriculum.patience": 4}
    promotion = CurriculumConfig.resolve(environment={}, flags=flags).curriculum.promotion()
    assert (promotion.stages, promotion.order, promotion.patience) == ((2, 5), "progressive", 4)
    assert (promotion.threshold, promotion.minimum_steps) == (0.99, 200)


@given(st.lists(st.sampled_from([0.0, 0.6, 1.0, float("nan")]), max_size=40), st.integers(0, 40), st.integers(1, 3))
def test_saved_and_loaded_anywhere_it_goes_on_alike(values, cut, patience):
    def make():
        return StagePromotion((1, 2, 3), threshold=0.5, minimum_steps=2, patience=patience)

    straight, first, second = make(), make(), make()
    for step, value in enumerate(values):
        straight.observe(step, {straight.stage: value})
    for step, value in enumerate(values[:cut]):
        first.observe(step, {first.stage: value})
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for step, value in enumerate(values[cut:], cut):
        second.observe(step, {second.stage: value})
    assert second.state_dict() == straight.state_dict()


def test_state_of_another_curriculum_is_refused():
    promotion = StagePromotion((1, 2))
    with pytest.raises(
        CheckpointError, match=r"stages \[1, 2, 3\] \(progressive\), this run has \[1, 2\] \(progressive\)"
    ):
        promotion.load_state_dict(StagePromotion((1, 2, 3)).state_dict())
    with pytest.raises(CheckpointError, match=r"stages \[1, 2\] \(mixed\)"):
        promotion.load_state_dict(StagePromotion((1, 2), order="mixed").state_dict())


def test_bad_arguments():
    with pytest.raises(ConfigError, match=r"stages = \[\]: give at least one"):
        StagePromotion(())
    with pytest.raises(ConfigError, match="order = sideways: allowed is one of mixed, progressive"):
        StagePromotion((1,), order="sideways")
