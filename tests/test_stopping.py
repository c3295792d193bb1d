"""One handler for the signals that end a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from irregulars import stopping
from irregulars.stopping import StopAsked

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", NUMBERS)
def test_only_the_first_signal_counts_and_the_handlers_come_back(number: int) -> None:
    before, calls = [signal.getsignal(one) for one in NUMBERS], []
    with stopping.on_stop(lambda: calls.append(1)):
        for one in (number, *NUMBERS):
            send(one)
    assert calls == [1]
    assert [signal.getsignal(one) for one in NUMBERS] == before
    with stopping.held():
        stopping.pause(0.0)  # nothing of it is left


@pytest.mark.parametrize("enter", [lambda: stopping.pause(0.0), lambda: stopping.raises().__enter__()])
def test_a_signal_that_is_held_raises_at_the_next_safe_place(enter: Callable[[], object]) -> None:
    with stopping.held():
        send(signal.SIGTERM)
        with pytest.raises(StopAsked) as told:
            enter()
    assert told.value.number == signal.SIGTERM


def test_a_signal_that_was_held_is_told_to_what_runs_then_and_no_other_error_hides_it() -> None:
    calls: list[int] = []
    with stopping.held():
        send(signal.SIGINT)
        with stopping.on_stop(lambda: calls.append(1)):
            assert calls == [1]
    with pytest.raises(StopAsked), stopping.raises():
        _fail_of_it()


def _fail_of_it() -> None:
    """Fail as a C library does that only looks whether there was an error."""
    try:
        send(signal.SIGINT)
    except StopAsked:
        raise TypeError from None


SWALLOWED = """
import ctypes, os, signal, time
from irregulars import stopping
class InFinalizer:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
class InLibrary:  # C code that asks a dict so drops each error of the hash, as msgspec with the types that it knows
    def __hash__(self):
        os.kill(os.getpid(), signal.SIGINT)
        return 0
    def __init__(self):
        ask = ctypes.pythonapi.PyDict_GetItem
        ask.restype, ask.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.py_object)
        ask({1: 1}, self)
stopping.listen()
try:
    with stopping.raises():
        WHERE()
        time.sleep(600)
except stopping.StopAsked as asked:
    print(asked.number)
"""


@pytest.mark.parametrize("where", ["InFinalizer", "InLibrary"])
def test_a_signal_that_is_swallowed_is_raised_again(where: str) -> None:
    command = [sys.executable, "-c", SWALLOWED.replace("WHERE", where)]
    # Within the limit, and not only when its block has ended
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout, done.stderr) == (f"{signal.SIGINT:d}\n", "")


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with stopping.raises():
            send(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
