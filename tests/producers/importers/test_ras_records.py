"""Saved RAS answers: a hang is found in two of them, and in none of a job that goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from irregulars.errors import InputError
from irregulars.infra.runs.analysis import analyze
from irregulars.messages.judgements import Verdict
from irregulars.producers.importers.importing import import_trace
from irregulars.producers.importers.ras_records import NOTE_MOVING
from irregulars.producers.trace.directory import read_trace
from tests.producers.importers.played_server import PlayedJob


def judged(folder: Path) -> list[Verdict]:
    import_trace("nccl-ras", folder, folder / "out", "saved")
    return analyze(read_trace(folder / "out")).verdicts


def at(job: PlayedJob, second: int) -> bytes:
    return job.answer().replace(b"06:56:24", b"06:56:%02d" % second)


def hanging() -> PlayedJob:
    job = PlayedJob()
    job.step(7)
    job.launch(job.world, "AllGather", but=[1])
    return job


def test_a_hang_is_found_in_files_whatever_their_names(tmp_path: Path) -> None:
    job = hanging()
    (tmp_path / "c").write_bytes(at(job, 20))
    job.launch("0x4e0104c2022fa2f9")
    (tmp_path / "b").write_bytes(at(job, 30))
    (tmp_path / "a").write_bytes(at(job, 40))
    (verdict,) = judged(tmp_path)
    assert (verdict.kind, verdict.suspects[0].ranks, verdict.suspects[0].host) == ("hang", (1,), "127.0.0.1")
    assert (verdict.suspects[0].gpu, verdict.communicator) == (1, job.world)


def test_a_hang_is_found_in_one_file_with_several_answers(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(at(hanging(), 10) + b"\n" + at(hanging(), 20))
    (verdict,) = judged(tmp_path)
    assert verdict.evidence.startswith("3 ranks wait")


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
    with pytest.raises(
        InputError, match="must be at least two, some seconds apart" if count else "must not be empty"
    ):
        import_trace("nccl-ras", tmp_path, tmp_path / "out")


def test_answers_without_a_communicator_of_all_ranks_are_refused(tmp_path: Path) -> None:
    job = hanging()
    job.gone = {1: True}
    told = job.answer().replace(b'"10.0.0.2"', b'"unknown"')
    (tmp_path / "a").write_bytes(told + told)
    with pytest.raises(InputError, match="must tell of a communicator of all ranks; got none of 4"):
        import_trace("nccl-ras", tmp_path, tmp_path / "out")
