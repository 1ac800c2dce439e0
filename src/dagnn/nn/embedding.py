"""`Embedding`: a trainable vector for every symbol."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dagnn.errors import GraphError
from dagnn.nn.checks import check_size, check_symbols
from dagnn.nn.learnable import LearnableModule


class Embedding(LearnableModule):
    """A trainable vector for every symbol: int64 ``[...]`` -> float ``[..., dim]``.

    Only the symbols seen get a gradient. With ``sparse=True`` only those rows are stored at all,
    so a step costs what the batch uses, not the whole table (``torch.optim.SGD`` and ``SparseAdam``
    take such gradients; so do `step` and `clip_gradients`).

    Args:
        num_symbols: symbols are ``0 .. num_symbols - 1``.
        dim: width of a vector.
        sparse: make the gradient a sparse tensor.

    Raises:
        ConfigError: a size is below 1.
        DtypeError: (at the call) symbols are not integers.
        GraphError: (at the call, on the CPU) a symbol is out of range; the message names it.

    >>> table = Embedding(num_symbols=5, dim=2)
    >>> table(torch.tensor([1, 3, 3])).sum().backward()
    >>> table.weight.grad[:, 0].tolist()
    [0.0, 1.0, 0.0, 2.0, 0.0]
    """

    def __init__(self, num_symbols: int, dim: int, *, sparse: bool = False) -> None:
        super().__init__()
        self.num_symbols = check_size("num_symbols", num_symbols)
        self.dim = check_size("dim", dim)
        self.sparse = sparse
        self.weight = nn.Parameter(torch.empty(num_symbols, dim))
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Standard normal, as ``nn.Embedding``."""
        nn.init.normal_(self.weight, generator=generator)

    def forward(self, symbols: Tensor) -> Tensor:
        """Vectors ``[..., dim]`` of ``symbols``, int64 of any shape."""
        check_symbols("symbols", symbols)
        try:
            return F.embedding(symbols, self.weight, sparse=self.sparse)
        except IndexError:
            bad = symbols[(symbols < 0) | (symbols >= self.num_symbols)].flatten()
            raise GraphError(
                f"symbol {int(bad[0])} is out of range: num_symbols={self.num_symbols} allows "
                f"0 .. {self.num_symbols - 1}; raise num_symbols, or map unknown symbols to a reserved one."
            ) from None

    def extra_repr(self) -> str:
        return f"{self.num_symbols}, {self.dim}" + (", sparse=True" if self.sparse else "")
