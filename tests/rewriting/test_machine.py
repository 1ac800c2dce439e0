"""The rewriting machine against Python's own integers, at every limit it can run into."""

import random

import pytest
from decimal_addition import SIGNATURE, number_tokens, replacement_of, sum_tokens, value_of
from hypothesis import given
from hypothesis import strategies as st

from dagnn.errors import GraphError
from dagnn.rewriting import term_graph
from dagnn.rewriting.machine import RewritingMachine, RuleRewriter
from dagnn.rewriting.system import LEAVE, Label, Signature

naturals = st.integers(min_value=0, max_value=10**30)


def machine(**options) -> RewritingMachine:
    return RewritingMachine(SIGNATURE, RuleRewriter(replacement_of), **options)


@given(st.lists(st.lists(naturals, min_size=1, max_size=4), min_size=1, max_size=5), st.booleans())
def test_sums_equal_pythons(lists, eager):
    results = machine(eager=eager).run([sum_tokens(values) for values in lists])
    assert [value_of(result.tokens) for result in results] == [sum(values) for values in lists]


def test_eager_and_batched_give_the_same_answers_and_neighbourhoods():
    terms = [sum_tokens([i * 7919, i * 104729, i]) for i in range(40)]
    eager, batched = machine(eager=True), machine()
    assert [result.tokens for result in eager.run(terms)] == [result.tokens for result in batched.run(terms)]
    neighbourhoods = [sorted(m.neighbourhood(w) for w in range(m.num_neighbourhoods)) for m in (eager, batched)]
    assert neighbourhoods[0] == neighbourhoods[1]


def test_a_neighbourhood_is_asked_once():
    asked = []

    def rule(neighbourhood):
        asked.append(neighbourhood)
        return replacement_of(neighbourhood)

    asking = RewritingMachine(SIGNATURE, RuleRewriter(rule))
    for _ in range(3):
        asking.run([sum_tokens([95, 17]), sum_tokens([95, 17, 8])])
        asking.clear_graph()
    assert len(asked) == len(set(asked)) == asking.num_neighbourhoods


def test_counts_say_how_often_each_neighbourhood_was_rewritten():
    counting = machine(eager=True)
    results = counting.run([sum_tokens([11, 11])])
    by_neighbourhood = {counting.neighbourhood(w): int(n) for w, n in enumerate(counting.counts)}
    assert sum(by_neighbourhood.values()) == results[0].steps == 4
    assert sorted(by_neighbourhood.values()) == [1, 1, 2]  # the sums of the ones and of the tens look alike


def test_shared_sub_terms_are_rewritten_once():
    once = machine(eager=True).run([sum_tokens([123, 456])])[0].steps
    plus = SIGNATURE.id_of["+"]
    twice = machine(eager=True).run([[plus, *sum_tokens([123, 456]), *sum_tokens([123, 456])]])[0]
    assert value_of(twice.tokens) == 2 * 579
    assert twice.steps < 2 * once + 6


def test_rewriting_without_end_stops_at_the_budget():
    forever = [SIGNATURE.id_of["forever"], *number_tokens(3)]
    result = machine(eager=True).run([forever], budget=50)[0]
    assert result.tokens is None
    assert result.steps <= 50
    assert "50 steps" in result.stopped


def test_growing_without_end_stops_at_the_budget():
    result = machine(eager=True).run([[SIGNATURE.id_of["grow"], *number_tokens(3)]], budget=3_000)[0]
    assert result.tokens is None
    assert result.stopped


def test_one_endless_term_does_not_disturb_its_neighbours():
    forever = [SIGNATURE.id_of["forever"], *number_tokens(3)]
    results = machine().run([sum_tokens([2, 3]), forever, sum_tokens([40, 2])], budget=100)
    assert value_of(results[0].tokens) == 5
    assert results[1].tokens is None
    assert value_of(results[2].tokens) == 42


def test_arrays_grow_when_they_are_full():
    small = machine(eager=True)
    small._memo = term_graph.new_memo(4)
    small._stack = term_graph.new_stack(4)
    values = [10**300 + 7, 10**299 + 5] * 30
    assert value_of(small.run([sum_tokens(values)])[0].tokens) == sum(values)
    assert small._store.size[0] > 1 << 14


def test_the_graph_is_emptied_beyond_max_nodes_and_the_memo_stays():
    small = machine(eager=True, max_nodes=100)
    small.run([sum_tokens([10**90, 10**90 + 1])])
    neighbourhoods = small.num_neighbourhoods
    small.run([sum_tokens([1, 2])])
    assert small._store.size[0] < 100
    assert small.num_neighbourhoods >= neighbourhoods


def test_rounds_are_bounded():
    result = machine().run([sum_tokens([987654321, 123456789])], rounds=2)[0]
    assert result.tokens is None
    assert "2 rounds" in result.stopped


