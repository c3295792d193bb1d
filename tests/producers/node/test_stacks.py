"""Who is looked at for an alert, and how the words of py-spy are read; a live process in its own words."""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from irregulars.errors import InputError
from irregulars.messages.device_events import MOST_TEXT, ONE_LOOK_NS, DeviceEvent
from irregulars.messages.judgements import Suspect, Verdict
from irregulars.producers.node import stacks
from irregulars.producers.node.roster import Owner
from irregulars.producers.node.stacks import (
    StackWatch,
    events_of_trace,
    find_py_spy,
    frames_of,
    functions_of,
    ranks_to_look_at,
)
from irregulars.producers.publishing.sources import Process
from irregulars.producers.torch_hook.profiling import MOST_BYTES, SEALS
from irregulars.sinks.alerts import alert_of
from tests.looking_into import refusal

HANG = Verdict(
    "llm:0:30:0", 0, "open", "llm", "hang", (30, 31), float("nan"), 60.0, None,
    (Suspect("rank", 2, (2,), 0.9, host="node-0"),), "rank 2 never arrived", world_size=8, time_ns=10**18,
    severity="page",
)  # fmt: skip
NOBODY = replace(HANG, suspects=())
HOST = replace(HANG, suspects=(Suspect("host", 4, (4, 5, 6, 7), 0.9),))


@pytest.fixture(autouse=True)
def _asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_ASK_S", 0.0)


@pytest.mark.parametrize(("verdict", "ranks"), [
    (HANG, (2, 3, 4)),
    (replace(HANG, suspects=(Suspect("rank", 7, (7,), 0.6), Suspect("rank", 0, (0,), 0.3))), (7, 1, 2)),
    (HOST, (4, 5, 0, 1)),
    (NOBODY, (0, 1)),
    (replace(NOBODY, world_size=1), (0,)),
    (replace(HANG, kind="mismatch"), (2, 3, 4)),
    (replace(HANG, kind="slow_rank"), (2, 3, 4)),
    (replace(HANG, kind="slow_nic"), ()),
    (replace(HANG, state="closed", close_reason="recovered"), ()),
])  # fmt: skip
def test_the_accused_and_two_peers_are_looked_at(verdict: Verdict, ranks: tuple[int, ...]) -> None:
    assert ranks_to_look_at(verdict) == ranks


def test_the_main_thread_comes_first_and_who_holds_the_gil_is_said() -> None:
    def thread(name: str | None, number: int, *functions: str, owns_gil: bool = False) -> dict[str, object]:
        frames = [{"name": one, "filename": "/a/b.py", "short_filename": "b.py", "line": 3} for one in functions]
        return {"thread_name": name, "os_thread_id": number, "pid": 6, "owns_gil": owns_gil, "frames": frames}

    others = [thread(None, 7, "run"), thread("loader", 8, "read", owns_gil=True)]
    others += [thread("p" * 3000, number) for number in (9, 10)]
    for main in (thread("MainThread", 6, "f"), thread(None, 6, "f")):
        found = list(frames_of(json.dumps([*others, main])))
        assert [name for name, _ in found] == [
            "MainThread", "loader, holds the GIL", "thread 7", f"{'p' * 100} 9", f"{'p' * 100} 10",
        ]  # fmt: skip
        assert found[0][1] == ["f (b.py:3)"]


def test_threads_beside_the_main_one_do_not_dilute_its_time() -> None:
    samples = "thread (0x1): MainThread;train (a.py:1);load (a.py:9) 40\nthread (0x2): writer;write (b.py:1) 500\n"
    assert functions_of(samples) == [("load (a.py:9)", 1.0)]
    assert functions_of("") == []


