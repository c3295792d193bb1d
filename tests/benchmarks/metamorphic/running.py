"""Runs jobs under changes, each job in one of a few processes."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from irregulars.settings import JudgeSettings
from tests.benchmarks.metamorphic.changed import Delivery
from tests.benchmarks.metamorphic.check import Check, Outcome
from tests.benchmarks.metamorphic.jobs import JOBS, simulate
from tests.benchmarks.metamorphic.judged import Charge
from tests.benchmarks.metamorphic.recording import Recording, read_recording

RECORDINGS: Final = Path(__file__).parents[2] / "recordings"


@dataclass(frozen=True, slots=True)
class Checked:
    """One job under all changes."""

    job: str
    charges: Sequence[Charge]
    outcomes: Sequence[Outcome]
    took_s: float


def run_all(
    jobs: Sequence[str], changes: Sequence[str], seed: int, is_streamed: bool, processes: int
) -> Iterator[Checked]:
    """Yield jobs as they are done."""
    context = multiprocessing.get_context("spawn")  # a forked process would share the parent's threads
    with ProcessPoolExecutor(processes, context) as pool:
        futures = [pool.submit(check, job, changes, seed, is_streamed) for job in jobs]
        for future in as_completed(futures):
            yield future.result()


def check(job: str, changes: Sequence[str], seed: int, is_streamed: bool) -> Checked:
    """Judge one job under changes."""
    began_s = time.monotonic()
    run = Check(recording_of(job), JudgeSettings(), seed=seed, delivery=Delivery() if is_streamed else None)
    outcomes = list(run.run(changes))
    return Checked(job, run.charges, outcomes, time.monotonic() - began_s)


def recording_of(job: str) -> Recording:
    """Find a recording of ours or a trace directory, or run a simulated job."""
    if job in JOBS:
        with tempfile.TemporaryDirectory() as directory:
            return simulate(job, Path(directory))
    return read_recording(RECORDINGS / job if (RECORDINGS / job).is_dir() else Path(job))
