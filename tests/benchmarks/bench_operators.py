"""Abnormal operators: Holmes's forest beside ours, simple rules, nearest neighbours, SVM and an online forest.

    python -m tests.benchmarks.bench_operators --cases 40

Simulated jobs with noise, spikes and drift; what is abnormal is known from the same job without the fault. Learners
see jobs of other shapes and seeds than those they are measured on. Prints a Markdown report and writes JSON. Not a
test: nothing here fails because a figure is low.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from detectors.baseline import RobustBaseline
from detectors.forest.features import FeatureRows, OperatorFeatures, Tuning
from detectors.forest.matrix import FEATURES
from detectors.forest.online_forest import OnlineModel
from detectors.forest.random_forest import MODEL
from detectors.forest.train import train_forest
from detectors.forest.trees import load_trees
from detectors.sample_frames import sample_frame
from tests.benchmarks.operator_cases import Case, Example, run_case, shapes_of_faults
from tests.benchmarks.operator_scoring import Counts, best_threshold
from tests.benchmarks.train_operator_forest import training_cases

TEST_JOBS: Final = ((8, 2, 2, 4), (2, 8, 2, 8), (4, 2, 8, 6), (4, 4, 2, 8), (2, 3, 4, 4), (2, 16, 1, 16))
TEST_SEED: Final = 50_000
DRIFTS: Final = (0.10, 0.30, 0.50)
TUNINGS: Final[tuple[Tuning, ...]] = get_args(Tuning)
HOLMES: Final = [FEATURES.index(name) for name in (
    "class_ratio", "class_z", "class_quartile", "class_iqr", "class_deviation", "iteration_ratio",
    "mean_operator_ratio", "place", "log_size", "is_p2p")]  # fmt: skip
"""The families that Holmes names, without slots and company."""

_RULES: Final = ("class_z", "slot_z", "slot_ratio", "excess_share")
_HEALTHY_EVERY: Final = 8
_SLOW_ROWS: Final = 20_000  # nearest neighbours, SVM and the online forest are measured on a random choice


@dataclass(frozen=True, slots=True)
class Rows:
    """Operators that were compared: features, first test, the baseline's score and the truth.

    ``window`` counts the fault's windows in the run from 0; -1: a healthy iteration.
    """

    matrix: np.ndarray
    is_seen: np.ndarray
    baseline: np.ndarray
    is_abnormal: np.ndarray
    case: np.ndarray
    window: np.ndarray

    def take(self, rows: np.ndarray) -> Rows:
        """Pick rows."""
        return Rows(*(getattr(self, name)[rows] for name in self.__slots__))


Call = Callable[[Rows], np.ndarray]
"""Says of each row whether it is abnormal."""


# --- frames to rows -------------------------------------------------------------------------------------------------


def gather(cases: Sequence[Case], tunings: Sequence[Tuning], *, most_ranks: int) -> dict[Tuning, Rows]:
    """Run each job once, and compare its operators with the past under each tuning."""
    parts: dict[Tuning, list[Rows]] = {tuning: [] for tuning in tunings}
    for number, case in enumerate(cases):
        for examples in run_case(case, most_ranks=most_ranks):
            for tuning in tunings:
                parts[tuning] += list(_follow(case, number, examples, tuning))
    return {tuning: _stack(some) for tuning, some in parts.items()}


def _follow(case: Case, number: int, examples: Iterable[Example], tuning: Tuning) -> Iterator[Rows]:
    features = OperatorFeatures(window=32, warm_up=20, tuning=tuning, most_slots=4096)
    baseline = RobustBaseline()
    windows = case.windows()
    for example in examples:
        is_sampled = example.iteration >= windows[0][0] and example.iteration % _HEALTHY_EVERY == 0
        if example.is_irregular or (example.is_irregular is False and is_sampled):
            at = next((n for n, (first, past) in enumerate(windows) if first <= example.iteration < past), -1)
            scores = baseline.score(example.frame)
            yield _rows(features.rows(example.frame), scores, example.is_abnormal, number, at)
        if example.is_irregular is False:
            features.learn(example.frame)
            baseline.learn(example.frame)


def _rows(found: FeatureRows, scores: np.ndarray, is_abnormal: np.ndarray, case: int, window: int) -> Rows:
    """Rows without a past stay, as ones that nothing is known of: missing them counts."""
    matrix = np.zeros((len(scores), len(FEATURES)), dtype=np.float32)
    is_seen = np.zeros(len(scores), dtype=np.bool_)
    matrix[found.rows], is_seen[found.rows] = found.matrix, found.is_suspicious()
    numbers = np.full(len(scores), case), np.full(len(scores), window)
    return Rows(matrix, is_seen, np.nan_to_num(scores, nan=0.0), is_abnormal, *numbers)


def _stack(parts: Sequence[Rows]) -> Rows:
    return Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in Rows.__slots__))


# --- who is compared ------------------------------------------------------------------------------------------------


def rules(train: Rows) -> dict[str, Call]:
    """One threshold on one number; except 3-sigma it is the best one on the training jobs."""
    called: dict[str, Call] = {"3-sigma of the class": lambda rows: _column(rows, "class_z") > 3.0}
    for name in _RULES:
        called[f"rule: {name}"] = _above(name, best_threshold(_column(train, name), train.is_abnormal))
    limit = best_threshold(train.baseline, train.is_abnormal)
    called["RobustBaseline"] = lambda rows: rows.baseline > limit
    return called


def forests(train: Rows) -> dict[str, Call]:
    """A forest on the families that Holmes names, and ours as it ships."""
    ours = load_trees(MODEL, FEATURES)
    some = _choose(train, 150_000)
    holmes = train_forest(some.matrix[:, HOLMES], some.is_abnormal)
    return {
        "forest, Holmes's features": lambda rows: holmes.predict_proba(rows.matrix[:, HOLMES])[:, 1] > 0.5,
        "OperatorForest": _seen(lambda matrix: ours.predict(matrix) > 0.5),
    }


def slow_learners(train: Rows) -> dict[str, Call]:
    """Learners that cost much per row; they get our features and our first test."""
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    seen = _choose(train.take(np.flatnonzero(train.is_seen)), _SLOW_ROWS)
    nearest = make_pipeline(StandardScaler(), KNeighborsClassifier(15)).fit(seen.matrix, seen.is_abnormal)
    few = _choose(seen, 8_000)
    machine = make_pipeline(StandardScaler(), SVC(C=10.0)).fit(few.matrix, few.is_abnormal)
    online = OnlineModel()
    online.learn(seen.matrix, seen.is_abnormal)
    return {
        "k-nearest neighbours": _seen(nearest.predict),
        "SVM": _seen(machine.predict),
        "OnlineForest": _seen(lambda matrix: online.predict(matrix.astype(np.float64)) > 0.5),
    }


def _above(name: str, limit: float) -> Call:
    return lambda rows: _column(rows, name) > limit


def _seen(call: Callable[[np.ndarray], Any]) -> Call:
    def judge(rows: Rows) -> np.ndarray:
        called = np.zeros(len(rows.is_seen), dtype=np.bool_)
        if rows.is_seen.any():
            called[rows.is_seen] = call(rows.matrix[rows.is_seen])
        return called

    return judge


def _column(rows: Rows, name: str) -> np.ndarray:
    return rows.matrix[:, FEATURES.index(name)]


def _choose(rows: Rows, most: int) -> Rows:
    chosen = np.random.default_rng(1).permutation(len(rows.case))[:most]
    return rows.take(np.sort(chosen))


# --- figures --------------------------------------------------------------------------------------------------------


def measure(name: str, tuning: Tuning, call: Call, rows: Rows) -> dict[str, Any]:
    """F1 over the irregular iterations, early, late and all, and how often a healthy operator is called abnormal."""
    called = call(rows)
    is_irregular = rows.window >= 0
    last = np.array([rows.window[rows.case == case].max(initial=-1) for case in range(int(rows.case.max()) + 1)])
    parts = {"all": is_irregular, "early": rows.window == 0, "late": is_irregular & (rows.window == last[rows.case])}
    counts = {part: Counts.of(rows.case[own], rows.is_abnormal[own], called[own]) for part, own in parts.items()}
    healthy = called[~is_irregular & ~rows.is_abnormal]
    return {
        "detector": name, "tuning": tuning, **{f"f1_{part}": one.f1() for part, one in counts.items()},
        "f1_late_interval": counts["late"].interval(), "healthy_false_alarms_per_1000": 1e3 * float(healthy.mean()),
        "operators": int(is_irregular.sum()),
    }  # fmt: skip


def first_test(rows: Rows) -> dict[str, float]:
    """How many rows the first test lets through, and how many abnormal ones it loses."""
    is_irregular = rows.window >= 0
    abnormal = rows.is_abnormal & is_irregular
    return {
        "seen_ratio_irregular": float(rows.is_seen[is_irregular].mean()),
        "seen_ratio_healthy": float(rows.is_seen[~is_irregular].mean()),
        "missed_ratio": float((abnormal & ~rows.is_seen).sum() / max(int(abnormal.sum()), 1)),
    }


def by_excess(call: Call, rows: Rows, cases: Sequence[Case]) -> dict[str, float]:
    """F1 by how much longer the fault makes an iteration."""
    called, excess = call(rows), np.array([case.excess_ratio for case in cases])[rows.case]
    found = {}
    for value in sorted(set(excess.tolist())):
        own = (excess == value) & (rows.window >= 0)
        found[f"{value:g}"] = Counts.of(rows.case[own], rows.is_abnormal[own], called[own]).f1()
    return found


def score_time_us() -> float:
    """Time to score 1,024 operators of a slow iteration, µs; the best of five."""
    from detectors.forest.random_forest import OperatorForest

    detector = OperatorForest()
    for iteration in range(40):
        detector.learn(sample_frame("operator", iteration, 1024))
    frame = sample_frame("operator", 99, 1024, is_faulty=True)
    times_s = []
    for _ in range(5):
        started_s = time.perf_counter()
        detector.score(frame)
        times_s.append(time.perf_counter() - started_s)
    return 1e6 * min(times_s)


def measured_cases(count: int, iterations: int, *, is_untidy: bool) -> list[Case]:
    """Jobs with 10, 30 and 50 % of drift, in equal shares."""
    share = -(-count // len(DRIFTS))
    found: list[Case] = []
    for number, drift_ratio in enumerate(DRIFTS):
        more = {"drift_ratio": drift_ratio, "iterations": iterations, "is_untidy": is_untidy}
        found += shapes_of_faults(TEST_SEED + 1000 * number, share, TEST_JOBS, **more)
    return found


def compare(calls: dict[str, Call], slow: dict[str, Call], tested: dict[Tuning, Rows]) -> list[dict[str, Any]]:
    """Measure each detector under each tuning that was run."""
    found = []
    for tuning, rows in tested.items():
        few = _choose(rows, _SLOW_ROWS)
        found += [measure(name, tuning, call, rows) for name, call in calls.items()]
        found += [measure(name, tuning, call, few) for name, call in slow.items()]
    return found


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Everything: train, measure, and say on what."""
    started_s = time.monotonic()
    trained = gather(training_cases(options.train_cases), ("always",), most_ranks=8)["always"]
    calls, slow = rules(trained) | forests(trained), slow_learners(trained)
    cases = measured_cases(options.cases, options.iterations, is_untidy=False)
    tested = gather(cases, TUNINGS, most_ranks=options.ranks)
    untidy = measured_cases(options.untidy_cases, options.iterations, is_untidy=True)
    tested_untidy = gather(untidy, ("always",), most_ranks=options.ranks)
    return {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "jobs": len(cases), "untidy_jobs": len(untidy), "training_jobs": options.train_cases,
        "iterations": options.iterations, "drifts": DRIFTS, "figures": compare(calls, slow, tested),
        "figures_untidy": compare(calls, slow, tested_untidy), "first_test": first_test(tested["always"]),
        "by_excess": by_excess(calls["OperatorForest"], tested["always"], cases),
        "score_1024_us": score_time_us(), "took_s": time.monotonic() - started_s,
    }  # fmt: skip


