"""Saved RAS answers: a hang is found in two of them, and in none of a job that goes on."""

from __future__ import annotations

from pathlib import Path
from time import process_time

import pytest

from irregulars.errors import InputError
from irregulars.infra.runs.analysis import analyze
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import OPERATORS, Batch
from irregulars.producers.importers.importing import import_trace
from irregulars.producers.importers.ras_answers import Answer, Answered, RasCommunicator, Worker, read_answer
from irregulars.producers.importers.ras_records import NOTE_MOVING, JobRun, Open, StandstillWatch, find_world
from irregulars.producers.trace.directory import read_trace
from tests.conftest import ROOT
from tests.producers.importers.played_server import PlayedJob


def judged(folder: Path) -> list[Verdict]:
    import_trace("nccl-ras", folder, folder / "out", "saved")
    return analyze(read_trace(folder / "out")).verdicts


def at(job: PlayedJob, second: int) -> bytes:
    return job.answer().replace(b"06:56:24", b"06:56:%02d" % second)


def hanging(rank: int = 1) -> PlayedJob:
    job = PlayedJob()
    job.step(7)
    job.launch(job.world, "AllGather", but=[rank])
    return job


def test_the_page_of_the_agent_tells_the_evidence_of_a_played_job(tmp_path: Path) -> None:
    for second in (10, 20, 30):
        (tmp_path / str(second)).write_bytes(at(hanging(2), second))
    (verdict,) = judged(tmp_path)
    assert f"\n      {verdict.evidence}\n" in (ROOT / "infra/docs/agent.md").read_text()


def test_a_hang_is_found_in_files_whatever_their_names_and_in_one_with_several_answers(tmp_path: Path) -> None:
    job = hanging()
    (tmp_path / "c").write_bytes(at(job, 20))
    job.launch("0x4e0104c2022fa2f9")
    (tmp_path / "b").write_bytes(at(job, 30))
    (tmp_path / "a").write_bytes(at(job, 40))
    (verdict,) = judged(tmp_path)
    assert (verdict.kind, verdict.suspects[0].ranks, verdict.suspects[0].host) == ("hang", (1,), "127.0.0.1")
    assert (verdict.suspects[0].gpu, verdict.communicator) == (1, job.world)
    for name, gone in (("log", {}), ("unknown", {1: True})):  # a rank whose process is not known is named too
        job, folder = hanging(), tmp_path / name
        job.gone = gone
        folder.mkdir()
        told = [at(job, second).replace(b'"10.0.0.2"', b'"unknown"') for second in (10, 20)]
        (folder / "log").write_bytes(b"\n".join(told))
        (verdict,) = judged(folder)
        assert (verdict.kind, verdict.suspects[0].ranks) == ("hang", (1,))
        assert gone or verdict.evidence.startswith("3 ranks wait")


def test_a_job_that_goes_on_keeps_nobody_waiting(tmp_path: Path) -> None:
    job = hanging()
    (tmp_path / "a").write_bytes(at(job, 10))
    job.step()
    (tmp_path / "b").write_bytes(at(job, 20))
    assert judged(tmp_path) == []
    assert NOTE_MOVING in import_trace("nccl-ras", tmp_path, tmp_path.parent / "again").notes


@pytest.mark.parametrize("count", [0, 1])
def test_one_answer_is_not_enough(tmp_path: Path, count: int) -> None:
    (tmp_path / "a").write_bytes(hanging().answer() * count)
    rule = "must be at least two, some seconds apart" if count else "must not be empty"
    with pytest.raises(InputError, match=rule):
        import_trace("nccl-ras", tmp_path, tmp_path / "out")


S = 1_000_000_000


class Told:
    """A watch over a played job, and its clock."""

    def __init__(self, job: PlayedJob) -> None:
        self.job, self.now_ns = job, 0
        world = find_world(read_answer(job.answer()), job.world_size)
        assert world is not None
        self.watch = StandstillWatch({worker: rank for rank, worker in world.workers.items()})
        self.look()

    def look(self, after_s: float = 10.0) -> list[Open]:
        self.now_ns += round(after_s * S)
        self.watch.compare(read_answer(self.job.answer()), self.now_ns)
        return self.watch.find_open()

    @property
    def still_s(self) -> float:
        return self.watch.still_ns / S


def watched(steps: int) -> tuple[PlayedJob, Told]:
    job = PlayedJob()
    job.step(steps)
    return job, Told(job)


def seen(found: list[Open]) -> set[tuple[int, str, str, int]]:
    return {(one.rank, one.communicator, OPERATORS[one.operator], one.sequence) for one in found}


