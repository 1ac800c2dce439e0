"""What real inputs once broke: digits, integrals, roots, advice. Every value is worked out by hand or by mpmath."""

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagnn.curriculum import answer, bind, equivalent, judge, parse, to_text
from dagnn.curriculum.verdict import is_worked_out
from dagnn.errors import ConfigError, ExpressionError


def said(text, level=None):
    """The answer as text, or the refusal."""
    try:
        return to_text(answer(parse(text), level))
    except ExpressionError as error:
        return f"refused: {error}"


@pytest.mark.fault("curriculum", 1)
@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("(exp -100)", "0." + "0" * 43 + "372"),
        ("(- (+ (^ 10 70) (sin 1)) (^ 10 70))", "0.841"),
        ("(* (exp 150) (- 1 (cos (exp -80))))", "0.0000227"),
        ("(tan 1.5707963267948966)", "52000000000000000"),
        ("(- 1 (^ (- 1 (exp -60)) (exp 50)))", "0.0000454"),
        ("(+ 1 (exp (- (exp 50))))", "1"),
        ("(^ 1.0001 100000)", "22000"),
        ("(log (exp -1000))", "-1000"),
        ("(sin (^ 10 2000))", "0.268"),
        ("(+ 12.35 (exp -500))", "12.4"),
        ("(- 12.35 (exp -500))", "12.3"),
        ("(+ 12.45 (exp -500))", "12.5"),
        ("(- (exp (* pi (sqrt 163))) 262537412640768744)", "-0.00000000000075"),
        ("(/ (+ 1.225 (/ 1 (^ 10 2000))) 1)", "1.23"),
    ],
)
def test_every_digit_is_proved(text, digits):
    assert said(f"(approx {text})") == digits
    assert judge(4, parse(text), parse(digits)).right
    assert not judge(4, parse(text), 0).right


@pytest.mark.fault("curriculum", 1)
@pytest.mark.parametrize("text", ["(- (exp 1) e)", "(- (* (sqrt 2) (sqrt 3)) (sqrt 6))", "(/ 1 (- (exp 1) e))"])
def test_what_may_be_zero_is_refused(text):
    assert said(f"(approx {text})").startswith("refused: ")
    assert "no digits of it can be proved" in said(text, level=4)


@pytest.mark.fault("curriculum", 1)
@settings(max_examples=60, deadline=None)
@given(st.integers(-300, 300), st.integers(1, 60), st.integers(-300, 300))
def test_digits_of_any_size_are_those_of_mpmath(a, b, c):
    text = f"(* (exp {a}) (- (cos (exp (- {b}))) (- 1 (exp {c}))))"
    with mpmath.workprec(4000):
        value = mpmath.exp(a) * (mpmath.cos(mpmath.exp(-b)) - (1 - mpmath.exp(c)))
        given_ = said(f"(approx {text})")
        assert abs(mpmath.mpf(given_) - value) <= abs(value) * mpmath.mpf("0.005001")


@pytest.mark.fault("curriculum", 2)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(integrate (tan x) x 0 (/ pi 2))", "has a pole between 0 and (* (/ 1 2) pi): (cos x) is 0 there"),
        ("(integrate (/ (cos x) (^ (+ 1 (sin x)) 2)) x 0 6)", "is not proved continuous between 0 and 6"),
        ("(integrate (/ 1 x) x -1 1)", "has a pole between -1 and 1"),
        ("(integrate (/ 1 x) x 1 -1)", "has a pole between 1 and -1"),
        ("(integrate (/ 1 x) x 0 1)", "has a pole between 0 and 1"),
        ("(integrate (/ 1 x) x 0 0)", "has a pole between 0 and 0"),
        ("(integrate (/ 1 x) x t 1)", "depends on t: give every symbol of the bounds a value"),
        (
            "(integrate (/ 1 (+ x a)) x 0 1)",
            "is not proved continuous between 0 and 1: no proof was found that (+ x a) is nowhere 0 there",
        ),
        (
            "(integrate (log (+ x a)) x 0 1)",
            "is not proved continuous between 0 and 1: no proof was found that (+ x a) is above 0 everywhere there",
        ),
        ("(integrate (/ x x) x -1 1)", "has a pole between -1 and 1: x is 0 there"),
        ("(integrate (/ 1 (/ 1 x)) x -1 1)", "has a pole"),
        ("(integrate (* 0 (/ 1 x)) x -1 1)", "has a pole"),
        ("(integrate (/ 1 (- x pi)) x 0 4)", "has a pole"),
        ("(integrate (/ 1 (- x pi)) x 0 pi)", "has a pole"),
        ("(integrate (/ (* 2 x) (- (^ x 2) 2)) x 0 (sqrt 2))", "has a pole"),
        ("(integrate (/ 1 (- 1 (sin x))) x 0 6)", "is not proved continuous"),
        (
            "(integrate (log x) x -1 1)",
            "does not have a real value everywhere between -1 and 1: x would have to stay above 0",
        ),
        ("(integrate (sqrt x) x -1 1)", "does not have a real value everywhere between -1 and 1"),
        ("(integrate (^ x (/ -1 2)) x 0 1)", "does not have a real value everywhere between 0 and 1"),
        ("(integrate (/ (exp (/ 1 x)) (^ x 2)) x -1 1)", "has a pole"),
        ("(integrate (tan x) x (log 2) 10000000)", "has a pole"),
        ("(integrate (/ 1 x) x (exp (- (exp 50))) 1)", "is too large, or too near to 0"),
        ("(integrate (/ 1 x) x 1 (exp (exp 50)))", "is too large, or too near to 0"),
    ],
)
def test_an_integrand_that_is_not_proved_continuous_has_no_integral(text, reason):
    assert reason in said(text)


