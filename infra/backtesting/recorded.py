"""Frames and truth of a recorded or simulated job: a trace directory with a ``label.json``."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from irregulars.detectors.plugins.protocol import Level
from irregulars.errors import InputError
from irregulars.infra.backtesting.frames import FrameTap, JobFrames
from irregulars.infra.backtesting.scoring import Fault
from irregulars.infra.runs.analysis import judge_whole, take_rank
from irregulars.messages.announcements import Announcement
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.iterations import number_iterations
from irregulars.streams.local_pipeline import LocalPipeline
from irregulars.streams.monitor_settings import MonitorSettings

LABEL = "label.json"


def read_recording(directory: Path, level: Level, settings: MonitorSettings) -> JobFrames:
    """Read a recording and let the monitors make its frames.

    Parameters
    ----------
    settings
        δ, window and the like, by which iterations are irregular: detectors of ranks are not taught those.

    Raises
    ------
    InputError
        If the recording can't be read, or has no usable label.
    """
    faults = read_faults(directory)
    trace = number_iterations(read_trace(directory)).trace
    settings = replace(settings, operator_detectors=(), rank_detectors=(), fills_columns=False)
    if level == "rank":
        tap = _rank_tap(trace, settings)
        return JobFrames(directory.name, faults, (tap.frames,), (None,))
    taps = {one.rank: _operator_tap(trace, one, settings) for one in trace.announcements}
    return JobFrames(directory.name, faults, tuple(tap.frames for tap in taps.values()), tuple(taps))


def find_recordings(paths: list[Path]) -> list[Path]:
    """Return trace directories: those named, and those below folders that are none.

    Raises
    ------
    InputError
        If there is none.
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
    """Read what is true of a job; empty where nobody is at fault.

    Raises
    ------
    InputError
        If there is no label, or it can't be used.
    """
    path = directory / LABEL
    try:
        label = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"recording must have its truth in {LABEL}; got none ({directory})") from error
    except ValueError as error:
        raise InputError(f"{LABEL} must be JSON; got {error} ({path})") from error
    try:
        return tuple(_fault(one) for one in _labels(label) if one["ranks"] and one["kind"] != "none")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{LABEL} must be an object with kind, ranks and iterations; got {type(error).__name__}: {error} ({path})"
        ) from error


def _labels(label: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the labels of all faults: a simulated job may have several."""
    return [label, *label.get("faults", [])[1:]]


def _fault(label: dict[str, Any]) -> Fault:
    spans = label.get("spans") or [label["iterations"]]
    return Fault(tuple(int(rank) for rank in label["ranks"]), tuple((int(first), int(past)) for first, past in spans))


def _rank_tap(trace: Trace, settings: MonitorSettings) -> FrameTap:
    tap = FrameTap("rank")
    judge_whole(LocalPipeline(trace.job, replace(settings, rank_detectors=(lambda: tap,))), trace)
    return tap


def _operator_tap(trace: Trace, announcement: Announcement, settings: MonitorSettings) -> FrameTap:
    tap = FrameTap("operator")
    pipeline = LocalPipeline(trace.job, replace(settings, operator_detectors=(lambda: tap,)))
    take_rank(pipeline, trace, announcement)
    pipeline.reduce()
    return tap