def test_ranks_wait_in_the_first_collective_that_one_has_not_launched() -> None:
    job, told = watched(0)
    job.step(6)
    told.look()
    job.launch(job.world, "AllGather", 1, but=[2])
    job.launch(job.world, "AllReduce", 4, but=[2, 3])  # the host of others ran ahead of its GPU
    wanted = {(rank, job.world, "all_gather", 7) for rank in (0, 1, 3)}
    assert seen(told.look()) == wanted
    assert told.still_s == 0
    assert seen(told.look()) == wanted
    assert told.still_s == 10


def test_a_healthy_job_moves_although_its_ranks_are_never_together() -> None:
    job, told = watched(0)
    for turn in range(5):
        job.step()
        job.launch(job.world, but=[turn % 4])
        told.look()
        assert told.still_s == 0
        job.launch(job.world, times=1, but=[one for one in range(4) if one != turn % 4])


def test_counts_that_fell_prove_no_standstill() -> None:
    job, told = watched(9)
    job.has_no_counts = True
    for _ in range(6):
        told.look()
    assert told.still_s == 0
    job.has_no_counts = False
    told.look()
    assert told.still_s == 70
    assert told.watch.find_open() == []


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_rank_that_is_gone_is_waited_for(is_ahead: bool) -> None:
    job, told = watched(5)
    job.launch(job.world, but=[] if is_ahead else [3])
    told.look()
    job.gone = {3: False}
    waiting = {(rank, job.world, "all_reduce", 6) for rank in (0, 1, 2)}
    assert seen(told.look()) == waiting | {(2, "0xbeebea5449e0a7e7", "all_reduce", 5)}


def test_who_joins_leaves_or_rests_keeps_nobody_waiting() -> None:
    job, told = watched(5)
    job.launch(job.world, but=[1])
    assert told.look()
    for status in ({"init_state": 7}, {"finalize_called": True}, {"destroy_flag": True}, {"abort_flag": True}):
        job.statuses = {1: status}
        assert told.look() == []
    job.statuses = {}
    job.absent = {(job.world, 1)}
    assert told.look() == []
    _, told = watched(9)
    assert told.look() == told.look() == []
    assert told.still_s == 20


def test_a_hang_is_found_beyond_the_numbers_of_32_bits(tmp_path: Path) -> None:
    """A thousand collectives a second are as many in 50 days; the communicator was of no use then."""
    job = PlayedJob()
    job.step(7)
    job.launch(job.world, times=1 << 32)
    job.launch(job.world, "AllGather", but=[1])
    (tmp_path / "log").write_bytes(at(job, 10) + b"\n" + at(job, 20))
    (verdict,) = judged(tmp_path)
    assert (verdict.kind, verdict.suspects[0].ranks) == ("hang", (1,))
    assert "all_gather 8" in verdict.evidence
    told = Told(job)
    found = told.look()
    assert told.watch.find_over(found) == []
    run = JobRun("job", 0, {}, told.watch.members, 1)
    rows = [one for one in run.enter(found, 2) if isinstance(one, Batch)]
    assert {(one.header.rank, *one.columns["sequence"].tolist()) for one in rows} == {(0, 8), (2, 8), (3, 8)}
    job.launch(job.world, "AllGather", but=[0, 2, 3])
    told.look()
    assert told.watch.find_over(found) == found


def test_the_largest_jobs_take_no_square_of_their_ranks() -> None:
    """Each of these three steps compared each rank with each: seconds of every look, which stop the agent."""
    ranks = 20_000
    workers = {rank: Worker(f"h{rank // 8}", rank, rank % 8) for rank in range(ranks)}
    watch = StandstillWatch({worker: rank for rank, worker in workers.items()})
    for count in (4, 5):
        answered = {
            rank: Answered(worker, {0: 4 if rank == 7 else count}, is_running=True, async_error=0)
            for rank, worker in workers.items()
        }
        watch.compare(Answer("2.29.1", "", (RasCommunicator("w", ranks, answered, {}),), 0), count)
    run = JobRun("job", 0, workers, watch.members, 1)
    found = watch.find_open()
    list(run.enter(found, 2))
    for step in (lambda: list(run.announce()), lambda: watch.find_over(run.told), lambda: list(run.leave(found))):
        began_s = process_time()
        step()
        assert process_time() - began_s < 1.0
    assert (len(found), run.told) == (ranks - 1, [])


def test_ranks_wait_on_several_communicators_until_all_have_launched_it_or_it_is_gone() -> None:
    job, told = watched(5)
    first, second = list(job.groups)[1:]
    job.launch(first, but=[1])
    job.launch(second, "ReduceScatter", but=[2])
    assert seen(told.look()) == {(0, first, "all_reduce", 6), (3, second, "reduce_scatter", 6)}
    job, told = watched(5)
    job.launch(job.world, but=[1])
    job.launch("0x4e0104c2022fa2f9", but=[1])
    found = told.look()
    assert told.watch.find_over(found) == []
    job.launch(job.world, but=[0, 2, 3])
    del job.groups["0x4e0104c2022fa2f9"]
    told.look()
    assert told.watch.find_over(found) == found
