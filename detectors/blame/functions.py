"""Functions in which an accused rank spends its time, beside its peers: as agents sampled them for the verdict."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Final

from irregulars.messages.device_events import ONE_LOOK_NS, DeviceEvent
from irregulars.messages.judgements import Verdict
from irregulars.words import name_ranks

_APART: Final = 0.15
"""A difference of shares that is no chance: three standard deviations, sqrt(2 / 4 / n) each, of n = 250 samples."""


def spent_apart(verdict: Verdict, events: Iterable[DeviceEvent]) -> str:
    """Return the function in which the first suspect spends more of its time than its peers; empty: none is known.

    `events`: of kind ``function``, whose code is the share of the samples in thousandths.
    """
    taken = [one for one in events if one.code is not None]
    newest_ns = {one.rank: one.time_ns for one in sorted(taken)}
    shares: dict[int, dict[str, float]] = {rank: {} for rank in newest_ns}
    for one in taken:
        if newest_ns[one.rank] - one.time_ns < ONE_LOOK_NS:
            shares[one.rank][one.detail] = (one.code or 0) / 1000
    accused = verdict.suspects[0].ranks if verdict.suspects else ()
    rank = next((rank for rank in accused if rank in shares), None)
    peers = [peer for peer in shares if peer not in accused]
    if rank is None or not peers:
        return ""

    def usual(function: str) -> float:
        return median(shares[peer].get(function, 0.0) for peer in peers)

    most = max(shares[rank], key=lambda function: shares[rank][function] - usual(function))
    if shares[rank][most] - usual(most) < _APART:
        return ""
    beside = f"{name_ranks(peers)} {usual(most):.0%}"
    return f"; rank {rank} spends {shares[rank][most]:.0%} of its time in {most}, {beside}"