def test_a_rewriter_that_leaves_everything_ends_at_once():
    idle = RewritingMachine(SIGNATURE, RuleRewriter(lambda neighbourhood: LEAVE))
    term = sum_tokens([4, 5])
    assert idle.run([term])[0].tokens == term


def test_trace_lists_every_step_from_first_to_last():
    result, steps = machine().trace(sum_tokens([95, 17]))
    assert value_of(result.tokens) == 112
    assert [SIGNATURE.labels[step.before[0]].name for step in steps] == ["+", "add", "carry", "carry"]
    assert steps[0].before == sum_tokens([95, 17])
    assert all(replacement_of(step.neighbourhood) for step in steps)


def test_a_record_holds_the_steps_too_that_leave_a_neighbourhood():
    idle = RewritingMachine(SIGNATURE, RuleRewriter(lambda neighbourhood: LEAVE))
    term = sum_tokens([4, 5])
    result, steps = idle.recorded(term)
    assert (result.tokens, result.steps, len(steps)) == (term, 1, 1)
    assert (steps[0].before, steps[0].after, steps[0].replacement) == (term, term, LEAVE)
    assert not steps.changed(0)
    assert idle.trace(term)[1] == []

    traced = machine().trace(sum_tokens([95, 17]))[1]
    _, steps = machine().recorded(sum_tokens([95, 17]))
    assert [step for i, step in enumerate(steps) if steps.changed(i)] == traced
    assert steps[-2:] == list(steps)[-2:]
    assert [steps.neighbourhood(i) for i in range(len(steps))] == [step.neighbourhood for step in steps]
    assert all(step.replacement == replacement_of(step.neighbourhood) for step in steps)


@pytest.mark.parametrize("eager", [True, False])
def test_time_is_bounded(eager):
    term = [SIGNATURE.id_of["forever"], *number_tokens(3)]
    for result in (
        machine(eager=eager).run([term], budget=10**8, seconds=0.01)[0],
        machine(eager=eager).recorded(term, budget=10**7, seconds=0.01)[0],
    ):
        assert result.tokens is None
        assert result.stopped == "no normal form within 0.01 seconds"
        assert result.steps < 10**7
    assert machine(eager=eager).run([sum_tokens([2, 3])], seconds=100.0)[0].tokens == number_tokens(5)


def test_trace_is_the_same_after_other_work():
    fresh, used = machine(), machine(eager=True)
    used.run([sum_tokens([95, 17, 3])])
    assert fresh.trace(sum_tokens([95, 17])) == used.trace(sum_tokens([95, 17]))


@pytest.mark.parametrize(
    ("term", "message"),
    [
        ([], "the term lacks 1 more sub-trees"),
        ([14], "the term lacks 2 more sub-trees"),
        ([0, 0], "the term ends before token 1"),
        ([99], "token 0 of the term is 99, expected a label id below 17"),
        ([-1], "token 0 of the term is -1"),
    ],
)
def test_a_term_that_is_no_tree_is_refused(term, message):
    with pytest.raises(GraphError, match=message):
        machine().run([term])


@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        ((1,), "the replacement lacks 1 more sub-trees"),
        ((17, 17), "the replacement ends before token 1"),
        ((17 + 5,), "token 0 of the replacement is 22, expected a label id below 17 or a pointer below 22"),
        ((1,) * 128 + (0,), "the replacement has 129 tokens, the most is 128"),
    ],
)
def test_a_replacement_that_is_no_tree_is_refused(replacement, message):
    # The neighbourhood (+ (number ?) (number ?)) has five distinct nodes.
    wrong = RewritingMachine(SIGNATURE, RuleRewriter(lambda neighbourhood: replacement))
    with pytest.raises(GraphError, match=message):
        wrong.run([sum_tokens([95, 17])])


def test_the_longest_replacement_is_made_whole():
    longest = (1,) * 127 + (0,)
    asked = []

    def rule(neighbourhood):
        asked.append(neighbourhood)
        return longest if len(asked) == 1 else ()

    result = RewritingMachine(SIGNATURE, RuleRewriter(rule), eager=True).run([sum_tokens([95, 17])])[0]
    assert result.tokens == list(longest)


def test_the_widest_neighbourhood_fits():
    """Four children, each with four children: every node within sight and every hidden one is another."""
    leaves = tuple(Label(f"n{i}", 0) for i in range(4))
    signature = Signature((*leaves, Label("f", 4), Label("root", 4, neighbourhood_depth=2)))
    draw = random.Random(0)

    def tree(depth):
        return [draw.randrange(4)] if depth == 0 else [4, *(token for _ in range(4) for token in tree(depth - 1))]

    term = [5, *(token for _ in range(4) for token in tree(4))]
    idle = RewritingMachine(signature, RuleRewriter(lambda neighbourhood: LEAVE))
    assert idle.run([term])[0].tokens == term
    assert 1 + 4 + 16 + 64 <= len(idle.neighbourhood(0)) <= term_graph.MAX_NEIGHBOURHOOD
