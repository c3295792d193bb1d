"""Stacks of the training processes that an alert accuses, and of two peers, taken with py-spy while it is fresh.

A job that stands still: the stack of each thread, once. A slow rank: the functions in which its main thread spends
its time, over some seconds; then the operators and kernels of a few iterations, by the torch.profiler that its
process runs when it is asked. They leave as events, a row for each frame or function: a question compares the peers.
py-spy reads another process's memory; where the system forbids that, or the job its profiler, an event says so.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from irregulars.errors import InputError, RecordError, ServiceError
from irregulars.messages.device_events import MOST_TEXT, DeviceEvent
from irregulars.messages.judgements import Verdict, decode_verdict
from irregulars.messages.kinds import STANDSTILLS
from irregulars.messages.records import UNKNOWN
from irregulars.producers.importers.kineto_kernels import measure_windows, shares_of
from irregulars.producers.importers.kineto_trace import WANTED, EventReader, TraceParser
from irregulars.producers.node.roster import Owner
from irregulars.producers.publishing.sources import Process
from irregulars.producers.torch_hook.profiling import MOST_BYTES, SEALS

_LOG: Final = logging.getLogger("irregulars.agent")
Event = tuple[Owner, DeviceEvent]

_ACCUSED: Final = 2  # ranks of the first suspect that are looked at: a host carries eight that wait alike
_PEERS: Final = 2
_MOST_FRAMES: Final = 40  # of a thread, the innermost; training scripts are some twenty deep
_MOST_THREADS: Final = 8
_MOST_FUNCTIONS: Final = 20
_LEAST_SHARE: Final = 0.01  # of the samples, that a function is told
_SAMPLED_S: Final = 5  # a slow rank's iteration takes some tenths to some seconds
_RATE_HZ: Final = 50  # 250 samples: shares to some hundredths
_DUMP_S: Final = 20.0  # until py-spy is ended: the symbols of a large process take seconds
_KNOWN: Final = 1000  # verdicts and ranks that are not looked at twice
_AGAIN_S: Final = 30.0  # until alerts are asked for again where Kafka does not give them
_APART_S: Final = 60.0  # between two looks of one kind at a rank: of a storm of verdicts one look tells all
# Of py-spy: a process may have any number of frames, with names of 4,000 characters.
_LIMITS: Final = ((resource.RLIMIT_FSIZE, 8 << 20), (resource.RLIMIT_DATA, 256 << 20))
_POLL_S: Final = 0.05
_END_S: Final = 2.0  # for which the agent's end waits for py-spy's
_MOST_NAME: Final = 100  # characters of a thread's
_MAIN: Final = "MainThread"
_ASK_S: Final = 30.0  # from an alert to the requests: by then no agent of its job samples functions any more
_PROFILE_S: Final = 200.0  # for which a profile is waited for: iterations may take 20 s
_PROFILES_APART_S: Final = 600.0  # of a job, in which some ten seconds of it are not judged
_BEHIND_NS: Final = 100_000  # a profile's events behind the functions, so that both are of one look (`ONE_LOOK_NS`)
_OF_A_PROFILE: Final = (*WANTED, b'"cpu_op"', b'"kernel"')


def find_py_spy() -> str | None:
    """Return the path of py-spy, beside our Python or on the path; None: it is not installed."""
    own = Path(sys.executable).with_name("py-spy")
    return str(own) if own.exists() else shutil.which("py-spy")


def ranks_to_look_at(verdict: Verdict) -> tuple[int, ...]:
    """Return the ranks whose processes tell most: those accused, and their next peers in rank order.

    Empty for verdicts of which a stack says nothing: those on links, switches, NICs and numbers, and closed ones.
    """
    if verdict.state != "open" or (verdict.kind not in STANDSTILLS and verdict.kind != "slow_rank"):
        return ()
    accused = verdict.suspects[0].ranks[:_ACCUSED] if verdict.suspects else ()
    others = {rank for suspect in verdict.suspects for rank in suspect.ranks}
    first, world_size = accused[0] if accused else 0, verdict.world_size
    around = ((first + step) % world_size for step in range(world_size))
    return (*accused, *islice((rank for rank in around if rank not in others), _PEERS))


def frames_of(dump: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each thread of ``py-spy dump --json``, the main one first: its name, and its frames, the innermost first.

    Raises `ValueError` where it is not that.
    """
    named = [(_name_of(one), one) for one in json.loads(dump)]
    times = Counter(name for name, _ in named)
    for name, one in sorted(named, key=lambda pair: (pair[0] != _MAIN, not pair[1].get("owns_gil")))[:_MOST_THREADS]:
        frames = [
            f"{frame['name']} ({frame.get('short_filename') or frame['filename']}:{frame['line']})"
            for frame in one["frames"][:_MOST_FRAMES]
        ]
        # Threads of a pool may share a name: their stacks would be told as one.
        name = name if times[name] == 1 else f"{name} {one['os_thread_id']}"
        yield f"{name}, holds the GIL" if one.get("owns_gil") and name != _MAIN else name, frames


