"""Attention: equal to PyTorch's own, inside each graph only, and never NaN."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import dags

from dagnn.errors import ConfigError, GraphError
from dagnn.graph import Dag, DagBatch
from dagnn.nn import MultiHeadAttention, NodeAttention
from dagnn.nn.heads import to_dense


def test_attention_is_that_of_pytorch():
    module = MultiHeadAttention(6, heads=3).double()
    query, memory = torch.randn(2, 4, 6).double(), torch.randn(2, 5, 6).double()
    present = torch.tensor([[True, True, False, True, False], [False, False, True, False, False]])
    q = module.query(query).view(2, 4, 3, 2).transpose(1, 2)
    k, v = (part.view(2, 5, 3, 2).transpose(1, 2) for part in module.key_value(memory).chunk(2, -1))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=present[:, None, None, :])
    expected = module.out(mixed.transpose(1, 2).reshape(2, 4, 6))
    torch.testing.assert_close(module(query, memory, present), expected, rtol=1e-12, atol=1e-12)


def test_no_row_at_all_gives_finite_values_and_gradients():
    module = MultiHeadAttention(4, heads=2)
    y = module(torch.randn(1, 2, 4), torch.randn(1, 3, 4), torch.zeros(1, 3, dtype=torch.bool))
    y.sum().backward()
    assert y.isfinite().all()
    assert all(p.grad.isfinite().all() for p in module.parameters())


@settings(max_examples=20)
@given(graphs=st.lists(dags(), max_size=5))
def test_nodes_hear_their_own_graph_only(graphs):
    module = NodeAttention(4, heads=2).double()
    batch = DagBatch.from_dags(graphs)
    x = torch.randn(batch.num_nodes, 4, dtype=torch.float64)
    together = module(x, batch)
    parts = x.split([graph.num_nodes for graph in graphs]) if graphs else []
    alone = [module(part, graph) for part, graph in zip(parts, graphs, strict=True)]
    torch.testing.assert_close(together, torch.cat([together[:0], *alone]), rtol=1e-12, atol=1e-12)


def test_dense_rows_hold_the_nodes_in_order():
    batch = DagBatch.from_dags([Dag([(0, 1)]), Dag([], 0), Dag([(0, 1), (1, 2)])])
    rows, present = to_dense(torch.arange(1.0, 6).unsqueeze(1), batch)
    assert rows.squeeze(2).tolist() == [[1, 2, 0], [0, 0, 0], [3, 4, 5]]
    assert present.tolist() == [[True, True, False], [False] * 3, [True] * 3]


def test_dim_must_be_a_multiple_of_heads():
    with pytest.raises(ConfigError, match="dim must be a multiple of heads, got dim=6 and heads=4"):
        NodeAttention(6, heads=4)


def test_features_of_another_shape():
    with pytest.raises(GraphError, match=r"\[num_nodes, features\] = \[2, 4\], got \[2, 3\]"):
        NodeAttention(4)(torch.randn(2, 3), Dag([(0, 1)]))
