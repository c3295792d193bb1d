"""Abnormal operators: the replay beside the detectors of operators that ship, and a simple rule.

    make bench-operators

Simulated jobs with noise, spikes and drift; what is abnormal is known from the same job without the fault. Thresholds
come from jobs of other shapes and seeds than those that are measured. Prints a Markdown report and writes JSON. Not a
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
from typing import Any, Final, NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.kernel_approximation import Nystroem
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from irregulars.detectors.abnormal_operators.replay import abnormal_ratios
from irregulars.detectors.abnormal_operators.usual_pieces import UsualPieces, learn_usual_pieces
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.path.operator_graph import OperatorGraph, build_graph
from irregulars.detectors.plugins.baseline import RobustBaseline
from irregulars.detectors.plugins.forest.features import FEATURES, OperatorFeatures
from irregulars.detectors.plugins.forest.random_forest import MODEL, load_trees
from tests.benchmarks.train_operator_forest import (
    ABNORMAL_RATIO,
    Case,
    CaseRun,
    Example,
    examples_of,
    shapes_of_faults,
    simulate_case,
    training_cases,
)

TEST_JOBS: Final = ((8, 2, 2, 4), (2, 8, 2, 8), (4, 2, 8, 6), (4, 4, 2, 8), (2, 3, 4, 4), (2, 16, 1, 16))
TEST_SEED: Final = 50_000
DRIFTS: Final = ((0.10, 0.0), (0.30, 0.0), (0.03, 0.30))
"""All work longer from the first iteration to the last, by so much; and longer sequences, at once."""

_HEALTHY_EVERY: Final = 8
_TRAINING_ROWS: Final = 60_000
_LEARN_EVERY: Final = 16  # iterations for which the replay keeps the usual pieces that it has learned
_KEY: Final = ("communicator", "operator", "peer", "sequence")


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


Call = Callable[[Rows], np.ndarray]  # says of each row whether it is abnormal


class Gathered(NamedTuple):
    """Rows, and the rows and seconds of their replays."""

    rows: Rows
    replayed_rows: int
    replayed_s: float


def gather(cases: Sequence[Case], *, most_ranks: int, jobs: int) -> Gathered:
    """Run each job once, and compare its operators with the past."""
    with ProcessPoolExecutor(jobs) as pool:
        found = list(pool.map(partial(_gather_case, most_ranks=most_ranks), enumerate(cases)))
    rows, counts, took_s = zip(*found, strict=True)
    return Gathered(_stack(rows), sum(counts), sum(took_s))


def _gather_case(numbered: tuple[int, Case], *, most_ranks: int) -> Gathered:
    number, case = numbered
    run = simulate_case(case)
    looked_at = [one for one in range(case.windows()[0][0], case.iterations) if _is_measured(run, one)]
    ratios, count, took_s = replay(run, looked_at, most_ranks)
    frames = [_follow(run, number, of_rank, ratios) for of_rank in examples_of(run, most_ranks=most_ranks)]
    return Gathered(_stack([one for of_rank in frames for one in of_rank]), count, took_s)


def _is_measured(run: CaseRun, iteration: int) -> bool:
    """Whether an iteration is irregular, or one of the healthy ones that are looked at too."""
    is_irregular = run.is_irregular(iteration)
    return bool(is_irregular) or (is_irregular is False and iteration % _HEALTHY_EVERY == 0)


def _follow(
    run: CaseRun, number: int, examples: Iterable[Example], ratios: dict[tuple[int, int], np.ndarray]
) -> Iterator[Rows]:
    features, baseline = OperatorFeatures(window=32, warm_up=20, tuning="always", most_slots=4096), RobustBaseline()
    windows = run.case.windows()
    for example in examples:
        if example.iteration >= windows[0][0] and _is_measured(run, example.iteration):
            at = next((n for n, (first, past) in enumerate(windows) if first <= example.iteration < past), -1)
            scores = baseline.score(example.frame), ratios[example.rank, example.iteration]
            found, size = features.rows(example.frame), len(example.is_abnormal)
            # Rows without a past stay, as ones that nothing is known of: missing them counts.
            matrix, is_seen = np.zeros((size, len(FEATURES)), dtype=np.float32), np.zeros(size, dtype=np.bool_)
            matrix[found.rows], is_seen[found.rows] = found.matrix, found.is_suspicious()
            known = (np.nan_to_num(one, nan=0.0) for one in scores)
            yield Rows(matrix, is_seen, *known, example.is_abnormal, np.full(size, number), np.full(size, at))
        if example.is_irregular is False:
            features.learn(example.frame)
            baseline.learn(example.frame)


def _stack(parts: Sequence[Rows]) -> Rows:
    return Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in Rows.__slots__))


# --- the replay, which needs the operators of all ranks -------------------------------------------------------------


def replay(
    run: CaseRun, iterations: Sequence[int], most_ranks: int
) -> tuple[dict[tuple[int, int], np.ndarray], int, float]:
    """Replay these iterations, ascending.

    Returns
    -------
    Ratios of elapsed to the replay's by rank and iteration, in the order of the frames; rows and seconds of it all.
    """
    columns = _all_ranks(run)
    bounds = np.searchsorted(columns["iteration"], np.arange(run.case.iterations + 1))

    def graph_of(some: Sequence[int]) -> OperatorGraph:
        rows = np.concatenate([np.arange(bounds[one], bounds[one + 1]) for one in some])
        return build_graph({name: column[rows] for name, column in columns.items()}, run.with_fault.starts_ns)

    usual: UsualPieces | None = None
    found, count, took_s, learned = dict[tuple[int, int], np.ndarray](), 0, 0.0, 0
    for iteration in iterations:
        if usual is None or iteration - learned >= _LEARN_EVERY:
            regular = [one for one in range(1, iteration) if run.is_irregular(one) is False]
            usual, learned = learn_usual_pieces(graph_of(regular[-IRREGULAR.min_iterations :])), iteration
        started_s = time.perf_counter()
        graph = graph_of([iteration])
        ratios = np.ones(len(graph)) if usual is None else abnormal_ratios(graph, usual)
        took_s, count = took_s + time.perf_counter() - started_s, count + len(graph)
        for rank in run.ranks(most_ranks):
            rows = run.with_fault.operators[rank]
            own, in_graph = np.flatnonzero(rows["iteration"] == iteration), np.flatnonzero(graph.rank == rank)
            order = np.lexsort([rows[name][own] for name in ("job_communicator", *_KEY[1:])])
            graph_order = np.lexsort([getattr(graph, name)[in_graph] for name in _KEY])
            values = np.full(len(own), np.nan)
            values[order] = ratios[in_graph[graph_order]]
            found[rank, iteration] = values
    return found, count, took_s


def _all_ranks(run: CaseRun) -> dict[str, np.ndarray]:
    parts = []
    for rank, rows in run.with_fault.operators.items():
        kept = {name: rows[name] for name in ("iteration", *_KEY[1:], "start_ns", "elapsed_ns", "size_bytes")}
        ranks = np.full(len(rows["sequence"]), rank)
        parts.append({**kept, "communicator": rows["job_communicator"], "rank": ranks})
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(columns["iteration"], kind="stable")
    return {name: column[order] for name, column in columns.items()}


# --- who is compared, and figures -----------------------------------------------------------------------------------


def detectors(train: Rows) -> dict[str, Call]:
    """The baseline with the best threshold on the training jobs; the others have theirs by definition.

    The models that Holmes compares (its table of detectors) are trained on the same jobs and features as the forest.
    """
    limit, ours = best_threshold(train.baseline, train.is_abnormal), load_trees(MODEL, FEATURES)
    seen = np.flatnonzero(train.is_seen)
    some = np.random.default_rng(0).permutation(seen)[:_TRAINING_ROWS]  # neighbours and kernels grow with the rows
    models = {
        "k nearest neighbours": make_pipeline(StandardScaler(), KNeighborsClassifier(15)),
        "support vectors": make_pipeline(
            StandardScaler(), Nystroem(n_components=200, random_state=0), LinearSVC(class_weight="balanced")
        ),
        "gradient boosting": HistGradientBoostingClassifier(random_state=0),
    }
    for model in models.values():
        model.fit(np.nan_to_num(train.matrix[some]), train.is_abnormal[some])
    trained = {name: _of_model(lambda matrix, own=model: own.predict(np.nan_to_num(matrix)))
               for name, model in models.items()}  # fmt: skip
    return {
        "replay": lambda rows: rows.replayed > ABNORMAL_RATIO,
        "OperatorForest": _of_model(lambda matrix: ours.predict(matrix) > 0.5),
        **trained,
        "RobustBaseline": lambda rows: rows.baseline > limit,
        "3-sigma of the class": lambda rows: rows.matrix[:, FEATURES.index("class_z")] > 3.0,
    }


def _of_model(predict: Callable[[np.ndarray], np.ndarray]) -> Call:
    """Call what a model says of the features; what was not seen before is not called."""

    def call(rows: Rows) -> np.ndarray:
        called = np.zeros(len(rows.is_seen), dtype=np.bool_)
        if rows.is_seen.any():
            called[rows.is_seen] = predict(rows.matrix[rows.is_seen])
        return called

    return call


def best_threshold(scores: np.ndarray, is_abnormal: np.ndarray) -> float:
    """Threshold of the highest F1 on these rows, among 400 quantiles of the scores."""
    known = np.nan_to_num(scores, nan=-np.inf)
    candidates = np.unique(np.quantile(known[np.isfinite(known)], np.linspace(0.3, 0.9995, 400)))
    order = np.argsort(-known, kind="stable")
    hits = np.r_[0, np.cumsum(is_abnormal[order])]
    called = np.searchsorted(-known[order], -candidates, side="left")
    f1 = 2 * hits[called] / (called + max(int(is_abnormal.sum()), 1))
    return float(candidates[int(np.argmax(f1))])


class Counts(NamedTuple):
    """Right and wrong answers, one entry per job."""

    hits: np.ndarray
    false_alarms: np.ndarray
    misses: np.ndarray

    @classmethod
    def of(cls, jobs: np.ndarray, is_abnormal: np.ndarray, is_called: np.ndarray) -> Counts:
        """Count the rows of each job; `jobs` numbers them from 0."""
        size = int(jobs.max(initial=-1)) + 1
        pairs = (is_abnormal & is_called, ~is_abnormal & is_called, is_abnormal & ~is_called)
        return cls(*(np.bincount(jobs[rows], minlength=size) for rows in pairs))

    def f1(self, jobs: np.ndarray | slice = slice(None)) -> float:
        """Harmonic mean of precision and recall over some jobs, all operators counted alike."""
        hits, wrong = self.hits[jobs].sum(), (self.false_alarms + self.misses)[jobs].sum()
        return float(2 * hits / max(2 * hits + wrong, 1))

    def interval(self, *, draws: int = 2000) -> tuple[float, float]:
        """95 % bootstrap interval of F1: jobs are drawn, since the operators of one job are not independent."""
        size, rng = len(self.hits), np.random.default_rng(0)
        low, high = np.quantile([self.f1(rng.integers(size, size=size)) for _ in range(draws)], [0.025, 0.975])
        return float(low), float(high)


def measure(name: str, call: Call, rows: Rows) -> dict[str, Any]:
    """Figures over irregular iterations, early, late and all, and how often a healthy operator is called abnormal."""
    called, is_irregular = call(rows), rows.window >= 0
    last = np.array([rows.window[rows.case == case].max(initial=-1) for case in range(int(rows.case.max()) + 1)])
    parts = {"all": is_irregular, "early": rows.window == 0, "late": is_irregular & (rows.window == last[rows.case])}
    counts = {part: Counts.of(rows.case[own], rows.is_abnormal[own], called[own]) for part, own in parts.items()}
    hits, false_alarms, misses = (one.sum() for one in counts["late"])
    return {
        "detector": name, **{f"f1_{part}": one.f1() for part, one in counts.items()},
        "f1_late_interval": counts["late"].interval(), "precision_late": float(hits / max(hits + false_alarms, 1)),
        "recall_late": float(hits / max(hits + misses, 1)), "operators": int(is_irregular.sum()),
        "healthy_false_alarms_per_1000": 1e3 * float(called[~is_irregular & ~rows.is_abnormal].mean()),
    }  # fmt: skip


def measured_cases(count: int, iterations: int, *, is_untidy: bool) -> list[Case]:
    """Jobs with each drift in equal shares."""
    found: list[Case] = []
    for number, (drift_ratio, step_ratio) in enumerate(DRIFTS):
        more = {"drift_ratio": drift_ratio, "step_ratio": step_ratio, "iterations": iterations}
        seed = TEST_SEED + 1000 * number
        found += shapes_of_faults(seed, -(-count // len(DRIFTS)), TEST_JOBS, is_untidy=is_untidy, **more)
    return found


def table(figures: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        "| detector | precision | recall | F1 after the drift | interval | F1 before | F1 all "
        "| false alarms per 1,000 healthy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in sorted(figures, key=lambda one: -one["f1_late"]):
        low, high = one["f1_late_interval"]
        lines.append(
            f"| {one['detector']} | {one['precision_late']:.3f} | {one['recall_late']:.3f} | {one['f1_late']:.3f} "
            f"| {low:.3f} to {high:.3f} | {one['f1_early']:.3f} | {one['f1_all']:.3f} "
            f"| {one['healthy_false_alarms_per_1000']:.2f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--untidy-cases", type=int, default=30)
    parser.add_argument("--train-cases", type=int, default=48)
    parser.add_argument("--iterations", type=int, default=240)
    parser.add_argument("--ranks", type=int, default=12, help="ranks of each job that are measured, chosen at random")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 4), help="processes")
    parser.add_argument("--json", type=Path, help="where the figures go")
    own = parser.parse_args()
    calls = detectors(gather(training_cases(own.train_cases), most_ranks=8, jobs=own.jobs).rows)
    found: dict[str, Any] = {}
    print(
        f"# Abnormal operators\n\n{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}."
    )
    for about, count, is_untidy in (
        ("jobs with drift", own.cases, False),
        ("jobs of unequal ranks, hosts and data", own.untidy_cases, True),
    ):
        cases = measured_cases(count, own.iterations, is_untidy=is_untidy)
        tested = gather(cases, most_ranks=own.ranks, jobs=own.jobs)
        found[about] = [measure(name, call, tested.rows) for name, call in calls.items()]
        replay_us = 1e6 * tested.replayed_s / max(tested.replayed_rows, 1)
        print(
            f"\n{len(cases)} {about}; the replay took {replay_us:.2f} µs an operator.\n",
            *table(found[about]),
            sep="\n",
        )
    if own.json:
        own.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
