"""One scale in place of the rules of opening, tried: a model fitted on three makers opens verdicts on the fourth.

    python -m tests.benchmarks.makers.one_scale --seed 7001 --held 7006   # fit on 7001, judge 7006

The rules (`detectors.verdicts.opening`, `single_spikes`) open a verdict where any of five conditions holds. Here each
cause of the newest iterations gets one number, the log odds that it is true, from all that the rules look at and
how much of it there is. It opens where that passes one limit: the lowest that accuses no more than `--per-1000`
innocent devices in 1,000 healthy iterations of the makers that it was fitted on. Everything else stays as it is: how
causes are found and named, how verdicts go on and close, reviews and hangs.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from irregulars.detectors.blame.causes import Cause
from irregulars.detectors.blame.observation import explained_ns
from irregulars.detectors.verdicts.opening import Evidence, stands_alone
from irregulars.detectors.verdicts.tracker import VerdictTracker
from irregulars.dtypes import Floats
from tests.benchmarks.makers.drawing import MAKERS, RECORDINGS, ROOT, Job, draw, drawn_jobs, recorded_jobs
from tests.benchmarks.makers.fitting import FITS
from tests.benchmarks.makers.judging import judge, reduce
from tests.benchmarks.makers.labels import Truth, truth_of
from tests.benchmarks.makers.report import by_maker_table, figures_by_maker, wrong_lines
from tests.benchmarks.makers.scoring import Outcome, said, score

_KINDS: Final = ("slow_rank", "slow_nic", "slow_link", "slow_communicator", "slow_stage")
_FORGETTING: Final = 0.7  # what an iteration counts, of the one after it
_MODELS: Final = {
    "logistic": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
    "boosting": lambda: HistGradientBoostingClassifier(max_depth=4, learning_rate=0.05, random_state=0),
}


class Shown(NamedTuple):
    """One cause, as some newest iterations showed it."""

    features: tuple[float, ...]
    iteration: int
    kind: str
    device: str | None
    ranks: tuple[int, ...]


class Model(NamedTuple):
    """What opens verdicts: log odds above a limit."""

    of: Any
    limit: float

    def opens(self, features: Sequence[float]) -> bool:
        """Whether a cause with these features accuses."""
        return bool(log_odds(self.of, np.array([features]))[0] >= self.limit)


def features_of(cause: Cause, evidence: Evidence) -> tuple[float, ...]:
    """Return what the newest iterations say of a cause, as numbers; sums forget, and grow with each iteration."""
    recent = [one for one in evidence.recent if one.attribution is not None]
    newest = recent[-1].iteration
    weight = [_FORGETTING ** (newest - one.iteration) for one in recent]
    own_ns = [explained_ns(cause, one.attribution) for one in recent if one.attribution is not None]
    lost_ns = [sum(ns for ns in one.attribution.path_excess_ns.values() if ns > 0)
               for one in recent if one.attribution is not None]  # fmt: skip
    share = [own / max(lost, 1.0) for own, lost in zip(own_ns, lost_ns, strict=True)]
    cost = [math.log1p(100 * own / max(one.reference_ns, 1.0)) for own, one in zip(own_ns, recent, strict=True)]
    sigmas = [min(max(one.sigmas, 0.0), 100.0) if not math.isnan(one.sigmas) else 0.0 for one in recent]

    def summed(values: Sequence[float]) -> float:
        return sum(w * value for w, value in zip(weight, values, strict=True))

    certainty = cause.suspects[0][1] if cause.suspects else 0.5
    seen = [one for one in recent if one.iteration in cause.explained_ns]
    is_alone = bool(seen) and stands_alone(cause, seen, evidence.suspicions, evidence.topology)
    return (
        summed([1.0] * len(recent)), summed(share), summed(cost), summed([math.log1p(one) for one in sigmas]),
        summed([float(one.is_mainly(cause)) for one in recent]),
        summed([float(one.is_late(cause)) for one in recent]),
        summed([float(one.is_long) for one in recent]), summed([float(one.is_beyond_noise(cause)) for one in recent]),
        summed([2 * one - 1 for one in share]), median(share), float(len(seen)), float(len(recent) - len(seen)),
        math.log(certainty / (1 - min(certainty, 0.999))), float(is_alone),
        float(bool(evidence.suspicions.uneven(evidence.topology))), float(evidence.is_uneven),
        float(bool(cause.suspects)), math.log(max(evidence.topology.world_size, 1)),
        *(float(cause.kind == kind) for kind in _KINDS),
    )  # fmt: skip


@contextmanager
def opening_by(model: Model | None, shown: list[Shown]) -> Iterator[None]:
    """Open by a model in place of the rules; None: by the rules. Note each cause that is asked of."""
    rules, spikes = Evidence.is_seen_enough, VerdictTracker._decide_spikes

    def is_seen_enough(evidence: Evidence, cause: Cause) -> bool:
        if cause.kind == "imbalance":
            return rules(evidence, cause)
        features, (device, _) = features_of(cause, evidence), (cause.suspects or ((None, 0.0),))[0]
        ranks = () if device is None else device.ranks
        kind = None if device is None else device.kind
        shown.append(Shown(features, evidence.recent[-1].iteration, cause.kind, kind, ranks))
        return rules(evidence, cause) if model is None else model.opens(features)

    try:
        Evidence.is_seen_enough = is_seen_enough  # type: ignore[method-assign]
        if model is not None:
            VerdictTracker._decide_spikes = lambda *_: []  # type: ignore[method-assign]
        yield
    finally:
        Evidence.is_seen_enough = rules  # type: ignore[method-assign]
        VerdictTracker._decide_spikes = spikes  # type: ignore[method-assign]


def judged(job: Job, models: Mapping[str, Model | None]) -> tuple[Outcome, list[Shown]]:
    """Judge a job by the model that was fitted without its maker; return what its causes showed too."""
    draw(job)
    truth, shown = truth_of(job.maker, job.name, job.label()), list[Shown]()
    with opening_by(models.get(job.maker), shown):
        answer = judge(reduce(job.directory))
    return Outcome(truth, score(truth, answer), said(answer)), shown


def is_true(one: Shown, truth: Truth) -> bool:
    """Whether a cause is what was done to the job, while it acts."""
    acts = any(first <= one.iteration < past + 1 for first, past in truth.spans)
    is_device = truth.device is None or (one.device == truth.device and set(one.ranks) == set(truth.ranks))
    return acts and one.kind == truth.kind and is_device


def log_odds(model: Any, features: Floats) -> Floats:
    """Return the log odds that a model gives each row."""
    chance = np.clip(model.predict_proba(features)[:, 1], 1e-6, 1 - 1e-6)
    return np.asarray(np.log(chance / (1 - chance)))


def fitted(name: str, parts: Sequence[tuple[Outcome, list[Shown]]], per_1000: float) -> Model:
    """Fit a model on some jobs; of jobs with a fault those causes teach that are it, and those of other devices."""
    rows = [(one.features, is_true(one, outcome.truth), job)
            for job, (outcome, shown) in enumerate(parts) for one in shown]  # fmt: skip
    features = np.array([row[0] for row in rows])
    truth = np.array([row[1] for row in rows])
    model = _MODELS[name]()
    model.fit(features, truth)
    odds = log_odds(model, features)
    healthy = {job for job, (outcome, _) in enumerate(parts) if outcome.truth.kind is None}
    iterations = sum(parts[job][0].score.iterations for job in healthy)
    # Of each healthy job the causes that would be accused: its highest odds of each device.
    highest: dict[tuple[int, tuple[int, ...]], float] = {}
    for own, (_, _, job), one in zip(odds, rows, (s for _, shown in parts for s in shown), strict=True):
        if job in healthy and one.device is not None:
            key = job, one.ranks
            highest[key] = max(highest.get(key, -math.inf), float(own))
    allowed = int(per_1000 * iterations / 1000)
    worst = sorted(highest.values(), reverse=True)
    return Model(model, max(worst[allowed] + 1e-9 if len(worst) > allowed else 0.0, 0.0))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.makers.one_scale", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seed", type=int, required=True, help="the first seed that is fitted on")
    parser.add_argument("--held", type=int, required=True, help="the first seed that is judged")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--model", choices=_MODELS, default="logistic")
    parser.add_argument("--per-1000", type=float, default=0.2, help="innocent devices in 1,000 healthy iterations")
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--jobs", type=Path, default=ROOT / "build" / "makers")
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces")
    options = parser.parse_args(arguments)

    def jobs(first: int) -> list[Job]:
        drawn = [
            job for maker in MAKERS if maker != RECORDINGS for seed in range(first, first + options.seeds)
            for job in drawn_jobs(maker, seed, options.count, options.jobs)
        ]  # fmt: skip
        return [*drawn, *(job for job in recorded_jobs(options.traces) if job.maker == RECORDINGS)]

    with ProcessPoolExecutor(os.cpu_count()) as pool:
        seen = list(pool.map(partial(judged, models={}), jobs(options.seed)))
        models: dict[str, Model | None] = {}
        for maker in MAKERS:
            others = [pair for pair in seen if pair[0].truth.maker != maker]
            one = models[maker] = fitted(options.model, others, options.per_1000)
            print(f"{maker}: opens at log odds of {one.limit:.2f}", file=sys.stderr)
        by_rules = [one for one, _ in pool.map(partial(judged, models={}), jobs(options.held))]
        by_scale = [one for one, _ in pool.map(partial(judged, models=models), jobs(options.held))]
    for name, outcomes in (("the rules", by_rules), ("one scale", by_scale)):
        print(f"\n{name}\n", *by_maker_table(figures_by_maker(outcomes, MAKERS, FITS["logistic"])), sep="\n")
        if options.wrong:
            print("", *wrong_lines(outcomes), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
