import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy.parsing.sympy_parser import (
    convert_xor,
    implicit_multiplication,
    parse_expr,
    standard_transformations,
)
from sympy_bridge import same_function, to_sympy

from dagnn.curriculum import from_infix, parse, to_text
from dagnn.errors import ExpressionError

READ = {
    "2*x + 5 = 13": "(solve (= (+ (* 2 x) 5) 13) x)",
    "2x = 3x - 5": "(solve (= (* 2 x) (- (* 3 x) 5)) x)",
    "solve(y = 2*x, x)": "(solve (= y (* 2 x)) x)",
    "solve(x^2 - 4)": "(solve (= (- (^ x 2) 4) 0) x)",
    "d/dx x^2": "(derive (^ x 2) x)",
    "2 d/dx (x^2 + 1)": "(* 2 (derive (+ (^ x 2) 1) x))",
    "d/dx (x+1)^2": "(derive (^ (+ x 1) 2) x)",
    "d/dt 3t": "(derive (* 3 t) t)",
    "diff(x**2, x)": "(derive (^ x 2) x)",
    "integrate(x^2, x, 0, 1)": "(integrate (^ x 2) x 0 1)",
    "int(x^2, x)": "(integrate (^ x 2) x)",
    "subst(x + 3, x, 2)": "(subst (+ x 3) x 2)",
    "-x^2": "(- (^ x 2))",
    "-3^2": "(- (^ 3 2))",
    "-3": "-3",
    "2^3^2": "(^ 2 (^ 3 2))",
    "2^-3": "(^ 2 -3)",
    "x − 3": "(- x 3)",
    "3 – 5 · x ÷ 2": "(- 3 (/ (* 5 x) 2))",
    "x² + √(2)": "(+ (^ x 2) (sqrt 2))",
    "2π": "(* 2 pi)",
    "ln x": "(log x)",
    "2 ln(x)": "(* 2 (log x))",
    ".5x": "(* 0.5 x)",
    "(x+1)(x-1)": "(* (+ x 1) (- x 1))",
    "a - b - c + d": "(+ (- a b c) d)",
    "a/b/c*d*e": "(* (/ a b c) d e)",
    "(a+b)+c+d": "(+ a b c d)",
    "x⁻¹": "(^ x -1)",
    "x/dt": "(/ x dt)",
    "integrate(exp(t*x), x)": "(integrate (exp (* t x)) x)",
}
REFUSED = {
    "1/2x": "in two ways: write a . between",
    "6/2(1+2)": "in two ways: write a . between",
    "x^2y": "in two ways: write a . between",
    "x y": "in two ways: write a . between",
    "x(y+1)": r"x is no function; write x\*\(...\)",
    "arcsin(x)": "no function",
    "2xy": r"write 2\*xy for one symbol",
    "2e3": "a power of ten can be read in two ways",
    "2e-3": "a power of ten can be read in two ways",
    "sin 2x": r"write what sin is taken of in parentheses: sin\(...\)",
    "sin^2(x)": r"write what sin is taken of in parentheses: sin\(...\)",
    "d/dx x^2 + 3": r"what d/dx is taken of can be read in two ways: write d/dx \(...\)",
    "d/dx (x+1)*x": "what d/dx is taken of can be read in two ways",
    "a*d/dx + 1": "d/dx needs a product behind it",
    "d^2/dx^2 x^3": r"write a second derivative as d/dx \(d/dx E\)",
    "y = 2x": r"has the symbols x, y: write solve\(L = R, x\)",
    "5 = 5": "has no symbol",
    "a = b = c": "nothing may follow there, got '='",
    "log(x, 2)": "log takes 1 argument, got 2",
    "1,000": "nothing may follow there",
    "x!": "'!' is no sign of infix text",
    "2 +": "ends where an operand is missing",
    "(2": r"expected '\)', got the end",
    "": "the text is empty",
    "(- 5 x)": "looks like Polish text",
    "(- 5 -3)": "looks like Polish text",
    "(+ 2 (ln(x)))": "looks like Polish text",
    "(" * 5_000 + "x" + ")" * 5_000: "nested deeper than 100",
    "2^" * 5_000 + "2": "nested deeper than 100",
    "d/dx " * 5_000 + "x": "nested deeper than 100",
    "x" + "²" * 5_000: "more than 4,000 digits",
    "dx^2/dx": r"write d/dx \(...\)",
    "dy / dx": r"write d/dx \(...\)",
    "d/dx xy": "xy can be read in two ways: write a . between the letters",
    "integrate(ax, x)": "ax can be read in two ways: write a . between the letters",
    "2 + sinx": r"write sin\(x\), or another name",
    "d/dx lnx": r"write ln\(x\), or another name",
    "cos2x": r"write cos\(2x\), or another name",
    "3xy": r"write 3\*xy for one symbol",
    "x + inf": "'inf' is no symbol: write a number",
    "ﬁ + 1": "'ﬁ' is no symbol: write fi",
}


