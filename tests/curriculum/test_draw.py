from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagnn.curriculum.draw import TOO_LARGE, Draws, Dropped
from dagnn.curriculum.generator import refuse_large_numbers
from dagnn.curriculum.parsing import parse


@given(st.text(), st.integers(-50, 50), st.integers(0, 100))
def test_whole_numbers_stay_in_their_range(seed, low, width):
    draws = Draws(seed)
    assert all(low <= draws.integer(low, low + width) <= low + width for _ in range(20))
    assert all(-width <= draws.within(width) <= width for _ in range(20))


def test_every_number_and_option_is_drawn_about_equally_often():
    draws = Draws("seed")
    numbers = Counter(draws.within(2) for _ in range(5_000))
    assert set(numbers) == {-2, -1, 0, 1, 2}
    assert all(800 < count < 1_200 for count in numbers.values())
    options = Counter(draws.choice("aab") for _ in range(3_000))
    assert 1_800 < options["a"] < 2_200
    assert 1_300 < sum(draws.chance(0.3) for _ in range(5_000)) < 1_700


def test_one_seed_gives_one_stream():
    assert [Draws("a").integer(0, 10**9) for _ in range(3)] == [Draws("a").integer(0, 10**9)] * 3
    assert Draws("a").integer(0, 10**9) != Draws("b").integer(0, 10**9)


def test_numbers_above_9999_are_dropped_wherever_they_stand():
    refuse_large_numbers(parse("(+ (* 9999 x) (/ 1 -9999))"))
    with pytest.raises(Dropped) as drop:
        refuse_large_numbers(parse("(+ (* 2 x) (/ 1 -10000))"))
    assert drop.value.reason == TOO_LARGE
