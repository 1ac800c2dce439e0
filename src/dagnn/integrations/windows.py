"""The window that somebody else's trainer runs: micro-batch after micro-batch, with weights read from each loss.

A trainer steps on its own. Here the gradient of the full batch is summed meanwhile, and put into ``.grad`` with the
last micro-batch, for the trainer to clip and to step with. Sums, shares and processes are those of
``dagnn.accumulation``.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dagnn.accumulation.batch_norms import BatchNorms
from dagnn.accumulation.check.arithmetic import relative_error
from dagnn.accumulation.check.subject import Gradients
from dagnn.accumulation.check.watching import Ran, gradients_of
from dagnn.accumulation.coupled import PiecewiseModules
from dagnn.accumulation.items import count_items, join_batches
from dagnn.accumulation.partition import WeightFn, slice_batch
from dagnn.accumulation.random_states import RandomState, Snapshot
from dagnn.accumulation.ranks import Ranks, ranks_of
from dagnn.accumulation.shares import KnownWeights, check_weights
from dagnn.accumulation.sums import GradientSums
from dagnn.accumulation.weights import Term, TermValues, check_additive, terms
from dagnn.accumulation.window import Window
from dagnn.errors import AccumulationError, AccumulationWarning, ConfigError, DagnnError, warn

LossOf = Callable[[Any], Tensor]
_Counts = tuple[float | None, ...]
_DRAWN = 1e-5  # relative difference of two runs of one batch from which it draws random numbers


class TrainerWindows:
    """Windows of a trainer that runs its own loop.

    >>> import torch
    >>> model = torch.nn.Linear(2, 3)
    >>> windows = TrainerWindows(model)
    >>> def loss_of(batch):
    ...     return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    >>> batches = [(torch.randn(4, 2), torch.tensor(labels)) for labels in ([0, 1, 2, -100], [2, -100, -100, -100])]
    >>> [windows.add(batch, loss_of, last=i == 1) is None for i, batch in enumerate(batches)], windows.weight
    ([True, False], 4.0)

    Args:
        model: the model as the trainer calls it, in DDP or not.
        weight: a function of the micro-batch that returns what its mean loss divides by; default: what the graph of
            the loss says, see ``dagnn.weights.terms``.

    Raises:
        ConfigError: the model is wrapped in a way that cannot be summed exactly.
    """

    def __init__(self, model: nn.Module, *, weight: WeightFn | None = None) -> None:
        self._model = model
        self._weight = weight
        self._ranks: Ranks = ranks_of([model], [p for p in model.parameters() if p.requires_grad])
        if self._ranks.every_backward:
            raise ConfigError(
                "the model is sharded with fully_shard, whose gradients cannot be summed inside another trainer: use "
                "DDP, or dagnn.GradientAccumulator in a loop of your own."
            )
        self._batch_norms = BatchNorms([model], "warn")
        self._window: Window | None = None
        self._sums: GradientSums | None = None
        self._ran: list[tuple[Any, LossOf]] = []  # micro-batches of this window that may have to run again
        self._start: RandomState | None = None  # of this window
        self._counts: list[_Counts] = []  # denominators of each micro-batch that ran
        self._num_terms: int | None = None
        self._unverified: Any = None if weight is None else ()  # a micro-batch of one item that waits for another
        self._verified = weight is not None
        self._waits = False  # losses have denominators of their own: a window runs once all of them are known
        self.weight = 0.0

    def add(
        self,
        batch: Any,
        loss_of: LossOf,
        *,
        last: bool,
        scale: float = 1.0,
        loss: Tensor | None = None,
        random: RandomState | None = None,
    ) -> Tensor | None:
        """Run one micro-batch, forward and backward; at the last of a window, leave its gradient in ``.grad``.

        Args:
            batch: the micro-batch. It may run a second time, so ``loss_of`` must not change it.
            loss_of: the mean loss of a micro-batch, with a graph.
            last: this is the last micro-batch before the trainer steps.
            scale: what the gradient of the window is multiplied by, where a loss scaler will divide by it.
            loss, random: the loss of this micro-batch and the random numbers before it, where the trainer has computed
                it already.

        Returns:
            the loss of the whole window, over all processes, where ``last``; else None.

        Raises:
            AccumulationError: the loss couples its items, or what it divides by cannot be read.
        """
        # Around each micro-batch: a trainer switches DDP's synchronisation on and off between them.
        self._ranks.open_window([])
        try:
            if self._start is None and self._num_terms != 1:
                self._start = random or RandomState.now()
            if self._num_terms != 1:
                self._ran.append((batch, loss_of))
            if not self._waits:
                self._run(batch, loss_of, loss)
            return self._finish(scale) if last else None
        except BaseException:
            self.discard()
            raise
        finally:
            self._ranks.close_window()

    def discard(self) -> None:
        """Give up what was summed since the last step, for example when training stops inside a window."""
        if self._window is not None:
            self._window.discard()
        self._window, self._sums, self._start = None, None, None
        self._ran, self._counts = [], []

    def _open(self, known: KnownWeights | None) -> Window:
        self._sums = GradientSums([p for p in self._model.parameters() if p.requires_grad])
        return Window([], known, sums=self._sums, ranks=self._ranks, batch_norms=self._batch_norms)

    def _run(self, batch: Any, loss_of: LossOf, loss: Tensor | None) -> None:
        if self._window is None:
            self._window = self._open(None)
        if not self._verified:
            self._verify(batch, loss_of)  # before there is a graph whose buffers it would move
        self._window.add_micro_batch()
        loss = loss_of(batch) if loss is None else loss
        if self._weight is not None:
            self._num_terms = 1
            self._window.backward(loss, next(iter(check_weights(self._weight(batch), "weight(micro_batch)").values())))
        else:
            counts = tuple(term.denominator for term in self._terms(loss))
            self._counts.append(counts)
            if all(count is None for count in counts):
                self._window.backward(loss, reduction="undivided")
            else:
                # Exact while all denominators keep one proportion; otherwise the window runs again, see _finish.
                self._window.backward(loss, max(count or 0.0 for count in counts))
        self._window.end_micro_batch()

    def _terms(self, loss: Tensor) -> list[Term]:
        found = terms(loss)
        if self._num_terms is None:
            self._num_terms = len(found)
        elif len(found) != self._num_terms:
            raise AccumulationError(
                f"the loss had {self._num_terms} terms with denominators of their own and now has {len(found)}: give "
                "weight=..., a function of the micro-batch that returns what its mean loss divides by."
            )
        return found

    def _finish(self, scale: float) -> Tensor:
        if not self._waits and self._num_terms != 1 and not self._one_proportion():
            # All processes decide alike, from the counts of all.
            self._waits = True
            assert self._window is not None
            self._window.discard()
            self._ranks.open_window([])
        if self._waits:
            self._run_planned()
        assert self._window is not None and self._sums is not None
        self._window.settle()
        totals = self._window.totals
        self._window.finish_gradients()
        self._sums.scale_(scale)
        self.weight = totals.weight
        gradients = [(p, p.grad) for p in self._sums.parameters]
        self.discard()
        for parameter, gradient in gradients:
            parameter.grad = gradient
        device = gradients[0][0].device if gradients else None
        return torch.tensor(totals.loss, device=device)

    def _one_proportion(self) -> bool:
        rows = [row for rows in self._ranks.gather(self._counts) for row in rows]
        if all(count is None for row in rows for count in row):
            return True
        counts = [[count for count in row if count is not None] for row in rows]
        if any(len(given) < len(row) for given, row in zip(counts, rows, strict=True)):
            return False
        first = max(counts, key=max)
        return all(
            math.isclose(a * max(first), b * max(row), rel_tol=1e-12)
            for row in counts
            for a, b in zip(row, first, strict=True)
        )

    def _run_planned(self) -> None:
        """Run all micro-batches twice: to count what each term divides by, and with their exact shares."""
        assert self._start is not None
        buffers = Snapshot([self._model])
        self._start.restore()
        counted, states = [], []
        for batch, loss_of in self._ran:
            states.append(RandomState.now())
            counted.append(tuple(term.denominator for term, _ in self._valued(batch, loss_of)))
        buffers.restore_buffers()
        everywhere = self._ranks.gather(counted)
        num_micro_batches = float(sum(len(rows) for rows in everywhere))
        names = [f"term {k}" for k in range(len(counted[0]))]
        # A sum has no denominator: with equal weights and a factor of their total, its share is 1.
        weights = [{name: 1.0 if n is None else n for name, n in zip(names, row, strict=True)} for row in counted]
        totals = dict.fromkeys(names, 0.0)
        for row in (row for rows in everywhere for row in rows):
            for name, n in zip(names, row, strict=True):
                totals[name] += 1.0 if n is None else n
        self._window = self._open(KnownWeights(weights, totals, declared=True))
        for (batch, loss_of), state in zip(self._ran, states, strict=True):
            state.restore()
            self._window.add_micro_batch()
            losses = {}
            for name, (term, value) in zip(names, self._valued(batch, loss_of), strict=True):
                losses[name] = value * term.coefficient * (num_micro_batches if term.denominator is None else 1.0)
            self._window.backward(losses)
            self._window.end_micro_batch()

    def _valued(self, batch: Any, loss_of: LossOf) -> list[tuple[Term, Tensor]]:
        """The terms of a loss, each with the tensor of its mean or sum."""
        with TermValues() as numbers:
            found = self._terms(loss_of(batch))
        return list(numbers.valued(found))

    def _verify(self, batch: Any, loss_of: LossOf) -> None:
        """Compare the loss of two items with those of each: what the graph cannot show are items that are coupled."""
        try:
            num_items = count_items(batch)
            if num_items >= 2:
                parts = [slice_batch(batch, i, i + 1, num_items) for i in (0, 1)]
                both = slice_batch(batch, 0, 2, num_items)
            elif self._unverified is None:
                self._unverified = batch
                return
            else:
                parts, both = [self._unverified, batch], join_batches([self._unverified, batch])
        except DagnnError as error:
            both, why = None, str(error).rstrip(".")
        self._unverified = None
        if both is None:
            self._verified = True
            warn(
                f"whether the loss couples the items of a batch could not be tried out ({why}): a contrastive loss "
                "would go unnoticed.",
                AccumulationWarning,
            )
            return
        with _undisturbed(self._model):
            whole, *pieces = [self._valued(each, loss_of) for each in (both, *parts)]
        tried = [check_additive(term, value, [piece[k] for piece in pieces]) for k, (term, value) in enumerate(whole)]
        self._verified = any(tried)  # else in the next micro-batch: nothing in this one counted


class CoupledWindows:
    """Windows of a trainer whose loss couples its items: the micro-batches of a window run as one batch.

    Modules of the model that treat items one by one, such as the encoders of a contrastive model, run in pieces of a
    micro-batch (``PiecewiseModules``), so the graph of the whole window has only what follows them. Where there are
    none, a window needs the memory of one batch, and a warning says so.

    >>> import torch, warnings
    >>> model = torch.nn.Linear(2, 3)
    >>> def loss_of(batch):
    ...     return (model(batch) @ model(batch).T).logsumexp(0).mean()
    >>> windows = CoupledWindows(model)
    >>> windows.join(torch.randn(2, 2), last=False) is None
    True
    >>> batch = windows.join(torch.randn(1, 2), last=True)
    >>> with warnings.catch_warnings(action="ignore"):  # a single layer runs as a whole
    ...     loss = windows.forward(batch, loss_of)
    >>> batch.shape, windows.backward(loss).requires_grad
    (torch.Size([3, 2]), False)

    Args:
        model: the model as the trainer calls it, in one process.
        pad_token: what pads token ids; default: the ``pad_token_id`` of the first ``config`` in the model, or 0.
    """

    def __init__(self, model: nn.Module, *, pad_token: int | None = None) -> None:
        self._model = model
        self._pad_token = _pad_token_of(model) if pad_token is None else pad_token
        self._modules = PiecewiseModules(model)
        self._tried = False
        self._waiting: list[Any] = []  # micro-batches of this window
        self._size = 0  # items of the largest

    def join(self, batch: Any, *, last: bool) -> Any:
        """With the last micro-batch of a window, the batch of all of them, see `join_batches`; before, None."""
        self._waiting.append(batch)
        if not last:
            return None
        micros, self._waiting = self._waiting, []
        self._size = max(_num_items(micro) for micro in micros)
        return join_batches(micros, pad_token=self._pad_token)

    def forward(self, batch: Any, loss_of: LossOf, trial: LossOf | None = None) -> Tensor:
        """The loss of the joined batch, with a graph for ``backward``.

        ``trial`` is the same loss, for the runs that find the modules; by default ``loss_of``.
        """
        num_items = _num_items(batch)
        if num_items <= self._size:
            return loss_of(batch)
        if not self._tried:
            with _undisturbed(self._model):
                self._tried = self._modules.find(trial or loss_of, batch, num_items, self._size)
            if self._tried and not self._modules.names:
                warn(
                    f"no module of {type(self._model).__name__} treats the items of a batch one by one: with "
                    f"coupled=True a window takes the memory of one batch of its {num_items} items.",
                    AccumulationWarning,
                )
        with self._modules.running(num_items, self._size):
            return loss_of(batch)

    def backward(self, loss: Tensor, scale: float = 1.0) -> Tensor:
        """Leave the gradient of ``loss``, times ``scale``, in ``.grad``. Returns the loss, detached."""
        sums = GradientSums([p for p in self._model.parameters() if p.requires_grad])
        ranks = ranks_of([self._model], sums.parameters)
        window = Window([], None, sums=sums, ranks=ranks, batch_norms=BatchNorms([self._model], "ignore"))
        try:
            window.add_micro_batch()
            window.backward(loss, 1.0, retain_graph=True)
            self._modules.finish(window.continue_backward)
            window.end_micro_batch()
            window.settle()
        except BaseException:
            window.discard()
            raise
        window.finish_gradients()
        sums.scale_(scale)
        gradients = [(p, p.grad) for p in sums.parameters]
        window.discard()
        for parameter, gradient in gradients:
            parameter.grad = gradient
        return loss.detach()

    def discard(self) -> None:
        """Give up the micro-batches that wait for the last of their window."""
        self._waiting = []


def refuse_coupled(weight: WeightFn | None, num_processes: int) -> None:
    """Raise ConfigError where windows cannot be joined."""
    if weight is not None:
        raise ConfigError("got weight=... and coupled=True, which divides by nothing: leave one out.")
    if num_processes > 1:
        raise ConfigError(
            f"coupled=True joins the window of one process, and here are {num_processes}: start one, with as many more "
            "micro-batches per window."
        )


def full_gradient(model: nn.Module, ran: Sequence[Ran], *, coupled: bool) -> Gradients:
    """The gradient of the full batch for micro-batches that ran: of all, each with its share, or ``coupled`` as one.

    Raises:
        AccumulationError: the loss couples its items, or where it is ``coupled``, draws random numbers.
        ConfigError: ``coupled`` in several processes.
    """
    if not coupled:
        windows = TrainerWindows(model)
        for i, (batch, loss_of, random) in enumerate(ran):
            random.restore()
            windows.add(batch, loss_of, last=i == len(ran) - 1)
        return gradients_of(model)
    refuse_coupled(None, ranks_of([model], [*model.parameters()]).world_size)
    batch = join_batches([each.batch for each in ran], pad_token=_pad_token_of(model))
    joined = ran[-1]._replace(batch=batch)
    gradient = mean_gradient(model, joined)
    other = mean_gradient(model, joined._replace(random=RandomState.now()))
    if relative_error(other, gradient) > _DRAWN:
        raise AccumulationError(
            "a coupled loss is compared with that of the joined batch, which draws other random numbers: set dropout "
            "to 0 for the check."
        )
    return gradient


def mean_gradient(model: nn.Module, ran: Ran) -> Gradients:
    """The gradient of the mean loss of one micro-batch."""
    ran.random.restore()
    TrainerWindows(model, weight=lambda batch: 1.0).add(ran.batch, ran.loss_of, last=True)
    return gradients_of(model)


def _num_items(batch: Any) -> int:
    """The number of items; 0 where its parts have other first dimensions."""
    try:
        return count_items(batch)
    except AccumulationError:
        return 0


def _pad_token_of(model: nn.Module) -> int:
    for module in model.modules():
        token = getattr(getattr(module, "config", None), "pad_token_id", None)
        if isinstance(token, int):
            return token
    return 0


@contextlib.contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in eval mode; afterwards its modes, buffers and random numbers are as before."""
    modes = [(module, module.training) for module in model.modules()]
    random, buffers = RandomState.now(), [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    model.eval()
    try:
        yield
    finally:
        random.restore()
        with torch.no_grad():
            for buffer, value in buffers:
                if not torch.equal(buffer, value):  # a graph may hold it, and would refuse one that was written
                    buffer.copy_(value)
        for module, mode in modes:
            module.training = mode
