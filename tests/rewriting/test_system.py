"""Neighbourhoods: what a rewrite step may see, worked by hand."""

import pytest
from decimal_addition import SIGNATURE, number_tokens, replacement_of, sum_tokens

from dagnn.errors import GraphError
from dagnn.rewriting.machine import RewritingMachine, RuleRewriter
from dagnn.rewriting.system import LEAVE, Label, Signature, encode_replacement, neighbourhood_nodes, read_neighbourhood

SHOWN = {shown.name: i for i, shown in enumerate(SIGNATURE.shown)}


def neighbourhood_names(tokens) -> list[str]:
    return [SIGNATURE.shown[t].name if t < len(SHOWN) else f"={t - len(SHOWN)}" for t in tokens]


def first_neighbourhood(term):
    machine = RewritingMachine(SIGNATURE, RuleRewriter(lambda neighbourhood: LEAVE))
    machine.run([term])
    return machine.neighbourhood(machine.num_neighbourhoods - 1)


def test_opaque_numbers_hide_their_digits():
    assert neighbourhood_names(first_neighbourhood(sum_tokens([12, 3]))) == ["+", "number:big", "?", "number:big", "?"]


def test_small_numbers_are_shown_by_their_tag():
    neighbourhood = first_neighbourhood(sum_tokens([0, 1]))
    assert neighbourhood_names(neighbourhood) == ["+", "number:zero", "?", "number:one", "?"]


def test_the_node_being_rewritten_is_never_opaque():
    signature = Signature(
        (Label("end", 0), Label("d1", 1), Label("number", 1, neighbourhood_depth=1)),
        opaque=frozenset({"number"}),
        tags={("number", "*"): "big"},
        tagged=frozenset({"number"}),
    )
    machine = RewritingMachine(signature, RuleRewriter(lambda neighbourhood: LEAVE))
    machine.run([[2, 1, 0]])
    assert [signature.shown[t].name for t in machine.neighbourhood(0)] == ["number:big", "d1", "?"]
    assert repr(read_neighbourhood(machine.neighbourhood(0), signature)) == "(number:big (d1 ?))"


def test_a_tag_comes_from_the_child_that_is_named():
    signature = Signature(
        (Label("one", 0), Label("two", 0), Label("pair", 2), Label("look", 1, neighbourhood_depth=1)),
        tags={("one", ""): "1", ("two", ""): "2", ("pair", "2"): "2"},
        tagged=frozenset({"pair"}),
        tag_child={"pair": 1},
    )
    machine = RewritingMachine(signature, RuleRewriter(lambda neighbourhood: LEAVE))
    machine.run([[3, 2, 0, 1], [3, 2, 1, 0]])
    shown = [repr(read_neighbourhood(machine.neighbourhood(number), signature)) for number in range(2)]
    assert shown == ["(look (pair:2 ? ?))", "(look (pair ? ?))"]


def test_one_node_is_one_node_wherever_it_is_reached():
    tokens = first_neighbourhood(sum_tokens([12, 12]))
    assert neighbourhood_names(tokens) == ["+", "number:big", "?", "=1"]
    neighbourhood = read_neighbourhood(tokens, SIGNATURE)
    assert neighbourhood[0] is neighbourhood[1]
    assert [node.address for node in neighbourhood_nodes(neighbourhood)] == [(), (0,), (0, 0)]


def test_a_node_first_met_out_of_sight_shows_its_label_when_met_again_within_sight():
    signature = Signature((Label("a", 0), Label("f", 1), Label("g", 2, neighbourhood_depth=1)))
    machine = RewritingMachine(signature, RuleRewriter(lambda neighbourhood: LEAVE))
    machine.run([[2, 1, 0, 0]])  # (g (f a) a): `a` is two levels down first, then one
    tokens = machine.neighbourhood(0)
    assert tokens == (2, 1, 3, 4 + 2, 0)
    neighbourhood = read_neighbourhood(tokens, signature)
    assert neighbourhood[1].label == "a"
    assert neighbourhood[0][0] is neighbourhood[1]


def test_what_a_rule_sees_is_what_the_neighbourhood_holds():
    neighbourhood = read_neighbourhood(first_neighbourhood(sum_tokens([12, 3])), SIGNATURE)
    assert repr(neighbourhood) == "(+ (number:big ?) (number:big ?))"
    assert (neighbourhood[0].kind, neighbourhood[0].tag, neighbourhood[0][0].kind) == ("number", "big", "?")


def test_constructors_have_no_neighbourhood():
    with pytest.raises(GraphError, match="'number' is a constructor"):
        read_neighbourhood(tuple(number_tokens(1)), SIGNATURE)


def test_a_replacement_with_an_unknown_label_is_refused():
    with pytest.raises(GraphError, match="label 'minus', which the signature does not declare"):
        encode_replacement(("minus", "end"), SIGNATURE)


def test_a_replacement_with_a_wrong_number_of_children_is_refused():
    with pytest.raises(GraphError, match="gives 'add' 1 children, its arity is 2"):
        encode_replacement(("add", "end"), SIGNATURE)


def test_no_replacement_is_leave_it():
    assert encode_replacement(None, SIGNATURE) == LEAVE


def test_every_neighbourhood_of_the_system_reads_back_to_distinct_nodes():
    machine = RewritingMachine(SIGNATURE, RuleRewriter(replacement_of), eager=True)
    machine.run([sum_tokens([i * 17, i * 31]) for i in range(200)])
    for number in range(machine.num_neighbourhoods):
        nodes = neighbourhood_nodes(read_neighbourhood(machine.neighbourhood(number), SIGNATURE))
        assert [node.index for node in nodes] == list(range(len(nodes)))
        assert len({node.address for node in nodes}) == len(nodes)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ((Label("a", 0), Label("a", 1)), {}, "'a' is declared twice"),
        ((Label("a", 5),), {}, "arity 5, expected 0 .. 4"),
        ((Label("a", 1, neighbourhood_depth=3),), {}, "neighbourhood_depth 3, expected 0 .. 2 or None"),
        ((Label("a", 1, neighbourhood_depth=-1),), {}, "neighbourhood_depth -1, expected 0 .. 2 or None"),
        ((Label("a b", 0),), {}, "'a b' cannot be shown"),
        ((Label("?", 0),), {}, "' cannot be shown"),
        ((Label("a:b", 0),), {}, "'a:b' cannot be shown"),
        ((Label("a", 0),), {"opaque": frozenset({"b"})}, "'b', which is not a label"),
        ((Label("a", 0),), {"tags": {("c", ""): "1"}}, "'c', which is not a label"),
        ((Label("a", 0),), {"tag_child": {"c": 0}}, "'c', which is not a label"),
        ((Label("a", 2),), {"tag_child": {"a": 2}}, r"tag_child\['a'\] = 2, but the label has 2 children"),
    ],
)
def test_a_wrong_signature_is_refused(labels, options, message):
    with pytest.raises(GraphError, match=message):
        Signature(labels, **options)
