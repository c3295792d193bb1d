"""Recorded jobs as a worker would have stored them: judged once, in this process, as rows of the tables."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from irregulars.infra.runs.analysis import judge_whole
from irregulars.producers.trace.directory import read_trace
from irregulars.sinks.protocol import Rows
from irregulars.sinks.tables import table_of_samples, tables_of
from irregulars.streams.local_pipeline import LocalPipeline

RECORDINGS: Final = Path(__file__).resolve().parents[1] / "recordings"


@cache
def rows_of_recording(name: str) -> Rows:
    """Return what a worker would have stored of a recording, its announcements and samples included."""
    trace = read_trace(RECORDINGS / name)
    judgements = judge_whole(LocalPipeline(trace.job), trace)
    judgements = replace(judgements, announcements=list(trace.announcements))
    samples = list(trace.batches("bandwidth").values())
    return {**tables_of(judgements), **({"bandwidth": table_of_samples(samples)} if samples else {})}
