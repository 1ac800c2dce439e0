"""Signals: the first asks, the second leaves, and handlers are put back."""

import os
import signal
import threading

import pytest

from dagnn.training.signals import EvaluationAborted, StopRequest, TrainingInterrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_asks_and_second_leaves_at_once(number):
    before = signal.getsignal(number)
    stop = StopRequest()
    with stop.installed():
        os.kill(os.getpid(), number)
        assert stop.signal_number == number
        with pytest.raises((KeyboardInterrupt, SystemExit)) as left:
            os.kill(os.getpid(), number)
            raise AssertionError("not reached")
    if number == signal.SIGTERM:
        assert left.value.code == 143
    assert signal.getsignal(number) is before


def test_interruptible_work_is_left_where_it_stands():
    stop = StopRequest()
    with stop.installed():
        with pytest.raises(EvaluationAborted), stop.interruptible():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                raise AssertionError("not reached")
            except Exception:
                raise AssertionError("user code must not catch it") from None
        assert stop.signal_number == signal.SIGTERM
        with pytest.raises(EvaluationAborted), stop.interruptible():
            raise AssertionError("a stop that was asked for already leaves before the work")


def test_outside_interruptible_work_nothing_is_raised():
    stop = StopRequest()
    with stop.installed():
        with stop.interruptible():
            pass
        os.kill(os.getpid(), signal.SIGINT)
    assert stop.signal_number == signal.SIGINT


def test_request_keeps_the_first_signal_and_is_taken_once():
    stop = StopRequest()
    stop.request(signal.SIGTERM)
    stop.request(signal.SIGINT)
    assert stop.taken() == signal.SIGTERM
    assert stop.signal_number is None


def test_other_threads_install_nothing():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with StopRequest().installed():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_interruption_tells_signal_step_and_place(tmp_path):
    error = TrainingInterrupted(signal.SIGTERM, 12, tmp_path / "step-00000012")
    assert str(error) == f"stopped by SIGTERM at step 12; saved in {tmp_path}/step-00000012."
    assert (error.exit_code, error.step, error.checkpoint) == (143, 12, tmp_path / "step-00000012")
    assert "not saved: there is no run directory" in str(TrainingInterrupted(signal.SIGINT, 1, None))
    assert TrainingInterrupted(signal.SIGINT, 1, None).exit_code == 130
