"""Windows and replacements as numbers a network can read: tree addresses, labels and sharing.

A node of a window is named by its tree address, the path of child positions that reaches it first. With addresses
a copy is "child 2 of child 1" whatever else the window holds; running indices would shift with every extra node
and cost four times more errors on windows never seen in training (research prototype, one run each).
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from dagnn.errors import ConfigError
from dagnn.graph.rewriting.signature import MAX_ARITY, Signature
from dagnn.graph.rewriting.window import LEAVE, ReplacementTokens, WindowTokens

ROOT_ADDRESS = 0


class WindowFeatures:
    """Turns windows into sets of features, and replacements into classes and back.

    A feature says "at address a stands label s" or "at address a stands the node first seen at address b".
    Only features that occur in `known` get a row of their own; any other is dropped, so a window may be asked
    that holds something never seen in training.

    Attributes:
        num_rows: feature rows, row 0 being the padding.
        num_classes: 1 (leave it) + labels + addresses: what a slot of the replacement may hold.
        max_features: features a window may have; a longer window is cut.
    """

    def __init__(self, signature: Signature, known: Iterable[int] = (), *, max_features: int = 48) -> None:
        self.signature = signature
        self.max_features = max_features
        # One level more than is within sight: hidden nodes have addresses too, to be copied by.
        depth = max((label.window_depth or 0 for label in signature.labels), default=0) + 1
        self.num_addresses: int = (MAX_ARITY ** (depth + 1) - 1) // (MAX_ARITY - 1)
        self._num_shown = len(signature.shown)
        self._num_raw = self.num_addresses * (self._num_shown + self.num_addresses)
        self.known = sorted(set(known))
        self._row_of = np.zeros(self._num_raw, np.int64)
        self._row_of[self.known] = np.arange(1, len(self.known) + 1)

    @classmethod
    def from_windows(
        cls, signature: Signature, windows: Iterable[WindowTokens], *, max_features: int = 48
    ) -> "WindowFeatures":
        """Features with a row for everything that occurs in `windows`."""
        reader = cls(signature, max_features=max_features)
        known: set[int] = set()
        for window in windows:
            known.update(reader._read(window)[0])
        return cls(signature, known, max_features=max_features)

    @property
    def num_rows(self) -> int:
        return len(self.known) + 1

    @property
    def num_classes(self) -> int:
        return 1 + len(self.signature.labels) + self.num_addresses

    def encode(self, windows: Sequence[WindowTokens]) -> Tensor:
        """Feature rows of every window: int64 ``[len(windows), max_features]``, padded with 0."""
        rows = np.zeros((len(windows), self.max_features), np.int64)
        for i, window in enumerate(windows):
            raw = self._read(window)[0][: self.max_features]
            rows[i, : len(raw)] = self._row_of[raw]
        return torch.from_numpy(rows)

    def encode_targets(
        self, windows: Sequence[WindowTokens], replacements: Sequence[ReplacementTokens], num_slots: int
    ) -> Tensor:
        """Class of every slot: int64 ``[len(windows), num_slots]``, -1 behind the end of a replacement.

        Raises:
            ConfigError: a replacement has more nodes than there are slots.
        """
        longest = max(map(len, replacements), default=0)
        if longest > num_slots or num_slots < 1:
            raise ConfigError(
                f"num_slots = {num_slots}: the longest replacement has {longest} nodes, give as many slots."
            )
        num_labels = len(self.signature.labels)
        targets = np.full((len(windows), num_slots), -1, np.int64)
        for i, (window, replacement) in enumerate(zip(windows, replacements, strict=True)):
            if replacement == LEAVE:
                targets[i, 0] = 0
                continue
            addresses = self._read(window)[1]
            targets[i, : len(replacement)] = [
                1 + token if token < num_labels else 1 + num_labels + addresses[token - num_labels]
                for token in replacement
            ]
        return torch.from_numpy(targets)

    def decode(self, window: WindowTokens, classes: Sequence[int]) -> ReplacementTokens:
        """The replacement that a sequence of classes spells; `LEAVE` where it spells none.

        Reads as many slots as the labels' arities ask for.
        """
        num_labels = len(self.signature.labels)
        index_of = {address: index for index, address in enumerate(self._read(window)[1])}
        tokens: list[int] = []
        missing = 1
        for cls in classes:
            if cls == 0:
                return LEAVE
            if cls <= num_labels:
                tokens.append(cls - 1)
                missing += self.signature.labels[cls - 1].arity - 1
            else:
                index = index_of.get(cls - 1 - num_labels)
                if index is None:
                    return LEAVE
                tokens.append(num_labels + index)
                missing -= 1
            if missing == 0:
                return tuple(tokens)
        return LEAVE

    def _read(self, window: WindowTokens) -> tuple[list[int], list[int]]:
        """(raw features, address of every distinct node) of a window."""
        shown, hidden = self.signature.shown, self.signature.hidden
        num_shown, same_base = len(shown), self.num_addresses * len(shown)
        limit = shown[window[0]].window_depth or 0
        features: list[int] = []
        addresses: list[int] = []
        labelled: set[int] = set()
        stack = [(ROOT_ADDRESS, 0)]
        position = 0
        while stack:
            address, depth = stack.pop()
            token = window[position]
            position += 1
            if token > hidden:
                index = token - num_shown
                features.append(same_base + address * self.num_addresses + addresses[index])
                if depth > limit or index in labelled:
                    continue
                token = window[position]
                position += 1
            else:
                index = len(addresses)
                addresses.append(address)
                if token == hidden:
                    features.append(address * num_shown + hidden)
                    continue
            labelled.add(index)
            features.append(address * num_shown + token)
            _, _, arity, opaque, _ = shown[token]
            below = limit + 1 if depth and opaque else depth + 1
            for child in range(arity, 0, -1):
                # Heap order with four children per node: child k of address a is 4 a + k + 1, the root is 0.
                stack.append((MAX_ARITY * address + child, below))
        return features, addresses
