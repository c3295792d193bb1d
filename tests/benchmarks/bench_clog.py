"""How many verdicts stay right when a job is known from clog's logs alone: whole milliseconds, no marks, no places.

    python -m tests.benchmarks.bench_clog                      # the 69 labelled recordings, some minutes
    python -m tests.benchmarks.bench_clog --only slow_nic --verbose
    python -m tests.benchmarks.bench_clog --directory DIR      # of directories that irregulars simulate wrote

Each labelled recording is written as TorchComms would have logged it (`tests.producers.importers.clog_lines`, whose
layout follows the published page and shares nothing with the reader), imported, and scored as
`tests.benchmarks.recordings` scores. Beside it the same operators to the nanosecond, likewise without marks, hosts
and NICs' counters. Not a test: nothing fails because a figure is low.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from irregulars.infra.runs.analysis import analyze
from irregulars.messages.records import UNKNOWN, Batch
from irregulars.producers.importers.importing import import_trace
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.iterations import number_iterations
from tests.benchmarks.recordings.judging import label_of, recordings_in
from tests.benchmarks.recordings.scoring import score
from tests.producers.importers.clog_lines import BACKENDS, write_logs

BENCH: Final = Path(__file__).resolve().parents[1] / "recordings" / "bench"
_DEVICES: Final = {"slow_rank": "gpu", "slow_nic": "nic", "slow_link": "link", "slow_stage": "stage"}
"""What a simulated fault sits on: a simulated label does not say."""

_PLACES: Final = {"host": None, "gpu": None, "nic": None, "switch": None}


def main() -> None:
    """Print a table."""
    options = _options()
    ways = {name: way for name, way in WAYS.items() if not options.ways or name.split()[-1] in options.ways}
    counts: dict[str, Counter[str]] = {name: Counter() for name in ways}
    for path in recordings_in(options.directory, options.only):
        label = label_of(path)
        label.setdefault("device", _DEVICES.get(label["kind"]))
        trace = read_trace(path, without=("bandwidth", "iterations"))
        for name, known_by in ways.items():
            found = analyze(number_iterations(known_by(bare(trace))).trace).to_json()
            outcome = outcome_of(found, label)
            counts[name][outcome] += 1
            if options.verbose:
                print(f"{path.name:32} {name:14} {outcome:22} {said(found)}", flush=True)
    print(f"{'known by':16}" + "".join(f"{name:>22}" for name in OUTCOMES))
    for name, found_by in counts.items():
        print(f"{name:16}" + "".join(f"{found_by[outcome]:>22}" for outcome in OUTCOMES))


OUTCOMES: Final = ("right", "wrong", "missed", "cannot judge", "healthy: nobody", "healthy: accused",
                   "healthy: cannot judge")  # fmt: skip


def outcome_of(found: Mapping[str, Any], label: Mapping[str, Any]) -> str:
    """Name what came of one recording; a fault whose label names a host or switch is right without that name."""
    is_healthy = label["kind"] == "none"
    if "unjudged_reason" in found and not found["verdicts"]:
        return "healthy: cannot judge" if is_healthy else "cannot judge"
    unnamed = [{**verdict, "suspects": [{**s, "host": label.get("host"), "switch": label.get("switch")}
                                        for s in verdict["suspects"]]} for verdict in found["verdicts"]]  # fmt: skip
    outcome = score(unnamed, label).outcome
    if is_healthy:
        return "healthy: nobody" if outcome == "right" else "healthy: accused"
    return outcome


def said(found: Mapping[str, Any]) -> str:
    """Name the first accusation."""
    told = [(v["kind"], tuple(v["suspects"][0]["ranks"])) for v in found["verdicts"] if v["suspects"]]
    return str(told[0]) if told else found.get("unjudged_reason", "nobody")[:60]


def bare(trace: Trace) -> Trace:
    """Take away what clog has no place for: marks, hosts, NICs."""
    announcements = tuple(replace(one, **_PLACES) for one in trace.announcements)
    return replace(trace, announcements=announcements, clock="per_host", commops={r: _unmarked(b) for r, b in
                   trace.commops.items()})  # fmt: skip


def _unmarked(batch: Batch) -> Batch:
    return Batch(batch.header, {**batch.columns, "iteration": np.full(len(batch), UNKNOWN)})


def _by_clog(backend: str) -> Callable[[Trace], Trace]:
    def known_by(trace: Trace) -> Trace:
        with tempfile.TemporaryDirectory() as folder:
            write_logs(trace, Path(folder) / "logs", backend)
            import_trace("clog", Path(folder) / "logs", Path(folder) / "out")
            return read_trace(Path(folder) / "out")

    return known_by


WAYS: Final[Mapping[str, Callable[[Trace], Trace]]] = {
    "operators in ns": lambda trace: trace,
    **{f"clog, {backend}": _by_clog(backend) for backend in BACKENDS},
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=BENCH, help="of recordings; default: the committed ones")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these recordings, or kinds")
    parser.add_argument("--ways", nargs="+", default=[], choices=("ns", *BACKENDS), help="known by these alone")
    parser.add_argument("--verbose", action="store_true", help="a line for each recording and way")
    return parser.parse_args()


if __name__ == "__main__":
    main()
