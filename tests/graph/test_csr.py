"""Grouping and sorting of edges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import dags

from dagnn.graph.edges import offsets_of, stable_order


@given(st.lists(st.integers(0, 9)), st.sampled_from([10, 2**62]))
def test_stable_order_is_that_of_a_stable_sort_for_any_bound(keys, bound):
    array = np.array(keys, dtype=np.int64)
    assert stable_order(array, bound).tolist() == np.argsort(array, kind="stable").tolist()


def test_offsets_bound_the_groups():
    assert offsets_of(np.array([2, 0, 1])).tolist() == [0, 2, 2, 3]
    assert offsets_of(np.array([], dtype=np.int64)).tolist() == [0]


@given(dags(positions=True))
@pytest.mark.parametrize(("csr", "end"), [("csr_by_source", 0), ("csr_by_target", 1)])
def test_every_edge_is_in_the_group_of_its_end_and_groups_are_in_order(csr, end, dag):
    offsets, edge_ids = getattr(dag, csr)
    assert sorted(edge_ids.tolist()) == list(range(dag.num_edges))
    for node in range(dag.num_nodes):
        group = edge_ids[offsets[node] : offsets[node + 1]]
        assert (dag.edges[group, end] == node).all()
        assert group.tolist() == sorted(group.tolist())
