"""`NetworkPlan` and `NetworkLevels`: where inputs, biases, activations and outputs lie."""

import copy
import pickle

import torch

from dagnn.kernels import plan_network

# inputs 0 and 2, a source 1; then 3 and 4; then 5
EDGES = torch.tensor([[0, 3], [1, 3], [2, 4], [3, 5], [4, 5]])
LEVELS = torch.tensor([0, 0, 0, 1, 1, 2])
HAS_BIAS = torch.tensor([False, True, False, True, False, True])
ACTIVATION = ["identity", "relu", "identity", "gelu", "tanh", "elu"]


def plan():
    return plan_network(EDGES, LEVELS, torch.tensor([2, 0]), torch.tensor([5, 0, 4, 3]), HAS_BIAS, ACTIVATION)


def test_nodes_without_a_bias_point_behind_the_vector():
    assert plan().bias_index.tolist() == [3, 0, 3, 1, 3, 2]


def test_level_zero_is_inputs_and_sources_in_node_order():
    assert plan().levels.sources.tolist() == [1]
    # node 0 is the second input, 1 the source, 2 the first input
    assert plan().levels.level_zero.tolist() == [1, 2, 0]


def test_activations_are_grouped_per_level():
    groups = plan().levels.activations
    assert [group.names for group in groups] == [("relu",), ("gelu", "tanh"), ("elu",)]
    assert [group.back is None for group in groups] == [True, False, True]


def test_outputs_are_found_by_level():
    result = plan().levels
    assert result.output_feed == ((0, 1), (1, 2), (2, 1))
    assert result.output_rows.tolist() == [0, 1, 0, 0]
    assert result.output_back.tolist() == [3, 0, 1, 2]


def test_moving_to_another_device():
    moved = plan().to(torch.device("meta")).levels
    assert moved.level_zero.is_meta and moved.levels.edge_order.is_meta and moved.activations[1].rows[0].is_meta
    assert moved.num_inputs == 2


def test_a_pickled_plan_works_its_arrays_out_anew():
    original = plan()
    assert original.compiled.num_nodes == 6
    loaded = pickle.loads(pickle.dumps(original))
    assert "compiled" not in vars(loaded)
    assert loaded.compiled is not original.compiled
    assert loaded.fingerprint == original.fingerprint
    assert copy.deepcopy(original) is original
