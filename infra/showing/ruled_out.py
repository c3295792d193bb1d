"""What else it could be, and what the stored measurements say about each: seen, ruled out, or not to be told.

Each line holds the numbers that it rests on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from irregulars.infra.showing.found import Found, NicRates, Place, RankWork, median_of
from irregulars.infra.showing.waiting_chain import Way
from irregulars.infra.showing.words import duration, rank_at, rate
from irregulars.messages.judgements import Suspect
from irregulars.sinks.advice import name_device, name_ranks

DELTA: Final = 1.1
"""Ratio to the usual from which on something is not as usual: the δ of irregular iterations."""

WORKERS: Final = ("gpu", "host", "stage")
"""Devices that are slow by their own work, not by what they send."""
_WAYS_SHOWN: Final = 3
_SUSPECTS_SHOWN: Final = 3
_RANKS_SHOWN: Final = 2


class Finding(NamedTuple):
    """One alternative.

    Parameters
    ----------
    what
        The alternative, in a word or two.
    is_ruled_out
        None: what is stored can't tell.
    text
        Why, with numbers.
    """

    what: str
    is_ruled_out: bool | None
    text: str


def find_alternatives(found: Found, ways: Sequence[Way], longer_ns: float) -> list[Finding]:
    """Hold the stored measurements against each alternative to the first suspect.

    Parameters
    ----------
    ways
        Of the first suspect's rank: `waiting_chain.find_ways`.
    longer_ns
        How much longer than before an iteration with the cause took.
    """
    suspects = found.verdict.suspects
    if not suspects:
        return list(_everybody(found.work, (), longer_ns))
    first = suspects[0]
    findings: list[Finding] = []
    if found.verdict.kind == "hang":  # who stands still does not work longer, and sends nothing
        pass
    elif first.device in WORKERS:
        findings = [*_transfers(first, ways, longer_ns), *_everybody(found.work, first.ranks, longer_ns)]
    else:
        findings = [*_own_work(found, first, longer_ns), *_other_ways(first, ways, longer_ns)]
    return [*findings, *_other_suspects(suspects)]


def is_as_usual(now_ns: float, usual_ns: float, longer_ns: float, excess_ns: float | None = None) -> bool:
    """Tell whether something took no longer than usual, or so little longer that it explains no tenth of the rest.

    >>> is_as_usual(7.2e6, 6.9e6, 90e6), is_as_usual(0.65e6, 0.46e6, 90e6), is_as_usual(60e6, 7e6, 90e6)
    (True, True, False)
    """
    excess_ns = now_ns - usual_ns if excess_ns is None else excess_ns
    return now_ns <= DELTA * usual_ns or excess_ns <= (DELTA - 1) * longer_ns


def _own_work(found: Found, first: Suspect, longer_ns: float) -> Iterator[Finding]:
    """Say whether the ranks of a NIC, link or switch worked longer themselves."""
    for rank in first.ranks[:_RANKS_SHOWN]:
        own, who = found.work.get(rank), rank_at(rank, found.places)
        if own is None or not math.isfinite(own.during_ns):
            yield Finding("own work", None, f"how long {who} worked is not stored")
        elif not math.isfinite(own.before_ns):
            yield Finding("own work", None, f"{who} worked {duration(own.during_ns)}; of before nothing is stored")
        else:
            is_usual = is_as_usual(own.during_ns, own.before_ns, longer_ns)
            yield Finding("own work", is_usual, f"{who} spent {duration(own.during_ns)} between its operators, "
                          f"{duration(own.before_ns)} before")  # fmt: skip


def _other_ways(first: Suspect, ways: Sequence[Way], longer_ns: float) -> Iterator[Finding]:
    """Say whether one way of several is slow (a link), or more that the device carries (a NIC)."""
    what = "a whole NIC" if first.device == "link" else "one link"
    told = "; ".join(map(_way, ways[:_WAYS_SHOWN]))
    slow = [one for one in ways if not _is_usual(one, longer_ns)]
    if not ways:
        yield Finding(what, None, f"of rank {first.rank} no transfers are stored to compare")
    elif len(ways) < 2:
        yield Finding(what, None, f"rank {first.rank} has one way alone: {told}")
    elif first.device == "link":
        yield Finding(what, len(slow) < len(ways), f"rank {first.rank}: {told}")
    else:
        yield Finding(what, len(slow) > 1 or any(one.name.startswith("on ") for one in slow),
                      f"rank {first.rank}: {told}")  # fmt: skip


def _transfers(first: Suspect, ways: Sequence[Way], longer_ns: float) -> Iterator[Finding]:
    """Say whether transfers of a rank that works long are slow as well."""
    if not ways:
        yield Finding("its NIC", None, f"of rank {first.rank} no transfers are stored to compare")
        return
    is_usual = all(_is_usual(one, longer_ns) for one in ways)
    slowest = f", the slowest of {len(ways)} ways" if len(ways) > 1 else ""
    yield Finding("its NIC", is_usual, f"transfers of rank {first.rank} {_way(ways[0])}{slowest}")


def _is_usual(way: Way, longer_ns: float) -> bool:
    return is_as_usual(way.now_ns, way.usual_ns, longer_ns, way.excess_ns)


def _way(one: Way) -> str:
    return f"{one.name} {duration(one.now_ns)} ({'others' if one.is_by_others else 'usual'} {duration(one.usual_ns)})"


class Peaks(NamedTuple):
    """Peaks of the accused NIC in one direction, beside the median of all others meanwhile; bytes/s or NaN."""

    direction: str
    before: float
    during: float
    others: float

    @property
    def ratio(self) -> float:
        """The peak against the lower one of before and others; infinite where that is not known."""
        known = [value for value in (self.before, self.others) if value > 0]
        return self.during / min(known) if known and math.isfinite(self.during) else math.inf


def lowered_peaks(rates: Sequence[NicRates], ranks: Sequence[int]) -> Peaks | None:
    """Return the direction in which the NIC of some ranks was held down most; None where nothing was sampled."""
    own = next((one for one in rates if one.rank in ranks), None)
    if own is None:
        return None
    found = []
    for direction in ("sent", "received"):
        others = median_of([one.peaks(direction)[1] for one in rates if one.rank not in ranks])
        found.append(Peaks(direction, *own.peaks(direction), others))
    return min(found, key=lambda one: one.ratio)


def nic_text(found: Found, ways: Sequence[Way] = ()) -> str:
    """Say at which rate the accused NIC moved, beside before and beside others; empty where nobody is accused.

    Parameters
    ----------
    ways
        Of its rank, the slowest first. Samples further apart than its slow transfers can't show a cap.
    """
    if found.verdict.kind in ("hang", "slow_stage") or not found.verdict.suspects:
        return ""
    ranks = found.verdict.suspects[0].ranks
    peaks = lowered_peaks(found.rates, ranks)
    if peaks is None:
        return ""
    if not any(value > 0 for value in (peaks.during, peaks.before, peaks.others)):
        return ""  # nothing moved on any: the line would say nothing
    nic = next(one for one in found.rates if one.rank in ranks)
    text = (f"{_nic(nic, found.places)} {peaks.direction} at most {rate(peaks.during)} (before {rate(peaks.before)}, "
            f"others {rate(peaks.others)})")  # fmt: skip
    if not math.isfinite(peaks.ratio):
        return text
    if ways and nic.interval_ns > ways[0].now_ns:
        return f"{text}, sampled each {duration(nic.interval_ns)}: too coarse to see how one transfer moved"
    is_capped = peaks.ratio * DELTA < 1
    return f"{text}: {'held below both' if is_capped else 'not held down'}{_abnormal(found, ranks)}"


def _nic(nic: NicRates, places: Mapping[int, Place]) -> str:
    place = places.get(nic.rank)
    return f"{nic.device} on {place.host}" if place is not None and place.host else f"{nic.device} of rank {nic.rank}"


def _abnormal(found: Found, ranks: Sequence[int]) -> str:
    """Say how often the behaviour patterns of the suspect's NIC were abnormal, beside all others."""
    shares = []
    for is_own in (True, False):
        some = [one for one in found.patterns if (one.rank in ranks) == is_own]
        shares.append(sum(one.abnormal for one in some) / max(1, sum(one.patterns for one in some)))
    if not found.patterns:
        return ""
    return f"; abnormal in {shares[0]:.0%} of its behaviour patterns, in {shares[1]:.0%} of others'"


