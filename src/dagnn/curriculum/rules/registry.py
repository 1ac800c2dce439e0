"""How a rewrite rule is declared: one function per label, from the children's windows to a replacement."""

import inspect
from collections.abc import Callable

from dagnn.graph.rewriting.signature import Label
from dagnn.graph.rewriting.window import Replacement, Window

Rule = Callable[..., Replacement | None]

RULES: dict[str, Rule] = {}
LABELS: dict[str, Label] = {}


def constructor(*names: str, arity: int = 0) -> None:
    """Declares labels that build values and are never rewritten."""
    for name in names:
        _declare(Label(name, arity, None))


def rule(name: str, *, depth: int) -> Callable[[Rule], Rule]:
    """Declares the label `name` and the function that rewrites it.

    The function takes one `Window` per child and returns the replacement, or None when the node is in
    normal form. It sees labels down to `depth` levels below the node (0: no child's label), and one more level
    only as ``?``, which can be copied but not read.

    >>> @rule("double", depth=0)
    ... def double(a: Window) -> Replacement:
    ...     return ("+", a, a)
    """

    def register(function: Rule) -> Rule:
        _declare(Label(name, len(inspect.signature(function).parameters), depth))
        RULES[name] = function
        return function

    return register


def apply_rule(window: Window) -> Replacement | None:
    """The replacement that the rules give for a window; None when it is in normal form."""
    return RULES[window.kind](*window.children)


def _declare(label: Label) -> None:
    if label.name in LABELS:
        raise AssertionError(f"the label {label.name!r} is declared twice")
    LABELS[label.name] = label
