"""The rivals of the curriculum comparison are right: what they learn they say, and time is counted as told."""

import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.curriculum_expressions import accuracies, drawn, questions, right_answers, training_samples
from benchmarks.curriculum_rivals import AnswersTransformer, Settings, bucketed, rate, train
from benchmarks.curriculum_scratchpad import (
    REPLACEMENT_WORDS,
    NeighbourhoodTransformer,
    ScratchpadTransformer,
    neighbourhood_text,
    replacement_of,
    replacement_text,
)
from benchmarks.curriculum_steps import STEP_WORDS, Scratchpad, answer_of, first_text, has_finished_numbers, term_of
from benchmarks.curriculum_text import BEGIN, PAD, WORDS, encode, padded
from benchmarks.curriculum_transformer import Seq2SeqTransformer, TransformerSize
from benchmarks.curriculum_tree import Slots, TreeNetwork, TreeRival, graph_of, slots_of
from dagnn.curriculum import make_sample, parse
from dagnn.curriculum.traces import collect_neighbourhoods
from dagnn.rewriting import LEAVE

SMALL = TransformerSize(width=64, heads=4, layers=1, inner=128)


def some(levels, count, seed=0):
    return [sample for level in levels for sample in drawn(level, count, seed=seed, split="train")]


def learned(rival, settings, steps):
    """The rival after this many steps: the clock ticks once a step."""
    ticks = itertools.count()
    train(rival, settings, cpu_seconds=steps, seed=0, looks=0, clock=lambda: next(ticks))
    rival.model.eval()
    return rival


@pytest.fixture(scope="module")
def transformer():
    torch.manual_seed(0)
    return Seq2SeqTransformer(WORDS, WORDS, TransformerSize(width=32, heads=4, layers=2, inner=64)).eval()


@pytest.mark.parametrize("longest", [1, 12])
def test_a_cached_step_is_the_whole_decoder(transformer, longest):
    texts = [encode(sample.input) for sample in some((1, 2, 5), 3)]
    greedy = transformer.greedy(texts, longest=longest)
    with torch.no_grad():
        scores = transformer(padded(texts), padded([[BEGIN, *text] for text in greedy]))

    for text, score in zip(greedy, scores, strict=True):
        assert score[: len(text)].argmax(-1).tolist() == text


def test_padding_and_later_words_change_nothing(transformer):
    transformer = copy.deepcopy(transformer).double()
    text, answer = encode(("+", 12, -7)), [BEGIN, *encode(5)]
    with torch.no_grad():
        alone = transformer(torch.tensor([text]), torch.tensor([answer]))
        beside = transformer(
            padded([text, encode(parse("(* (+ 11 12) (- 13 14))"))]), padded([[*answer, 9, 9], answer])
        )

    torch.testing.assert_close(beside[0, : len(answer)], alone[0])


def test_a_cached_step_of_the_tree_decoder_is_the_whole_decoder():
    torch.manual_seed(0)
    network = TreeNetwork(TransformerSize(width=32, heads=4, layers=2, inner=64)).eval()
    graphs = [graph_of(sample.input) for sample in some((1, 3, 6), 3)]
    greedy = network.greedy(graphs, longest=10)
    slots = [slots_of(text) for text in greedy]
    longest = max(map(len, slots))
    with torch.no_grad():
        scores, _ = network(
            graphs,
            padded([[BEGIN, *text] for text in greedy]),
            torch.tensor([[*each, *[(0, 0, 0)] * (longest - len(each))] for each in slots]),
        )

    for text, score in zip(greedy, scores, strict=True):
        assert score[: len(text)].argmax(-1).tolist() == text


def test_slots_follow_the_tree():
    text = encode(("+", ("sin", "x"), 12))
    names = [(WORDS.names[parent], place, depth) for parent, place, depth in slots_of(text)]

    assert names == [
        ("<begin>", 0, 1), ("+", 0, 2), ("sin", 0, 3), ("+", 1, 2), ("positive", 0, 3), ("2", 0, 4), ("<pad>", 0, 0),
    ]  # fmt: skip
    whole = Slots()
    whole.add(WORDS.id_of["x"])
    whole.add(PAD)
    assert whole.next == (0, 0, 0)


def test_a_graph_shares_binds_and_knows_values():
    nodes = graph_of(parse("(subst (+ (* x x) (* x x)) x 3)"))

    assert [(node.kind, node.operands, node.value) for node in nodes] == [
        ("number", (), 3), ("bind", (0,), 3), ("*", (1, 1), 9), ("+", (2, 2), 18),
    ]  # fmt: skip


def test_the_answers_transformer_learns_what_it_sees():
    samples = some((1, 7), 4)
    settings = Settings(lr=3e-3, batch=8, size=SMALL)
    rival = learned(AnswersTransformer(settings, 0, itertools.cycle(samples)), settings, 120)

    assert right_answers(samples, rival.solve(samples)) == 8


def test_the_tree_rival_learns_what_it_sees():
    samples = some((1, 3), 4)
    settings = Settings(lr=3e-3, batch=8, size=SMALL)
    rival = learned(TreeRival(settings, 0, itertools.cycle(samples)), settings, 200)

    assert right_answers(samples, rival.solve(samples)) == 8


def test_the_scratchpad_transformer_learns_what_it_sees():
    samples = [make_sample(1, seed=0, index=0), make_sample(5, seed=0, index=1), make_sample(5, seed=0, index=3)]
    settings = Settings(lr=3e-3, batch=16, size=SMALL, options={"pairs": 50})
    rival = learned(ScratchpadTransformer(settings, 0, itertools.cycle(samples)), settings, 150)

    assert right_answers(samples, rival.solve(samples)) == 3


