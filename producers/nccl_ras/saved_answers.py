"""Make a job of saved RAS answers: who has not launched what others wait in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from irregulars.errors import InputError
from irregulars.producers.foreign_files.imported import ImportedJob, Place, RankRows
from irregulars.producers.nccl_ras.answers import Answer, read_answer
from irregulars.producers.nccl_ras.records import ENDED_NS, communicators_of
from irregulars.producers.nccl_ras.standstill import StandstillWatch, find_world

ITERATION: Final = 0
"""Answers know no iterations: what they show counts as one."""

_BORDER: Final = re.compile(rb"(?<=\n\})\s*(?=\{)")

NOTE_COUNTS: Final = "RAS counts collectives that were launched, and no sends and recvs: use it for hangs alone"
NOTE_MOVING: Final = "between the last two answers the job went on: nobody stands still"


def split_answers(value: bytes) -> list[Answer]:
    """Read the answers of one file, which stand behind each other as ``ncclras -f json >> FILE`` leaves them."""
    return [read_answer(part) for part in _BORDER.split(value)]


def job_of_answers(answers: Sequence[Answer], job: str) -> ImportedJob:
    """Compare answers about one run of a job, in the order of the times that they tell.

    Raises
    ------
    InputError
        If they are fewer than two, or none tells of a communicator of all ranks.
    """
    ordered = sorted(answers, key=lambda answer: answer.told)
    if len(ordered) < 2:
        raise InputError(
            f"RAS answers must be at least two, some seconds apart; got {len(ordered)} "
            "(one alone can't tell a rank that is a moment late from one that never comes)"
        )
    world_size = max((one.size for answer in ordered for one in answer.communicators), default=0)
    worlds = [find_world(answer, world_size) for answer in ordered]
    world = next((one for one in worlds if one is not None), None)
    if world is None:
        text = f"got none of {world_size} ranks whose processes are known"
        raise InputError(f"RAS answers must tell of a communicator of all ranks; {text}")
    watch = StandstillWatch({worker: rank for rank, worker in world.workers.items()})
    for second, answer in enumerate(ordered, 1):
        watch.hear(answer, second)
    is_standing = watch.still_ns > 0
    ranks = {rank: RankRows() for rank in world.workers}
    for name, members in watch.members.items() if not is_standing else ():
        for rank in members:
            ranks[rank].add(name, 0, 0, elapsed_ns=ENDED_NS, iteration=ITERATION)
    for one in watch.find_open() if is_standing else ():
        ranks[one.rank].add(one.communicator, one.operator, one.sequence, iteration=ITERATION)
    unusable = sum(answer.unusable for answer in ordered)
    return ImportedJob(
        job=job,
        world_size=world_size,
        clock="per_host",
        communicators={one.id: one for one in communicators_of(watch.members, world_size)},
        ranks=ranks,
        places={
            rank: Place(worker.host, worker.gpu if worker.gpu >= 0 else None, lost_rows=0)
            for rank, worker in world.workers.items()
        },
        notes=(NOTE_COUNTS,) if is_standing else (NOTE_COUNTS, NOTE_MOVING),
        skipped={"communicators that make no sense": unusable} if unusable else {},
    )
