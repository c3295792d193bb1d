"""Frames of a job whose judgements are in ClickHouse, and its verdicts as truth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from irregulars.detectors.job.topology import topology_of
from irregulars.dtypes import Column
from irregulars.errors import InputError
from irregulars.infra.backtesting.frames import JobFrames, TaughtFrame
from irregulars.infra.backtesting.scoring import Fault
from irregulars.messages.announcements import Announcement, Communicator

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_ATTEMPT: Final = "SELECT max(attempt) FROM iterations WHERE job = {job:String}"
_ROWS: Final = f"""
    SELECT rank, iteration, elapsed_ns, work_ns, operators, is_irregular
    FROM rank_iterations AS own FINAL
    INNER JOIN (
        SELECT iteration, is_irregular FROM iterations FINAL
        WHERE job = {{job:String}} AND attempt = ({_ATTEMPT}) AND phase IN ('train', 'unknown', '')
    ) AS judged USING (iteration)
    WHERE job = {{job:String}} AND attempt = ({_ATTEMPT})
    ORDER BY iteration, rank
"""
_FAULTS: Final = f"""
    SELECT ranks, first_iteration, past_last_iteration
    FROM suspects FINAL
    INNER JOIN (
        SELECT verdict_id, revision, first_iteration, past_last_iteration FROM verdicts FINAL
        WHERE job = {{job:String}} AND attempt = ({_ATTEMPT})
    ) AS newest USING (verdict_id, revision)
    WHERE job = {{job:String}} AND position = 0
"""
_PLACES: Final = f"""
    SELECT rank, communicators, communicator_kinds FROM jobs FINAL
    WHERE job = {{job:String}} AND attempt = ({_ATTEMPT}) ORDER BY rank
"""


def read_stored_job(client: Client, job: str) -> JobFrames:
    """Read the newest attempt of a job: frames of level ``rank``, and its verdicts as truth.

    The database has no operators of regular iterations, so detectors of operators have no frames there; and no
    ``communication_ns`` and ``tokens``, which are NaN. The truth is what Irregulars judged: first suspects of
    verdicts in their iterations. Where it was wrong, a detector that is right counts as wrong.

    Raises
    ------
    InputError
        If there is no such job.
    """
    values = {"job": job}
    rows = client.query(_ROWS, parameters=values).result_rows
    if not rows:
        raise InputError(f"job must have judged iterations in the database; got none of {job!r}")
    faults = tuple(
        Fault(tuple(ranks), ((int(first), int(past)),))
        for ranks, first, past in client.query(_FAULTS, parameters=values).result_rows
    )
    stages = topology_of(_announcements(job, client.query(_PLACES, parameters=values).result_rows), {}).stages
    frames = []
    for _, group in groupby(rows, key=lambda row: row[1]):
        own = list(group)
        frame = _frame(own)
        frame["stage"] = stages(frame["rank"])
        frames.append(TaughtFrame(frame, is_taught=not own[0][5]))
    return JobFrames(job, faults, (frames,), (None,))


def _frame(rows: Sequence[Sequence[Any]]) -> dict[str, Column]:
    rank, iteration, elapsed_ns, work_ns, operators, _ = zip(*rows, strict=True)
    unknown = np.full(len(rows), np.nan)
    return {
        "rank": np.array(rank, dtype=np.int64),
        "iteration": np.array(iteration, dtype=np.int64),
        "elapsed_ns": np.array(elapsed_ns, dtype=np.float64),
        "work_ns": np.array(work_ns, dtype=np.float64),
        "operators": np.array(operators, dtype=np.float64),
        "communication_ns": unknown,
        "tokens": unknown.copy(),
    }


def _announcements(job: str, rows: Sequence[Sequence[Any]]) -> list[Announcement]:
    """Make announcements again: the members of a communicator are the rows that name it."""
    members: dict[str, list[int]] = {}
    kinds: dict[str, str] = {}
    for rank, names, own_kinds in rows:
        for name, kind in zip(names, own_kinds, strict=True):
            members.setdefault(name, []).append(int(rank))
            kinds[name] = kind
    return [_announcement(job, int(rank), names, kinds, members, len(rows)) for rank, names, _ in rows]


def _announcement(
    job: str, rank: int, names: Iterable[str], kinds: Mapping[str, str], members: Mapping[str, list[int]], size: int
) -> Announcement:
    own = tuple(Communicator(name, kinds[name], members[name]) for name in names)
    return Announcement(job=job, attempt=0, rank=rank, world_size=size, logged_ranks=size, communicators=own)
