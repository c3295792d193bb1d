from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from irregulars.errors import ServiceUnavailable
from irregulars.infra.runs.child_process import ChildProcess
from tests.infra.processes import first_line, is_alive, run_parent, wait_until

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP[-1]}"
ANSWERS = f"import signal; signal.signal(signal.SIGUSR1, lambda *_: print('here', flush=True)); {SLEEP[-1]}"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def wrote(log: Path, text: str) -> bool:
    return wait_until(lambda: text in log.read_text())


def test_a_child_runs_until_it_is_stopped_and_stopping_twice_is_fine(log: Path) -> None:
    child = ChildProcess("sleeper", SLEEP, log)
    child.wait_until(lambda: "up" in log.read_text(), 10.0)
    assert is_alive(child.pid)
    child.stop()
    child.stop()
    assert not child.is_running
    assert not is_alive(child.pid)


def test_the_log_is_for_its_owner_alone(log: Path) -> None:
    ChildProcess("sleeper", SLEEP, log).kill()
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_child_that_ignores_sigterm_is_killed(log: Path) -> None:
    child = ChildProcess("stubborn", [sys.executable, "-c", STUBBORN], log)
    assert wrote(log, "up")
    child.stop(grace_s=0.2)
    assert child.status == -signal.SIGKILL


@pytest.mark.parametrize(("command", "within_s", "words"), [
    ([sys.executable, "-c", "raise OSError('no disk')"], 10.0,
     "^service must come up; got an exit: OSError: no disk$"),
    (["/nowhere/program"], 10.0, "/nowhere/program: No such file or directory"),
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
        assert wrote(log, "up")
        # Linux signals the children of a thread when it has really gone, a moment after Python has joined it.
        assert wait_until(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists())
        os.kill(children[0].pid, signal.SIGUSR1)
        assert wrote(log, "here")
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
            assert wrote(log, "up")
            parent.send_signal(end)
    assert wait_until(lambda: not is_alive(child))


def test_ctrl_c_in_the_terminal_does_not_reach_the_child(log: Path) -> None:
    child = ChildProcess("sleeper", SLEEP, log)
    try:
        assert os.getpgid(child.pid) != os.getpgid(0)
    finally:
        child.kill()
