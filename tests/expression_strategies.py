"""Random expressions for hypothesis."""

from hypothesis import strategies as st

FUNCTIONS = ("sin", "cos", "tan", "log", "exp", "sqrt")

integers = st.integers(-99, 99)
numbers = st.one_of(integers, st.sampled_from(["0.1", "-2.50", "13.07"]))
leaves = st.one_of(numbers, st.sampled_from(["x", "y", "alpha_2", "e", "pi"]))


def arithmetic(leaf=integers, max_leaves=8):
    """``+ - *`` and ``/`` with two or three operands, and the negative."""
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from("+-*/"), inner, inner),
            st.tuples(st.sampled_from("+-*/"), inner, inner, inner),
            st.tuples(st.just("-"), inner),
        ),
        max_leaves=max_leaves,
    )


def functions_of_x(max_leaves=6):
    """Binary operators, small powers and functions of x."""
    leaf = st.one_of(st.integers(-5, 5), st.just("x"))
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from("+-*/"), inner, inner),
            st.tuples(st.just("^"), inner, st.sampled_from([-1, 2, 3])),
            st.tuples(st.sampled_from(FUNCTIONS), inner),
        ),
        max_leaves=max_leaves,
    )


def expressions(max_leaves=10):
    """The whole language."""
    symbol = st.sampled_from(["x", "y"])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from("+-*/^"), inner, inner),
            st.tuples(st.sampled_from("+-*/"), inner, inner, inner),
            st.tuples(st.sampled_from((*FUNCTIONS, "approx", "-")), inner),
            st.tuples(st.just("subst"), inner, symbol, inner),
            st.tuples(st.just("derive"), inner, symbol),
            st.tuples(st.just("integrate"), inner, symbol),
            st.tuples(st.just("integrate"), inner, symbol, inner, inner),
            st.tuples(st.just("solve"), st.tuples(st.just("="), inner, inner), symbol),
            st.tuples(st.just("roots"), inner, inner),
        ),
        max_leaves=max_leaves,
    )
