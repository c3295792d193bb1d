"""Recorded jobs as a worker would have stored them: judged once, in this process, as rows of the tables."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from irregulars.infra.runs.analysis import TraceLog, reduce_ranks
from irregulars.producers.trace.directory import read_trace
from irregulars.sinks.protocol import Rows
from irregulars.sinks.tables import table_of_samples, tables_of
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.monitor_settings import MonitorSettings

RECORDINGS: Final = Path(__file__).resolve().parents[1] / "recordings"


@cache
def rows_of_recording(name: str) -> Rows:
    """Return what a worker would have stored of a recording, its announcements and samples included."""
    trace, settings, log = read_trace(RECORDINGS / name), MonitorSettings(), TraceLog()
    monitor = JobMonitor(trace.job, settings)
    monitor.add(reduce_ranks(trace, settings, log))
    judgements = replace(monitor.advance(log.read_back), announcements=list(trace.announcements))
    samples = list(trace.batches("bandwidth").values())
    return {**tables_of(judgements), **({"bandwidth": table_of_samples(samples)} if samples else {})}
