"""Judge recordings again under each change, and compare the verdicts in the names of the first recording."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Final

import numpy as np

from irregulars.errors import InputError
from irregulars.infra.runs.analysis import analyze
from irregulars.messages.announcements import Heartbeat
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import Batch
from irregulars.producers.trace.directory import trace_batches
from irregulars.producers.trace.iterations import number_iterations
from irregulars.settings import JudgeSettings
from irregulars.streams.local_pipeline import LocalPipeline
from tests.benchmarks.metamorphic.changes import CHANGES
from tests.benchmarks.metamorphic.jobs import JOBS, simulate
from tests.benchmarks.metamorphic.recording import Changed, Delivery, Naming, Recording, read_recording

_ROUND: Final = 64  # messages after which monitors are drained, as in the worker


@dataclass(frozen=True, slots=True)
class Charge:
    """What of a verdict must stay the same, in the names of the unchanged recording."""

    kind: str
    iterations: tuple[int, int]  # half-open
    # device, ranks: Of the first suspect; ascending, but a link's sender stands first. `None` and empty where nobody
    # is accused.
    device: str | None = None
    ranks: tuple[int, ...] = ()
    communicator: str | None = None  # where nobody is accused

    def __str__(self) -> str:
        first, past = self.iterations
        where = f" on {self.communicator}" if self.communicator else ""
        ranks = ", ".join(map(str, self.ranks[:8])) + (", …" if len(self.ranks) > 8 else "")
        whom = f"{self.device} of rank {ranks}" if self.device else f"nobody accused{where}"
        return f"{self.kind}, {whom}, iterations {first} to {past - 1}"


def judge(changed: Changed, settings: JudgeSettings) -> list[Verdict]:
    """Judge a recording as `irregulars analyze` does or, where its delivery is given, as a worker does."""
    trace = number_iterations(changed.recording.to_trace()).trace
    if changed.delivery is None:
        return analyze(trace, settings).verdicts
    # The newest revision of each verdict, most training time lost first.
    pipeline, newest = LocalPipeline(trace.job, settings), dict[str, Verdict]()
    for announcement in trace.announcements:
        pipeline.take(announcement)
    ends = [Heartbeat(trace.job, trace.attempt, one.rank, {}, "ended", "finished") for one in trace.announcements]
    batches = trace_batches(trace, changed.delivery.max_rows, changed.delivery.max_span_s)
    rounds: Iterator[Sequence[Batch | Heartbeat]] = iter(lambda: list(islice(batches, _ROUND)), [])
    for some in chain(rounds, [ends]):
        for message in some:
            pipeline.take(message)
        newest |= {verdict.verdict_id: verdict for verdict in pipeline.judge().verdicts}
    return sorted(newest.values(), key=lambda verdict: (-verdict.lost_s, verdict.verdict_id))


def charges_of(verdicts: Iterable[Verdict], naming: Naming) -> list[Charge]:
    """Say the verdicts on a changed recording in the names of the first one."""
    return [_charge(verdict, naming) for verdict in verdicts]


def _charge(verdict: Verdict, naming: Naming) -> Charge:
    window = naming.old_window(verdict.iterations)
    if not verdict.suspects:
        communicator = verdict.communicator
        old = None if communicator is None else naming.communicators.get(communicator, communicator)
        return Charge(verdict.kind, window, communicator=old)
    suspect = verdict.suspects[0]
    ranks = naming.old_ranks(suspect.ranks)
    return Charge(verdict.kind, window, suspect.device, ranks if suspect.device == "link" else tuple(sorted(ranks)))


def differences(before: Sequence[Charge], after: Sequence[Charge]) -> tuple[list[Charge], list[Charge]]:
    """Return the charges that are gone, and those that are new; each in its order."""
    gone, new = Counter(before) - Counter(after), Counter(after) - Counter(before)
    return list(gone.elements()), list(new.elements())


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    does_apply: bool = True  # false where the recording lacks what the change needs; then nothing was judged
    # gone, new: Verdicts that were there before alone, and afterwards alone, in the names of the unchanged recording
    gone: list[Charge] = field(default_factory=list)
    new: list[Charge] = field(default_factory=list)

    @property
    def is_changed(self) -> bool:
        return bool(self.gone or self.new)


class Check:
    """One recording, judged once as it is, and then under changes.

    `seed`: all chance in the changes comes from it. What a change draws does not depend on which others are tried.
    `delivery`: how changed recordings are handed over where the change itself does not say it; `None`: as
    `irregulars analyze` takes them. The first judgement is always that of `analyze`.
    """

    def __init__(
        self, recording: Recording, settings: JudgeSettings, *, seed: int = 0, delivery: Delivery | None = None
    ) -> None:
        # Leave out detectors, and so their verdicts: our own judgement is what is checked.
        self._recording, self._seed, self._delivery = recording, seed, delivery
        self._settings = replace(settings, operator_detectors=(), rank_detectors=())
        self.job = recording.job.job
        self.charges = charges_of(judge(Changed(recording), self._settings), Naming())

    def run(self, names: Sequence[str]) -> Iterator[Outcome]:
        """Judge under each of these changes; raises `InputError` if one is not known."""
        for name in names:
            if name not in CHANGES:
                raise InputError(f"change must be one of {', '.join(CHANGES)}; got {name!r}")
        return (self._under(name) for name in names)

    def _under(self, name: str) -> Outcome:
        random = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        changed = CHANGES[name].apply(self._recording, random)
        if changed is None:
            return Outcome(name, does_apply=False)
        if changed.delivery is None:
            changed = replace(changed, delivery=self._delivery)
        found = charges_of(judge(changed, self._settings), changed.naming)
        gone, new = differences(self.charges, found)
        return Outcome(name, gone=gone, new=new)


RECORDINGS: Final = Path(__file__).parents[2] / "recordings"


@dataclass(frozen=True, slots=True)
class Checked:
    job: str
    charges: Sequence[Charge]
    outcomes: Sequence[Outcome]
    took_s: float


def run_all(
    jobs: Sequence[str], changes: Sequence[str], seed: int, is_streamed: bool, processes: int
) -> Iterator[Checked]:
    context = multiprocessing.get_context("spawn")  # a forked process would share the parent's threads
    with ProcessPoolExecutor(processes, context) as pool:
        futures = [pool.submit(check, job, changes, seed, is_streamed) for job in jobs]
        for future in as_completed(futures):
            yield future.result()


def check(job: str, changes: Sequence[str], seed: int, is_streamed: bool) -> Checked:
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
