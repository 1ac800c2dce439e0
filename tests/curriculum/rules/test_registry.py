"""Declaring labels and rules."""

import pytest
from rule_terms import MACHINE

from dagnn.curriculum.rules import numbers as registry
from dagnn.curriculum.rules.numbers import apply_rule, constructor, rule
from dagnn.rewriting import Label, Neighbourhood


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "RULES", {})
    monkeypatch.setattr(registry, "LABELS", {})


def neighbourhood(kind, *children):
    node = Neighbourhood(0, ())
    node.label = node.kind = kind
    node.children = children
    return node


def test_a_rule_declares_its_label_with_the_arity_of_the_function():
    @rule("twice", depth=1)
    def twice(a):
        return ("+", a, a)

    assert {"twice": Label("twice", 1, 1)} == registry.LABELS
    assert {"twice": twice} == registry.RULES
    leaf = neighbourhood("x")
    assert apply_rule(neighbourhood("twice", leaf)) == ("+", leaf, leaf)


def test_constructors_have_no_rule():
    constructor("pair", "couple", arity=2)
    assert {name: Label(name, 2, None) for name in ("pair", "couple")} == registry.LABELS
    assert registry.RULES == {}


def test_a_label_is_declared_once():
    constructor("pair", arity=2)
    with pytest.raises(AssertionError, match="the label 'pair' is declared twice"):
        constructor("pair")


def test_the_signature_does_not_change_after_import():
    constructor("new")
    assert "new" not in MACHINE.signature.id_of
