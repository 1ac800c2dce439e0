"""The rivals' texts say what the expressions say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.curriculum_text import BEGIN, PAD, WORDS, decode, encode, encode_answer, padded
from dagnn.curriculum import LEVELS, decimal_of_digits, make_sample


@pytest.mark.parametrize("level", LEVELS)
def test_inputs_and_answers_read_back(level):
    for index in range(40):
        sample = make_sample(level, seed=0, index=index)

        assert decode(encode(sample.input)) == sample.input
        assert decode(encode_answer(sample.answer, level)) == sample.answer


def test_the_words_of_a_number_begin_with_its_lowest_digit():
    assert [WORDS.names[word] for word in encode(("+", -270, "x"))] == ["+", "negative", "0", "7", "2.", "x"]


@given(st.integers(100, 999), st.integers(-6, 4), st.sampled_from((1, -1)))
def test_three_digits_and_a_power_of_ten_read_back(mantissa, power, sign):
    answer = decimal_of_digits(sign * mantissa, power)
    text = encode_answer(answer, 4)

    assert len(text) == 5
    assert decode(text) == answer


@given(st.lists(st.integers(0, len(WORDS) - 1), max_size=12))
def test_any_words_are_an_expression_or_nothing(ids):
    expression = decode(ids)

    if expression is not None:
        assert WORDS.is_whole(ids)


def test_half_a_text_and_two_texts_are_nothing():
    text = encode(("*", 12, ("sin", "x")))

    assert decode(text[:-1]) is None
    assert decode(text + text) is None
    assert decode([BEGIN, *text]) is None
    assert decode([WORDS.id_of["+"], WORDS.id_of["3."], WORDS.id_of["x"]]) is None


def test_padding_fills_up_to_the_longest():
    assert padded([[5], [6, 7, 8]]).tolist() == [[5, PAD, PAD], [6, 7, 8]]
