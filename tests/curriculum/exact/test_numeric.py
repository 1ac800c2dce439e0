import cmath
import math

import pytest

from dagnn.curriculum.exact.evaluate import complex_value, is_well_rounded, well_conditioned_value
from dagnn.curriculum.parsing import parse
from dagnn.errors import ExpressionError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(* (log 9) (/ 12 (cos 19)))", math.log(9) * (12 / math.cos(19))),
        ("(tan 1)", math.tan(1)),
        ("(sqrt 0)", 0.0),
        ("(^ (sin 2) 3)", math.sin(2) ** 3),
        ("(- (exp 2) 1)", math.exp(2) - 1),
    ],
)
def test_value_is_that_of_the_math_library(text, value):
    assert well_conditioned_value(parse(text)) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(tan 11)", "tan near a pole"),
        ("(exp 10)", "exp of a large number"),
        ("(exp -26)", "exp of a large number"),
        ("(log 0)", "log of a number that is not above"),
        ("(log (/ 1 2000))", "log of a number that is not above"),
        ("(sqrt -1)", "sqrt of a negative or tiny number"),
        ("(sqrt (/ 1 2000))", "sqrt of a negative or tiny number"),
        ("(/ 1 (- (sin 1) (sin 1)))", "a divisor near zero"),
        ("(^ 0 2)", "a power of zero"),
        ("(^ 2 (sin 1))", "large or fractional exponent"),
        ("(^ 2 7)", "large or fractional exponent"),
        ("(* 200 200)", "above 9999"),
        ("(+ x 1)", "x has no value here"),
    ],
)
def test_the_edges_of_level_4_are_refused(text, message):
    with pytest.raises(ExpressionError) as error:
        well_conditioned_value(parse(text))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("value", "fine"),
    [
        (0.0, True),
        (1.234, True),
        (1.2350001, False),
        (-0.012349, True),
        (0.0099, False),
        (10000.0, False),
        (123.0, True),
    ],
)
def test_rounding_ties_and_far_values_are_not_well_rounded(value, fine):
    assert is_well_rounded(value) is fine


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(+ x y 1)", 1.5 + 2j + 3 + 1),
        ("(- x)", -1.5 - 2j),
        ("(^ x y)", (1.5 + 2j) ** 3),
        ("(log (sqrt x))", cmath.log(cmath.sqrt(1.5 + 2j))),
        ("(* e pi)", complex(math.e * math.pi)),
        ("(subst (* z 2) z x)", 3 + 4j),
        ("(/ 0.5 y)", 0.5 / 3 + 0j),
    ],
)
def test_complex_values(text, value):
    assert cmath.isclose(complex_value(parse(text), {"x": 1.5 + 2j, "y": 3 + 0j}), value)


@pytest.mark.parametrize("text", ["(derive x x)", "(solve (= x 1) x)", "(roots 1 2)", "z"])
def test_what_has_no_complex_value_is_refused(text):
    with pytest.raises(ExpressionError):
        complex_value(parse(text), {"x": 1 + 0j})
