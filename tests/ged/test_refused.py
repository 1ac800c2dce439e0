"""What only looks like a cost, a limit or a flag is refused."""

import numpy as np
import pytest
import torch

from dagnn.errors import ConfigError, DtypeError
from dagnn.ged import EditCosts, GedLoss, clique_counts, ged_bounds, ged_matrix, graph_edit_distance
from dagnn.graph import Dag

PAIR = [Dag([(0, 1)]), Dag([(0, 1), (1, 2)])]
NO_NUMBERS = [1j, np.complex64(1), torch.tensor(1j), "1", b"1", np.array("1"), np.timedelta64(1), np.datetime64("2020")]


@pytest.mark.fault("graph_edit_distance", 7)
@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_costs_that_are_no_numbers(value):
    with pytest.raises(ConfigError, match="node_insertion must be a number"):
        EditCosts(node_insertion=value)
    with pytest.raises(ConfigError, match="it must return a finite number"):
        graph_edit_distance(*PAIR, EditCosts(node_insertion=lambda label: value))


@pytest.mark.fault("graph_edit_distance", 5)
@pytest.mark.parametrize("value", [*NO_NUMBERS, True, False], ids=repr)
@pytest.mark.parametrize("limit", ["seconds", "upper_bound"])
def test_limits_that_are_no_numbers(limit, value):
    with pytest.raises(ConfigError, match=f"{limit} is .*: it must be at least 0"):
        graph_edit_distance(*PAIR, **{limit: value})


def test_costs_in_tensors_are_taken_without_a_warning():
    costs = EditCosts(node_insertion=torch.tensor(0.5), edge_insertion=torch.tensor(2, dtype=torch.bfloat16))
    assert graph_edit_distance(*PAIR, costs).distance == 2.5


@pytest.mark.fault("graph_edit_distance", 6)
def test_several_names_of_a_label():
    with pytest.raises(DtypeError, match="node_label must be the name of one attribute"):
        graph_edit_distance(*PAIR, node_label=["x", "y"])


@pytest.mark.parametrize("progress", [1, "yes", 2.0])
def test_progress_that_is_neither_a_flag_nor_a_function(progress):
    with pytest.raises(ConfigError, match="progress is"):
        ged_matrix(PAIR, progress=progress)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: graph_edit_distance(Dag([]), Dag([]), directed="no"), "directed is 'no': write True, False or None"),
        (lambda: ged_bounds(Dag([]), Dag([]), directed=1), "directed is 1: write True, False or None"),
        (lambda: ged_bounds(Dag([]), Dag([]), tight="no"), "tight is 'no': write True or False"),
        (lambda: ged_matrix([], directed="no"), "directed is 'no'"),
        (lambda: ged_matrix([], workers=2.0), r"workers is 2\.0: it must be a whole number of threads, at least 1"),
        (lambda: GedLoss(joint="no"), "joint is 'no': write True or False"),
        (lambda: GedLoss(normalize=None), "normalize is None: write True or False"),
        (lambda: GedLoss(steps=2.5), r"steps is 2\.5"),
        (lambda: clique_counts(torch.zeros(1, 2, 2), size=5), "size is 5: it must be 3 or 4"),
    ],
)
def test_a_flag_must_be_a_bool_and_a_count_a_whole_number(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_numbers_of_numpy_are_numbers_of_workers():
    assert ged_matrix([Dag([(0, 1)])], workers=np.int64(2)).proved.all()
