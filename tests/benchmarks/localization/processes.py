"""Runs cases in processes of their own: a few that stay, and for each incident one that goes on where they stand."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.connection import Connection
from typing import Any

from tests.benchmarks.localization.blameless import BlamelessCase, run_blameless
from tests.benchmarks.localization.cases import Case
from tests.benchmarks.localization.running import common_beginning, run_case

AnyCase = Case | BlamelessCase
Job = tuple[AnyCase, float]  # a case, and the δ that it is judged with
Row = dict[str, Any]


def run_job(job: Job) -> tuple[str, Row]:
    """Run one case, of whatever sort; say of which."""
    case, delta = job
    match case:
        case Case():
            common_beginning(case.base, delta)  # here, so that the next case of this healthy run finds it as well
            return "cases", fork(lambda: run_case(case, delta))
        case BlamelessCase():
            return "further" if case.is_further else "blameless", run_blameless(case, delta)


def fork(run: Callable[[], Row]) -> Row:
    """Run something in a copy of this process, which shares its memory as long as it does not write to it.

    Raises
    ------
    Exception
        What it raised.
    RuntimeError
        If it died.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    gc.freeze()  # a collection would write to everything
    child = context.Process(target=_send, args=(run, sender), daemon=True)
    child.start()
    sender.close()
    try:
        found = receiver.recv()
    except EOFError:
        raise RuntimeError(f"a case must end with a row; its process died (status {child.exitcode})") from None
    except BaseException:  # this process is to end
        child.terminate()
        raise
    finally:
        receiver.close()
        child.join()
    if isinstance(found, Exception):
        raise found
    return found


def _send(run: Callable[[], Row], sender: Connection) -> None:
    try:
        sender.send(run())
    except Exception as error:
        sender.send(error)


def run_all(jobs: Sequence[Job], processes: int) -> Iterator[tuple[str, Row]]:
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
    with ProcessPoolExecutor(processes, context, _be_quiet) as pool:
        futures = [pool.submit(run_job, job) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _be_quiet() -> None:
    """Leave Ctrl-C to the parent, and take the forked process along when it ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, _frame: object) -> None:
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(128 + number)  # an exception would end the case, and not the process
