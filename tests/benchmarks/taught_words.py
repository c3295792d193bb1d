"""What people's words are worth to `taught_forest`: ``python -m tests.benchmarks.taught_words``.

**Simulated jobs.** In one half of them a GPU is slow. In the other half a rank gets longer data, so that its work and
its tokens grow alike: it stands out as much, and nobody is at fault. The judgement accuses both. Somebody calls its
verdicts on jobs of some shapes and seeds right or wrong, as the truth has it; what that teaches is held against jobs
of other shapes and seeds, by the rule of all backtests (`infra.backtesting.scoring`).

**Recordings.** The same with the recordings of this repository: words on verdicts of one half, held against the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from irregulars.detectors.judging.lessons import Lesson, join_lessons
from irregulars.detectors.plugins.forest.taught_forest import TaughtForest
from irregulars.detectors.plugins.loading import Comparable
from irregulars.detectors.plugins.protocol import columns_of
from irregulars.infra.backtesting.frames import FrameTap, JobFrames, replay
from irregulars.infra.backtesting.recorded import find_recordings, read_faults
from irregulars.infra.backtesting.scoring import Counts, Fault, count_job, total
from irregulars.infra.runs.analysis import judge_whole
from irregulars.messages.records import Batch
from irregulars.producers.simulator.faults import parse_fault
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.source import simulate_trace
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.iterations import number_iterations
from irregulars.streams.local_pipeline import LocalPipeline
from irregulars.streams.monitor_settings import MonitorSettings
from tests.conftest import RECORDINGS

ITERATIONS: Final = 90
FROM, TO = 35, 60
NAME: Final = "taught_forest"

TAUGHT: Final = ({"dp": 4, "pp": 2, "tp": 2}, {"dp": 8, "pp": 1, "tp": 1})
"""Shapes of the jobs on whose verdicts somebody says a word."""

TESTED: Final = ({"dp": 2, "pp": 2, "tp": 4}, {"dp": 12, "pp": 1, "tp": 1}, {"dp": 3, "pp": 4, "tp": 2})
"""Shapes of the jobs that it is held against."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job whose truth is known: who is at fault, and who has longer data."""

    trace: Trace
    faults: tuple[Fault, ...]


