"""Operations from answers alone: exact far beyond the lengths seen, and gaps that are named."""

import random

import pytest

from dagnn.answers import ARITHMETIC, Cell, Operation, Run, Wire, learn
from dagnn.errors import ConfigError, DataError


def short_pairs(name):
    return ARITHMETIC[name].pairs(8000, longest=3, seed=1)


@pytest.fixture(scope="module", params=["+", "-"])
def case(request):
    return ARITHMETIC[request.param], learn(ARITHMETIC[request.param].operation, short_pairs(request.param))


def test_certified_operation_is_exact_on_numbers_of_a_hundred_digits(case):
    arithmetic, learned = case
    certificate = learned.certificate()
    assert certificate.holds, str(certificate)
    assert (certificate.reachable, certificate.missing, certificate.wrong) == (200, (), ())
    assert certificate.least_lead > 3
    rng = random.Random(1)
    questions = [arithmetic.question(rng, (100, 100)) for _ in range(50)]
    expected = [arithmetic.exact(*question) for question in questions]
    given = learned.answers(questions)
    assert [answer.rjust(101, "0") for answer in given] == expected


def test_a_network_that_forgets_loses_the_certificate(case):
    import torch

    _, learned = case
    cell = next(iter(learned.networks))
    bias = learned.networks[cell].logits.bias
    with torch.no_grad():
        bias[3] += 100
        learned.responses, learned._leads = learned._respond()
        certificate = learned.certificate()
        bias[3] -= 100
    learned.responses, learned._leads = learned._respond()
    assert not certificate.holds
    assert len(certificate.wrong) > 100


def test_digits_that_no_answer_shows_are_named():
    pairs = [pair for pair in short_pairs("+") if "9" not in pair[0][0]]
    certificate = learn(ARITHMETIC["+"].operation, pairs, steps=1).certificate()
    assert not certificate.holds
    assert "add(9, 5, 0)" in certificate.missing
    assert "no claim" in str(certificate)


@pytest.mark.parametrize("name", ["+", "-", "*"])
def test_flow_with_the_right_facts_gives_the_exact_answer(name):
    arithmetic = ARITHMETIC[name]
    layout = arithmetic.operation.layout
    table = layout.empty()
    truth = {
        "add": lambda x, y, c: ((x + y + c) % 10, (x + y + c) // 10),
        "subtract": lambda x, y, c: ((x - y - c) % 10, int(x - y - c < 0)),
        "times": lambda x, y: (x * y % 10, x * y // 10),
    }
    for row in range(layout.rows):
        cell, inputs = layout.cell_of[row], layout.inputs(row)
        if all(i < r - 1 for i, r in zip(inputs, layout.radices[cell], strict=True)):
            table[row] = truth[cell](*inputs)
    rng = random.Random(2)
    for digits in ((1, 1), (2, 1), (1, 3), (4, 4), (7, 3)):
        question = arithmetic.question(rng, digits)
        answer = arithmetic.operation.answers(Run(arithmetic.operation, table), [question])[0]
        assert "".join(map(str, answer)) == arithmetic.exact(*question)


def equal_lengths():
    rng, plus = random.Random(0), ARITHMETIC["+"]
    shapes = [(1, 1)] * 400 + [(2, 2)] * 3000
    questions = [plus.question(rng, shape) for shape in shapes]
    return [(question, plus.exact(*question)) for question in questions]


@pytest.mark.parametrize(
    "pairs",
    [
        equal_lengths,  # add(0, 0, 0) is nearly always the last cell, whose carry nothing reads
        # 0 + 0 of one digit, which alone can give three votes for a first fact, is not there.
        lambda: ARITHMETIC["+"].pairs(4000, seed=0),
    ],
)
def test_answers_that_determine_every_fact_are_enough(pairs):
    certificate = learn(ARITHMETIC["+"].operation, pairs(), steps=1).certificate()
    assert certificate.missing == ()
    assert certificate.contradicted == 0


def test_certificate_says_what_its_claim_is_relative_to(case):
    _, learned = case
    assert "no other table as a whole explains them is not proved" in str(learned.certificate())


def _answers_of(flow):
    operation = Operation("not", {"bit": "01"}, {"other": Cell(("bit",), ("bit",))}, ("bit",), "bit", flow)
    return operation.answers(Run(operation, operation.layout.empty()), [("01",)])


def test_a_flow_cannot_make_wires_or_look_into_them():
    kept = []

    def keeps(run, text):
        kept.extend(text)
        return [run.cell("other", kept[0])[0]]

    with pytest.raises(ConfigError, match="cannot make a wire itself"):
        _answers_of(lambda run, text: [Wire("bit", text[0])])
    with pytest.raises(AttributeError):
        _answers_of(lambda run, text: [text[0].symbols])
    with pytest.raises(AttributeError):
        _answers_of(lambda run, text: setattr(text[0], "alphabet", "digit"))
    with pytest.raises(ConfigError, match="used 'no wire', expected a wire of this run"):
        _answers_of(lambda run, text: ["no wire"])
    assert _answers_of(keeps).tolist() == [[2]]
    with pytest.raises(ConfigError, match="a wire of another run"):
        _answers_of(keeps)


def test_what_cannot_be_taken_is_refused():
    plus = ARITHMETIC["+"].operation
    with pytest.raises(DataError, match=r"a question is a tuple of texts, such as \('12', '5'\), got \(12, 5\)"):
        learn(plus, [((12, 5), "17")])
    with pytest.raises(DataError, match="a question is a tuple of texts"):
        learn(plus, [("12", "17")])
    with pytest.raises(DataError, match="got no pairs"):
        learn(plus, [])
    with pytest.raises(DataError, match="the symbol 'x'"):
        learn(plus, [(("1", "x"), "01")])
    with pytest.raises(DataError, match="has 3 symbols, the data flow gives 2"):
        learn(plus, [(("1", "1"), "002")])
    with pytest.raises(ConfigError, match="only '0' can be one"):
        Run(plus, plus.layout.empty()).constant("bit", "1")
    with pytest.raises(ConfigError, match="declare it"):
        Operation("bad", {"bit": "01"}, {"c": Cell(("digit",), ("bit",))}, ("bit",), "bit", lambda run, text: text)
