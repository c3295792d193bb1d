"""A service in a process of its own: started, waited for, stopped, and gone when this process is gone (Linux)."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from irregulars import stopping
from irregulars.errors import InputError, ServiceUnavailable

_LAUNCHER: Final = Path(__file__).with_name("child_launcher.py")
_OWNER_ALONE: Final = 0o077  # umask of services: their files get 0600, directories 0700
_POLL_S: Final = 0.02
_TAIL_BYTES: Final = 64 * 1024
_LONGEST_WORDS: Final = 300

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_FRAME: Final = re.compile(r"\s+at |\s*\d+\. |\s*\d+: |\s*\.\.\. \d+ more|stack backtrace|note:|\s*File \"|Traceback")
_CAUSE: Final = re.compile(r"Caused by:|Exception|ERROR|FATAL|Error\b|panicked|Err\(")

# Linux sends the signal of child_launcher.py when the *thread* that started the child ends, and callers may start
# services from threads that end early. So all children come from one thread that lives as long as this process.
_STARTER: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="child-starter")


class ChildProcess:
    """One running service; it is started by the constructor, in a process group of its own.

    A group of its own, because Ctrl-C in a terminal reaches the whole group, and a service must outlive the client
    that still flushes to it: who started it stops it. `log` gets standard output and standard error, appended, mode
    0600. `environment`: variables beside those of this process. `inherited`: file descriptors that the child keeps
    open: a lock, for example.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        *,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        inherited: Iterable[int] = (),
    ) -> None:
        self.name = name
        self._log = log
        launch = [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), *arguments]
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._log_start = os.fstat(descriptor).st_size
            self._process = _start(launch, descriptor, directory, {**os.environ, **(environment or {})}, inherited)
        finally:
            os.close(descriptor)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """Exit status of the process, negative for a signal; `None` while it runs."""
        return self._process.poll()

    def wait_until(self, is_ready: Callable[[], bool], within_s: float) -> None:
        """Wait until the service is ready; else it is killed: it keeps nothing yet that an orderly end could save.

        Raises `ServiceUnavailable` if the process ends, or `within_s` seconds pass; the text has its last words.
        """
        deadline = time.monotonic() + within_s
        try:
            # An answer alone is not enough: another process may have taken the port, and ours has ended.
            while not (is_ready() and self.is_running):
                if not self.is_running:
                    raise ServiceUnavailable(f"{self.name} must come up; got an exit: {self.last_words()}")
                if time.monotonic() > deadline:
                    raise ServiceUnavailable(
                        f"{self.name} must be ready within {within_s:.1f} s; it is not: {self.last_words()}"
                    )
                stopping.pause(_POLL_S)
        except BaseException:
            self.kill()
            raise

    def has_ended(self, within_s: float) -> bool:
        """Wait for the end of the process, at most `within_s` seconds; whether it came."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, grace_s: float = 10.0) -> None:
        """Ask the process to end (SIGTERM), wait `grace_s` seconds, and end it (SIGKILL). Twice is fine."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
        if not self.has_ended(grace_s):
            self.kill()

    def kill(self) -> None:
        """End the process at once (SIGKILL), without a chance to save anything."""
        self._process.kill()
        self._process.wait()

    def last_words(self) -> str:
        """Return the last line of the log that names an error, else the last one."""
        with self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            # The log is appended to: lines of an earlier child are not its last words.
            file.seek(max(self._log_start, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
        return _last_words(text)


def _start(
    launch: Sequence[str], output: int, directory: Path | None, environment: Mapping[str, str],
    inherited: Iterable[int],
) -> subprocess.Popen[bytes]:  # fmt: skip
    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            launch, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=directory, env=environment,
            pass_fds=tuple(inherited), process_group=0, umask=_OWNER_ALONE,
        )  # fmt: skip

    started = _STARTER.submit(start)
    try:
        return started.result()
    except BaseException:  # Ctrl-C while we wait: nobody would know of the child
        started.add_done_callback(lambda done: None if done.cancelled() or done.exception() else done.result().kill())
        raise


def _last_words(text: str) -> str:
    r"""Pick the line that names the cause.

    >>> _last_words("ready\nException: no disk\n    at Main.java:3\nbye\n")
    'Exception: no disk'
    >>> _last_words("")
    'it wrote nothing'
    """
    lines = [line for line in _COLOUR.sub("", text).splitlines() if line.strip() and not _FRAME.match(line)]
    causes = [line for line in lines if _CAUSE.search(line)]
    return (causes or lines or ["it wrote nothing"])[-1].strip()[:_LONGEST_WORDS]


HOST: Final = "127.0.0.1"

# Below Linux's range for outgoing connections (32768 and up). A client that keeps trying to reach a service which is
# down can be given the service's own port as its source, connect to itself, and keep the service from coming back.
_PORTS: Final = range(20_000, 32_000)
_TRIES: Final = 200
_given: Final = deque[int](maxlen=500)  # a caller may not listen on its port yet when the next one is wanted


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 without a listener, and another each time.

    Raises `ServiceUnavailable` if there is none.
    """
    for port in random.sample(_PORTS, _TRIES):
        if port not in _given and is_free(port):
            _given.append(port)
            return port
    raise ServiceUnavailable(f"a port of {HOST} must be free; got none in {_TRIES} tries. End what listens there")


def require_free(port: int, service: str) -> None:
    """Raise `InputError` if a process listens on `port` of 127.0.0.1 already."""
    if not is_free(port):
        raise InputError(f"port of {service} must be free; got {port}, which is taken on {HOST}. Choose another")


def is_free(port: int) -> bool:
    """Whether a service could listen on `port` of 127.0.0.1."""
    with socket.socket() as probe:
        # As servers do it: connections of the last owner that wait to be forgotten don't make a port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def answers(port: int) -> bool:
    """Whether a process accepts connections on `port` of 127.0.0.1."""
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True


_STARTS: Final = 3


class Service(ABC):
    """Something that runs from `start` to `stop`; a ``with`` block does both."""

    @abstractmethod
    def start(self) -> None:
        """Start it, and wait until it can be used; if that fails, nothing of it is left."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it. Twice is fine."""

    @contextmanager
    def _stopped_if_it_fails(self) -> Iterator[None]:
        """Stop the parts that are up, if the block ends in an error."""
        try:
            yield
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start_on_free_ports(start: Callable[[float], None], within_s: float) -> None:
    """Start something on free ports; try again if it does not come up.

    The likely cause is a port that another process took between our look and the bind. `start`: Takes free ports, and
    waits for at most the given seconds; raises `ServiceUnavailable` if it does not come up. `within_s`: for all tries
    together.
    """
    deadline = time.monotonic() + within_s
    for attempt in range(1, _STARTS + 1):
        try:
            return start(deadline - time.monotonic())
        except ServiceUnavailable:
            if attempt == _STARTS or time.monotonic() > deadline:
                raise
