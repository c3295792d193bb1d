from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from irregulars import stopping
from irregulars.errors import ServiceRefused, ServiceUnavailable
from irregulars.streams.health.process import Need, SpareMemory, free_port_or_none, share_few_heaps, wait_for


def test_a_port_that_is_taken_costs_the_page_and_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        assert free_port_or_none("127.0.0.1", port) == 0
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert f"event=no_page host=127.0.0.1 port={port}" in record.getMessage()
    assert free_port_or_none("127.0.0.1", port) == port
    assert free_port_or_none("127.0.0.1", 0) == 0, "no page was asked for"


HANGS = """
import threading, time
from irregulars.streams.health.process import StopDeadline
StopDeadline({within_s}).arm()
threading.Thread(target=time.sleep, args=({hangs_s},)).start()  # the interpreter waits for it
"""


IN_ORDER = HANGS.replace(".arm()\n", "\n").replace("StopDeadline(", "deadline = StopDeadline(") + (
    "deadline.arm()\ndeadline.leave_with(0)\n"
)


def run(within_s: float, hangs_s: float, code: str = HANGS) -> subprocess.CompletedProcess[str]:
    code = code.format(within_s=within_s, hangs_s=hangs_s)
    return subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True, check=False)


def test_a_stop_that_hangs_is_cut_off_with_one_line() -> None:
    done = run(0.5, 600.0)
    assert done.returncode == 1
    assert done.stderr == "irregulars worker: stopping must end within 0.5 s; it did not\n"


def test_a_stop_that_ends_is_left_alone() -> None:
    done = run(600.0, 0.1)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_waits_when_all_work_has_ended_in_order_is_no_failure() -> None:
    done = run(0.5, 600.0, IN_ORDER)
    assert (done.returncode, done.stderr) == (0, "")


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.pauses_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, for_s: float) -> None:
        self.pauses_s.append(for_s)
        self.now_s += for_s


class Service:
    """Is away for so many questions."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.asked = 0

    def __call__(self) -> None:
        self.asked += 1
        if self.asked <= self.away:
            raise ServiceUnavailable("database must answer; got nobody (db:8123).")


def wait(service: Service, most_s: float, time: Time) -> None:
    wait_for([Need("database", service, most_s)], time, time.sleep)


def refuse() -> None:
    raise ServiceRefused("not you")


def test_a_service_that_answers_is_no_word_worth(caplog: pytest.LogCaptureFixture) -> None:
    service = Service(0)
    wait(service, 300.0, Time())
    assert service.asked == 1
    assert caplog.records == []


def test_one_that_is_away_is_told_once_and_once_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    with caplog.at_level(logging.INFO):
        wait(Service(7), 300.0, time)
    assert [record.getMessage() for record in caplog.records] == [
        "event=database_away waits_s=300 reason='database must answer; got nobody (db:8123).'",
        "event=database_back away_s=31.5",
    ]
    assert time.pauses_s == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_the_wait_is_bounded_and_its_end_says_how_long_it_was() -> None:
    time, service = Time(), Service(1_000)
    with pytest.raises(ServiceUnavailable, match=r"got nobody \(db:8123\)\. A start waits 10 s for it"):
        wait(service, 10.0, time)
    assert sum(time.pauses_s) == 10.0
    assert service.asked == len(time.pauses_s) + 1, "it is asked a last time when the time is over"


def test_one_that_refuses_us_is_told_though_another_is_away() -> None:
    time = Time()
    with pytest.raises(ServiceRefused):
        wait_for([Need("broker", Service(9), 300.0), Need("database", refuse, 300.0)], time, time.sleep)
    assert time.pauses_s == []


def test_each_has_its_own_time_and_none_is_asked_after_its_answer() -> None:
    time, broker, database = Time(), Service(2), Service(4)
    wait_for([Need("broker", broker, 300.0), Need("database", database, 300.0)], time, time.sleep)
    assert (broker.asked, database.asked) == (3, 5)
    with pytest.raises(ServiceUnavailable, match="A start waits 2 s for it"):
        wait_for([Need("broker", Service(99), 300.0), Need("database", Service(99), 2.0)], time, time.sleep)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_wait_for_an_answer_that_does_not_come(number: signal.Signals) -> None:
    answers = threading.Event()
    timer = threading.Timer(0.2, os.kill, (os.getpid(), number))
    timer.start()
    with pytest.raises(stopping.StopAsked), stopping.raises():
        wait_for([Need("database", answers.wait, 300.0)])
    answers.set()
    timer.join()


@pytest.mark.parametrize(("spent_s", "gives"), [(0.1, True), (9.9, True), (10.1, False)])
def test_memory_goes_back_unless_the_process_was_busy(spent_s: float, gives: bool) -> None:
    calls: list[None] = []
    clock_s, cpu_s = _steps(100.0, 120.0), _steps(5.0, 5.0 + spent_s)
    spare = SpareMemory(lambda: next(clock_s), lambda: next(cpu_s), lambda: calls.append(None))
    assert spare.look() is gives
    assert len(calls) == gives


def test_each_look_counts_from_the_one_before() -> None:
    clock_s, cpu_s = _steps(0.0, 20.0, 40.0), _steps(0.0, 19.0, 20.0)
    spare = SpareMemory(lambda: next(clock_s), lambda: next(cpu_s), lambda: None)
    assert [spare.look(), spare.look()] == [False, True]


def test_the_real_one_works_while_arrays_come_and_go() -> None:
    share_few_heaps()
    spare = SpareMemory()
    for size in (10, 100_000):
        kept = [np.arange(size) for _ in range(10)]
        spare.look()
        assert all(int(one[-1]) == size - 1 for one in kept)


def _steps(*values: float) -> Iterator[float]:
    yield from values