def _everybody(work: Mapping[int, RankWork], accused: Sequence[int], longer_ns: float) -> Iterator[Finding]:
    """Say whether all the others worked longer as well, as with more data."""
    others = [one for rank, one in work.items() if rank not in accused]
    before, during = (median_of([getattr(one, name) for one in others]) for name in ("before_ns", "during_ns"))
    if not others or not math.isfinite(before + during):
        return
    is_usual = is_as_usual(during, before, longer_ns)
    who = f"the median of the {len(others)} other ranks" if accused else "the median rank"
    yield Finding("the whole job", is_usual, f"{who} spent {duration(during)} between its operators, "
                  f"{duration(before)} before")  # fmt: skip


def _other_suspects(suspects: Sequence[Suspect]) -> Iterator[Finding]:
    for one in suspects[1 : 1 + _SUSPECTS_SHOWN]:
        yield Finding("other suspect", None, f"{name_device(one)}: {one.probability:.1%}")
    if left := suspects[1 + _SUSPECTS_SHOWN :]:
        ranks = name_ranks([one.rank for one in left])
        yield Finding("other suspect", None, f"{len(left)} more ({ranks}): {sum(o.probability for o in left):.1%}")
    none = 1 - sum(one.probability for one in suspects)
    if none >= 0.0005:
        yield Finding("none of these", None, f"{none:.1%}")