def _name_of(thread: Mapping[str, Any]) -> str:
    # Threads have names where Python's module of them was loaded; the main one's number is the process's.
    own = _MAIN if thread["os_thread_id"] == thread["pid"] else f"thread {thread['os_thread_id']}"
    return str(thread.get("thread_name") or own)[:_MOST_NAME]


def functions_of(samples: str) -> list[tuple[str, float]]:
    r"""Return the innermost functions of the main thread in ``py-spy record --format raw``, with their shares.

    >>> functions_of("thread (1): MainThread;main (train.py:3);load (data.py:7) 3\nthread (1): MainThread;main 1")
    [('load (data.py:7)', 0.75), ('main', 0.25)]
    """
    counts: Counter[str] = Counter()
    for line in samples.splitlines():
        stack, _, count = line.rpartition(" ")
        thread, *frames = stack.split(";")
        if (_MAIN in thread or _MAIN not in samples) and frames and count.isdigit():
            counts[frames[-1]] += int(count)
    total = counts.total()
    return [(name, n / total) for name, n in counts.most_common(_MOST_FUNCTIONS) if n >= _LEAST_SHARE * total]


def events_of_trace(descriptor: int, rank: int, host: str, time_ns: int) -> Iterator[DeviceEvent]:
    """Yield the operators and kernels with the largest shares in a trace, as functions, and its metrics of the GPU.

    `descriptor`: of a file, which is closed; it comes from a stranger. Raises `OSError`, `ValueError` or `InputError`
    unless it is memory whose size and bytes nobody can change any more, and holds a trace.
    """
    try:
        size_bytes = os.fstat(descriptor).st_size
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS != SEALS or size_bytes > MOST_BYTES:
            raise ValueError(f"a trace must be sealed memory, of at most {MOST_BYTES} bytes; got {size_bytes}")
        with open(descriptor, "rb", closefd=False) as file:
            file.seek(0)
            reader, parser = EventReader(file, _OF_A_PROFILE), TraceParser()
            for event in reader.read():
                parser.add(event)
            capture = parser.capture(reader.properties(), reader.unreadable)
    finally:
        os.close(descriptor)
    profile = capture.profile
    if profile is None or not len(profile.steps):
        raise ValueError("a trace must hold steps and no more kernels than are read; it does not")
    for place, shares in shares_of(profile).items():
        most = sorted(shares.items(), key=lambda pair: -pair[1])[:_MOST_FUNCTIONS]
        for at, (name, share) in enumerate(most):
            if at == 0 or share >= _LEAST_SHARE:  # the first in any case: a peer that computes nothing is one too
                yield DeviceEvent(time_ns, rank, "function", host, place, round(1000 * share), name[:MOST_TEXT])
                time_ns += 1
    marks = np.array([(step.peer, step.start_ns) for step in capture.steps])
    yield from measure_windows(rank, profile, marks[:, 0], marks[:, 1])


