"""Frames and truth of a job: a trace directory with a ``label.json``, or judgements in ClickHouse."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from irregulars.detectors.job.topology import topology_of
from irregulars.detectors.plugins.protocol import Level
from irregulars.dtypes import Column
from irregulars.errors import InputError
from irregulars.infra.backtesting.frames import FrameTap, JobFrames, TaughtFrame
from irregulars.infra.backtesting.scoring import Fault
from irregulars.infra.runs.analysis import judge_whole, take_rank
from irregulars.messages.announcements import Announcement, Communicator
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.iterations import number_iterations
from irregulars.settings import JudgeSettings
from irregulars.streams.local_pipeline import LocalPipeline

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client


LABEL = "label.json"


def read_recording(directory: Path, level: Level, settings: JudgeSettings) -> JobFrames:
    """Read a recording and let the monitors make its frames.

    `settings`: δ, window and the like, by which iterations are irregular: detectors of ranks are not taught those.
    Raises `InputError` if the recording can't be read, or has no usable label.
    """
    faults = read_faults(directory)
    trace = number_iterations(read_trace(directory)).trace
    settings = replace(settings, operator_detectors=(), rank_detectors=(), fills_columns=False)
    if level == "rank":
        tap = FrameTap("rank")
        judge_whole(LocalPipeline(trace.job, replace(settings, rank_detectors=(lambda: tap,))), trace)
        return JobFrames(directory.name, faults, (tap.frames,), (None,))
    taps = {one.rank: _operator_tap(trace, one, settings) for one in trace.announcements}
    return JobFrames(directory.name, faults, tuple(tap.frames for tap in taps.values()), tuple(taps))


def find_recordings(paths: list[Path]) -> list[Path]:
    """Return trace directories: those named, and those below folders that are none.

    Raises `InputError` if there is none.
    """
    found: list[Path] = []
    for path in paths:
        if not os.path.isdir(path):
            raise InputError(f"recording must be a folder; got none ({path})")
        own = [path] if (path / "job.json").exists() else sorted(one.parent for one in path.rglob("job.json"))
        if not own:
            raise InputError(f"folder must hold recordings, each with a job.json; got none ({path})")
        found += own
    return list(dict.fromkeys(found))


def read_faults(directory: Path) -> tuple[Fault, ...]:
    """Read the true faults of a job; empty where no device is at fault.

    Raises `InputError` if there is no label, or it can't be used.
    """
    path = directory / LABEL
    try:
        label = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"recording must have its truth in {LABEL}; got none ({directory})") from error
    except ValueError as error:
        raise InputError(f"{LABEL} must be JSON; got {error} ({path})") from error
    try:
        labels = [label, *label.get("faults", [])[1:]]  # a simulated job may have several faults
        return tuple(_fault(one) for one in labels if one["ranks"] and one["kind"] != "none")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{LABEL} must be an object with kind, ranks and iterations; got {type(error).__name__}: {error} ({path})"
        ) from error


def _fault(label: dict[str, Any]) -> Fault:
    spans = label.get("spans") or [label["iterations"]]
    return Fault(tuple(int(rank) for rank in label["ranks"]), tuple((int(first), int(past)) for first, past in spans))


def _operator_tap(trace: Trace, announcement: Announcement, settings: JudgeSettings) -> FrameTap:
    tap = FrameTap("operator")
    pipeline = LocalPipeline(trace.job, replace(settings, operator_detectors=(lambda: tap,)))
    take_rank(pipeline, trace, announcement)
    pipeline.reduce()
    return tap


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
    ``communication_ns`` and ``tokens``, which are NaN. The truth is the judgement of Irregulars: first suspects of
    verdicts in their iterations. Where it was wrong, a detector that is right counts as wrong. Raises `InputError` if
    there is no such job.
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
    found = []
    for rank, names, _ in rows:
        own = tuple(Communicator(name, kinds[name], members[name]) for name in names)
        one = Announcement(
            job=job, attempt=0, rank=int(rank), world_size=len(rows), logged_ranks=len(rows), communicators=own
        )
        found.append(one)
    return found
