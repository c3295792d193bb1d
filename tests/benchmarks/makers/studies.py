"""What becomes of the answers if one condition changes: the studies that Holmes has, on the jobs of the makers.

    python -m tests.benchmarks.makers.studies delta --seed 7001       # δ from 1.03 to 1.35
    python -m tests.benchmarks.makers.studies hosts --seed 7001       # whole hosts that log, from all to an eighth
    python -m tests.benchmarks.makers.studies ranks --seed 7001       # as many ranks, scattered over all hosts
    python -m tests.benchmarks.makers.studies iterations --seed 7001  # how many the judge has seen of a fault

A table goes to standard output, a row for each condition. A fault counts where a rank of the device logs: of others
nobody can name it. Healthy jobs tell what each condition costs.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from irregulars.producers.trace.directory import Trace
from irregulars.settings import JudgeSettings
from tests.benchmarks.makers.drawing import MAKERS, RECORDINGS, ROOT, Job, draw, drawn_jobs, recorded_jobs
from tests.benchmarks.makers.judging import judge, reduce
from tests.benchmarks.makers.labels import Truth, truth_of
from tests.benchmarks.makers.scoring import Outcome, said, score
from tests.benchmarks.markdown import table

_DELTAS: Final = (1.03, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35)
_SHARES: Final = (1.0, 0.5, 0.25, 0.125)
_SEEN: Final = (1, 2, 3, 5, 8, 12, 20)


class Condition(NamedTuple):
    name: str
    settings: JudgeSettings = JudgeSettings()
    share: float = 1.0  # of the ranks that log
    is_by_host: bool = True


CONDITIONS: Final[Mapping[str, Sequence[Condition]]] = {
    "delta": [Condition(f"δ {delta:.2f}", JudgeSettings(delta=delta)) for delta in _DELTAS],
    "hosts": [Condition(f"{share:.1%} of the hosts", share=share) for share in _SHARES],
    "ranks": [Condition(f"{share:.1%} of the ranks", share=share, is_by_host=False) for share in _SHARES],
    "iterations": [Condition("δ as always")],
}


def logging_in_part(trace: Trace, share: float, *, is_by_host: bool) -> Trace:
    """Return a job of which a share of the hosts or ranks log, drawn by the job's name; at least one of them."""
    logged = [one for one in trace.announcements if one.rank in trace.commops]
    units = {one.rank: one.host if is_by_host and one.host is not None else one.rank for one in logged}
    names = sorted(set(units.values()), key=str)
    kept = set(Random(trace.job).sample(names, max(round(share * len(names)), 1)))
    ranks = {rank for rank, unit in units.items() if unit in kept}
    announcements = tuple(
        replace(one, is_logged=one.is_logged and one.rank in ranks, logged_ranks=len(ranks))
        for one in trace.announcements
    )
    tables = {
        name: {rank: batch for rank, batch in trace.batches(name).items() if rank in ranks}
        for name in ("commops", "bandwidth", "iterations")
    }
    return replace(trace, announcements=announcements, **tables)


def judged(job: Job, conditions: Sequence[Condition]) -> list[tuple[Outcome, bool]]:
    """Judge a job under each condition; with each outcome, whether a rank of the device logs."""
    draw(job)
    truth = truth_of(job.maker, job.name, job.label())
    found = []
    for one in conditions:
        reduced = reduce(job.directory, partial(logging_in_part, share=one.share, is_by_host=one.is_by_host))
        answer = judge(reduced, one.settings)
        is_told = truth.device is None or not reduced.trace.commops.keys().isdisjoint(truth.ranks)
        found.append((Outcome(truth, score(truth, answer), said(answer)), is_told))
    return found


def condition_table(conditions: Sequence[Condition], outcomes: Sequence[Sequence[tuple[Outcome, bool]]]) -> list[str]:
    head = ["condition", "faults", "Top-1", "hard ones", "Top-1", "wrong device", "accusations per 1,000 healthy",
            "tickets", "iterations to the name, median"]  # fmt: skip
    lines = []
    for at, one in enumerate(conditions):
        own = [row[at][0] for row in outcomes if row[at][1]]
        healthy = [outcome.score for outcome in own if not outcome.truth.kind]
        iterations = max(sum(score.iterations for score in healthy), 1)
        easy, hard = (
            [o.score for o in own if o.truth.kind and o.truth.is_hard is is_hard] for is_hard in (False, True)
        )
        wrong = sum(score.promised is not None and not score.is_recalled for score in easy)
        delays = sorted(score.delay for score in easy if score.delay is not None)
        lines.append([
            one.name, str(len(easy)), _share([s.is_top1 for s in easy]), str(len(hard)),
            _share([s.is_top1 for s in hard]), _share([wrong / max(len(easy), 1)]),
            f"{1e3 * sum(s.accusations for s in healthy) / iterations:.2f}",
            f"{1e3 * sum(s.tickets for s in healthy) / iterations:.2f}",
            str(delays[len(delays) // 2]) if delays else "",
        ])  # fmt: skip
    return table(head, lines)


def seen_table(outcomes: Sequence[Sequence[tuple[Outcome, bool]]]) -> list[str]:
    """Give the lines of a table: which share of the faults was named after so many iterations of them."""
    faults = [row[0][0] for row in outcomes if row[0][0].truth.device and not row[0][0].truth.is_hard]
    lasting = {n: [one for one in faults if _lasts(one.truth) >= n] for n in _SEEN}
    return table(
        ["iterations seen", "faults that last as long", "named by then"],
        [[str(n), str(len(own)), _share([(one.score.delay or math.inf) <= n for one in own])]
         for n, own in lasting.items()],
    )  # fmt: skip


def _lasts(truth: Truth) -> int:
    return truth.spans[-1][1] - truth.spans[0][0]


def _share(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.1%}" if values else ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.makers.studies", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("study", choices=CONDITIONS)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=20, help="jobs of each maker; default 20")
    parser.add_argument("--jobs", type=Path, default=ROOT / "build" / "makers")
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    options = parser.parse_args(arguments)
    conditions = CONDITIONS[options.study]
    drawn = (drawn_jobs(maker, options.seed, options.count, options.jobs) for maker in MAKERS if maker != RECORDINGS)
    jobs = [*(job for own in drawn for job in own), *recorded_jobs(options.traces)]
    outcomes: list[list[tuple[Outcome, bool]]] = []
    ask: Callable[[Job], list[tuple[Outcome, bool]]] = partial(judged, conditions=conditions)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for one in pool.map(ask, jobs):
            outcomes.append(one)
            print(f"\r{len(outcomes)}/{len(jobs)}", end="", file=sys.stderr)
    print(file=sys.stderr)
    lines = seen_table(outcomes) if options.study == "iterations" else condition_table(conditions, outcomes)
    print(*lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
