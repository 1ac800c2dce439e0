"""Memory that is handed on: to one user at a time, and never more than a few pieces of it."""

import sys
import threading

import torch

from dagnn.kernels import autograd as memory
from dagnn.kernels.autograd import Borrowed


def test_two_users_never_have_the_same_and_the_next_gets_what_the_last_left():
    one, other = Borrowed(1_000, torch.float64), Borrowed(1_000, torch.float64)
    assert one.numbers.data_ptr() != other.numbers.data_ptr()
    left = one.numbers.data_ptr()
    del one
    assert Borrowed(900, torch.float64).numbers.data_ptr() == left


def test_what_is_kept_is_bounded_and_the_smallest_goes():
    users = [Borrowed(length, torch.float64) for length in (10, 5_000, 20, 4_000)]
    users.clear()
    kept = memory._kept[torch.float64]
    assert len(kept) <= 2
    assert max(piece.numel() for piece in kept.values()) >= 5_000


def test_threads_that_borrow_at_the_same_time(monkeypatch):
    failures: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda failure: failures.append(failure.exc_value))

    def work() -> None:
        for _ in range(1_500):
            users = [Borrowed(length, torch.float32) for length in (10, 2_000, 30)]
            del users

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    assert len(memory._kept[torch.float32]) <= 2 + len(threads)
