"""Which workers the detector of peers finds strange by their times alone, in four jobs of Alibaba's.

    python -m tests.benchmarks.minibatch_times FOLDER    # job_*_norm.csv, of github.com/alibaba/clusterdata

The folder is cluster-trace-gpu-v2020/mini-batch-time/data (CC-BY-4.0): in job 1 worker 6 is slow at 1811 to 1941, and
worker 4 at 131 to 161 for too short; those of job 2 differ all the time; in jobs 3 and 4 some may be slow.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from irregulars.detectors.plugins.loading import load_detectors
from irregulars.detectors.verdicts.strange_ranks import RankScores, StrangeRanksWatch


def strange_workers(path: Path) -> dict[int, list[int]]:
    """Return the workers that were strange in four of six samples, with the times at which they were."""
    with path.open(newline="") as file:
        rows = [(int(one["time"]), int(one["worker"]), float(one["batch_time_norm"])) for one in csv.DictReader(file)]
    time, worker, took = map(np.array, zip(*rows, strict=True))
    [make] = load_detectors(("peers",))["rank"]
    detector, watch, found = make(), StrangeRanksWatch(), dict[int, list[int]]()
    for at in np.unique(time).tolist():
        own = np.flatnonzero(time == at)
        own = own[np.argsort(worker[own])]
        scores = detector.score({"work_ns": took[own] * 1e6, "stage": np.zeros(len(own), np.int64)})
        watch.look(RankScores(worker[own], {"peers": scores}))
        for one in watch.due("peers"):
            found.setdefault(one, []).append(at)
    return found


def main(folder: str) -> None:
    for path in sorted(Path(folder).glob("job_*_norm.csv")):
        told = [f"worker {one} at {at[0]} to {at[-1]}" for one, at in strange_workers(path).items()]
        print(f"{path.stem}: {', '.join(told) or 'nobody'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
