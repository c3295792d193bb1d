"""Figures from counts: F1 over all operators, with an interval over jobs. Knows no detector."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class Counts:
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

    def precision(self) -> float:
        """Part of the called ones that are abnormal."""
        return float(self.hits.sum() / max(self.hits.sum() + self.false_alarms.sum(), 1))

    def recall(self) -> float:
        """Part of the abnormal ones that are called."""
        return float(self.hits.sum() / max(self.hits.sum() + self.misses.sum(), 1))

    def interval(self, *, draws: int = 2000, seed: int = 0) -> tuple[float, float]:
        """95 % bootstrap interval of F1: jobs are drawn, since the operators of one job are not independent."""
        size = len(self.hits)
        rng = np.random.default_rng(seed)
        found = [self.f1(rng.integers(size, size=size)) for _ in range(draws)]
        low, high = np.quantile(found, [0.025, 0.975])
        return float(low), float(high)


def best_threshold(scores: np.ndarray, is_abnormal: np.ndarray) -> float:
    """Threshold of the highest F1 on these rows, among 400 quantiles of the scores."""
    known = np.nan_to_num(scores, nan=-np.inf)
    candidates = np.unique(np.quantile(known[np.isfinite(known)], np.linspace(0.3, 0.9995, 400)))
    order = np.argsort(-known, kind="stable")
    hits = np.r_[0, np.cumsum(is_abnormal[order])]
    called = np.searchsorted(-known[order], -candidates, side="left")
    f1 = 2 * hits[called] / (called + max(int(is_abnormal.sum()), 1))
    return float(candidates[int(np.argmax(f1))])
