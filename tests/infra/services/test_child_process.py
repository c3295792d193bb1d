"""Children, services and ports: they start, and stop whatever happens."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from irregulars.errors import InputError, ServiceUnavailable
from irregulars.infra.runs.child_process import (
    HOST,
    ChildProcess,
    Service,
    answers,
    free_port,
    is_free,
    require_free,
    start_on_free_ports,
)
from tests.infra.processes import first_line, is_alive, run_parent
from tests.waiting import wait_for

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP[-1]}"
ANSWERS = f"import signal; signal.signal(signal.SIGUSR1, lambda *_: print('here', flush=True)); {SLEEP[-1]}"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def wait_for_text(log: Path, text: str) -> None:
    wait_for(lambda: text in log.read_text())


def test_a_child_runs_in_a_group_of_its_own_until_it_is_stopped_with_a_log_for_its_owner_alone(log: Path) -> None:
    child = ChildProcess("sleeper", SLEEP, log)
    child.wait_until(lambda: "up" in log.read_text(), 60.0)
    assert is_alive(child.pid)
    assert os.getpgid(child.pid) != os.getpgid(0)  # where Ctrl-C in the terminal does not reach it
    assert log.stat().st_mode & 0o777 == 0o600
    child.stop()
    child.stop()
    assert not child.is_running
    assert not is_alive(child.pid)


def test_a_child_that_ignores_sigterm_is_killed(log: Path) -> None:
    child = ChildProcess("stubborn", [sys.executable, "-c", STUBBORN], log)
    wait_for_text(log, "up")
    child.stop(grace_s=0.2)
    assert child.status == -signal.SIGKILL


@pytest.mark.parametrize(("command", "within_s", "words"), [
    ([sys.executable, "-c", "raise OSError('no disk')"], 60.0,
     "^service must come up; got an exit: OSError: no disk$"),
    (["/nowhere/program"], 60.0, "/nowhere/program: No such file or directory"),
    (SLEEP, 0.2, r"service must be ready within 0\.2 s"),
])  # fmt: skip
def test_a_child_that_does_not_come_up_is_an_error_with_its_last_words_and_leaves_nothing(
    log: Path, command: list[str], within_s: float, words: str
) -> None:
    log.write_text("ERROR of an earlier run\n")
    child = ChildProcess("service", command, log)
    with pytest.raises(ServiceUnavailable, match=words):
        child.wait_until(lambda: False, within_s)
    assert not child.is_running


def test_a_child_outlives_the_thread_that_started_it(log: Path) -> None:
    command = [sys.executable, "-c", ANSWERS]
    children: list[ChildProcess] = []
    thread = threading.Thread(target=lambda: children.append(ChildProcess("sleeper", command, log)))
    thread.start()
    thread.join()
    try:
        wait_for_text(log, "up")
        # Linux signals the children of a thread when it has really gone, a moment after Python has joined it.
        wait_for(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists())
        os.kill(children[0].pid, signal.SIGUSR1)
        wait_for_text(log, "here")
    finally:
        children[0].kill()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None])  # None: it just ends
def test_a_child_dies_with_its_parent(log: Path, end: signal.Signals | None) -> None:
    parent = run_parent(
        "import sys, time, pathlib; from irregulars.infra.runs.child_process import ChildProcess\n"
        f"child = ChildProcess('sleeper', {SLEEP!r}, pathlib.Path({str(log)!r}))\n"
        f"print(child.pid, flush=True); time.sleep({60 if end else 0})"
    )
    with parent:
        child = int(first_line(parent))
        if end is not None:
            wait_for_text(log, "up")
            parent.send_signal(end)
    wait_for(lambda: not is_alive(child))


def test_a_free_port_can_be_listened_on_and_no_client_gets_it_by_chance() -> None:
    port = free_port()
    with socket.create_server((HOST, port)):
        assert not is_free(port)
        assert answers(port)
    assert not answers(port)
    first_given_to_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert port < first_given_to_clients or first_given_to_clients < 20_000


def test_a_taken_port_is_named_and_one_is_free_right_after_its_connections_closed() -> None:
    port = free_port()
    with socket.create_server((HOST, port)) as server, socket.create_connection((HOST, port)):
        server.accept()[0].close()  # the server closes first: its side waits to be forgotten
    assert is_free(port)
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(InputError, match=f"port of the thing must be free; got {port}, .*Choose another"):
            require_free(port, "the thing")


class Recorded(Service):
    def __init__(self, *, is_broken: bool = False) -> None:
        self.happened: list[str] = []
        self._is_broken = is_broken

    def start(self) -> None:
        self.happened.append("start")
        with self._stopped_if_it_fails():
            if self._is_broken:
                raise ServiceUnavailable("it must come up; it does not")

    def stop(self) -> None:
        self.happened.append("stop")


@pytest.mark.parametrize(
    ("is_broken", "error"), [(False, None), (False, ZeroDivisionError), (True, ServiceUnavailable)]
)
def test_a_with_block_starts_and_stops_it_also_when_it_fails(is_broken: bool, error: type[Exception] | None) -> None:
    service = Recorded(is_broken=is_broken)
    with pytest.raises(error) if error else nullcontext(), service:
        assert service.happened == ["start"]
        _ = 1 / (0 if error else 1)
    assert service.happened == ["start", "stop"]


@pytest.mark.parametrize(
    ("refusals", "within_s", "tries"),
    [(2, 60.0, 3), (9, 60.0, 3), (9, -1.0, 1)],  # the last: no try begins after the deadline
)
def test_a_port_that_somebody_took_is_no_reason_to_give_up_before_the_third_try(
    refusals: int, within_s: float, tries: int
) -> None:
    left: list[float] = []

    def start(left_s: float) -> None:
        left.append(left_s)
        if len(left) <= refusals:
            raise ServiceUnavailable("port must be free; it is not")

    with nullcontext() if refusals < tries else pytest.raises(ServiceUnavailable, match="port must be free"):
        start_on_free_ports(start, within_s)
    assert len(left) == tries
    assert left == sorted(left, reverse=True)
