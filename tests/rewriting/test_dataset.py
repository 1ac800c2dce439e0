"""Batches of neighbourhoods: what is drawn, how often, and that mistakes are learned from in the same way after a
resume."""

from collections import Counter

import numpy as np
import pytest
import torch

from dagnn.curriculum.engine import RuleEngine
from dagnn.curriculum.rules import SIGNATURE
from dagnn.curriculum.traces import collect_neighbourhoods
from dagnn.errors import CheckpointError
from dagnn.rewriting import GraphRewriter
from dagnn.rewriting.dataset import Mistake, NeighbourhoodLoader, is_held_out, mistakes_of


@pytest.fixture(scope="module")
def collected():
    return collect_neighbourhoods({1: 60, 2: 10}, seed=5)


@pytest.fixture(scope="module")
def unseen(collected):
    """Mistakes in neighbourhoods that are not among the collected ones, nor held out at 0.2."""
    others = collect_neighbourhoods({2: 40, 5: 20}, seed=6)
    return [
        Mistake(2, neighbourhood, replacement)
        for neighbourhood, replacement in zip(others.neighbourhoods, others.replacements, strict=True)
        if neighbourhood not in set(collected.neighbourhoods) and not is_held_out(neighbourhood, 0.2)
    ]


def loader_of(collected, **options) -> NeighbourhoodLoader:
    torch.manual_seed(0)
    model = GraphRewriter.from_neighbourhoods(SIGNATURE, collected.neighbourhoods, width=16, blocks=1)
    loader = NeighbourhoodLoader(collected, model, batch_size=64, seed=0, stage_weights={1: 1.0, 2: 1.0}, **options)
    loader.open_stages((1, 2))
    return loader


def drawn(loader: NeighbourhoodLoader, batches: int) -> Counter:
    """How often each row was drawn."""
    rows = [tuple(row) for _ in range(batches) for row in loader.next_batch().rows.tolist()]
    return Counter(rows)


def row_of(loader: NeighbourhoodLoader, item: int) -> tuple[int, ...]:
    return tuple(loader.rows[item].tolist())


def test_a_neighbourhood_that_went_wrong_is_drawn_more_often(collected):
    item = int(collected.counts.sum(1).argmin())
    mistake = Mistake(int(collected.first_stage[item]), collected.neighbourhoods[item], collected.replacements[item])
    before, loader = drawn(loader_of(collected), 60), loader_of(collected)
    for _ in range(6):
        assert loader.learn_from([mistake]) == 0
    after = drawn(loader, 60)
    assert after[row_of(loader, item)] > 20 * max(1, before[row_of(loader, item)])
    assert len(loader.rows) == len(collected)


def test_a_neighbourhood_met_for_the_first_time_is_learned(collected, unseen):
    unseen = unseen[:30]
    loader = loader_of(collected)
    count = len(loader.rows)
    assert loader.learn_from(unseen) == len(unseen) == 30
    assert len(loader.rows) == len(loader.targets) == count + len(unseen)
    features, slots = loader._model.features, loader._model.num_slots
    targets = features.encode_targets([m.neighbourhood for m in unseen], [m.replacement for m in unseen], slots)
    assert torch.equal(loader.targets[count:, 0], targets)
    assert loader.neighbourhoods_of((2,)).tolist()[-1] == count + len(unseen) - 1
    often = drawn(loader, 100)
    assert all(often[row_of(loader, count + i)] for i in range(len(unseen)))


@pytest.mark.parametrize("unordered", [(), ("+", "*")])
def test_what_was_learned_comes_back_with_the_state(collected, unseen, unordered):
    loader = loader_of(collected, unordered=unordered)
    known = Mistake(1, collected.neighbourhoods[0], collected.replacements[0])
    for lesson in ([known, unseen[0]], [unseen[1], unseen[0]], [known]):
        loader.learn_from(lesson)
        drawn(loader, 3)
    state = loader.state_dict()

    fresh, other = loader_of(collected, unordered=unordered), loader_of(collected, unordered=unordered)
    other.learn_from(unseen[5:9])
    shorter = loader_of(collected, unordered=unordered)
    shorter.learn_from([known, unseen[0]])
    for resumed in (fresh, other, shorter):
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
    expected = [loader.next_batch() for _ in range(30)]
    for resumed in (fresh, other, shorter):
        for batch in expected:
            rows, targets = resumed.next_batch()
            assert torch.equal(rows, batch.rows)
            assert torch.equal(targets, batch.targets)


def test_a_loader_that_learned_nothing_has_the_state_of_its_batches(collected):
    loader = loader_of(collected)
    loader.learn_from([])
    drawn(loader, 2)
    assert sorted(loader.state_dict()) == ["order", "position"]
    assert mistakes_of(loader.state_dict()) == []
    with pytest.raises(CheckpointError, match="holds no neighbourhoods"):
        mistakes_of({"mistakes": [[1, 2]]})


def test_draws_begin_anew_after_a_lesson(collected):
    loader, taught = loader_of(collected), loader_of(collected)
    taught.learn_from([Mistake(1, collected.neighbourhoods[0], collected.replacements[0])])
    batches = [each.next_batch().rows.tolist() for each in (loader, taught)]
    assert batches[0] != batches[1]


def test_neighbourhoods_that_are_held_out_are_never_drawn(collected):
    loader = loader_of(collected, held_out=0.2)
    held_out = [i for i, neighbourhood in enumerate(collected.neighbourhoods) if is_held_out(neighbourhood, 0.2)]
    assert len(held_out) > 100
    assert not set(held_out) & set(loader.neighbourhoods_of((1, 2)).tolist())
    # By what is drawn, not by rows: two neighbourhoods may differ only in a feature that the network does not know.
    items = np.concatenate([loader._opened().next_batch() for _ in range(100)])
    assert not set(held_out) & set(items.tolist())
    mistake = Mistake(1, collected.neighbourhoods[held_out[0]], collected.replacements[held_out[0]])
    loader.learn_from([mistake] * 5)
    assert loader.state_dict().keys() == {"order", "position"}


def test_wrong_neighbourhoods_are_those_that_the_network_gets_wrong(collected):
    loader = loader_of(collected, held_out=0.2)
    model = loader._model.eval()
    with torch.no_grad():
        wrong = {mistake.neighbourhood for mistake in loader.wrong_neighbourhoods(model, (1,))}
    for item in loader.neighbourhoods_of((1,)).tolist():
        right = model.rewrite([collected.neighbourhoods[item]])[0] == collected.replacements[item]
        # A replacement that spells nothing leaves the neighbourhood, and is wrong all the same.
        assert right or collected.neighbourhoods[item] in wrong
    assert RuleEngine().rewrite(sorted(wrong)) == [
        mistake.replacement
        for mistake in sorted(loader.wrong_neighbourhoods(model, (1,)), key=lambda each: each.neighbourhood)
    ]
