"""The page about the linter: every rule has a wrong and a right example, and the linter agrees."""

import re
from pathlib import Path

import pytest

from dagnn.lint import RULES, lint_source

PAGE = (Path(__file__).parents[2] / "docs" / "how_to" / "your_loop.md").read_text()
SECTIONS = dict(re.findall(r"^### ([\w-]+)\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE))


def test_every_rule_has_its_section():
    assert list(SECTIONS) == list(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_the_examples_are_wrong_and_right(rule):
    wrong, right = re.findall(r"^```py\n(.*?)^```$", SECTIONS[rule], re.DOTALL | re.MULTILINE)
    head = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"

    assert "# wrong" in wrong and [finding.rule for finding in lint_source(head + wrong)] == [rule]
    assert "# right" in right and lint_source(head + right) == []
