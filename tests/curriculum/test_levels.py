import dataclasses

import pytest

from dagnn.curriculum.exact import answer
from dagnn.curriculum.expression import to_text
from dagnn.curriculum.levels import LEVELS, check_drawn, level_of, level_spec, preset_of
from dagnn.curriculum.parsing import parse
from dagnn.errors import ConfigError


def test_there_are_seven_levels():
    assert list(LEVELS) == [1, 2, 3, 4, 5, 6, 7]
    assert [spec.number for spec in LEVELS.values()] == list(LEVELS)
    assert [spec.number for spec in LEVELS.values() if spec.numeric] == [4]


@pytest.mark.parametrize("level", LEVELS)
def test_example_has_its_answer(level):
    spec = LEVELS[level]
    assert to_text(answer(parse(spec.example), level)) == spec.example_answer


@pytest.mark.parametrize("level", LEVELS)
def test_level_of_the_example_is_its_level(level):
    assert level_of(parse(LEVELS[level].example)) == level


def test_level_of_plain_expressions():
    assert level_of(7) == 1
    assert level_of("x") == 3
    assert level_of(parse("(^ 2 3)")) == 3
    assert level_of(parse("(approx 2)")) == 4
    assert level_of(parse("(+ 1 (derive x x))")) == 5


@pytest.mark.parametrize("level", [0, 8, -1, "1", 1.0, True, None])
def test_unknown_level_names_the_levels(level):
    with pytest.raises(ConfigError) as error:
        level_spec(level)
    assert str(error.value) == f"level {level!r} does not exist: the levels are 1, 2, 3, 4, 5, 6, 7."


def test_unknown_preset_names_the_presets():
    with pytest.raises(ConfigError, match="preset 'tiny' does not exist: the presets are full, small"):
        preset_of("tiny")


def test_a_level_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        LEVELS[1].name = "other"


@pytest.mark.parametrize("digits", [0, -1, 13, 2.0, True])
def test_digits_out_of_range_are_refused(digits):
    with pytest.raises(ConfigError, match="digits must be a whole number from 1 to 12"):
        check_drawn(level_spec(2), depth=None, digits=digits)


@pytest.mark.parametrize("level", [4, 5, 6, 7])
def test_levels_without_digits_say_which_have_them(level):
    check_drawn(level_spec(level), depth=None, digits=None)
    with pytest.raises(ConfigError, match="has no digits to set: levels 1, 2, 3 have them"):
        check_drawn(level_spec(level), depth=None, digits=4)


@pytest.mark.parametrize("depth", [0, -1, 13, 2.0, True])
def test_depth_out_of_range_is_refused(depth):
    with pytest.raises(ConfigError, match="depth must be a whole number from 1 to 12"):
        check_drawn(level_spec(2), depth=depth, digits=None)


@pytest.mark.parametrize("level", [1, 6])
def test_levels_without_depth_say_which_have_one(level):
    with pytest.raises(ConfigError, match="has no depth to set: levels 2, 3, 4, 5, 7 have one"):
        check_drawn(level_spec(level), depth=3, digits=None)
