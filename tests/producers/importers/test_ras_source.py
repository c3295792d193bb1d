"""The RAS source: what becomes of successive answers, across restarts of the job and of the agent."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.records import OPERATORS, PHASES, Batch, encode_batch
from irregulars.producers.importers.ras_answers import RasAway, RasClient, read_answer
from irregulars.producers.importers.ras_records import JobRun
from irregulars.producers.importers.ras_source import RasSettings, RasSource, RasWatch, is_this_host
from irregulars.producers.publishing.sources import Record
from tests.producers.importers.played_server import PlayedJob, PlayedServer
from tests.waiting import gather

S = 1_000_000_000
START_NS = 1_790_000_000 * S


class Play:
    """A watch that looks at a played job every ten seconds."""

    def __init__(self, job: PlayedJob, restored: JobRun | None = None, now_ns: int = START_NS) -> None:
        self.job, self.now_ns = job, now_ns
        settings = RasSettings(job="j", world_size=job.world_size)
        self.watch = RasWatch(settings, lambda host: host == "127.0.0.1", restored)

    def look(self, times: int = 1) -> list[Record]:
        records: list[Record] = []
        for _ in range(times):
            self.now_ns += 10 * S
            records += self.watch.hear(read_answer(self.job.answer()), self.now_ns)
        return records

    def miss(self, times: int) -> list[Record]:
        return [record for _ in range(times) for record in self.watch.miss()]


def announced(records: Iterable[Record]) -> list[Announcement]:
    return [one for one in records if isinstance(one, Announcement)]


def batches(records: Iterable[Record], schema: str) -> list[Batch]:
    return [one for one in records if isinstance(one, Batch) and one.header.schema == schema]


def ended(records: Iterable[Record]) -> dict[int, str | None]:
    return {one.rank: one.reason for one in records if isinstance(one, Heartbeat) and one.state == "ended"}


def operators(records: Iterable[Record]) -> list[tuple[int, str, str, int, bool]]:
    """Rank, communicator, operator, sequence, and whether it has ended."""
    found = []
    for one in batches(records, "commops"):
        encode_batch(one)
        columns = one.columns
        for at in range(len(one)):
            name = one.header.names[columns["communicator"][at]]
            operator = OPERATORS[columns["operator"][at]]
            is_ended = bool(np.isfinite(columns["elapsed_ns"][at]))
            found.append((one.header.rank, name, operator, int(columns["sequence"][at]), is_ended))
    return found


def hanging() -> tuple[Play, list[Record]]:
    """A job in which rank 2 stops, and what is published until that was told."""
    job = PlayedJob()
    play = Play(job)
    play.look()
    for _ in range(3):
        job.step()
        play.look()
    job.launch(job.world, but=[2])
    records = play.look(4)
    return play, records


def test_all_ranks_are_announced_with_their_places() -> None:
    found = announced(Play(PlayedJob()).look())
    assert [(one.rank, one.host, one.gpu) for one in found] == [
        (0, "127.0.0.1", 0), (1, "127.0.0.1", 1), (2, "10.0.0.2", 0), (3, "10.0.0.2", 1),
    ]  # fmt: skip
    assert {one.attempt for one in found} == {START_NS // S + 10}
    assert [one.kind for one in found[0].communicators] == ["unknown", "world"]
    assert {one.lost_rows for one in found} == {0}


def test_a_healthy_job_is_observed_and_nothing_told() -> None:
    job = PlayedJob()
    play = Play(job)
    play.look()
    records = []
    for _ in range(3):
        job.step()
        records += play.look()
    rows = batches(records, "iterations")
    found = [(one.columns["iteration"][0], one.header.rank) for one in rows]
    assert found == [*itertools.product(range(3), range(4))]
    assert {PHASES[one.columns["phase"][0]] for one in rows} == {"observed"}
    assert operators(records) == []


def test_a_hang_is_told_once_and_a_pause_taken_back_before_the_job_goes_on() -> None:
    play, records = hanging()
    world = play.job.world
    assert operators(records) == [(rank, world, "all_reduce", 4, False) for rank in (0, 1, 3)]
    assert play.look(20) == []
    play.job.launch(world, but=[0, 1, 3])  # rank 2 comes at last
    records = play.look()
    assert operators(records) == [(rank, world, "all_reduce", 4, True) for rank in (0, 1, 3)]
    (told, *_), (observed, *_) = (batches(records, schema) for schema in ("commops", "iterations"))
    assert told.columns["iteration"][0] == observed.columns["iteration"][0] - 1
    assert told.header.rows_before == 1


@pytest.mark.parametrize(("stands_for", "is_hang"), [(4, False), (40, True)])
def test_a_job_that_ends_while_it_stands_hung_only_if_that_lasted(stands_for: int, is_hang: bool) -> None:
    play, _ = hanging()
    play.look(stands_for)
    records = play.miss(5)
    assert [is_ended for *_, is_ended in operators(records)] == ([] if is_hang else [True] * 3)
    assert ended(records) == dict.fromkeys(range(4), "finished")
    assert play.watch.run is None


def test_a_moment_without_answer_is_no_end() -> None:
    play, _ = hanging()
    assert play.miss(3) == []
    play.job.step()
    assert batches(play.look(), "iterations")


def test_a_restarted_job_is_a_later_attempt() -> None:
    play, _ = hanging()
    before = play.watch.run
    assert before is not None
    play.job.restart()
    records = play.look()
    assert ended(records) == dict.fromkeys(range(4), "restarted")
    assert {one.attempt for one in announced(records)} == {play.now_ns // S}
    assert before.attempt < play.now_ns // S


def test_a_communicator_that_was_made_later_is_announced_before_a_hang_on_it_is_told() -> None:
    job = PlayedJob()
    play = Play(job)
    play.look()
    job.groups["0x77"] = (1, 3)
    job.step(2)
    play.look()
    job.launch("0x77", but=[3])
    records = play.look(4)
    later = announced(records)
    assert "0x77" in {one.id for one in later[1].communicators}
    assert {one.attempt for one in later} == {play.now_ns // S}
    assert ended(records) == dict.fromkeys(range(4), "restarted")
    assert operators(records) == [(1, "0x77", "all_reduce", 3, False)]
    assert batches(records, "commops")[0].header.attempt == play.now_ns // S


def test_an_agent_that_restarts_goes_on_with_the_same_run() -> None:
    play, _ = hanging()
    run = play.watch.run
    assert run is not None
    later = Play(play.job, msgspec.json.decode(run.encode(), type=JobRun), play.now_ns)
    records = later.look()
    assert {one.attempt for one in announced(records)} == {run.attempt}
    play.job.launch(play.job.world, but=[0, 1, 3])
    records = later.look()
    assert [is_ended for *_, is_ended in operators(records)] == [True] * 3
    assert {one.header.rows_before for one in batches(records, "iterations")} == {run.observed}


def test_a_job_is_spoken_for_beside_rank_0_alone_and_with_a_communicator_of_all_ranks() -> None:
    job = PlayedJob(hosts=("10.0.0.2", "127.0.0.1"))
    assert Play(job).look(3) == []
    job = PlayedJob()
    del job.groups[job.world]
    assert Play(job).look(3) == []
    assert is_this_host("127.0.0.1")
    assert not any(is_this_host(address) for address in ("192.0.2.7", "2001:db8::7", "", "x y", "no.such.invalid"))


# --- the thread -----------------------------------------------------------------------------------------------------


def take(source: RasSource, wanted: Callable[[list[Record]], bool]) -> list[Record]:
    return gather(lambda: source.poll(3), wanted)


def open_source(server: PlayedServer, folder: Path, standing_s: float = 0.2, within_s: float = 1.0) -> RasSource:
    settings = RasSettings(job="j", world_size=4, every_s=0.05, standing_s=standing_s)
    client = RasClient("127.0.0.1", server.port, within_s)
    return RasSource(client.ask, settings, is_ours=is_this_host, state_path=folder / "state")


def test_a_hang_reaches_whoever_polls(tmp_path: Path) -> None:
    job = PlayedJob()
    with PlayedServer(job) as server:
        source = open_source(server, tmp_path)
        try:
            take(source, lambda records: len(announced(records)) == 4)
            job.step()
            job.launch(job.world, but=[1])
            found = take(source, lambda records: bool(operators(records)))
            assert operators(found)[0] == (0, job.world, "all_reduce", 2, False)
            assert json.loads(source.position())["told"]
            assert not source.is_exhausted
        finally:
            source.close()
        source.close()
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0


def test_polling_does_not_wait_for_an_answer(tmp_path: Path) -> None:
    with PlayedServer(PlayedJob()) as server:
        may_answer, has_answered = threading.Event(), threading.Event()

        def send_late(*_: object) -> None:
            may_answer.wait(60)
            has_answered.set()

        server.sends = send_late
        source = open_source(server, tmp_path, within_s=120.0)
        try:
            assert source.poll(10) == []
            assert not has_answered.is_set()
        finally:
            may_answer.set()
            source.close()


def test_garbage_is_named_once_and_the_source_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    faults = RasAway("x:1: refused"), ValueError("a fault of ours")
    answers = iter([b"{", b"{", b"what?", *faults, PlayedJob().answer()])

    def ask() -> bytes:
        one = next(answers, PlayedJob().answer())
        if isinstance(one, Exception):
            raise one
        return one

    with caplog.at_level("INFO", "irregulars.ras"):
        source = RasSource(ask, RasSettings(job="j", world_size=4, every_s=0.01), is_ours=is_this_host)
        take(source, lambda records: len(announced(records)) == 4)
        source.close()
    events = [record.getMessage().split()[0] for record in caplog.records]
    wanted = ["ras_unusable", "ras_unusable", "ras_away", "ras_failed", "ras_job_found"]
    assert events == [f"event={name}" for name in wanted]


@pytest.mark.parametrize("state", [b"\xff{", b'{"world": 3}', b'{"world": "w", "members": 7}', b'{"told": [[1]]}'])
def test_a_damaged_state_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture, state: bytes) -> None:
    (tmp_path / "state").write_bytes(state)
    settings, path = RasSettings(job="j", world_size=4), tmp_path / "state"
    source = RasSource(PlayedJob().answer, settings, is_ours=is_this_host, state_path=path)
    take(source, lambda records: len(announced(records)) == 4)
    source.close()
    assert "event=ras_state_unusable" in caplog.text