def test_the_neighbourhood_transformer_learns_what_it_sees():
    collected = collect_neighbourhoods({2: 1}, seed=0)
    collected = replace(collected, counts=np.ones_like(collected.counts))  # or rare ones would take long
    settings = Settings(lr=3e-3, batch=32, size=SMALL)
    rival = learned(NeighbourhoodTransformer(settings, 0, collected), settings, 200)
    samples = some((2,), 1)

    assert rival.rewrite(collected.neighbourhoods) == collected.replacements
    assert right_answers(samples, rival.solve(samples)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "steps"), [(AnswersTransformer, 600), (TreeRival, 600), (ScratchpadTransformer, 1_800)]
)
def test_a_rival_learns_50_expressions_of_all_levels(kind, steps):
    samples = some(range(1, 8), 8)[:50]
    settings = Settings(lr=2e-3, batch=50, options={"pairs": 100})
    rival = learned(kind(settings, 0, itertools.cycle(samples)), settings, steps)

    assert right_answers(samples, rival.solve(samples)) == 50


@pytest.mark.parametrize("grain", ["rules", "numbers"])
@pytest.mark.parametrize("level", [1, 2, 3, 5, 6, 7])
def test_a_scratchpad_leads_to_the_answer(level, grain):
    scratchpad = Scratchpad(grain, most_steps=2_000, most_words=1_000)
    for sample in some((level,), 3):
        texts = scratchpad.texts(sample)

        assert texts[0] == first_text(sample)
        assert all(STEP_WORDS.is_whole(text) for text in texts)
        assert right_answers([sample], [answer_of(texts[-1], sample)]) == 1
        assert all(answer_of(text, sample) is None for text in texts[:-1])


def test_a_step_of_numbers_ends_where_all_digits_are_in_numbers():
    sample = make_sample(2, seed=0, index=5)
    numbers, rules = (Scratchpad(grain, most_steps=1_000).texts(sample) for grain in ("numbers", "rules"))

    assert len(numbers) < len(rules)
    assert all(has_finished_numbers(term_of([word - 2 for word in text])) for text in numbers[:-1])
    assert not all(has_finished_numbers(term_of([word - 2 for word in text])) for text in rules[:-1])


@pytest.mark.parametrize("level", [4, 7])
def test_what_has_no_scratchpad_is_answered_at_once(level):
    (sample,) = some((level,), 1)
    texts = Scratchpad(most_steps=5).texts(sample)

    assert len(texts) == 2
    assert answer_of(texts[1], sample) == sample.answer


def test_neighbourhoods_and_replacements_read_back():
    collected = collect_neighbourhoods({1: 5, 3: 5}, seed=0)

    for neighbourhood, replacement in zip(collected.neighbourhoods, collected.replacements, strict=True):
        assert len(neighbourhood_text(neighbourhood)) == len(neighbourhood)
        assert replacement_of(replacement_text(replacement), neighbourhood) == replacement
    assert replacement_of([REPLACEMENT_WORDS.id_of["node 84"]], collected.neighbourhoods[0]) == LEAVE
    assert replacement_of([], collected.neighbourhoods[0]) == LEAVE


def test_training_goes_through_every_level_again_and_again():
    sizes = {1: 3, 5: 2}
    stream = training_samples(7, sizes)
    seen = [next(stream) for _ in range(60)]

    for level, size in sizes.items():
        mine = [sample for sample in seen if sample.level == level]
        assert mine[: 2 * size] == [make_sample(level, seed=7, index=index) for index in range(size)] * 2
    assert 20 < sum(sample.level == 1 for sample in seen) < 40


def test_questions_are_the_same_for_all_and_never_trained():
    first, second = list(questions(2, seed=3, depths=(3,))), list(questions(2, seed=3, depths=(3,)))

    assert first == second
    assert [question.name for question in first] == [
        *(f"level {level}" for level in range(1, 8)),
        *(f"level {level}, depth 3" for level in (2, 3, 4, 5, 7)),
        *(f"level {level}, integers of 4 digits" for level in (1, 2)),
    ]
    assert {sample.split for question in first for sample in question.samples} == {"test"}


def test_the_judge_counts():
    asked = list(questions(3, seed=0, depths=()))[:2]
    told = []

    def half(samples):
        return [sample.answer if sample.level == 1 else None for sample in samples]

    assert accuracies(half, iter(asked), told=told.append) == {"level 1": 1.0, "level 2": 0.0}
    assert told == ["level 1: 100.00 %", "level 2: 0.00 %"]


def test_looks_are_not_on_the_clock():
    samples = some((1,), 4)
    settings = Settings(batch=4, size=TransformerSize(width=16, heads=2, layers=1, inner=16))
    rival = AnswersTransformer(settings, 0, itertools.cycle(samples))
    ticks = itertools.count()
    trained = train(rival, settings, cpu_seconds=40, seed=0, looks=2, asked=1, told=str, clock=lambda: next(ticks))

    assert [seconds for seconds, _ in trained.curve] == [20, 40]
    assert trained.cpu_seconds == 40
    assert trained.examples == 4 * trained.steps
    assert set(trained.curve[0][1]) == set(range(1, 8))


def test_the_rate_rises_and_falls():
    rates = [rate(part / 100, 0.1) for part in range(101)]

    assert max(rates) == rates[10] == 1.0
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[0] == pytest.approx(0.01)
    assert rates[100] == pytest.approx(0.01)


def test_buckets_hold_everything_once():
    batches = bucketed(iter(range(40)), lambda item: item % 7, 5, seed=0, pool=4)
    found = [next(batches) for _ in range(8)]

    assert sorted(item for batch in found for item in batch) == list(range(40))
    assert max(max(item % 7 for item in batch) - min(item % 7 for item in batch) for batch in found) <= 3
