"""Try a loop on epochs of micro-batches, and compare its steps with the gradients of whole windows."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from dagnn.accumulation.check.arithmetic import combine, norm_of, ratio_of, relative_error
from dagnn.accumulation.check.recording import Group, Recording, record, steps_of
from dagnn.accumulation.check.subject import Gradients, Subject, TrainStep
from dagnn.accumulation.items import count_items, join_batches
from dagnn.accumulation.partition import slice_batch
from dagnn.errors import AccumulationError

SMALL, LARGE, FADING = 2.0**-20, 2.0**20, 2.0**-8  # exact factors; see record()


class Layout(NamedTuple):
    """An epoch: the size of each micro-batch, and the micro-batches of each window."""

    sizes: list[int]
    windows: list[list[int]]

    @classmethod
    def of(cls, sizes: Sequence[int], k: int) -> "Layout":
        """Windows of ``k`` micro-batches; the last may be shorter."""
        numbers = list(range(len(sizes)))
        return cls(list(sizes), [numbers[i : i + k] for i in range(0, len(sizes), k)])


class Examined(NamedTuple):
    """What a loop did with the micro-batches of one layout, for parameters that step together."""

    layout: Layout
    pieces: list[Any]
    held: list[int]  # indices of the parameters
    steps: list[Gradients]
    incoming: list[Gradients]  # as in Group
    left: Gradients  # as in Recording
    incoming_left: Gradients  # as in Recording
    expected: list[Gradients]  # the gradient of each window
    error: float  # relative, of the worst step; infinite if their number is wrong
    linear: bool  # twice the gradient gives twice the step
    stale: bool  # as in Recording
    zeroed: bool  # as in Recording


class Loop:
    """A user's loop, run on copies of a model in one layout after another."""

    def __init__(self, subject: Subject, train_step: TrainStep, *, by_window: bool) -> None:
        self.subject, self._train_step, self._by_window = subject, train_step, by_window
        self._first: Recording | None = None
        self.moved = False  # as in Recording, of any run
        self._usual = 1.0  # the scale to try first
        self._pure: set[tuple[int, ...]] = set()  # groups that were right once: the loop adds nothing to them

    @property
    def first(self) -> Recording:
        """The first recording, of micro-batches of one size."""
        assert self._first is not None
        return self._first

    @cached_property
    def sizes(self) -> list[float]:
        """Norms of the full batch's gradient, by parameter."""
        return list(map(norm_of, self.subject.gradient()))

    @property
    def tolerance(self) -> float:
        """Relative error up to which a step is right."""
        return max(1e-8, self.subject.tolerance)

    @property
    def slack(self) -> float:
        """Relative error up to which two steps of the loop, or a step and a multiple of another, are the same."""
        return max(1e-6, 10 * self.tolerance)

    def examine(self, layout: Layout) -> list[Examined]:
        """Run the loop, and for parameters with wrong steps again in ways in which no clipping acts."""
        pieces, wholes = self.pieces(layout), self.wholes(layout)
        natural = self._record(layout, pieces, self._usual)
        if (natural.random or self.subject.draws) and not self.subject.still:
            self.subject.still = True  # the loop draws random numbers: each item must get the same
            natural = self._record(layout, pieces, self._usual)
        self._first, self.subject.attentive = self._first or natural, False
        expected = [self.subject.gradient(whole) for whole in wholes]
        groups = natural.groups or [Group(list(range(len(self.subject.parameters))), [], [])]
        found = [self._seen(layout, pieces, natural, group, expected) for group in groups]
        if any(self.tolerance < one.error < 1e-3 for one in found) and not self.subject.avoided:
            self.subject.attentive = True  # so small an error is most likely a cast that only this layout runs
            natural = self._record(layout, pieces, self._usual)
            found = [self._seen(layout, pieces, natural, group, expected) for group in natural.groups]
            self.subject.attentive = False
        self._pure.update(tuple(one.held) for one in found if not self.is_wrong(one))
        return [self._second_look(one) if self.is_wrong(one) and one.steps else one for one in found]

    def is_wrong(self, examined: Examined) -> bool:
        return not examined.error <= self.tolerance

    def compare_with_whole_windows(
        self, layout: Layout, scale: float, loss_scale: float = 1.0, *, held: bool = True
    ) -> tuple[list[Group], list[Group]]:
        """The loop's steps from micro-batches, and its steps if every micro-batch is a copy of the whole window.

        A right loop makes the same steps from both, whatever it does to the gradient of a window: the mean of equal
        parts is the part. What it does to single micro-batches differs.
        """
        copies: list[Any] = []
        for window, whole in zip(layout.windows, self.wholes(layout), strict=True):
            copies += [whole] * len(window)
        parts = self._record(layout, self.pieces(layout), scale, loss_scale, held=held)
        return parts.groups, self._record(layout, copies, scale, loss_scale, held=held).groups

    def groups(self, layout: Layout, scale: float, loss_scale: float = 1.0, *, backwards: bool = False) -> list[Group]:
        """The steps; with ``backwards``, from windows whose micro-batches come in the reverse order."""
        pieces = self.pieces(layout)
        if backwards:
            pieces = [pieces[j] for window in layout.windows for j in reversed(window)]
        return self._record(layout, pieces, scale, loss_scale).groups

    def same_window(self, lengths: Sequence[int], k: int, scale: float) -> list[Group]:
        """The steps from windows of these lengths that hold copies of one micro-batch only."""
        layout = Layout.of([1] * sum(lengths), k)
        size = max(1, count_items(self.subject.batch) // 2)
        return self._record(layout, split_by(self.subject.batch, [size])[:1] * sum(lengths), scale).groups

    def of_copies(self, batches: Sequence[Any], k: int) -> list[Group]:
        """The steps from one window for each of ``batches``, of ``k`` copies of it."""
        layout = Layout.of([size for batch in batches for size in [count_items(batch)] * k], k)
        return self._record(layout, [batch for batch in batches for _ in range(k)], SMALL).groups

    def again(self, layout: Layout, times: int, *, scale: float | None = None, fading: float = 1.0) -> Recording:
        """An epoch in which the windows of ``layout`` come so many times; as in ``record``."""
        longer = Layout.of(layout.sizes * times, len(layout.windows[0]))
        return self._record(longer, self.pieces(layout) * times, self._usual if scale is None else scale, fading=fading)

    def dealt(self, layout: Layout) -> list[Group]:
        """The steps if the items of each window are dealt to its micro-batches one by one, not in blocks.

        Raises:
            AccumulationError: these batches cannot be joined from single items.
        """
        items, pieces, start = split_by(self.subject.batch, [1] * sum(layout.sizes)), [], 0
        for window in layout.windows:
            count = sum(layout.sizes[j] for j in window)
            for offset in range(len(window)):
                pieces.append(join_batches(items[start + offset : start + count : len(window)]))
            start += count
        return self._record(layout, pieces, SMALL).groups

    def rates(self, layout: Layout) -> list[float]:
        """The learning rate of each step."""
        return self._record(layout, self.pieces(layout), 1.0).rates

    def on(self, subject: Subject) -> "Loop":
        """The same loop on another subject."""
        return Loop(subject, self._train_step, by_window=self._by_window)

    def gradients_of(self, pieces: Sequence[Any]) -> list[Gradients]:
        return [self.subject.gradient(piece) for piece in pieces]

    def _second_look(self, seen: Examined) -> Examined:
        """``seen`` with steps that show only what the loop does to single micro-batches."""
        looked = self._without_clipping(seen)
        if not self.is_wrong(looked) or len(seen.expected) < 2 or len(seen.steps) > len(seen.expected):
            return looked
        for scale in (SMALL, 1.0):  # a small norm is lost in the 1e-6 that clip_grad_norm_ adds to it
            fading = steps_of(self._record(seen.layout, seen.pieces, scale, fading=FADING).groups, seen.held)
            if (error := self._error(fading, seen.expected)) <= self.tolerance:
                return seen._replace(steps=fading, error=error)
        return looked

    def _without_clipping(self, seen: Examined) -> Examined:
        """``seen`` with gradients so small that no clipping acts, and without what the loop adds by itself."""
        layout, pieces, held = seen.layout, seen.pieces, seen.held
        try:
            recordings = [self._record(layout, pieces, SMALL)]
            small = steps_of(recordings[0].groups, held)
            if (error := self._error(small, seen.expected)) <= self.tolerance:
                self._usual = SMALL  # a clipping acts on usual gradients, most likely in other layouts too
                return seen._replace(steps=small, error=error)
            if self._by_hand(seen, small):
                return seen
            left = [recordings[0].left[i] for i in held]
            if len(small) == len(seen.steps) and tuple(held) in self._pure:
                return seen._replace(steps=small, left=left, error=error)
            recordings += [self._record(layout, pieces, scale) for scale in (SMALL / 4, 0.0)]
        except AccumulationError:
            return seen
        small, smaller, added = (steps_of(recording.groups, held) for recording in recordings)
        if not len(small) == len(smaller) == len(added) == len(seen.steps):
            return seen
        without = [combine([s, a], [1.0, -1 / SMALL]) for s, a in zip(small, added, strict=True)]
        without_too = [combine([s, a], [1.0, -4 / SMALL]) for s, a in zip(smaller, added, strict=True)]
        if not _close(without, without_too, max(1e-6, self.tolerance)):
            return self._of_whole_windows(seen._replace(linear=False))
        steps_now = without if self._added_once(layout, pieces, held, added) else small
        looked = seen._replace(steps=steps_now, left=left, error=self._error(steps_now, seen.expected))
        adds = any(relative_error([None] * len(held), gradients) for gradients in added)
        if adds or not self.is_wrong(looked) or len(small) != len(seen.expected) or self._scales(looked):
            return looked
        return self._of_whole_windows(looked)

    def _by_hand(self, seen: Examined, small: list[Gradients]) -> bool:
        """Whether no backward pass gave the gradients (``torch.func.grad``): then nothing scales them."""
        came = any(gradient is not None for gradients in seen.incoming for gradient in gradients)
        if came or len(small) != len(seen.steps):
            return False
        return _close([combine([step], [SMALL]) for step in small], seen.steps, self.slack)

    def _added_once(self, layout: Layout, pieces: list[Any], held: list[int], added: list[Gradients]) -> bool:
        """Whether what the loop adds by itself, such as weight decay, is the same for windows of any length."""
        if all(relative_error([None] * len(held), gradients) == 0.0 for gradients in added):
            return True
        length = len(layout.windows[0])
        short = Layout.of(layout.sizes[: length + 1], length)
        steps = steps_of(self._record(short, pieces[: length + 1], 0.0).groups, held)
        if len(steps) != 2 or length == 1:
            return _close(added[1:], added[:-1], self.tolerance)
        return _close(steps, added[:2], self.tolerance)

    def _of_whole_windows(self, seen: Examined) -> Examined:
        """``seen`` judged by whole windows, for a loop that normalises or projects the gradient of a window.

        Its steps from whole windows count as right if backward passes give the right gradient, and none of it stays
        for the next step.
        """
        both = self.compare_with_whole_windows(seen.layout, 1.0)
        ours, whole = (steps_of(groups, seen.held) for groups in both)
        if not whole or len(seen.layout.windows) != len(ours):
            return seen
        error = self._error(ours, whole)
        keeps = (seen.linear or seen.stale) and not self._steps_in_any_order(seen, ours)
        if not error <= self.tolerance or keeps or not self.comes_in(seen):
            return seen._replace(error=max(error, seen.error))
        return seen._replace(steps=ours, expected=whole, error=error)

    def comes_in(self, seen: Examined) -> bool:
        """Whether backward passes give the right gradient, or, if the loop is not linear, a multiple of it or none."""
        for came, expected in zip(seen.incoming, seen.expected, strict=False):
            ratio, rest = ratio_of(came, expected)
            if all(gradient is None for gradient in came) and not seen.linear:
                continue
            if rest > self.slack or not ratio > 0 or (seen.linear and abs(ratio - 1) > self.slack):
                return False
        return True

    def _scales(self, seen: Examined) -> bool:
        """Whether some parameter's wrong step is a multiple of the right one, 0 and its real part included."""
        slack = self.slack
        for step, expected in zip(seen.steps, seen.expected, strict=True):
            for a, e in zip(step, expected, strict=True):
                if relative_error([a], [e]) <= slack:
                    continue
                if a is None or a.is_complex() or (a.numel() > 1 and ratio_of([a], [e])[1] <= slack):
                    return True
        return False

    def _steps_in_any_order(self, seen: Examined, ours: list[Gradients]) -> bool:
        """Whether windows in the reverse order give the same steps in the reverse order: none depends on another."""
        windows = seen.layout.windows
        if len({len(window) for window in windows}) != 1:
            return True  # a short window can come last only
        pieces = [seen.pieces[j] for window in reversed(windows) for j in window]
        other = steps_of(self._record(seen.layout, pieces, 1.0).groups, seen.held)
        return len(other) == len(ours) and _close(other[::-1], ours, max(1e-6, self.tolerance))

    def _seen(
        self, layout: Layout, pieces: list[Any], recording: Recording, group: Group, expected: list[Gradients]
    ) -> Examined:
        held = group.held
        right = [[e[i] for i in held] for e in expected]
        return Examined(
            layout,
            pieces,
            held,
            group.steps,
            group.incoming,
            [recording.left[i] for i in held],
            [recording.incoming_left[i] for i in held],
            right,
            self._error(group.steps, right),
            linear=True,
            stale=recording.stale,
            zeroed=recording.zeroed,
        )

    def _error(self, steps: Sequence[Gradients], expected: Sequence[Gradients]) -> float:
        if len(steps) != len(expected):
            return float("inf")
        return max((relative_error(a, e) for a, e in zip(steps, expected, strict=True)), default=0.0)

    def _record(
        self,
        layout: Layout,
        pieces: Sequence[Any],
        scale: float,
        loss_scale: float = 1.0,
        fading: float = 1.0,
        *,
        held: bool = True,
    ) -> Recording:
        calls = [[pieces[j] for j in window] for window in layout.windows] if self._by_window else [list(pieces)]
        given = {"scale": scale, "loss_scale": loss_scale, "fading": fading}
        found = record(self.subject, self._train_step, calls, held=held, **given)
        self.moved |= found.moved
        return found

    def pieces(self, layout: Layout) -> list[Any]:
        return split_by(self.subject.batch, layout.sizes)

    def wholes(self, layout: Layout) -> list[Any]:
        return split_by(self.subject.batch, [sum(layout.sizes[j] for j in window) for window in layout.windows])


def split_by(batch: Any, sizes: Sequence[int]) -> list[Any]:
    """Micro-batches of the given sizes, in order."""
    ends = [sum(sizes[: j + 1]) for j in range(len(sizes))]
    return [slice_batch(batch, end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _close(actual: Sequence[Gradients], expected: Sequence[Gradients], tolerance: float) -> bool:
    return all(relative_error(a, e) <= tolerance for a, e in zip(actual, expected, strict=True))