class StackWatch:
    """Follows alerts in a thread of its own, and looks into the processes of this host that they are about.

    `alerts`: returns messages of the topic, as they come. `processes`: returns the ranks of this host and their
    processes. `is_profiling`: whether they are asked for profiles. Each rank is looked at once for a verdict, one
    process at a time. All are profiled at once, in a thread of its own: a job may take minutes to answer.
    """

    def __init__(
        self, alerts: Callable[[], Iterable[bytes]], processes: Callable[[], Mapping[Owner, Process]], host: str,
        py_spy: str, *, is_profiling: bool = True,
    ) -> None:  # fmt: skip
        self._alerts, self._processes, self._host, self._py_spy = alerts, processes, host, py_spy
        self._is_profiling = is_profiling
        self._found: deque[Event] = deque()
        self._known: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._looked_s: dict[tuple[Owner, bool], float] = {}
        self._profiled_s: dict[str, float] = {}  # by job
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="irregulars-stacks", daemon=True)
        self._thread.start()

    def take(self) -> list[Event]:
        """Return the events since the last call. Never blocks."""
        return [self._found.popleft() for _ in range(len(self._found))]

    @property
    def is_over(self) -> bool:
        """Whether the watch was closed."""
        return self._is_over.is_set()

    def close(self) -> None:
        """Stop; a process that is looked at is let go within seconds."""
        self._is_over.set()
        self._thread.join(_END_S)

    def _follow(self) -> None:
        trouble = None
        while not self.is_over:
            try:
                for message in self._alerts():
                    trouble = None
                    self._look(message)
            except ServiceError as error:  # away, or our role may not read alerts: the agent works without stacks
                if str(error) != trouble:
                    _LOG.warning("event=no_alerts effect='no stacks are taken' reason=%r", str(error))
                trouble = str(error)
            except Exception:  # a thread that ended would take no stacks any more, and no word of it
                _LOG.exception("event=alerts_failed")
            self._is_over.wait(_AGAIN_S)

    def _look(self, message: bytes) -> None:
        try:
            verdict = decode_verdict(message, "alerts")
        except RecordError as error:
            _LOG.warning("event=alert_unreadable reason=%r", str(error))
            return
        wanted, began_s, way = ranks_to_look_at(verdict), time.monotonic(), (verdict.verdict_id, UNKNOWN)
        # Also where no rank is ours: all agents read all alerts, and profile a verdict's ranks on all nodes or none.
        is_slow = self._is_profiling and bool(wanted) and verdict.kind not in STANDSTILLS and self._is_new(way)
        profiled_s = {job: at for job, at in self._profiled_s.items() if began_s - at < _PROFILES_APART_S}
        is_profiled = is_slow and verdict.job not in profiled_s
        self._profiled_s = profiled_s | ({verdict.job: began_s} if is_profiled else {})
        looked: list[tuple[Owner, Process, int]] = []
        for owner, process in self._processes().items():
            is_of = (owner.job, owner.attempt) == (verdict.job, verdict.attempt) and owner.rank in wanted
            if is_of and not self.is_over and self._is_due(verdict, owner):
                looked.append((owner, process, time.time_ns()))
                own = self._events(verdict, owner.rank, process.pid, looked[-1][2])
                self._found.extend((owner, event) for event in own)
        if is_profiled and looked:
            threading.Thread(target=self._profile, args=(verdict, looked, began_s + _ASK_S), daemon=True).start()

    def _profile(self, verdict: Verdict, looked: Iterable[tuple[Owner, Process, int]], from_s: float) -> None:
        self._is_over.wait(max(0.0, from_s - time.monotonic()))
        asked: list[tuple[Owner, Process, int, socket.socket | str]] = []
        for one in looked:
            try:
                asked.append((*one, one[1].ask_profile() or "its process does not talk to this agent"))
            except OSError as error:
                asked.append((*one, str(error)))
        until_s = time.monotonic() + _PROFILE_S
        for owner, process, time_ns, reply in asked:
            event = DeviceEvent(time_ns + _BEHIND_NS, owner.rank, "function", self._host, "torch.profiler")
            try:
                if isinstance(reply, str):
                    raise ValueError(reply)
                with reply:
                    trace = self._receive(reply, until_s)
                found = events_of_trace(trace, owner.rank, self._host, event.time_ns)
                self._found.extend((owner, one) for one in found)
            except (OSError, ValueError, InputError) as error:
                self._found.append((owner, self._refused(verdict, event, process.pid, str(error))))

    def _is_due(self, verdict: Verdict, owner: Owner) -> bool:
        """Return whether to look at a rank now, and note it: one that had its look may have none for this verdict."""
        of, way, now_s = (verdict.verdict_id, owner.rank), (owner, verdict.kind in STANDSTILLS), time.monotonic()
        # Where the last look is too young, a later revision of this verdict may have its own.
        if now_s - self._looked_s.get(way, -math.inf) < _APART_S or not self._is_new(of):
            return False
        self._looked_s = {one: at for one, at in self._looked_s.items() if now_s - at < _APART_S}
        self._looked_s[way] = now_s
        return True

    def _is_new(self, of: tuple[str, int]) -> bool:
        is_new = of not in self._known
        self._known[of] = None
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return is_new

    def _events(self, verdict: Verdict, rank: int, pid: int, time_ns: int) -> Iterator[DeviceEvent]:
        kind, look = ("stack", self._stacks) if verdict.kind in STANDSTILLS else ("function", self._functions)
        try:
            # A nanosecond apart: rows that differ in nothing else, of a recursion, are no copies.
            for place, (thread, code, detail) in enumerate(look(pid)):
                yield DeviceEvent(time_ns + place, rank, kind, self._host, thread, code, detail[:MOST_TEXT])
        except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError) as error:
            said = (error.stderr if isinstance(error, subprocess.CalledProcessError) else None) or str(error)
            yield self._refused(verdict, DeviceEvent(time_ns, rank, kind, self._host), pid, said)

    def _refused(self, verdict: Verdict, event: DeviceEvent, pid: int, said: str) -> DeviceEvent:
        reason = " ".join(said.partition("\n\n")[0].split())[:MOST_TEXT]  # behind it: py-spy's own stack
        _LOG.warning("event=stack_not_taken job=%r rank=%d pid=%d reason=%r", verdict.job, event.rank, pid, reason)
        return replace(event, detail=f"not taken: {reason}"[:MOST_TEXT])

    def _receive(self, reply: socket.socket, until_s: float) -> int:
        """Return the descriptor that a process answers with; raises `ValueError` where it sends none in time."""
        reply.settimeout(_POLL_S)
        is_last = False  # one that has answered is heard also after another that did not
        while not is_last and not self.is_over:
            is_last = time.monotonic() > until_s
            with suppress(TimeoutError):
                said, descriptors, *_ = socket.recv_fds(reply, MOST_TEXT, 1, socket.MSG_CMSG_CLOEXEC)
                if descriptors:
                    return descriptors[0]
                raise ValueError(said.decode(errors="replace") or "its process ended, or answers no requests")
        raise ValueError(f"its process did not answer within {_PROFILE_S:.0f} s")

    def _stacks(self, pid: int) -> Iterator[tuple[str, int, str]]:
        dump = self._run("dump", "--json", "--pid", str(pid))
        for thread, frames in frames_of(dump):
            for depth, frame in enumerate(frames):
                yield thread, depth, frame

    def _functions(self, pid: int) -> Iterator[tuple[str, int, str]]:
        with tempfile.TemporaryDirectory(prefix="irregulars-") as folder:
            file = Path(folder) / "samples"
            self._run(
                "record", "--pid", str(pid), "--duration", str(_SAMPLED_S), "--rate", str(_RATE_HZ), "--idle",
                "--threads", "--function", "--format", "raw", "--output", str(file),
            )  # fmt: skip
            for function, share in functions_of(file.read_text(encoding="utf-8", errors="replace")):
                yield _MAIN, round(1000 * share), function

    def _run(self, *arguments: str) -> str:
        # It must not stop the process: with 200 threads each sample would for 13 ms.
        command, until_s = [self._py_spy, *arguments, "--nonblocking"], time.monotonic() + _DUMP_S + _SAMPLED_S
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
            with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=said) as running:
                try:
                    for limit, most in _LIMITS:
                        resource.prlimit(running.pid, limit, (most, most))
                    while running.poll() is None:
                        if self._is_over.wait(_POLL_S) or time.monotonic() > until_s:
                            raise subprocess.TimeoutExpired(command, _DUMP_S + _SAMPLED_S)
                finally:
                    running.kill()
            texts = []
            for file in (out, said):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        if running.returncode:
            raise subprocess.CalledProcessError(running.returncode, command, *texts)
        return texts[0]