PROGRAM = """
import time
def decode_jpeg():
    time.sleep(0.02)
def train():
    while True:
        decode_jpeg()
print("ready", flush=True)
train()
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        yield running
        running.kill()


def looked(
    verdicts: list[Verdict], pids: dict[Owner, int], count: int, *, is_profiling: bool = True
) -> list[tuple[Owner, DeviceEvent]]:
    """Return the events of a watch that is told these alerts, then nothing more."""
    if reason := refusal():
        pytest.skip(reason)
    py_spy, is_read = find_py_spy() or "", threading.Event()

    def alerts() -> Iterator[bytes]:
        yield b"no alert"
        yield from (alert_of(one) or b"" for one in verdicts)
        is_read.set()
        is_over.wait()

    is_over = threading.Event()
    processes = {owner: Process(pid) for owner, pid in pids.items()}
    watch = StackWatch(alerts, lambda: processes, "node-0", py_spy, is_profiling=is_profiling)
    try:
        assert is_read.wait(60)
        found, until_s = watch.take(), time.monotonic() + 30
        while len(found) < count and time.monotonic() < until_s:  # profiles have a thread of their own
            found += watch.take()
            time.sleep(0.01)
    finally:
        is_over.set()
        watch.close()
    assert len(found) >= count
    return found


def test_a_process_that_stands_is_looked_at_once(process: subprocess.Popen[str]) -> None:
    owner = Owner("llm", 0, 2)
    others = {Owner("llm", 1, 2): 1, Owner("other", 0, 2): 1, Owner("llm", 0, 6): 1}  # of which nobody asked
    found = looked([HANG, replace(HANG, revision=1)], {owner: process.pid, **others}, 1)
    assert {one for one, _ in found} == {owner}
    frames = [event for _, event in found if event.device == "MainThread"]
    assert [one.detail.partition(" ")[0] for one in frames] == ["decode_jpeg", "train", "<module>"]
    assert [one.code for one in frames] == [0, 1, 2]
    assert len({one.time_ns for one in frames}) == len(frames)


def test_a_slow_rank_s_functions_have_shares(process: subprocess.Popen[str]) -> None:
    slow, pids = [replace(HANG, kind="slow_rank")], {Owner("llm", 0, 2): process.pid}
    (_, event), (_, refused) = looked(slow, pids, 2)
    assert (event.kind, event.device, event.detail.partition(" ")[0]) == ("function", "MainThread", "decode_jpeg")
    assert event.code == 1000
    assert (refused.kind, refused.device, refused.code) == ("function", "torch.profiler", None)
    assert refused.detail == "not taken: its process does not talk to this agent"
    assert 0 < refused.time_ns - event.time_ns < ONE_LOOK_NS
    assert len(looked(slow, pids, 1, is_profiling=False)) == 1


TRACE = (
    b'{"traceEvents": ['
    b'{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7", "ts": 0, "dur": 100, "tid": 1, "args": {}},'
    b'{"ph": "X", "cat": "cpu_op", "name": "aten::linear", "ts": 10, "dur": 50, "tid": 1, "args": {}},'
    b'{"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "ts": 20, "dur": 30, "tid": 1, "args": {}},'
    b'{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 30, "dur": 45, "tid": 7, "args": {"stream": 7}}'
    b"]}"
)


def sealed(content: bytes, seals: int = SEALS) -> int:
    descriptor = os.memfd_create("trace", os.MFD_ALLOW_SEALING)
    os.write(descriptor, content)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def test_a_trace_tells_operators_by_their_own_time_and_kernels() -> None:
    found = [one for one in events_of_trace(sealed(TRACE), 3, "here", 10) if one.kind == "function"]
    assert [(one.device, one.detail, one.code) for one in found] == [
        ("CPU operators", "aten::addmm", 300), ("CPU operators", "aten::linear", 200), ("GPU kernels", "gemm", 450),
    ]  # fmt: skip
    assert [one.time_ns for one in found] == [10, 11, 12]


def test_a_stranger_s_trace_is_read_from_sealed_memory_alone(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(TRACE)
    os.mkfifo(tmp_path / "pipe")
    large = os.memfd_create("trace", os.MFD_ALLOW_SEALING)
    os.truncate(large, MOST_BYTES + 1)  # takes no memory
    fcntl.fcntl(large, fcntl.F_ADD_SEALS, SEALS)
    given = [
        os.open(tmp_path / "trace", os.O_RDONLY), os.open(tmp_path / "pipe", os.O_RDWR), os.open("/dev/zero", 0),
        os.open(tmp_path, 0), sealed(TRACE, fcntl.F_SEAL_SHRINK), sealed(b""), large, sealed(b"[" * 100_000),
        sealed(TRACE.replace(b"ProfilerStep", b"Step")), sealed(TRACE[:-3]),
    ]  # fmt: skip
    for descriptor in given:
        with pytest.raises((OSError, ValueError, InputError)):
            list(events_of_trace(descriptor, 3, "here", 10))
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_of_a_storm_of_verdicts_one_look_tells_all(process: subprocess.Popen[str]) -> None:
    storm = [replace(HANG, verdict_id=f"llm:0:{number}:0") for number in range(300)]
    found = looked(storm, {Owner("llm", 0, 2): process.pid}, 1)
    assert len({event.time_ns // ONE_LOOK_NS for _, event in found}) <= 2
    assert len(found) == 3


def test_a_process_that_is_gone_is_said_to_be() -> None:
    [(_, event)] = looked([HANG], {Owner("llm", 0, 2): 2**22 + 1}, 1)
    assert event.detail.startswith("not taken: Error: ")
    assert "backtrace" not in event.detail
    assert len(event.detail) <= MOST_TEXT
    assert event.code is None


def test_a_job_is_profiled_once_in_a_while_and_other_alerts_do_not_wait_for_it() -> None:
    ends = {rank: socket.socketpair() for rank in (2, 5)}  # of processes that never answer
    processes = {Owner("llm", 0, rank): Process(os.getpid(), end[0]) for rank, end in ends.items()}
    slow = [replace(HANG, kind="slow_rank", verdict_id=name, suspects=(Suspect("rank", rank, (rank,), 0.9),))
            for name, rank in (("a", 2), ("b", 5))]  # fmt: skip
    is_over = threading.Event()

    def alerts() -> Iterator[bytes]:
        yield from (alert_of(one) or b"" for one in (*slow, HANG))
        is_over.wait()

    watch = StackWatch(alerts, lambda: processes, "node-0", "/bin/false")
    try:
        found, until_s = list[tuple[Owner, DeviceEvent]](), time.monotonic() + 10
        while not any(event.kind == "stack" for _, event in found):
            assert time.monotonic() < until_s, "a hang waits for a profile"
            found += watch.take()
            time.sleep(0.01)
        ends[2][1].settimeout(10)
        assert ends[2][1].recv(100) == b"profile"
        assert not select.select([ends[2][1], ends[5][1]], [], [], 0.5)[0], "of a storm, one verdict is profiled"
    finally:
        is_over.set()
        watch.close()
        for end in (*ends[2], *ends[5]):
            end.close()
