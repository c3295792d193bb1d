"""What a model may know of a rank in an iteration: numbers without units, which mean the same in jobs of any size."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.grouped_medians import MAD_TO_SIGMA, medians
from irregulars.detectors.plugins.forest.rank_past import MEASURES, RankPast
from irregulars.detectors.plugins.protocol import Frame
from irregulars.dtypes import Floats, Ints
from irregulars.messages.records import UNKNOWN

READS: Final = ("rank", "elapsed_ns", "work_ns", "communication_ns", "operators", "tokens", "stage")

FEATURES: Final = (
    "work_peers",  # log of work over the median of its stage
    "work_peers_sigmas",  # the same in robust standard deviations, as signed log(1 + x)
    "work_past",  # log of work over the rank's own past
    "work_past_sigmas",
    "excess_share",  # work above the median of its stage, as a share of the iteration
    "work_share",  # work, as a share of the iteration
    "communication_peers",
    "communication_past",
    "tokens_peers",
    "operators_peers",
    "elapsed_past",  # log of the iteration's time over that of the past
    "crowd",  # share of ranks that stand out
)
"""0 where something is not known: as usual."""

_LEAST_PEERS: Final = 3
"""Ranks of a stage: of two nobody knows which one is the odd one."""

_FLOOR: Final = 0.02
"""Least spread of peers that counts as noise, as a ratio."""


class RankRows(NamedTuple):
    """Features of the rows of a frame.

    Parameters
    ----------
    matrix
        `FEATURES` of each row; NaN in those of which nothing is known.
    sigmas
        How far the rank's work stands out, in standard deviations: from its peers, else from its own past. NaN: not
        known.
    past_sigmas
        The same from its own past; NaN: not known.
    """

    matrix: Floats
    sigmas: Floats
    past_sigmas: Floats

    @property
    def suspicion(self) -> Floats:
        """The larger of both; NaN: not known."""
        return np.fmax(self.sigmas, self.past_sigmas)


def rank_rows(frame: Frame, past: RankPast, stands_out_from: float) -> RankRows:
    """Return the features of a frame's rows, as things stand.

    Parameters
    ----------
    stands_out_from
        Standard deviations from which a row counts for the crowd.
    """
    logs = log_measures(frame)
    is_known = np.isfinite(logs[:, 0])
    rows = np.flatnonzero(is_known)
    group = _groups(frame["stage"][rows])
    above, past_sigmas = past.deviations(frame["rank"], logs)
    peers, sigmas = _from_peers(logs[rows, 0], group)
    communication, _ = _from_peers(np.nan_to_num(logs[rows, 1]), group)  # without any, none is strange
    is_alone = np.isnan(sigmas)
    stands_out = np.where(is_alone, past_sigmas[rows], sigmas)
    share = np.exp(logs[rows, 0] - logs[rows, 2])
    columns = (
        peers, _pressed(sigmas), above[rows, 0], _pressed(past_sigmas[rows]),
        share * -np.expm1(-np.nan_to_num(peers)), share, communication, above[rows, 1],
        _log_over_median(frame["tokens"][rows]), _log_over_median(frame["operators"][rows]), above[rows, 2],
        np.full(len(rows), np.mean(stands_out >= stands_out_from) if len(rows) else 0.0),
    )  # fmt: skip
    matrix = np.full((len(logs), len(FEATURES)), np.nan)
    matrix[rows] = np.clip(np.nan_to_num(np.column_stack(columns), posinf=20.0, neginf=-20.0), -20.0, 20.0)
    own = np.full(len(logs), np.nan)
    own[rows] = stands_out
    past_sigmas = np.where(is_known, past_sigmas, np.nan)
    matrix[np.isnan(own) & np.isnan(past_sigmas)] = np.nan
    return RankRows(matrix, own, past_sigmas)


def log_measures(frame: Frame) -> Floats:
    """Return the logarithms of `MEASURES`, a row for each of a frame; NaN: not known."""
    values = np.column_stack([frame[name] for name in MEASURES]).astype(np.float64)
    is_known = np.isfinite(values) & (values >= 0)
    return np.where(is_known, np.log(np.maximum(np.where(is_known, values, 1.0), 1.0)), np.nan)


def _groups(stages: Ints) -> Ints:
    """Return numbers of stages without holes; ranks of unknown stage have no peers."""
    alone = np.flatnonzero(stages == UNKNOWN)
    _, group = np.unique(stages, return_inverse=True)
    group = group.astype(np.int64)
    group[alone] = group.max(initial=-1) + 1 + np.arange(len(alone))
    return np.unique(group, return_inverse=True)[1].astype(np.int64)


def _from_peers(values: Floats, group: Ints) -> tuple[Floats, Floats]:
    """Return how far values lie above the median of their group, and that in standard deviations; NaN: no peers."""
    if not len(values):
        return values, values
    above = values - medians(group, values)[group]
    spread = np.maximum(MAD_TO_SIGMA * medians(group, np.abs(above)), _FLOOR)[group]
    has_peers = np.bincount(group)[group] >= _LEAST_PEERS
    return np.where(has_peers, above, np.nan), np.where(has_peers, above / spread, np.nan)


def _log_over_median(values: Floats) -> Floats:
    is_known = np.isfinite(values) & (values > 0)
    logs = np.log(np.where(is_known, values, 1.0))
    usual = float(np.median(logs[is_known])) if is_known.any() else 0.0
    return np.where(is_known, logs - usual, 0.0)


def _pressed(sigmas: Floats) -> Floats:
    return np.asarray(np.sign(sigmas) * np.log1p(np.abs(sigmas)))
