"""Abnormal operators: the replay, Holmes's forest and ours, simple rules, nearest neighbours, SVM.

    make bench-operators

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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import numpy as np

from irregulars.detectors.abnormal_operators.thresholds import ABNORMAL
from irregulars.detectors.plugins.baseline import RobustBaseline
from irregulars.detectors.plugins.forest.features import FEATURES, FeatureRows, OperatorFeatures, Tuning
from irregulars.detectors.plugins.forest.random_forest import MODEL
from irregulars.detectors.plugins.forest.trees import load_trees
from irregulars.detectors.plugins.sample_frames import sample_frame
from tests.benchmarks.operator_cases import Case, CaseRun, Example, examples_of, shapes_of_faults, simulate_case
from tests.benchmarks.operator_ceiling import ceiling_of_case
from tests.benchmarks.operator_replay import Replays, replay_case
from tests.benchmarks.operator_scoring import Counts, best_threshold
from tests.benchmarks.train_operator_forest import train_forest, training_cases

TEST_JOBS: Final = ((8, 2, 2, 4), (2, 8, 2, 8), (4, 2, 8, 6), (4, 4, 2, 8), (2, 3, 4, 4), (2, 16, 1, 16))
TEST_SEED: Final = 50_000
DRIFTS: Final = {"slow, 10 %": (0.10, 0.0), "slow, 30 %": (0.30, 0.0), "step, 30 %": (0.03, 0.30)}
"""All work longer from the first iteration to the last; and longer sequences, at once."""

TUNINGS: Final[tuple[Tuning, ...]] = get_args(Tuning)
HOLMES: Final = [FEATURES.index(name) for name in (
    "class_ratio", "class_z", "class_quartile", "class_iqr", "class_deviation", "iteration_ratio",
    "mean_operator_ratio", "place", "log_size", "is_p2p")]  # fmt: skip
"""The families that Holmes names, without slots and company."""

_RULES: Final = ("class_z", "slot_z", "slot_ratio", "excess_share")
_HEALTHY_EVERY: Final = 8
_SPLITS: Final = ("by_drift", "by_excess", "by_kind", "by_shape")
_OWN_COST: Final = ("replay", "RobustBaseline")  # scored while the cases ran
_SLOW_ROWS: Final = 20_000  # nearest neighbours and SVM are measured on a random choice


@dataclass(frozen=True, slots=True)
class Rows:
    """Operators that were compared: features, first test, scores of the baseline and the replay, and the truth.

    ``window`` counts the fault's windows in the run from 0; -1: a healthy iteration.
    """

    matrix: np.ndarray
    is_seen: np.ndarray
    baseline: np.ndarray
    replayed: np.ndarray
    is_abnormal: np.ndarray
    case: np.ndarray
    window: np.ndarray

    def take(self, rows: np.ndarray) -> Rows:
        """Pick rows."""
        return Rows(*(getattr(self, name)[rows] for name in self.__slots__))


Call = Callable[[Rows], np.ndarray]  # says of each row whether it is abnormal


# --- frames to rows -------------------------------------------------------------------------------------------------


class Gathered(NamedTuple):
    """Rows by tuning, and what replays cost: rows and seconds."""

    rows: dict[Tuning, Rows]
    replayed_rows: int
    replayed_s: float


def gather(cases: Sequence[Case], tunings: Sequence[Tuning], *, most_ranks: int, jobs: int) -> Gathered:
    """Run each job once, and compare its operators with the past under each tuning."""
    parts: dict[Tuning, list[Rows]] = {tuning: [] for tuning in tunings}
    rows, took_s = 0, 0.0
    with ProcessPoolExecutor(jobs) as pool:
        one = partial(_gather_case, tunings=tuple(tunings), most_ranks=most_ranks)
        for found in pool.map(one, enumerate(cases)):
            for tuning in tunings:
                parts[tuning].append(found.rows[tuning])
            rows, took_s = rows + found.replayed_rows, took_s + found.replayed_s
    return Gathered({tuning: _stack(some) for tuning, some in parts.items()}, rows, took_s)


def _gather_case(numbered: tuple[int, Case], *, tunings: Sequence[Tuning], most_ranks: int) -> Gathered:
    number, case = numbered
    run = simulate_case(case)
    looked_at = [one for one in range(case.windows()[0][0], case.iterations) if _is_measured(run, one)]
    examples = list(examples_of(run, most_ranks=most_ranks))
    replays: dict[bool, Replays] = {}
    rows: dict[Tuning, Rows] = {}
    for tuning in tunings:
        is_tuned = tuning != "off"
        if is_tuned not in replays:
            replays[is_tuned] = replay_case(run, looked_at, most_ranks=most_ranks, is_tuned=is_tuned)
        frames = [_follow(run, number, of_rank, tuning, replays[is_tuned]) for of_rank in examples]
        rows[tuning] = _stack([one for of_rank in frames for one in of_rank])
    return Gathered(rows, sum(one.rows for one in replays.values()), sum(one.took_s for one in replays.values()))


def _is_measured(run: CaseRun, iteration: int) -> bool:
    """Whether an iteration is irregular, or one of the healthy ones that are looked at too."""
    is_irregular = run.is_irregular(iteration)
    return bool(is_irregular) or (is_irregular is False and iteration % _HEALTHY_EVERY == 0)


def _follow(
    run: CaseRun, number: int, examples: Iterable[Example], tuning: Tuning, replays: Replays
) -> Iterator[Rows]:
    features = OperatorFeatures(window=32, warm_up=20, tuning=tuning, most_slots=4096)
    baseline = RobustBaseline()
    windows = run.case.windows()
    for example in examples:
        if example.iteration >= windows[0][0] and _is_measured(run, example.iteration):
            at = next((n for n, (first, past) in enumerate(windows) if first <= example.iteration < past), -1)
            scores = baseline.score(example.frame), replays.ratios[example.rank, example.iteration]
            yield _rows(features.rows(example.frame), scores, example.is_abnormal, number, at)
        if example.is_irregular is False:
            features.learn(example.frame)
            baseline.learn(example.frame)


def _rows(
    found: FeatureRows, scores: tuple[np.ndarray, np.ndarray], is_abnormal: np.ndarray, case: int, window: int
) -> Rows:
    """Rows without a past stay, as ones that nothing is known of: missing them counts."""
    size = len(is_abnormal)
    matrix, is_seen = np.zeros((size, len(FEATURES)), dtype=np.float32), np.zeros(size, dtype=np.bool_)
    matrix[found.rows], is_seen[found.rows] = found.matrix, found.is_suspicious()
    known = (np.nan_to_num(one, nan=0.0) for one in scores)
    return Rows(matrix, is_seen, *known, is_abnormal, np.full(size, case), np.full(size, window))


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
    called["replay"] = lambda rows: rows.replayed > ABNORMAL.ratio  # by definition: nothing was trained
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
    return {"k-nearest neighbours": _seen(nearest.predict), "SVM": _seen(machine.predict)}


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
    """Figures over irregular iterations, early, late and all, and how often a healthy operator is called abnormal."""
    started_s = time.perf_counter()
    called = call(rows)
    took_s = time.perf_counter() - started_s
    is_irregular = rows.window >= 0
    last = np.array([rows.window[rows.case == case].max(initial=-1) for case in range(int(rows.case.max()) + 1)])
    parts = {"all": is_irregular, "early": rows.window == 0, "late": is_irregular & (rows.window == last[rows.case])}
    counts = {part: Counts.of(rows.case[own], rows.is_abnormal[own], called[own]) for part, own in parts.items()}
    healthy = called[~is_irregular & ~rows.is_abnormal]
    return {
        "detector": name, "tuning": tuning, **{f"f1_{part}": one.f1() for part, one in counts.items()},
        "f1_late_interval": counts["late"].interval(), "precision_late": counts["late"].precision(),
        "recall_late": counts["late"].recall(), "healthy_false_alarms_per_1000": 1e3 * float(healthy.mean()),
        "operators": int(is_irregular.sum()), "call_us_per_row": 1e6 * took_s / max(len(called), 1),
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


def by_case(call: Call, rows: Rows, groups: Sequence[str]) -> dict[str, float]:
    """F1 over all irregular iterations by what the cases have in common; `groups` has a name per case."""
    called, group = call(rows), np.array(groups)[rows.case]
    found = {}
    for name in sorted(set(groups)):
        own = (group == name) & (rows.window >= 0)
        found[name] = Counts.of(rows.case[own], rows.is_abnormal[own], called[own]).f1()
    return found


def ceiling(cases: Sequence[Case], *, most_ranks: int, jobs: int) -> dict[str, Any]:
    """What an oracle reaches that knows job and fault; see `tests.benchmarks.operator_ceiling`."""
    with ProcessPoolExecutor(jobs) as pool:
        found = list(pool.map(partial(ceiling_of_case, most_ranks=most_ranks), cases))
    case = np.repeat(np.arange(len(found)), [len(one[0]) for one in found])
    truth, probability, expected = (np.concatenate([one[part] for one in found]) for part in range(3))
    informed, blind = Counts.of(case, truth, probability > 0.5), Counts.of(case, truth, expected > ABNORMAL.ratio)
    return {
        "jobs": len(cases), "operators": len(truth), "f1": informed.f1(), "f1_interval": informed.interval(),
        "f1_without_elapsed": blind.f1(), "f1_without_elapsed_interval": blind.interval(),
    }  # fmt: skip


def costs_us(replayed: Gathered) -> dict[str, float]:
    """Time per operator, µs, of one core: to learn, to compare, and to score where a detector runs as it ships."""
    features, rows = OperatorFeatures(window=32, warm_up=20, tuning="always", most_slots=4096), 1024
    frames = [sample_frame("operator", number, rows) for number in range(48)]
    learned_s = _time_s(lambda frame: features.learn(frame), frames)
    slow = [sample_frame("operator", number, rows, is_faulty=True) for number in range(100, 120)]
    compared_s = _time_s(lambda frame: features.rows(frame), slow)
    baseline = RobustBaseline()
    baseline_s = _time_s(lambda frame: (baseline.score(frame), baseline.learn(frame)), frames)
    return {
        "learn features": 1e6 * learned_s / rows, "compare": 1e6 * compared_s / rows,
        "RobustBaseline": 1e6 * baseline_s / rows,
        "replay": 1e6 * replayed.replayed_s / max(replayed.replayed_rows, 1),
    }  # fmt: skip


def _time_s(call: Callable[[Any], Any], frames: Sequence[Any]) -> float:
    """Median time of a call, seconds."""
    times_s = []
    for frame in frames:
        started_s = time.perf_counter()
        call(frame)
        times_s.append(time.perf_counter() - started_s)
    return float(np.median(times_s))


def measured_cases(count: int, iterations: int, *, is_untidy: bool) -> tuple[list[Case], list[str]]:
    """Jobs with each drift in equal shares, and the name of each one's drift."""
    share = -(-count // len(DRIFTS))
    found: list[Case] = []
    for number, (drift_ratio, step_ratio) in enumerate(DRIFTS.values()):
        more = {"drift_ratio": drift_ratio, "step_ratio": step_ratio, "iterations": iterations}
        found += shapes_of_faults(TEST_SEED + 1000 * number, share, TEST_JOBS, is_untidy=is_untidy, **more)
    return found, [name for name in DRIFTS for _ in range(share)]


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
    more = {"most_ranks": options.ranks, "jobs": options.jobs}
    trained = gather(training_cases(options.train_cases), ("always",), most_ranks=8, jobs=options.jobs).rows["always"]
    calls, slow = rules(trained) | forests(trained), slow_learners(trained)
    cases, drifts = measured_cases(options.cases, options.iterations, is_untidy=False)
    tested = gather(cases, TUNINGS, **more)
    untidy, untidy_drifts = measured_cases(options.untidy_cases, options.iterations, is_untidy=True)
    tested_untidy = gather(untidy, ("always",), **more)
    always = tested.rows["always"]
    shown = {name: calls[name] for name in ("replay", "OperatorForest")}
    return {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "jobs": len(cases), "untidy_jobs": len(untidy), "training_jobs": options.train_cases,
        "iterations": options.iterations, "figures": compare(calls, slow, tested.rows),
        "figures_untidy": compare(calls, slow, tested_untidy.rows), "first_test": first_test(always),
        "ceiling": ceiling(cases[:: max(len(cases) // options.ceiling_cases, 1)], **more),
        "by_excess": {n: by_case(c, always, [f"{one.excess_ratio:.0%}" for one in cases]) for n, c in shown.items()},
        "by_kind": {n: by_case(c, always, [one.kind for one in cases]) for n, c in shown.items()},
        "by_shape": {n: by_case(c, always, [one.shape for one in cases]) for n, c in shown.items()},
        "by_drift": {
            f"{n}, {t}": by_case(c, tested.rows[t], drifts) for n, c in shown.items() for t in TUNINGS
        },
        "by_drift_untidy": {n: by_case(c, tested_untidy.rows["always"], untidy_drifts) for n, c in shown.items()},
        "costs_us": costs_us(tested), "took_s": time.monotonic() - started_s,
    }  # fmt: skip


def table(figures: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown, the best first."""
    lines = [
        "| detector | tuning | precision | recall | F1 after the drift | interval | F1 before | F1 all "
        "| false alarms per 1,000 healthy | rows/s, scoring alone |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in sorted(figures, key=lambda one: -one["f1_late"]):
        low, high = one["f1_late_interval"]
        speed = "see below" if one["detector"] in _OWN_COST else f"{1e6 / max(one['call_us_per_row'], 0.1):,.0f}"
        lines.append(
            f"| {one['detector']} | {one['tuning']} | {one['precision_late']:.3f} | {one['recall_late']:.3f} "
            f"| {one['f1_late']:.3f} | {low:.3f} to {high:.3f} | {one['f1_early']:.3f} | {one['f1_all']:.3f} "
            f"| {one['healthy_false_alarms_per_1000']:.2f} | {speed} |"
        )
    return lines


def split_table(found: dict[str, dict[str, float]]) -> list[str]:
    """Markdown: a line per detector, a column per part."""
    parts = list(next(iter(found.values())))
    lines = [f"| F1, all irregular iterations | {' | '.join(parts)} |", "|---|" + "---|" * len(parts)]
    return lines + [f"| {name} | {' | '.join(f'{one[part]:.3f}' for part in parts)} |" for name, one in found.items()]


def report(found: dict[str, Any]) -> str:
    """Markdown."""
    first, top = found["first_test"], found["ceiling"]
    costs = ", ".join(f"{name} {value:.2f}" for name, value in found["costs_us"].items())
    low, high = top["f1_interval"]
    return "\n".join([
        "# Abnormal operators", "",
        f"{found['jobs']} simulated jobs of {found['iterations']} iterations, a third each with 10 % and 30 % of "
        f"drift over the run and with a step of 30 %; other shapes and seeds than the {found['training_jobs']} jobs "
        f"that rules and learners come from. {found['machine']}, {found['took_s']:.0f} s. Interval: 95 %, bootstrap "
        "over jobs.", "",
        *table(found["figures"]), "| Holmes (its paper) | tuned / untuned |  |  | 0.917 / 0.906 |  |  |  |  |  |", "",
        f"An oracle that knows job and fault, and the operator's elapsed, and not the luck of the run: F1 "
        f"{top['f1']:.3f} ({low:.3f} to {high:.3f}) on {top['jobs']} of the jobs; by what is expected with the fault "
        f"and without, and not by elapsed: {top['f1_without_elapsed']:.3f}.", "",
        f"The first test lets {first['seen_ratio_irregular']:.1%} of the operators of irregular iterations reach "
        f"a forest, {first['seen_ratio_healthy']:.2%} of healthy ones, and loses {first['missed_ratio']:.2%} "
        f"of the abnormal ones. µs per operator: {costs}.", "",
        *(line for name in _SPLITS for line in (*split_table(found[name]), "")),
        f"The same on {found['untidy_jobs']} jobs with unequal ranks, hosts and micro-batches, stalls, overlapped "
        f"gradients and lost rows:", "", *table(found["figures_untidy"]), "", *split_table(found["by_drift_untidy"]),
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--untidy-cases", type=int, default=30)
    parser.add_argument("--train-cases", type=int, default=48)
    parser.add_argument("--iterations", type=int, default=240)
    parser.add_argument("--ranks", type=int, default=12, help="ranks of each job that are measured, chosen at random")
    parser.add_argument("--ceiling-cases", type=int, default=30, help="jobs that the oracle runs many times")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 4), help="processes")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    found = run(options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    print(report(found))


if __name__ == "__main__":
    main()
