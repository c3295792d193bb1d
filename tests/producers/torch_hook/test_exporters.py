"""Exporters of the training process, without torch: a trace directory, the agent's socket, and an absent broker."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from irregulars.errors import InputError
from irregulars.kafka.topics import TopicSettings
from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.records import Batch
from irregulars.producers.publishing.sources import Record
from irregulars.producers.torch_hook import exporters
from irregulars.producers.torch_hook.agent_socket import SocketSource
from irregulars.producers.torch_hook.exporters import AgentSocket, Kafka, TraceDirectory
from irregulars.producers.torch_hook.trace_parts import PARTS, assemble
from irregulars.producers.trace.directory import read_trace
from tests.producers.torch_hook.sources import Rank
from tests.waiting import DEADLINE_S, gather, wait_for

ITERATIONS = 5


def ended(seconds: float) -> bool:
    """The `wait` of an exporter whose session was stopped."""
    return True


def write_until_killed(
    rank: Rank, directory: Path, polls: int, act: Callable[[int], None] = lambda poll: None
) -> None:
    """Write a trace directory; the rank is killed after some polls, and acts before each."""
    numbers = itertools.count()

    def wait(seconds: float) -> bool:
        number = next(numbers)
        if number == polls:
            raise KeyboardInterrupt
        act(number)
        time.sleep(0.03)
        return False

    with pytest.raises(KeyboardInterrupt):
        TraceDirectory(directory, open_s=0.0).run(rank.source, wait)
    assert assemble(directory) == 1


def receive(source: SocketSource, most: int = 1_000) -> list[Record]:
    return gather(lambda: source.poll(most), lambda _: source.is_exhausted)


def test_the_last_rank_to_end_puts_the_trace_directory_together(tmp_path: Path) -> None:
    for number in (1, 0):
        assert not (tmp_path / "job.json").exists()
        rank = Rank(number)
        rank.train(ITERATIONS)
        rank.operate(ITERATIONS, is_ended=number == 0)
        TraceDirectory(tmp_path).run(rank.source, ended)
    trace = read_trace(tmp_path)
    assert (trace.rejected.count, trace.copies, trace.clock) == (0, 0, "shared")
    assert {rank: len(batch) for rank, batch in trace.commops.items()} == {0: ITERATIONS + 1, 1: ITERATIONS + 1}
    assert trace.iterations[0].columns["iteration"].tolist() == list(range(ITERATIONS))
    assert [one.lost_rows for one in trace.announcements] == [0, 0]
    assert not (tmp_path / PARTS).exists()


def test_what_a_killed_rank_left_half_written_is_assembled_by_hand(tmp_path: Path) -> None:
    rank = Rank(0)
    rank.train(ITERATIONS)
    TraceDirectory(tmp_path).run(rank.source, ended)
    (part,) = (tmp_path / PARTS).iterdir()
    part.write_bytes(part.read_bytes()[:-3])
    command = [sys.executable, "-m", "irregulars.producers.torch_hook.trace_parts", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path}: 1 rank\n", "")
    assert len(read_trace(tmp_path).commops[0]) == ITERATIONS


@pytest.mark.parametrize("goes_on", [False, True])
def test_of_a_killed_rank_it_is_known_in_which_operator_it_hung(tmp_path: Path, goes_on: bool) -> None:
    rank = Rank(0)
    rank.train(ITERATIONS)
    rank.operate(ITERATIONS, is_ended=False)

    def go_on(poll: int) -> None:
        if poll == 2 and goes_on:
            rank.hook.ring.finish(ITERATIONS, time.monotonic_ns())

    write_until_killed(rank, tmp_path, 4, go_on)
    columns = read_trace(tmp_path).commops[0].columns
    assert columns["sequence"].tolist() == list(range(1, ITERATIONS + 2))
    assert np.isnan(columns["elapsed_ns"]).tolist() == [False] * ITERATIONS + [not goes_on]


def test_damaged_parts_are_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / PARTS).mkdir()
    (tmp_path / PARTS / "attempt-0-rank-0.frames").write_bytes(b"nothing of ours")
    with pytest.raises(InputError, match=r"rank-0\.frames: frame must be one of ours; got kind b'n'"):
        assemble(tmp_path)


@pytest.mark.parametrize("is_killed", [False, True])
def test_rows_dropped_by_a_full_ring_are_counted_in_the_trace(tmp_path: Path, is_killed: bool) -> None:
    rank = Rank(0, world_size=1)
    rank.train(1)
    for _ in range(100):
        rank.operate(0)
    if is_killed:
        write_until_killed(rank, tmp_path, 2)
    else:
        TraceDirectory(tmp_path).run(rank.source, ended)
    (announced,) = read_trace(tmp_path).announcements
    assert announced.lost_rows == 101 - 64


def test_the_agent_receives_what_each_rank_sends(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    source = SocketSource(path, ranks=2)
    assert path.stat().st_mode & 0o777 == 0o600
    threads = []
    for number in range(2):
        rank = Rank(number)
        rank.train(ITERATIONS)
        exporter = AgentSocket(path, lambda error: pytest.fail(str(error)))
        threads.append(threading.Thread(target=exporter.run, args=(rank.source, ended)))
        threads[-1].start()
    received = receive(source, most=3)
    for thread in threads:
        thread.join(DEADLINE_S)
    source.close()
    source.close()
    announced = [one.rank for one in received if isinstance(one, Announcement)]
    assert sorted(announced) == [0, 1]
    rows = {(schema, rank): 0 for schema in ("commops", "iterations") for rank in range(2)}
    for batch in (one for one in received if isinstance(one, Batch)):
        assert batch.header.rows_before == rows[batch.header.schema, batch.header.rank]
        rows[batch.header.schema, batch.header.rank] += len(batch)
    assert set(rows.values()) == {ITERATIONS}
    ends = [one for one in received if isinstance(one, Heartbeat)]
    assert sorted((one.rank, one.state) for one in ends) == [(0, "ended"), (1, "ended")]
    assert not path.exists()


def test_the_agent_hears_what_was_lost_before_the_end(tmp_path: Path) -> None:
    path, rank = tmp_path / "agent.sock", Rank(0)
    source = SocketSource(path, ranks=1)
    for _ in range(100):
        rank.operate(0)
    AgentSocket(path, lambda error: pytest.fail(str(error))).run(rank.source, ended)
    told = [one for one in receive(source) if isinstance(one, Heartbeat)]
    source.close()
    assert [(one.state, one.reason) for one in told] == [("running", None), ("ended", "finished")]
    assert [one.sources["commops"].lost_rows for one in told] == [36, 36]


def test_a_rank_finds_an_agent_that_was_restarted(tmp_path: Path) -> None:
    path, rank, stopping, troubles = tmp_path / "agent.sock", Rank(0), threading.Event(), []
    first = SocketSource(path)
    rank.train(1)
    sender = threading.Thread(target=AgentSocket(path, troubles.append).run, args=(rank.source, stopping.wait))
    sender.start()
    gather(lambda: first.poll(100), lambda found: any(isinstance(one, Batch) for one in found))
    first.close()
    second = SocketSource(path, ranks=1)

    def is_troubled() -> bool:
        rank.train(1)
        return bool(troubles)

    wait_for(is_troubled)
    stopping.set()
    received = receive(second)
    sender.join(DEADLINE_S)
    second.close()
    assert isinstance(received[0], Announcement)


def test_parts_of_foreign_names_are_left_alone_and_a_misspelt_directory_is_not_made(tmp_path: Path) -> None:
    rank = Rank(0)
    rank.train(ITERATIONS)
    TraceDirectory(tmp_path).run(rank.source, ended)
    (tmp_path / PARTS / "attempt-x-rank-0.frames").write_bytes(b"")
    assert assemble(tmp_path) == 1
    with pytest.raises(InputError, match=r"nowhere/parts: must hold parts written by torch_comms; got none"):
        assemble(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_broker_that_stays_away_leaves_no_threads_of_clients_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporters, "_BROKER_WAIT_S", 0.1)
    rank, threads = Rank(0), []

    def wait(seconds: float) -> bool:
        if seconds:  # between two tries
            threads.append(len(list(Path("/proc/self/task").iterdir())))
        return len(threads) == 8

    kafka = Kafka("127.0.0.1:1", TopicSettings(), lambda error: None)
    kafka.run(rank.source, wait)
    # Each client has several threads; other tests of this process may begin one meanwhile.
    assert threads[-1] - threads[0] < len(threads) - 1, threads
    assert kafka.delivered_rows == 0
