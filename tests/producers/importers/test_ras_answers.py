"""RAS answers: what is read of them, the one that NCCL 2.28.9 breaks, and what nobody honest sends."""

from __future__ import annotations

import json

import pytest

from irregulars.errors import InputError
from irregulars.messages.records import OPERATOR_CODES
from irregulars.producers.importers.ras_answers import MAX_ANSWER_BYTES, MOST_MEMBERS, Worker, read_answer
from tests.producers.importers.played_server import PlayedJob


def test_ranks_counts_and_states_are_read() -> None:
    job = PlayedJob()
    job.launch(job.world, "AllGather", 3)
    job.launch(job.world, "AllReduce", 2, but=[1])
    job.statuses[2] = {"finalize_called": True}
    answer = read_answer(job.answer())
    world = answer.communicators[0]
    assert (answer.version, answer.told, answer.unusable) == ("2.29.1", "2026-06-19 06:56:24", 0)
    assert (world.id, world.size, world.is_settled) == (job.world, 4, False)
    assert {rank: one.total for rank, one in world.answered.items()} == {0: 5, 1: 3, 2: 5, 3: 5}
    assert world.answered[1].launched[OPERATOR_CODES["all_gather"]] == 3
    assert [one.is_running for one in world.answered.values()] == [True, True, False, True]
    assert world.workers[3] == Worker("10.0.0.2", 1003, 1)


@pytest.mark.parametrize("version", ["2.28.9", "2.29.1"])
def test_a_missing_rank_is_read_although_2_28_9_forgets_a_comma(version: str) -> None:
    job = PlayedJob(version=version)
    job.gone = {1: False, 2: True}
    job.absent = {(job.world, 3)}
    value = job.answer()
    if version == "2.28.9":
        with pytest.raises(ValueError, match="delimiter"):
            json.loads(value)
    world = read_answer(value).communicators[0]
    assert sorted(world.answered) == [0]
    assert {rank: one.is_gone for rank, one in world.missing.items()} == {1: True, 2: True, 3: False}
    assert world.missing[1].worker.pid == 1001


def test_sends_are_not_counted_and_communicators_of_one_hash_told_apart() -> None:
    job = PlayedJob()
    job.launch(job.world, "AllReduce", 2)
    job.launch(job.world, "Send", 7)
    job.launch(job.world, "SendRecv", 7)
    job.launch(job.world, "Whatever", 7)
    assert read_answer(job.answer()).communicators[0].answered[0].total == 2
    told = json.loads(PlayedJob().answer())
    told["communicators"][1] |= {"hash": told["communicators"][0]["hash"], "secondary_hash": "0x1:0x2"}
    assert len({one.id for one in read_answer(json.dumps(told).encode()).communicators}) == 3


@pytest.mark.parametrize(("value", "found"), [
    (b"NCCL version 2.26.2 compiled with CUDA 12.6\n", "since 2.28.7"), (b"", "since 2.28.7"),
    (PlayedJob().answer()[:900], "must be complete JSON"), (b"{}", "list of communicators"),
    (b'{"communicators": {}}', "list of communicators"), (b"[" * 100_000, "since 2.28.7"),
    (b'{"a": ' + b"[" * 100_000, "must be complete JSON"),
])  # fmt: skip
def test_what_is_no_answer_is_refused(value: bytes, found: str) -> None:
    with pytest.raises(InputError, match=found):
        read_answer(value)


def test_more_ranks_than_any_job_has_are_refused() -> None:
    many = {"communicators": [{"ranks": [0] * (MOST_MEMBERS + 1)}]}
    with pytest.raises(InputError, match="at most 262144 ranks"):
        read_answer(json.dumps(many).encode())


@pytest.mark.parametrize(
    ("part", "count"), [(b"{}", 5 << 18), (b"[]", 5 << 18), (b'{"a":{"b":1}}', 5 << 17), (b"0", 5 << 20)]
)
def test_an_answer_of_nothing_but_tiny_parts_is_refused_before_it_is_read(part: bytes, count: int) -> None:
    value = b'{"communicators": [], "x": [' + b",".join([part] * count) + b"]}"
    assert len(value) < MAX_ANSWER_BYTES
    with pytest.raises(InputError, match="at most"):
        read_answer(value)
