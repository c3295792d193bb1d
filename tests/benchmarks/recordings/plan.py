"""The recordings of the set."""

from __future__ import annotations

from tests.benchmarks.recordings.faults import SlowNic
from tests.benchmarks.recordings.job_shape import JobShape
from tests.benchmarks.recordings.layout import Layout
from tests.benchmarks.recordings.recording import Recording

DDP8 = JobShape("ddp", dp=8)


def plan() -> list[Recording]:
    """All recordings, in the order in which they are made."""
    return [Recording("ddp8-nic-send", DDP8, Layout(8, 2, 1), (SlowNic(((40, 60),), rank=3, direction="send", mbit=150),))]