@pytest.mark.fault("curriculum", 2)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(integrate (/ 1 x) x 1 e)", "1"),
        ("(integrate (/ 1 x) x -2 -1)", "(* -1 (log 2))"),
        ("(integrate (/ 1 x) x 3 2)", "(- (log 2) (log 3))"),
        ("(integrate (/ 1 x) x 2 2)", "0"),
        ("(integrate (/ x x) x 1 2)", "1"),
        ("(integrate (tan x) x 0 1)", "(* -1 (log (cos 1)))"),
        ("(integrate (sqrt x) x 0 pi)", "(* (/ 2 3) (* pi (sqrt pi)))"),
        ("(integrate (sqrt (+ 1 (* 2 x))) x (/ -1 2) 0)", "(/ 1 3)"),
        ("(integrate (/ (* 2 x) (+ 1 (^ x 2))) x -3 3)", "0"),
        ("(integrate (^ x 2) x t u)", "(- (* (/ 1 3) (^ u 3)) (* (/ 1 3) (^ t 3)))"),
        ("(subst (integrate (/ 1 x) x 1 t) t 2)", "(log 2)"),
        ("(integrate (sin x) x 0 pi)", "2"),
    ],
)
def test_a_continuous_integrand_has_its_integral(text, value):
    assert said(text) == value


@pytest.mark.fault("curriculum", 2)
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["(/ 1 (+ (* {a} x) {b}))", "(tan (+ (* {a} x) {b}))", "(log (+ (* {a} x) {b}))",
                     "(/ (cos x) (+ {b} (* {a} (sin x))))", "(/ (exp x) (+ (* {a} (exp x)) {b}))",
                     "(^ (+ (* {a} x) {b}) -3)", "(sqrt (+ (* {a} x) {b}))"]),
    st.integers(1, 3), st.integers(-5, 5), st.integers(-8, 8), st.integers(-8, 8),
)  # fmt: skip
def test_an_integral_that_is_given_is_that_of_quadrature(form, a, b, lower, upper):
    integrand = form.format(a=a, b=b)
    given_ = said(f"(approx (integrate {integrand} x {lower} {upper}))")
    if given_.startswith("refused: "):
        return

    def value(x):
        inner = a * x + b
        match form.split()[0]:
            case "(tan":
                return mpmath.tan(inner)
            case "(log":
                return mpmath.log(inner)
            case "(sqrt":
                return mpmath.sqrt(inner)
            case "(^":
                return inner**-3
        if "cos" in form:
            return mpmath.cos(x) / (b + a * mpmath.sin(x))
        return mpmath.exp(x) / (a * mpmath.exp(x) + b) if "exp" in form else 1 / inner

    area = mpmath.quad(value, mpmath.linspace(lower, upper, 5))
    assert abs(mpmath.mpf(given_) - area) <= 0.006 * abs(area) + 1e-9


