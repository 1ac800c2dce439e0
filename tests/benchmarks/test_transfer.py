"""The table of rewriting systems: what counts as a line, and what a row must reach."""

from benchmarks.transfer import Row, lines_of_code, measured

SOURCE = '''"""A module.

Of two lines."""

# a comment
A = (1,
     2)


def rule(x):
    """What it does."""
    return x


def judge(x):
    return x == A


B, C = 3, 4
JUDGE = ("judge",)
'''


def test_lines_of_code_are_those_without_docstrings_comments_and_judge():
    assert lines_of_code(SOURCE, set()) == 7  # two of A, two of rule, two of judge, B
    assert lines_of_code(SOURCE, {"judge"}) == 5
    assert lines_of_code(SOURCE, {"judge", "A"}) == 3


def test_a_row_that_is_long_slow_or_wrong_is_missed():
    good = Row("a", 60, 4, 180.0, 0.9, 0.995)
    assert good.ok
    assert not good._replace(lines=61).ok
    assert not good._replace(cpu_seconds=181.0).ok
    assert not good._replace(share_at_three_times=0.99).ok


def test_a_short_form_learns():
    row = measured("Boolean formulas", "rewriter_boolean", terms=500, count=30)
    assert row.depth == 4
    assert row.lines <= 60
    assert row.share >= 0.9
