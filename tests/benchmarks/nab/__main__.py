"""Detectors on labelled series of the Numenta Anomaly Benchmark: ``python -m tests.benchmarks.nab [FOLDER]``.

FOLDER holds series (``timestamp,value``) and ``combined_windows.json``; they are not part of this repository. A
series is given as one rank whose work (or one operator whose elapsed) takes as many milliseconds as the value says:
every frame is scored and then taught.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from irregulars.detectors.plugins.loading import Comparable, load_detector
from irregulars.detectors.plugins.protocol import Level, MakeDetector
from irregulars.dtypes import Column, Floats
from irregulars.infra.backtesting.scoring import alarms_of
from irregulars.messages.records import UNKNOWN
from tests.benchmarks.nab.scoring import Series, best_threshold, corpus_score

FOLDER: Final = Path(__file__).resolve().parents[4] / "shared" / "traces" / "raw" / "nab"
DETECTORS: Final = (
    "baseline",
    "river_gaussian",
    "river:anomaly.HalfSpaceTrees()",
    "river:anomaly.GaussianScorer()",
    "river:drift.ADWIN()",
    "river:drift.PageHinkley()",
    "sklearn:ensemble.IsolationForest(n_estimators=50) with refit=500",
)
MS: Final = 1e6


def read_series(folder: Path) -> list[Series]:
    """Read all series of a folder."""
    windows = json.loads((folder / "combined_windows.json").read_text())
    return [_read(folder, name, windows[name]) for name in sorted(windows)]


def _read(folder: Path, name: str, windows: Sequence[tuple[str, str]]) -> Series:
    with (folder / Path(name).name).open() as file:
        rows = list(csv.DictReader(file))
    at = {row["timestamp"]: number for number, row in enumerate(rows)}
    places = tuple((at[first.split(".")[0]], at[last.split(".")[0]]) for first, last in windows)
    return Series(Path(name).stem, np.array([float(row["value"]) for row in rows]), places)


def frame_of(level: Level, value: float, number: int) -> dict[str, Column]:
    """Make the frame of one value."""
    ns, one = np.array([value * MS]), np.ones(1)
    iteration = np.array([number], dtype=np.int64)
    if level == "rank":
        return {"rank": np.zeros(1, np.int64), "iteration": iteration, "elapsed_ns": ns, "work_ns": ns,
                "communication_ns": one, "operators": one, "tokens": one, "stage": np.zeros(1, np.int64)}  # fmt: skip
    return {"communicator": np.zeros(1, np.int64), "operator": np.zeros(1, np.uint8), "sequence": iteration,
            "peer": np.full(1, UNKNOWN), "size_bytes": one, "elapsed_ns": ns, "gap_ns": one,
            "iteration": iteration}  # fmt: skip


def score_series(make: MakeDetector, series: Series) -> Floats:
    """Score all values of a series, each before it is taught."""
    detector = Comparable(make())
    scores = np.full(len(series.values), np.nan)
    for number, value in enumerate(series.values.tolist()):
        frame = frame_of(detector.level, value, number)
        scores[number] = detector.score(frame)[0]
        detector.learn(frame)
    return scores


def row_of(name: str, all_series: Sequence[Series]) -> str:
    """Return a detector's row of the table."""
    make = load_detector(name, is_checked=False)
    began_s = time.thread_time()
    scores = [score_series(make, one) for one in all_series]
    us = (time.thread_time() - began_s) * 1e6 / sum(len(one.values) for one in all_series)
    at_one, (_, best) = corpus_score(all_series, scores, 1.0), best_threshold(all_series, scores)
    alarms = [alarms_of(one[:, None])[1][:, 0].astype(np.float64) for one in scores]
    as_alarms = corpus_score(all_series, alarms, 1.0)
    return f"| `{name}` | {best:.1f} | {as_alarms:.1f} | {at_one:.1f} | {us:.0f} |"


def main() -> None:
    """Print the table."""
    all_series = read_series(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
    print("| detector | at its best threshold | alarms, 4 of 6 values | each value at 1 or more | µs a value |")
    print("|---|---|---|---|---|")
    for name in DETECTORS:
        print(row_of(name, all_series), flush=True)


if __name__ == "__main__":
    main()
