from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from irregulars.infra.commands import traces
from irregulars.infra.commands.traces import in_time, rename_job
from irregulars.messages.records import SCHEMAS
from irregulars.producers.publishing.agent import Progress
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.source import moved, span_ns
from tests.conftest import RECORDINGS
from tests.infra.conftest import Run, refused

RECORDING = RECORDINGS / "gloo-clean"


def test_a_renamed_job_has_its_name_in_every_record_and_keeps_its_own_without_one() -> None:
    trace = rename_job(read_trace(RECORDING), "other", 3)
    batches = [batch.header for schema in SCHEMAS for batch in trace.batches(schema).values()]
    assert batches
    assert {(one.job, one.attempt) for one in [trace, *trace.announcements, *batches]} == {("other", 3)}
    trace = read_trace(RECORDING)
    assert rename_job(trace, None, None).job == trace.job


def test_a_speed_below_zero_is_one_line(run: Run) -> None:
    assert "speed must be a number of at least 0; got -1" in refused(run, "replay", str(RECORDING), "--speed", "-1")


def test_times_that_lie_in_the_future_are_moved_to_now_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    trace = read_trace(RECORDING)
    begin_ns, end_ns = span_ns(trace) or (0, 0)
    now_ns = end_ns - 1
    assert span_ns(in_time(trace, now_ns, None, ends_now=True)) == (begin_ns - 1, now_ns)
    assert span_ns(in_time(trace, now_ns, None, ends_now=False)) == (now_ns, now_ns + end_ns - begin_ns)
    first, second = capsys.readouterr().err.splitlines()
    assert "are moved to now, 0.0 days earlier; --keep-times leaves them as they are" in first
    assert "days later" in second


def test_times_of_the_past_stay_unless_somebody_says_now(capsys: pytest.CaptureFixture[str]) -> None:
    trace = read_trace(RECORDING)
    _, end_ns = span_ns(trace) or (0, 0)
    assert in_time(trace, end_ns + 1, None, ends_now=True) is trace
    future = moved(trace, 10**15)
    assert in_time(future, end_ns, False, ends_now=True) is future
    assert capsys.readouterr().err == ""
    told = in_time(trace, end_ns + 86_400 * 10**9, True, ends_now=True)
    assert span_ns(told) == span_ns(moved(trace, 86_400 * 10**9))
    assert "1.0 days later" in capsys.readouterr().err


DEADLINE_S = 60.0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "QUIET_S", 0.05)


@pytest.fixture
def silent_port() -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def wait_for(capsys: pytest.CaptureFixture[str], text: str) -> str:
    deadline, said = time.monotonic() + DEADLINE_S, ""
    while text not in said and time.monotonic() < deadline:
        said += capsys.readouterr().err
        time.sleep(0.01)
    return said


@pytest.mark.usefixtures("impatient")
def test_silence_of_the_broker_is_said_loudly(capsys: pytest.CaptureFixture[str], silent_port: int) -> None:
    with traces.Acknowledged(f"127.0.0.1:{silent_port}"):
        said = wait_for(capsys, "NOTHING WAS ACKNOWLEDGED")
    assert f"by Kafka at 127.0.0.1:{silent_port} within 0.05 s" in said


def test_what_is_acknowledged_in_time_is_not_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = traces.Acknowledged("127.0.0.1:9092")
    with waiting:
        first = waiting.timer
        waiting.note(Progress(delivered_messages=1))
        assert waiting.timer is not first  # it waits anew
        second = waiting.timer
        waiting.note(Progress(delivered_messages=1))
        assert waiting.timer is second  # nothing more was acknowledged
    waiting.timer.join(DEADLINE_S)
    assert not waiting.timer.is_alive()
    assert capsys.readouterr().err == ""
