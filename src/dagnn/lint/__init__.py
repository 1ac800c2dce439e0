"""A linter that reads training loops without running them: where gradients are not zeroed, not scaled, or lost."""

from dagnn.lint.rules import RULES, Finding, Rule, lint_source

__all__ = ["RULES", "Finding", "Rule", "lint_source"]
