from dagnn.curriculum.draw import _slope
from dagnn.curriculum.exact.calculus import derivative
from dagnn.curriculum.generator import make_sample


def test_remembered_derivatives_are_those_of_the_whole():
    for index in range(200):
        sample = make_sample(6, seed=2, index=index)
        if len(sample.input) == 3:
            assert _slope(sample.answer) == derivative(sample.answer, "x") == sample.input[1]
