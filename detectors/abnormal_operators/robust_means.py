"""Robust statistics of ratios: how many times as long as usual something took, as logarithms.

Logarithms make twice as long and half as long equally far from usual, and make the factor of a slow device a sum.
"""

from __future__ import annotations

import numpy as np

from irregulars.detectors.abnormal_operators.thresholds import ABNORMAL
from irregulars.detectors.arrays.grouped_medians import MAD_TO_SIGMA, weighted_medians
from irregulars.dtypes import Flags, Floats, Ints


def log_ratios(values: Floats, usual: Floats) -> Floats:
    """Return the logarithm of each value over what is usual; NaN where one of them is not above 0."""
    is_known = (values > 0) & (usual > 0)
    return np.where(is_known, np.log(np.where(is_known, values, 1.0) / np.where(is_known, usual, 1.0)), np.nan)


def share_above_usual(log_ratio: Floats) -> Floats:
    """Return which share of a time is above usual, if the time is exp(`log_ratio`) times the usual one.

    >>> share_above_usual(np.log(np.array([4.0, 2.0])))
    array([0.75, 0.5 ])
    """
    return np.asarray(-np.expm1(-log_ratio))


def huber_means(group: Ints, values: Floats, weights: Floats, sigma: float) -> Floats:
    """Return the weighted mean of each group, in which values far from the median count as if they were less far.

    Parameters
    ----------
    group
        Group of each row, numbered from 0.
    values, weights
        Of each row. Rows whose value is NaN, or whose weight is not above 0, do not count.
    sigma
        Standard deviation of the values; how many of them are far is `AbnormalThresholds.huber_sigmas`.

    References
    ----------
    Huber: Robust Estimation of a Location Parameter, Annals of Mathematical Statistics 35, 1964; one step from the
    median.

    Examples
    --------
    The median is 2, and 90 is moved to two standard deviations from there, which is 4:

    >>> huber_means(np.zeros(3, dtype=np.int64), np.array([0.0, 2.0, 90.0]), np.ones(3), sigma=1.0)
    array([2.])
    """
    median = weighted_medians(group, values, weights)
    does_count = ~np.isnan(values) & (weights > 0)
    far = ABNORMAL.huber_sigmas * sigma
    distance = np.where(does_count, np.clip(values - median[group], -far, far), 0.0)
    weights = np.where(does_count, weights, 0.0)
    total = np.bincount(group, weights)
    return np.asarray(median + np.bincount(group, weights * distance) / np.where(total > 0, total, 1.0))


def spread_of_pieces(ratios: Floats, weights: Floats) -> float:
    """Return the robust standard deviation of single pieces' log ratios around 0, weighted."""
    distance = weighted_medians(np.zeros(len(ratios), dtype=np.int64), np.abs(ratios), weights)[0]
    return max(MAD_TO_SIGMA * float(distance), ABNORMAL.least_piece_sigma)


def shrink_together(values: Floats, is_slow: Flags, sigma: Floats) -> Floats:
    """Draw the values of slow ones together, as far as they differ by noise alone; return 0 for all others.

    Ranks of one slow host are slow by the same factor, and their mean knows it better than each of them.

    Parameters
    ----------
    values, sigma
        Of each rank or lane: its log ratio, and the standard deviation of that.

    References
    ----------
    James and Stein: Estimation with Quadratic Loss, Fourth Berkeley Symposium, 1961; the positive part, around the
    weighted mean.

    Examples
    --------
    Two slow ranks that differ by less than their noise get their mean; the third is not slow:

    >>> shrink_together(np.array([0.4, 0.5, 0.0]), np.array([True, True, False]), np.full(3, 0.1))
    array([0.45, 0.45, 0.  ])
    """
    if not is_slow.any():
        return np.zeros(len(values))
    weights = is_slow / sigma**2
    mean = float((weights * values).sum() / weights.sum())
    spread = float(
        (weights * (values - mean) ** 2).sum()
    )  # about as large as the number of slow ones, by noise alone
    kept = max(1.0 - max(int(is_slow.sum()) - 1, 0) / spread, 0.0) if spread > 0 else 0.0
    return np.where(is_slow, mean + kept * (values - mean), 0.0)
