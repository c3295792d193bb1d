from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from irregulars.infra.commands import traces as replay
from irregulars.producers.publishing.agent import Progress

DEADLINE_S = 60.0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "QUIET_S", 0.05)


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
    with replay.Acknowledged(f"127.0.0.1:{silent_port}"):
        said = wait_for(capsys, "NOTHING WAS ACKNOWLEDGED")
    assert f"by Kafka at 127.0.0.1:{silent_port} within 0.05 s" in said


def test_what_is_acknowledged_in_time_is_not_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = replay.Acknowledged("127.0.0.1:9092")
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
