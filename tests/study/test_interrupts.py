"""Ctrl-C and SIGTERM strike only where the code looks for them."""

from __future__ import annotations

import signal
import threading

import pytest

from tuner.study.interrupts import DeferredInterrupts


@pytest.fixture(autouse=True)
def gentle_sigterm():
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


def send_and_check(*numbers, reached, error=None):
    with DeferredInterrupts() as interrupts:
        for number in numbers:
            signal.raise_signal(number)
        reached.append("after the signal")
        if error:
            raise error
        interrupts.check()
        reached.append("after the check")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_check(number):
    reached = []
    with pytest.raises(KeyboardInterrupt):
        send_and_check(number, reached=reached)
    assert reached == ["after the signal"]


def test_a_second_signal_does_not_wait():
    reached = []
    with pytest.raises(KeyboardInterrupt):
        send_and_check(signal.SIGINT, signal.SIGTERM, reached=reached)
    assert reached == []


def test_a_signal_nobody_checked_for_is_raised_at_the_end():
    with pytest.raises(KeyboardInterrupt), DeferredInterrupts():
        signal.raise_signal(signal.SIGINT)


def test_an_error_is_not_hidden_by_a_signal():
    with pytest.raises(ValueError, match="the error"):
        send_and_check(signal.SIGINT, reached=[], error=ValueError("the error"))


def test_without_a_signal_nothing_happens_and_handlers_are_given_back():
    with DeferredInterrupts() as interrupts:
        interrupts.check()
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler


def test_a_callers_own_handler_is_left_alone():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("mine"))
    with DeferredInterrupts() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        interrupts.check()
    signal.signal(signal.SIGTERM, before)
    assert heard == ["mine"]


def test_another_thread_has_no_signals_to_defer():
    errors = []

    def work():
        try:
            with DeferredInterrupts() as interrupts:
                interrupts.check()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert errors == []