def table(figures: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown, the best first."""
    lines = [
        "| detector | tuning | F1 early | F1 after the drift | interval | F1 all | false alarms per 1,000 healthy |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in sorted(figures, key=lambda one: -one["f1_late"]):
        low, high = one["f1_late_interval"]
        lines.append(
            f"| {one['detector']} | {one['tuning']} | {one['f1_early']:.3f} | {one['f1_late']:.3f} | {low:.3f} to "
            f"{high:.3f} | {one['f1_all']:.3f} | {one['healthy_false_alarms_per_1000']:.2f} |"
        )
    return lines


def report(found: dict[str, Any]) -> str:
    """Markdown."""
    first = found["first_test"]
    excess = ", ".join(f"{float(value):.0%}: {f1:.3f}" for value, f1 in found["by_excess"].items())
    return "\n".join([
        "# Abnormal operators", "",
        f"{found['jobs']} simulated jobs of {found['iterations']} iterations, 10, 30 and 50 % of drift over the run; "
        f"other shapes and seeds than the {found['training_jobs']} jobs that rules and learners come from. "
        f"{found['machine']}, {found['took_s']:.0f} s. Interval: 95 %, bootstrap over jobs.", "",
        *table(found["figures"]), "| Holmes (its paper) | tuned / untuned |  | 0.917 / 0.906 |  |  |  |", "",
        f"The first test lets {first['seen_ratio_irregular']:.1%} of the operators of irregular iterations through, "
        f"{first['seen_ratio_healthy']:.2%} of those of healthy ones, and loses {first['missed_ratio']:.2%} of the "
        f"abnormal ones. 1,024 operators are scored in {found['score_1024_us'] / 1e3:.1f} ms.", "",
        f"F1 of OperatorForest by the fault's share of the iteration: {excess}.", "",
        f"The same on {found['untidy_jobs']} jobs with unequal ranks, hosts and micro-batches, stalls and lost rows:",
        "", *table(found["figures_untidy"]),
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--untidy-cases", type=int, default=30)
    parser.add_argument("--train-cases", type=int, default=48)
    parser.add_argument("--iterations", type=int, default=240)
    parser.add_argument("--ranks", type=int, default=12, help="ranks of each job that are measured, chosen at random")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    found = run(options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    print(report(found))


if __name__ == "__main__":
    main()