def simulated(shapes: Sequence[dict[str, int]], seeds: Iterable[int], folder: Path) -> Iterator[Job]:
    """Make jobs by turns: a slow GPU, and a rank with longer data."""
    for number, seed in enumerate(seeds):
        rng = np.random.default_rng([seed, 7])
        shape = shapes[number // 2 % len(shapes)]
        rank = int(rng.integers(shape["dp"] * shape["pp"] * shape["tp"]))
        factor = float(rng.uniform(1.3, 2.2))
        fault = parse_fault(f"slow_rank:rank={rank},from={FROM},to={TO},factor={factor:.3f}")
        settings = SimulatorSettings(**shape, iterations=ITERATIONS, seed=seed, faults=(fault,), gpus_per_host=4,
                                     bandwidth_period_ms=0)  # fmt: skip
        path = folder / f"{seed}"
        simulate_trace(path, settings)
        trace = number_iterations(read_trace(path)).trace
        is_fault = number % 2 == 0
        own = Fault((rank,), ((FROM, TO),))
        yield Job(_with_data(trace, rng, None if is_fault else rank, factor), (own,) if is_fault else ())


def _with_data(trace: Trace, rng: np.random.Generator, rank: int | None, factor: float) -> Trace:
    """Give ranks data of almost the same length, and one rank longer data for a while."""
    batches = dict(trace.batches("iterations"))
    for own, batch in batches.items():
        numbers = batch.columns["iteration"]
        tokens = 4096 * 8 * rng.lognormal(0.0, 0.03, len(numbers))
        is_longer = (numbers >= FROM) & (numbers < TO) & (own == rank)
        batches[own] = Batch(batch.header, {**batch.columns, "tokens": np.where(is_longer, factor, 1.0) * tokens})
    return replace(trace, iterations=batches)


def lessons_of(job: Job) -> list[tuple[bool, Lesson]]:
    """Judge a job, say a word on each verdict about a rank's work, and return what each teaches."""
    make = lambda: Comparable(TaughtForest())  # noqa: E731
    pipeline = LocalPipeline(job.trace.job, MonitorSettings(rank_detectors=(make,), fills_columns=False))
    told = {one.verdict_id: one for one in judge_whole(pipeline, job.trace).verdicts}
    found = []
    for name, verdict in told.items():
        ranks = set(verdict.suspects[0].ranks) if verdict.suspects else set()
        is_right = any(ranks & set(fault.ranks) for fault in job.faults)
        pipeline.monitor._lessons.hear({name: is_right})
        rows, labels = pipeline.monitor._lessons.lessons(NAME, columns_of(TaughtForest()))
        if len(rows):
            found.append((is_right, (rows, labels)))
    return found


def frames_of(job: Job) -> JobFrames:
    """Return the frames that a monitor gives to detectors of ranks."""
    tap = FrameTap("rank")
    settings = MonitorSettings(rank_detectors=(lambda: tap,), fills_columns=False)
    judge_whole(LocalPipeline(job.trace.job, settings), job.trace)
    return JobFrames(job.trace.job, job.faults, (tap.frames,), (None,))


def scored(jobs: Sequence[JobFrames], words: Sequence[Lesson]) -> Counts:
    """Hold what some words teach against jobs."""

    def make() -> Comparable:
        forest = TaughtForest()
        if words:
            forest.teach(*join_lessons(words))
        return Comparable(forest)

    return total(count_job(replay(job, make).job, job.faults) for job in jobs)


def print_counts(title: str, counts: Counts) -> None:
    """Print a row of the table."""
    print(f"| {title} | {counts.precision:.2f} | {counts.recall:.2f} | {counts.found} of {counts.faults} "
          f"| {counts.false_per_1000:.1f} |", flush=True)  # fmt: skip


HEADER: Final = "| words | precision | recall | found | false/1,000 |\n|---|---|---|---|---|"


def on_simulated_jobs(first_seed: int, taught: int, tested: int) -> None:
    """Print what words on simulated jobs are worth on others."""
    with TemporaryDirectory() as folder:
        words = [
            one
            for job in simulated(TAUGHT, range(first_seed, first_seed + taught), Path(folder))
            for one in lessons_of(job)
        ]
        seeds = range(first_seed + 500, first_seed + 500 + tested)
        jobs = [frames_of(job) for job in simulated(TESTED, seeds, Path(folder))]
    right, wrong = ([lesson for said, lesson in words if said is is_right] for is_right in (True, False))
    print(f"\n{len(jobs)} jobs; {len(right)} words right and {len(wrong)} wrong\n\n{HEADER}")
    print_counts("none: the rule", scored(jobs, []))
    for count in (1, 3, 6):
        print_counts(f"{count} wrong", scored(jobs, wrong[:count]))
        both = [one for pair in zip(wrong[:count], right[:count], strict=False) for one in pair]
        print_counts(f"{count} wrong, {count} right", scored(jobs, both))
    print_counts("3 right", scored(jobs, right[:3]))


def on_recordings() -> None:
    """Print what words on one half of the recordings are worth on the other half."""
    halves: tuple[list[Job], list[Job]] = ([], [])
    for number, path in enumerate(find_recordings([RECORDINGS])):
        halves[number % 2].append(Job(number_iterations(read_trace(path)).trace, read_faults(path)))
    frames = [[frames_of(job) for job in half] for half in halves]
    words = [[one for job in half for one in lessons_of(job)] for half in halves]
    said = [is_right for half in words for is_right, _ in half]
    print(
        f"\n{sum(map(len, halves))} recordings; {sum(said)} words right and {len(said) - sum(said)} wrong\n\n{HEADER}"
    )
    for title, most in (("none: the rule", 0), ("on the other half", 10_000)):
        own = [scored(frames[half], [one for _, one in words[1 - half]][:most]) for half in (0, 1)]
        print_counts(title, total(own))


def main() -> None:
    """Print the tables; ``simulated SEED`` or ``recordings``: only one."""
    which = sys.argv[1] if len(sys.argv) > 1 else ""
    if which != "recordings":
        on_simulated_jobs(int(sys.argv[2]) if len(sys.argv) > 2 else 1000, taught=12, tested=24)
    if which != "simulated":
        on_recordings()


if __name__ == "__main__":
    main()
