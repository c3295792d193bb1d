"""A signal at any moment of its start ends each command in order, services and all.

``SIGNAL_MOMENTS=50`` tries 50 moments of each command, and takes an hour.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from uuid import uuid4

import pytest

from tests.integration.pipelines import COMMAND, RECORDINGS, Pipeline

START_S = 90.0
"""How long a command may take to be ready: this machine may have much else to do."""

END_S = 30.0
"""Within which each must have ended after the signal."""

_MARK = "SIGNALLED_RUN"  # children inherit it, so that one that is left is found
_SIGTERM_BIT = 1 << (signal.SIGTERM - 1)
_POLL_S = 0.001


@dataclass(frozen=True)
class Command:
    """A command line, and how it shows that it is ready.

    `ready`: pattern of its output; None: it shows nothing, and `ready_s` stands for it.
    `statuses`: what it may end with, by signal.
    `ends`: the statuses with which it may have come to its own end before the signal.
    `environment`, `files`: what it gets beside the words, files in its working directory.
    """

    words: tuple[str, ...]
    ready: str | None
    is_service: bool = True
    ready_s: float = 2.0
    ends: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def statuses(self, number: int) -> set[int]:
        return ({0} if self.is_service else {128 + number}) | set(self.ends)


@dataclass(frozen=True)
class Moment:
    """When the signal is sent: when the process listens to it, or is ready, and some seconds after."""

    is_ready: bool
    after_s: float


class Run:
    """One process of a command, in a session and with temporary files of its own."""

    def __init__(self, command: Command, folder: Path) -> None:
        self.command = command
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        for name, text in command.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
            (folder / name).chmod(0o700)
        self.mark = uuid4().hex
        self.output_file = folder / "output"
        environment = {**os.environ, **command.environment, "TMPDIR": str(self.temporary), _MARK: self.mark}
        with self.output_file.open("wb") as output:
            self.process = subprocess.Popen([*COMMAND, *command.words], cwd=folder, env=environment,
                                            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                            start_new_session=True)  # fmt: skip
        self.began_s = time.monotonic()

    @property
    def output(self) -> str:
        return self.output_file.read_text("utf-8", "replace")

    def is_listening(self) -> bool:
        """Whether it has a handler for SIGTERM: before, the interpreter itself is still coming up."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)
        return found is not None and bool(int(found[1], 16) & _SIGTERM_BIT)

    def is_ready(self) -> bool:
        if self.command.ready is None:
            return time.monotonic() > self.began_s + self.command.ready_s
        return re.search(self.command.ready, self.output) is not None

    def wait_for(self, is_true: Callable[[], bool]) -> None:
        """Wait until it is so, or the process has ended."""
        deadline_s = time.monotonic() + START_S
        while self.process.poll() is None and not is_true():
            assert time.monotonic() < deadline_s, self.output
            time.sleep(_POLL_S)

    def left(self) -> list[str]:
        """Name the processes that it started and that go on."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if f"{_MARK}={self.mark}".encode() in (place / "environ").read_bytes():
                    found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def seconds_to_ready(command: Command) -> float:
    """Run it once, and return how long after it listens it is ready."""
    with _started(command) as run:
        run.wait_for(run.is_listening)
        began_s = time.monotonic()
        run.wait_for(run.is_ready)
        # On a fast machine a command that ends by itself may have done so before.
        assert run.is_ready() or run.process.poll() in command.ends, run.output
        return time.monotonic() - began_s


def moments(count: int, ready_s: float) -> list[Moment]:
    """Spread moments over a start: half evenly, a quarter close before it is ready, the rest from then on."""
    even, near = count - count // 2, max(count // 4, 1)
    return [
        *(Moment(False, ready_s * k / even) for k in range(even)),
        *(Moment(False, ready_s * (1 - 0.15 * k / near)) for k in range(near)),
        *(Moment(True, 0.02 * k) for k in range(count - even - near)),
    ]


def complaints_of(command: Command, number: int, moment: Moment) -> list[str]:
    """Send a signal at a moment; return what is wrong with the end, and nothing if nothing is."""
    with _started(command) as run:
        run.wait_for(run.is_ready if moment.is_ready else run.is_listening)
        at_s = time.monotonic() + moment.after_s
        run.wait_for(lambda: time.monotonic() >= at_s)
        sent_s = time.monotonic()
        run.process.send_signal(number)
        try:
            status = run.process.wait(END_S)
        except subprocess.TimeoutExpired:
            return [f"{moment}: runs on after {END_S:g} s: {run.output[-2000:]}"]
        took_s = time.monotonic() - sent_s
        wrong = [] if status in command.statuses(number) else [f"status {status}"]
        wrong += ["a traceback"] if re.search(r"Traceback|Exception ignored|Fatal Python", run.output) else []
        wrong += [f"left {one}" for one in run.left()]
        wrong += [f"left {one.name}" for one in run.temporary.iterdir()]
        return [f"{moment}, {took_s:.1f} s: {', '.join(wrong)}: {run.output[-2000:]}"] if wrong else []


@contextmanager
def _started(command: Command) -> Iterator[Run]:
    with tempfile.TemporaryDirectory(prefix="signalled-") as folder:
        run = Run(command, Path(folder))
        try:
            yield run
        finally:
            run.kill()


MOMENTS = int(os.environ.get("SIGNAL_MOMENTS", "5"))
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What we ignore ourselves (nohup), a process that we start ignores as well.
HEARD = tuple(one for one in SIGNALS if signal.getsignal(one) is not signal.SIG_IGN)
SLOW_NIC = str(RECORDINGS / "gloo-slow-nic")
NOTIFY = """notify_listen = "127.0.0.1:0"
[[channel]]
kind = "command"
name = "nobody"
argv = ["/bin/true"]
"""
NOWHERE = "127.0.0.1:1"
AGENT = '[spool]\ndirectory = "spool"\nfinal_s = 1\n[metrics]\nenabled = false\n'
SLURM = {"bin/sinfo": "#!/bin/sh\n", "bin/scontrol": "#!/bin/sh\n"}

ON_SERVICES = {
    "worker": Command(("worker", "--metrics-listen", "127.0.0.1:0"), "event=restored"),
    "notify": Command(("notify", "notify.toml"), "event=loaded", files={"notify.toml": NOTIFY}),
    "agent": Command(("agent", "agent.toml"), "event=agent_started", files={"agent.toml": AGENT}),
    "replay": Command(("replay", SLOW_NIC), None),
    "console": Command(("console", "--listen", "127.0.0.1:0"), "console at"),
    "act slurm": Command(("act", "slurm", "--slurm-bin", "bin"), "dry run", files=SLURM),
    "act nvsentinel": Command(("act", "nvsentinel"), None),
    "alerts": Command(("alerts", "--from-start"), None, is_service=False),
    "doctor": Command(("doctor",), None, is_service=False, ready_s=1.0, ends=(0, 1)),  # 1: no worker runs
}
ALONE = {
    "worker that waits": Command(("worker", "--no-store", "--bootstrap", NOWHERE), "event=broker_away"),
    "agent that waits": Command(
        ("agent", "agent.toml"),
        "event=agent_started",
        files={"agent.toml": f'kafka_bootstrap = "{NOWHERE}"\n{AGENT}'},
    ),
    "console that waits": Command(
        ("console", "--no-kafka", "--clickhouse-url", f"http://{NOWHERE}", "--listen", "127.0.0.1:0"), "console at"
    ),
    "analyze": Command(("analyze", SLOW_NIC), "slow_nic", is_service=False, ends=(0,)),
    "up": Command(("up",), "Ctrl-C stops"),
    "demo": Command(("demo",), "GPUs train", is_service=False),
    "simulate": Command(("simulate", "made", "--iterations", "400"), None, is_service=False, ends=(0,)),
}


@pytest.mark.parametrize("name", ON_SERVICES)
def test_a_signal_at_any_moment_ends_what_uses_services(name: str, pipeline: Pipeline) -> None:
    environment = replace(pipeline.settings, stop_s=10.0).to_environment()
    require_orderly_ends(replace(ON_SERVICES[name], environment=environment))


@pytest.mark.parametrize("name", ALONE)
def test_a_signal_at_any_moment_ends_what_stands_alone(name: str) -> None:
    require_orderly_ends(ALONE[name])


def require_orderly_ends(command: Command) -> None:
    wrong = [
        complaint
        for number, moment in zip(cycle(HEARD), moments(MOMENTS, seconds_to_ready(command)), strict=False)
        for complaint in complaints_of(command, number, moment)
    ]
    print(f"{' '.join(command.words[:2])}: {len(wrong)} of {MOMENTS} moments end wrongly")
    assert wrong == []