@pytest.mark.fault("curriculum", 3)
@pytest.mark.parametrize(
    "text",
    [
        "(integrate (* x (log -2)) x 0 1)",
        "(integrate (^ -2 x) x 0 1)",
        "(integrate (^ -2 x) x)",
        "(integrate (log -2) x)",
        "(derive (* x (log -2)) x)",
        "(derive (^ -2 x) x)",
        "(* x (sqrt -4))",
        "(* 0 (log -2))",
        "(^ (log -2) 0)",
        "(subst 5 x (log -2))",
        "(integrate (exp x) x (log -2) 1)",
        "(+ x (^ -8 (/ 1 3)))",
        "(log (- 3 pi))",
        "(subst (derive x x) x (log -2))",
        "(subst (integrate 0 x) x (log -2))",
        "(subst (derive (log x) x) x -2)",
        "(subst (derive (derive (log x) x) x) x -2)",
        "(* x (log (sin (exp 1000))))",
        "(log (* -2 (^ x 0)))",
        "(* x (log (* -2 (/ x x))))",
    ],
)
def test_what_is_not_real_is_refused_everywhere(text):
    assert "negative number" in said(text) or "has no real value" in said(text)


@pytest.mark.fault("curriculum", 3)
@pytest.mark.parametrize(
    "text", ["(* 0 (/ 1 ZERO))", "(/ ZERO ZERO)", "(* 0 (/ x ZERO))", "(- (log ZERO) (log ZERO))", "(^ ZERO -1)"]
)
def test_what_may_have_no_value_is_not_cancelled(text):
    assert "it cannot be decided" in said(text.replace("ZERO", "(- (log 6) (+ (log 2) (log 3)))"))


@pytest.mark.fault("curriculum", 4)
def test_a_function_has_no_slope_where_it_has_no_value():
    assert "division by zero at (/ 0 0)" in said("(subst (derive (/ x x) x) x 0)")
    assert "division by zero" in said("(subst (derive (* 3 x) x) x (/ 1 0))")
    assert said("(subst (derive (/ x x) x) x 3)") == "0"
    assert "division by zero at (/ 0 0)" in said("(solve (= (derive (/ x x) x) x) x)")
    assert "log of a negative number" in said("(solve (= (derive (log x) x) -2) x)")
    assert said("(solve (= (derive (log x) x) 2) x)") == "(/ 1 2)"


@pytest.mark.fault("curriculum", 3)
@pytest.mark.parametrize(
    ("level", "text", "given_"),
    [
        (5, "(derive 3 x)", "(* 0 (log -1))"),
        (5, "(derive x x)", "(/ (log -1) (log -1))"),
        (6, "(integrate (* 2 x) x)", "(+ (^ x 2) (sqrt -1))"),
    ],
)
def test_an_answer_with_a_part_that_is_not_real_is_wrong(level, text, given_):
    assert "negative number" in judge(level, parse(text), parse(given_)).reason


@pytest.mark.parametrize(
    ("word", "instead"), [("inf", "a number"), ("nan", "a number"), ("π", "pi"), ("𝑥", "x"), ("x１", "x1")]
)
def test_what_only_looks_like_a_symbol_is_refused(word, instead):
    assert f"is no symbol: write {instead}." in said(f"(integrate y y 0 {word})")


@pytest.mark.parametrize("level", [0, 8, -1, "3", 1.5, True])
def test_an_answer_of_no_level_is_refused(level):
    with pytest.raises(ConfigError, match="does not exist"):
        answer(("+", 1, 2), level)


@pytest.mark.fault("curriculum", 4)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(solve (= (/ 1 (/ 1 x)) 0) x)", None),
        ("(solve (= (^ (^ x -1) -1) 0) x)", None),
        ("(solve (= (+ x (/ 1 x)) (/ 1 x)) x)", None),
        ("(solve (= (+ (* 0 (/ 1 (- x 3))) x) 3) x)", None),
        ("(solve (= (/ (- (^ x 2) 1) (- x 1)) 2) x)", None),
        ("(solve (= (/ (* x (- x 2)) x) 0) x)", "2"),
        ("(solve (= (* (/ 1 (/ 1 x)) (- x 1)) 0) x)", "1"),
    ],
)
def test_no_root_leaves_a_part_without_a_value(text, value):
    if value is None:
        assert "no number solves" in said(text)
        with pytest.raises(ExpressionError, match="no number solves"):
            judge(7, parse(text), 0)
    else:
        assert said(text) == value


