"""Wires and cells of one pass: what a flow may do, and that unknown symbols name what is missing."""

import numpy as np
import pytest

from dagnn.answers import Cell, Operation, Wire
from dagnn.answers.run import Run
from dagnn.errors import ConfigError

ALPHABETS = {"bit": "01", "state": "ab"}
CELLS = {"other": Cell(("bit",), ("bit",)), "parity": Cell(("bit", "state"), ("bit", "state"))}


def answers_of(flow, table=None):
    operation = Operation("some", ALPHABETS, CELLS, ("bit",), "bit", flow)
    run = Run(operation.layout, operation.layout.empty() if table is None else table, 2)
    return np.concatenate(operation.run(run, operation.encode_questions([("0110",), ("1011",)]))).T.tolist()


def parity_table(kind):
    """other(x) = 1 - x; parity(x, s) = (s, s xor x)."""
    return np.array([[1, 0], [0, 0], [0, 0], [1, 1], [0, 1], [1, 0]], kind)


@pytest.mark.parametrize("kind", [np.int32, np.uint8])
def test_chain_passes_its_last_output_on_in_both_directions(kind):
    def flow(run, text, forward):
        row, last = run.chain("parity", text, carry=run.constant("state", "a"), forward=forward)
        assert (len(row), len(last), last.alphabet) == (4, 1, "state")
        return row

    table = parity_table(kind)
    assert answers_of(lambda run, text: flow(run, text, True), table) == [[0, 0, 1, 0], [0, 1, 1, 0]]
    assert answers_of(lambda run, text: flow(run, text, False), table) == [[0, 1, 0, 0], [0, 0, 1, 0]]


@pytest.mark.parametrize("kind", [np.int32, np.uint8])
def test_rows_are_joined_sliced_and_chosen_between(kind):
    def flow(run, text):
        turned = run.cell("other", text)[0]
        return run.choose(text[0], text[:2] + turned[2:], run.join([turned[-1], *text[1:]]))

    assert answers_of(flow, parity_table(kind)) == [[0, 1, 0, 1], [0, 0, 1, 1]]


def test_an_unknown_symbol_names_the_entry_that_is_needed_first():
    def flow(run, text):
        return run.cell("other", run.cell("other", text)[0])[0]

    table = parity_table(np.int32)
    table[1, 0] = -1  # other(1)
    entry = 1 * 2 + 0
    assert answers_of(flow, table) == [[-1 - entry] * 4] * 2


def test_a_guess_is_used_where_the_table_is_unknown_and_nowhere_else():
    operation = Operation("some", ALPHABETS, CELLS, ("bit",), "bit", lambda run, text: run.cell("other", text)[0])
    table = parity_table(np.int32)
    table[1, 0] = -1
    guesses = np.array([[2, 0], [0, 2]], np.int32)  # the unknown entry, and one that is known
    values = np.array([[1, 0], [0, 0]], np.int32)
    run = Run(operation.layout, table, 2, entries=guesses, values=values, note=True)
    (found,) = operation.run(run, operation.encode_questions([("01",), ("11",)]))
    assert found.T.tolist() == [[1, 1], [0, 0]]
    assert run.used[:, :2].tolist() == [[True, True], [False, True]]


def test_a_flow_cannot_make_wires_or_look_into_them():
    kept = []

    def keeps(run, text):
        kept.extend(text)
        return [run.cell("other", kept[0])[0]]

    with pytest.raises(ConfigError, match="cannot make a wire itself"):
        answers_of(lambda run, text: [Wire("bit", text[0])])
    with pytest.raises(AttributeError):
        answers_of(lambda run, text: [text[0].symbols])
    with pytest.raises(AttributeError):
        answers_of(lambda run, text: setattr(text[0], "alphabet", "digit"))
    with pytest.raises(ConfigError, match="used 'no wire', expected a wire of this run"):
        answers_of(lambda run, text: ["no wire"])
    assert answers_of(keeps) == [[-1], [-3]]
    with pytest.raises(ConfigError, match="a wire of another run"):
        answers_of(keeps)


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        (lambda run, text: run.constant("state", "b"), "only 'a' can be one"),
        (lambda run, text: run.constant("state", "a"), "answers with 'state', expected 'bit'"),
        (lambda run, text: run.cell("many", text), "no cell 'many'"),
        (lambda run, text: run.cell("parity", text, text), "reads .'bit', 'state'., but the flow connects"),
        (lambda run, text: run.join([text, run.constant("state", "a")]), "joined wires of the alphabets"),
        (lambda run, text: run.choose(text, text, text), "chooses by 4 bits"),
        (lambda run, text: run.choose(text[0], text, text[1:]), "between 4 wires of 'bit' and 3"),
        (lambda run, text: run.chain("other", carry=text[0]), "needs a row"),
        (lambda run, text: run.cell("parity", text, run.constant("state", "a", 3)), r"rows of \[3, 4\] wires"),
        (lambda run, text: (text, text), "declare a separator"),
    ],
)
def test_what_does_not_fit_is_refused(flow, message):
    with pytest.raises(ConfigError, match=message):
        answers_of(flow)
