"""`Embedding`: rows of a table, gradients for the symbols seen, sparse or dense alike."""

import pytest
import torch

from dagnn.errors import ConfigError, DtypeError, GraphError
from dagnn.nn import Embedding


def pair() -> tuple[Embedding, Embedding]:
    dense, sparse = Embedding(6, 3), Embedding(6, 3, sparse=True)
    sparse.load_state_dict(dense.state_dict())
    return dense, sparse


def test_vectors_are_rows_of_the_table():
    table = Embedding(6, 3)
    symbols = torch.tensor([[5, 0], [2, 2]])
    assert torch.equal(table(symbols), table.weight[symbols])
    assert table(torch.empty(0, 4, dtype=torch.int64)).shape == (0, 4, 3)


def test_only_symbols_seen_get_a_gradient():
    dense, sparse = pair()
    for table in (dense, sparse):
        table(torch.tensor([4, 1, 4])).sum().backward()
    assert dense.weight.grad.sum(1).tolist() == [0, 3, 0, 0, 6, 0]
    assert sparse.weight.grad.is_sparse
    assert sparse.weight.grad.coalesce().indices().tolist() == [[1, 4]]


def test_sparse_gradients_behave_as_dense_ones():
    dense, sparse = pair()
    norms = []
    for table in (dense, sparse):
        for _ in range(2):
            table(torch.tensor([4, 1, 4])).square().sum().backward()
        norms.append(table.clip_gradients(1.0))
        table.step(0.5)
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    torch.testing.assert_close(sparse.weight.grad.to_dense(), dense.weight.grad)
    torch.testing.assert_close(sparse.weight, dense.weight)


def test_a_step_moves_only_symbols_seen():
    table = Embedding(6, 3)
    before = table.weight.detach().clone()
    table(torch.tensor([4, 1])).sum().backward()
    table.step(0.1)
    moved = (table.weight.detach() != before).any(1)
    assert moved.tolist() == [False, True, False, False, True, False]


@pytest.mark.parametrize("bad", [6, -1])
def test_a_symbol_out_of_range_is_named(bad):
    with pytest.raises(GraphError, match=rf"symbol {bad} is out of range: num_symbols=6 allows 0 \.\. 5"):
        Embedding(6, 3)(torch.tensor([0, bad, 9]))


def test_symbols_of_another_dtype():
    with pytest.raises(DtypeError, match=r"symbols must be int64, got torch.float32: convert it with \.long\(\)"):
        Embedding(6, 3)(torch.tensor([1.0]))


def test_bad_sizes():
    with pytest.raises(ConfigError, match="num_symbols must be a whole number of at least 1, got 0"):
        Embedding(0, 3)
    with pytest.raises(ConfigError, match="dim must be a whole number of at least 1, got True"):
        Embedding(3, True)


def test_reset_parameters_repeats_with_a_generator():
    table = Embedding(6, 3)
    table.reset_parameters(torch.Generator().manual_seed(1))
    first = table.weight.tolist()
    table.reset_parameters(torch.Generator().manual_seed(1))
    assert table.weight.tolist() == first