@pytest.mark.fault("curriculum", "5b")
@pytest.mark.parametrize(
    ("values", "bound"),
    [
        ({"x": "y", "y": "x"}, "(- (* 10 y) x)"),
        ({"y": "x", "x": "y"}, "(- (* 10 y) x)"),
        ({"x": ("+", "y", 1), "y": 2}, "(+ (* 10 y) 8)"),
        ({"x": 2, "y": ("*", "x", "x")}, "(+ (* -1 (^ x 2)) 20)"),
        ({"x": ("+", "x", "y"), "y": ("-", "x", "y")}, "(- (* 10 (+ x y)) (- x y))"),
        ({"x": 3, "y": 4}, "26"),
    ],
)
def test_a_mapping_binds_at_once(values, bound):
    assert equivalent(answer(bind(parse("(- (* 10 x) y)"), values)), parse(bound))


@pytest.mark.fault("curriculum", "5b")
def test_nested_substitutions_bind_one_after_the_other():
    assert said("(subst (subst (- (* 10 x) y) x y) y x)") == "(* 9 x)"


@pytest.mark.fault("curriculum", 6)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(subst (solve (= (* 2 x) y) x) y 4)", "2"),
        ("(subst (approx x) x 2)", "2"),
        ("(subst (approx (sin x)) x 2)", "0.909"),
        ("(subst (solve (= (* 2 x) y) x) y (+ 1 3))", "2"),
        ("(subst (subst (solve (= (* 2 x) y) x) y z) z 4)", "2"),
        ("(subst (subst (approx (* y z)) z (* 2 y)) y 3)", "18"),
        ("(subst (derive (^ x 2) x) x 3)", "6"),
        ("(subst (derive (* x y) x) y x)", "x"),
        ("(subst (integrate (* x y) x 0 1) y x)", "(* (/ 1 2) x)"),
        ("(subst (integrate (^ x y) x) y -1)", "(log x)"),
        ("(* 2 pi)", "(* 2 pi)"),
        ("(approx (* 2 pi))", "6.28"),
    ],
)
def test_a_value_reaches_what_needs_it(text, value):
    assert said(text) == value


@pytest.mark.fault("curriculum", 6)
def test_nobody_is_told_to_bind_a_constant():
    assert "pi has no rational value: write (approx ...)" in said("(* 2 pi)", level=2)
    assert "bind it" not in said("(solve (= x pi) x)")


@pytest.mark.fault("curriculum", 7)
@pytest.mark.parametrize("whole", ["(* 2 {})", "(+ {} x)", "(sin {})", "(approx {})", "(subst x x {})", "(- {})"])
def test_two_roots_are_no_number(whole):
    text = whole.format("(solve (= (^ x 2) 4) x)")
    assert "takes one value, and here are the roots -2 and 2" in said(text)


@pytest.mark.fault("curriculum", 7)
def test_one_root_is_a_number():
    assert said("(* 2 (solve (= (* 2 x) 4) x))") == "4"
    assert is_worked_out(answer(parse("(solve (= (^ x 2) 4) x)")))


@pytest.mark.fault("curriculum", 9)
@pytest.mark.parametrize("text", ["(exp (log -2))", "(^ (sqrt -1) 2)", "(+ x (exp (log -2)))", "(- (log -2) (log -2))"])
def test_values_are_real(text):
    assert "of a negative number" in said(text)


@pytest.mark.fault("curriculum", 10)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(sin (/ pi 6))", "(/ 1 2)"),
        ("(cos (/ pi 4))", "(* (/ 1 2) (sqrt 2))"),
        ("(tan (* -1 (/ pi 3)))", "(* -1 (sqrt 3))"),
        ("(cos (* (/ 5 6) pi))", "(* (/ -1 2) (sqrt 3))"),
        ("(integrate (/ 1 (^ (cos x) 2)) x)", "(tan x)"),
        ("(integrate (^ (tan x) 2) x)", "(+ (tan x) (* -1 x))"),
        ("(solve (= (* x (- x 1) (- x 2)) 0) x)", "(roots 0 1 2)"),
        ("(solve (= (^ x 3) 8) x)", "2"),
        ("(solve (= (^ x 4) 16) x)", "(roots -2 2)"),
    ],
)
def test_more_mathematics(text, value):
    assert said(text) == value


@pytest.mark.fault("curriculum", 10)
def test_a_pole_of_tan_is_known():
    assert "tan at a pole" in said("(tan (/ pi 2))")