@pytest.mark.fault("curriculum", 10)
@pytest.mark.parametrize(("text", "polish"), READ.items(), ids=READ)
def test_infix_text_is_read(text, polish):
    assert to_text(from_infix(text)) == polish


@pytest.mark.parametrize(("text", "reason"), REFUSED.items(), ids=lambda text: text[:20])
def test_what_can_be_read_in_two_ways_is_refused(text, reason):
    with pytest.raises(ExpressionError, match=reason):
        from_infix(text)


def test_a_sum_of_ten_thousand_terms_is_read():
    assert len(from_infix(" + ".join(["x"] * 10_000))) == 10_001
    assert len(from_infix("x" + " - x" * 9_999)) == 10_001


@pytest.mark.fault("curriculum", 9)
@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("2*x+5", r"Read as infix text it is \(\+ \(\* 2 x\) 5\): write that"),
        ("d/dx x^2", r"Read as infix text it is \(derive \(\^ x 2\) x\): write that"),
        ("(+ −3 4)", "write -3"),
        ("(− 3 4)", "did you mean '-'"),
        ("(+ 2 (ln x))", "did you mean 'log'"),
        ("(int x x)", "did you mean 'integrate'"),
        ("ln(x)", r"Read as infix text it is \(log x\)"),
    ],
)
def test_parse_says_the_polish_form_of_what_was_typed(text, hint):
    with pytest.raises(ExpressionError, match=hint):
        parse(text)


def test_polish_text_with_a_mistake_gets_no_infix_reading():
    with pytest.raises(ExpressionError) as caught:
        parse("(+ 2 (ln x))")
    assert "infix" not in str(caught.value)


_ATOMS = st.one_of(st.integers(0, 9).map(str), st.sampled_from(["x", "y", "0.5", "e", "pi"]))


def _texts(inner):
    call = st.tuples(st.sampled_from(["sin", "cos", "exp", "sqrt", "log", "ln"]), inner).map(
        lambda t: f"{t[0]}({t[1]})"
    )
    closed = inner.map(lambda t: f"({t})")
    base = st.one_of(_ATOMS, closed, call)
    power = st.tuples(base, st.sampled_from(["^2", "**2", "^-1", "^3", ""])).map("".join)
    signed = st.tuples(st.sampled_from(["", "", "-", "+"]), power).map("".join)
    beside = st.tuples(st.sampled_from(["2", "3", "0.5"]), st.one_of(st.sampled_from(["x", " y"]), closed, call)).map(
        "".join
    )
    factor = st.one_of(signed, beside)
    sign = st.sampled_from([" + ", "-", "*", " / ", " - ", "+"])
    return st.lists(st.tuples(sign, factor), min_size=1, max_size=3).map(
        lambda parts: "".join(text for pair in parts for text in pair).lstrip("*/ ")
    )


@settings(max_examples=150)
@given(st.recursive(_ATOMS, _texts, max_leaves=5))
def test_infix_text_means_what_sympy_reads(text):
    try:
        ours = to_sympy(from_infix(text))
    except ExpressionError as error:
        assert "in two ways" in str(error) or "looks like Polish" in str(error)
        return
    names = {"e": sympy.E, "ln": sympy.log, "x": sympy.Symbol("x"), "y": sympy.Symbol("y")}
    theirs = parse_expr(
        text, local_dict=names, transformations=(*standard_transformations, implicit_multiplication, convert_xor)
    )
    if ours.has(sympy.zoo, sympy.nan, sympy.oo):
        assert theirs.has(sympy.zoo, sympy.nan, sympy.oo)
        return
    if ours.free_symbols:
        assert ours == theirs or same_function(ours, theirs)
    else:
        assert abs(sympy.N(ours - theirs)) < 1e-9 * (1 + abs(sympy.N(ours)))
