"""Runs cases in processes of their own."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from tests.benchmarks.localization.blameless import BlamelessCase, run_blameless
from tests.benchmarks.localization.cases import Case
from tests.benchmarks.localization.heavy import HeavyCase, run_heavy
from tests.benchmarks.localization.running import run_case

AnyCase = Case | BlamelessCase | HeavyCase
Job = tuple[AnyCase, tuple[float, ...]]
"""A case, and each δ that it is judged with."""


def run_job(job: Job) -> tuple[str, dict[str, Any]]:
    """Run one case, of whatever sort; say of which."""
    case, deltas = job
    match case:
        case Case():
            return "cases", run_case(case, deltas)
        case BlamelessCase():
            return "further" if case.is_further else "blameless", run_blameless(case, deltas[0])
        case HeavyCase():
            return "bytes", run_heavy(case, deltas[0])


def run_all(jobs: Sequence[Job], processes: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield rows as they are ready. Jobs that share a healthy run should stand together: each process keeps one.

    Raises
    ------
    BrokenProcessPool
        If a process dies, of want of memory say.
    """
    if processes == 1:
        yield from map(run_job, jobs)
        return
    context = multiprocessing.get_context("spawn")  # a forked process would share the parent's threads
    ignore_interrupt = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(processes, context, signal.signal, ignore_interrupt) as pool:
        futures = [pool.submit(run_job, job) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
