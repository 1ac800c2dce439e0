import pytest

from dagnn.curriculum.exact.answer import answer
from dagnn.curriculum.expression import to_text
from dagnn.curriculum.parsing import parse
from dagnn.errors import ExpressionError


@pytest.mark.parametrize(
    ("text", "level", "expected"),
    [
        ("(+ 2 3)", None, "5"),
        ("(^ 2 64)", None, "18446744073709551616"),
        ("(^ 2 64)", 3, "18446744073709551616"),
        ("(- 0.1 0.1 0.1)", None, "(/ -1 10)"),
        ("(- 0.1 0.1 0.1)", 2, "(/ -1 10)"),
        ("(^ 0 0)", None, "1"),
        ("(derive (^ x x) x)", 5, "(* (+ (log x) 1) (^ x x))"),
        ("(integrate (/ 1 x) x 1 e)", 6, "1"),
        ("(solve (= (+ (* 2 x) 5) 13) x)", 7, "4"),
        ("(subst (+ x 3) x 2)", 3, "5"),
        ("(sin 0)", 4, "0"),
        ("(sin 3)", 4, "0.141"),
        ("(approx (sin 3))", None, "0.141"),
        ("(sin 3)", None, "(sin 3)"),
        ("(sin 3)", 5, "(sin 3)"),
        ("(approx 12345)", None, "12300"),
        ("(approx (/ 1 3))", None, "0.333"),
        ("(cos pi)", 4, "-1"),
        ("(^ 1.0000001 10000000)", 4, "2.72"),
        ("(subst (derive (^ x 2) x) x 3)", None, "6"),
        ("(derive (derive (^ x 3) x) x)", None, "(* 6 x)"),
        ("(+ (derive (^ x 2) x) 1)", None, "(+ (* 2 x) 1)"),
        ("(integrate (derive (sin x) x) x)", None, "(sin x)"),
        ("(solve (= (subst (* y x) y 3) 6) x)", None, "2"),
        ("(roots (+ 1 1) 3)", None, "(roots 2 3)"),
        ("(* 1.5 x)", None, "(* (/ 3 2) x)"),
        ("x", None, "x"),
        ("(^ -8 3)", 5, "-512"),
        ("(exp (exp 100))", None, "(exp (exp 100))"),
        ("(log (log (log 3)))", 4, "-2.36"),
    ],
)
def test_answers(text, level, expected):
    assert to_text(answer(parse(text), level)) == expected


@pytest.mark.parametrize(
    ("text", "level", "message"),
    [
        ("(/ 5 0)", None, "division by zero at (/ 5 0)."),
        ("(/ 5 0)", 1, "division by zero at (/ 5 0)."),
        ("(/ 5 0)", 4, "division by zero at (/ 5 0)."),
        ("(^ 0 -1)", None, "zero to a negative power at (^ 0 -1)"),
        ("(log 0)", None, "log of 0 at (log 0)"),
        ("(log 0)", 4, "log of 0 at (log 0)"),
        ("(log -1)", None, "log of a negative number at (log -1): it has no real value."),
        ("(log -1)", 4, "log of a negative number at (log -1): it has no real value."),
        ("(sqrt -4)", None, "sqrt of a negative number at (sqrt -4): it has no real value."),
        ("(sqrt -4)", 4, "sqrt of a negative number at (sqrt -4): it has no real value."),
        ("(+ 1 (log (- (sin 1) 1)))", None, "log of a negative number at (log (- (sin 1) 1)): it has no real value."),
        ("(log (log (log 2)))", None, "log of a negative number at (log (log (log 2))): it has no real value."),
        ("(^ -8 0.5)", None, "a negative number to a fractional power at (^ -8 0.5): it has no real value."),
        ("(^ -2 pi)", None, "a negative number to a fractional power at (^ -2 pi): it has no real value."),
        ("(log (/ -1 (^ 10 20)))", None, "log of a negative number at (log (/ -1 (^ 10 20)))"),
        ("(subst (log x) x -1)", None, "log of a negative number at (log -1)"),
        ("(derive (* x (log -1)) x)", None, "log of a negative number at (log -1)"),
        ("(+ x (sqrt -4))", None, "sqrt of a negative number at (sqrt -4)"),
        ("(sqrt (- (+ (^ (sin 1) 2) (^ (cos 1) 2)) 1))", 4, "it cannot be decided the sign of (- (+ (^ (sin 1) 2)"),
        ("(^ 9 (^ 9 9))", None, "more than 4,000 digits"),
        ("(^ 9 (^ 9 9))", 4, "the value of (^ 9 (^ 9 9)) is 10 to the 369693099"),
        ("(subst (/ x x) x 0)", None, "division by zero"),
        ("(solve (= (^ x 2) 2) x)", 7, "no rational roots"),
        ("(= 1 2)", None, "(= 1 2) is an equation, which has no value"),
        ("(derive (= x 2) x)", None, "is an equation, which has no value"),
        ("(sin 3)", 2, "sin has no rational value"),
        ("(integrate (exp (^ x 2)) x)", 6, "no supported antiderivative"),
    ],
)
def test_no_answer_is_said_in_words(text, level, message):
    with pytest.raises(ExpressionError) as error:
        answer(parse(text), level)
    assert message in str(error.value)


def test_what_is_no_expression_is_refused():
    with pytest.raises(ExpressionError, match="takes at least 2 operands"):
        answer(("+", 1))


@pytest.mark.parametrize("depth", [50, 99])
@pytest.mark.parametrize("inner", ["x", "3"])
@pytest.mark.parametrize(
    "wrap",
    ["(+ 1 {})", "(sin {})", "(* x {})", "(- {})", "(^ {} 2)", "(log {})", "(subst (+ x 1) x {})", "(derive {} x)"],
)
@pytest.mark.parametrize("level", [None, 3, 4])
def test_deep_nesting_is_answered_or_refused_in_words(wrap, inner, depth, level):
    text = inner
    for _ in range(depth):
        text = wrap.format(text)
    try:
        to_text(answer(parse(text), level))
    except ExpressionError as error:
        assert len(str(error)) < 300


def test_fifty_nested_sums_and_functions_are_answered():
    text, deep_sine = "0", "x"
    for _ in range(50):
        text, deep_sine = f"(+ 1 {text})", f"(sin {deep_sine})"
    assert answer(parse(text)) == 50
    assert to_text(answer(parse(f"(derive {deep_sine} x)"))).count("cos") == 50


def test_growth_is_refused_before_it_takes_memory():
    text = "y"
    for _ in range(50):
        text = f"(subst (* x (sin x)) x {text})"
    with pytest.raises(ExpressionError, match="grows beyond 100,000 nodes"):
        answer(parse(text))
