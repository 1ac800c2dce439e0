"""The cells' own arithmetic in plain PyTorch, from projected features on: one level's states from those below.

*Projected* features have gone through the cell's weights already, ``x @ W + b``, which no level waits for. Shapes as in
`dagnn.kernels.reference.Cell`; weights as the cells hold them.
"""

import torch
from torch import Tensor

from dagnn.kernels.segments import aggregate, segment_softmax, segment_sum

States = tuple[Tensor, ...]


def tree_lstm_step(
    projected: Tensor,
    states: States,
    target: Tensor,
    position: Tensor,
    state_weight: Tensor,
    operator: Tensor | None = None,
) -> States:
    """``(h, c)`` of the ordered TreeLSTM.

    Args:
        projected: ``[n, 4 * hidden]``, columns i, o, u, f.
        position: ``0 .. max_children - 1``.
        state_weight: ``[max_children * hidden, (3 + max_children) * hidden]``, columns i, o, u, f_0, f_1, ...; with one
            such matrix for every operator if there is an ``operator`` int64 ``[n]``.
    """
    h, c = states
    n, d = len(projected), c.shape[1]
    arity = state_weight.shape[-2] // d
    i, o, u, f = torch.split(projected, d, dim=1)
    if len(target) == 0:
        return _lstm_output(o, i.sigmoid() * u.tanh())

    slot = target * arity + position
    operands = segment_sum(h, slot, n * arity).view(n, arity * d)
    heard = _product(operands, state_weight, operator)
    i_s, o_s, u_s, f_s = torch.split(heard, [d, d, d, arity * d], dim=1)
    f_edge = f.index_select(0, target) + f_s.reshape(n * arity, d).index_select(0, slot)
    kept = segment_sum(f_edge.sigmoid() * c, target, n)
    return _lstm_output(o + o_s, (i + i_s).sigmoid() * (u + u_s).tanh() + kept)


def child_sum_step(
    projected: Tensor,
    states: States,
    target: Tensor,
    state_weight: Tensor,
    forget_weight: Tensor,
    *,
    operator: Tensor | None = None,
) -> States:
    """``(h, c)`` of the child-sum TreeLSTM.

    Args:
        projected: ``[n, 4 * hidden]``, columns i, o, u, f.
        state_weight: ``[hidden, 3 * hidden]``, columns i, o, u; with one such matrix for every operator if there is an
            ``operator`` int64 ``[n]``.
        forget_weight: ``[hidden, hidden]``.
    """
    h, c = states
    n, d = len(projected), c.shape[1]
    i, o, u, f = torch.split(projected, d, dim=1)
    if len(target) == 0:
        return _lstm_output(o, i.sigmoid() * u.tanh())

    i_s, o_s, u_s = torch.split(_product(segment_sum(h, target, n), state_weight, operator), d, dim=1)
    f_edge = f.index_select(0, target) + h @ forget_weight
    kept = segment_sum(f_edge.sigmoid() * c, target, n)
    return _lstm_output(o + o_s, (i + i_s).sigmoid() * (u + u_s).tanh() + kept)


def gru_step(
    projected: Tensor,
    states: States,
    target: Tensor,
    how: str,
    state_weight: Tensor,
    bias: Tensor,
    score_weight: Tensor | None = None,
    *,
    operator: Tensor | None = None,
) -> States:
    """``(h,)`` of a GRU over what a node hears.

    Args:
        projected: ``[n, 3 * hidden]``, columns r, z, n.
        how: ``"sum"``, ``"mean"``, ``"max"``, or ``"attention"`` with scores ``h @ score_weight``.
        state_weight: ``[hidden, 3 * hidden]``, columns r, z, n; with one such matrix for every operator if there is an
            ``operator`` int64 ``[n]``.
        bias: ``[hidden]``, of what the state says to n.
    """
    (h,) = states
    n, d = len(projected), h.shape[1]
    if how == "attention":
        assert score_weight is not None
        attention = segment_softmax(h @ score_weight, target, n)
        heard = segment_sum(attention.unsqueeze(1) * h, target, n)
    else:
        heard = aggregate(how, h, target, n)  # type: ignore[arg-type]  # one of the three
    r, z, own = torch.split(projected, d, dim=1)
    r_s, z_s, said = torch.split(_product(heard, state_weight, operator), d, dim=1)
    new = (own + (r + r_s).sigmoid() * (said + bias)).tanh()
    return (new + (z + z_s).sigmoid() * (heard - new),)


def _lstm_output(o: Tensor, c: Tensor) -> States:
    return o.sigmoid() * c.tanh(), c


def _product(rows: Tensor, weight: Tensor, operator: Tensor | None) -> Tensor:
    """``rows @ weight``, or ``rows[v] @ weight[operator[v]]``: one product for every operator that occurs."""
    if operator is None or not len(rows):
        return rows @ (weight if operator is None else weight[0])
    if torch.compiler.is_compiling():  # how many nodes an operator has is not known there
        return torch.bmm(rows.unsqueeze(1), weight.index_select(0, operator)).squeeze(1)
    order = operator.argsort(stable=True)
    counts = torch.bincount(operator, minlength=len(weight)).tolist()
    parts = torch.split(rows.index_select(0, order), counts)
    products = [part @ weight[k] for k, part in enumerate(parts) if len(part)]
    back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    return torch.cat(products).index_select(0, back)
