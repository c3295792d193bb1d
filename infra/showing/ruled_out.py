"""What else it could be, and what the stored measurements say about each: seen, ruled out, or not to be told.

Each line holds the numbers that it rests on. "As usual" means: not longer than δ times the usual, as with iterations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from irregulars.infra.showing.found import Found, NicRates, Place, RankWork, median_ns
from irregulars.infra.showing.words import duration, rank_at, rate
from irregulars.sinks.advice import name_device, name_ranks
from irregulars.streams.messages.judgements import Suspect

DELTA: Final = 1.1
"""From which ratio to the usual on something is not as usual: the δ of irregular iterations."""

_WORKERS: Final = ("gpu", "host", "stage")
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


def find_alternatives(found: Found, ways: Mapping[str, tuple[float, float]]) -> list[Finding]:
    """Hold the stored measurements against each alternative to the first suspect.

    Parameters
    ----------
    ways
        Of the first suspect's rank: `waiting_chain.lane_ratios`.
    """
    suspects = found.verdict.suspects
    if not suspects:
        return list(_everybody(found.work, ()))
    first = suspects[0]
    if first.device in _WORKERS:
        findings = [*_transfers(first, ways, found.places), *_rates(found, first), *_everybody(found.work, first.ranks)]
    else:
        findings = [*_own_work(found.work, first, found.places), *_other_ways(first, ways), *_rates(found, first)]
    return [*findings, *_other_suspects(suspects)]


def _own_work(work: Mapping[int, RankWork], first: Suspect, places: Mapping[int, Place]) -> Iterator[Finding]:
    """Did the ranks of a NIC, link or switch work longer themselves?"""
    for rank in first.ranks[:_RANKS_SHOWN]:
        own = work.get(rank)
        if own is None or not math.isfinite(own.during_ns):
            yield Finding("own work", None, f"how long {rank_at(rank, places)} worked is not stored")
        elif not math.isfinite(own.before_ns):
            yield Finding("own work", None, f"{rank_at(rank, places)} worked {duration(own.during_ns)}, and nothing is "
                          "stored of before")  # fmt: skip
        else:
            is_usual = own.during_ns <= DELTA * own.before_ns
            yield Finding("own work", is_usual, f"{rank_at(rank, places)} spent {duration(own.during_ns)} between its "
                          f"operators, {'as before' if is_usual else 'longer than before'} "
                          f"({duration(own.before_ns)})")  # fmt: skip


def _other_ways(first: Suspect, ways: Mapping[str, tuple[float, float]]) -> Iterator[Finding]:
    """Is it one way of several (a link), or all that the device carries (a NIC)?"""
    if not ways:
        yield Finding("other ways", None, "transfers of its rank in regular iterations are not stored to compare with")
        return
    slow = {way for way, (now, usual) in ways.items() if now > DELTA * usual}
    told = "; ".join(_way(way, *ways[way]) for way in sorted(ways, key=lambda way: -_ratio(ways[way]))[:_WAYS_SHOWN])
    is_link = first.device == "link"
    what = "a whole NIC" if is_link else "one link"
    if len(ways) < 2:
        yield Finding(what, None, f"rank {first.rank} has one way alone: {told}")
    elif is_link:
        yield Finding(what, len(slow) < len(ways), f"rank {first.rank}: {told}")
    else:
        yield Finding(what, len(slow) > 1, f"rank {first.rank}: {told}")


def _transfers(first: Suspect, ways: Mapping[str, tuple[float, float]], places: Mapping[int, Place]) -> Iterator[Finding]:
    """Were transfers of a rank that works long slow as well?"""
    if not ways:
        yield Finding("its NIC", None, "transfers of its rank in regular iterations are not stored to compare with")
        return
    slowest = max(ways, key=lambda way: _ratio(ways[way]))
    is_usual = _ratio(ways[slowest]) <= DELTA
    text = f"transfers of {rank_at(first.rank, places)}: {_way(slowest, *ways[slowest])}"
    yield Finding("its NIC", is_usual, f"{text}, the slowest of {len(ways)}" if len(ways) > 1 else text)


def _ratio(pair: tuple[float, float]) -> float:
    return pair[0] / pair[1]


def _way(way: str, now_ns: float, usual_ns: float) -> str:
    return f"{way} {duration(now_ns)} (usual {duration(usual_ns)})"


def _rates(found: Found, first: Suspect) -> Iterator[Finding]:
    """Is the NIC's rate capped: its peak below what it reached before, and below what others reach?"""
    own = [one for one in found.rates if one.rank in first.ranks and math.isfinite(one.during)]
    if not own:
        yield Finding("capped rate", None, "no bandwidth of its NIC is stored for these iterations")
        return
    nic = own[0]
    others = median_ns([one.during for one in found.rates if one.rank not in first.ranks])
    least = min(_known(nic.before, others), default=math.nan)
    beside = f"peak {rate(nic.during)} (before {rate(nic.before)}; median of other NICs {rate(others)})"
    text = f"{_nic(nic, found.places)}: {beside}{_abnormal(found, first)}"
    if not math.isfinite(least):
        yield Finding("capped rate", None, text)
    else:
        yield Finding("capped rate", nic.during * DELTA >= least, text)


def _known(*values: float) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _nic(nic: NicRates, places: Mapping[int, Place]) -> str:
    place = places.get(nic.rank)
    return f"{nic.device} on {place.host}" if place is not None and place.host else f"{nic.device} of rank {nic.rank}"


def _abnormal(found: Found, first: Suspect) -> str:
    """Say how often the behaviour patterns of the suspect's NIC were abnormal, beside all others."""
    own = [one for one in found.patterns if one.rank in first.ranks]
    others = [one for one in found.patterns if one.rank not in first.ranks]
    if not own or not others:
        return ""
    shares = [sum(o.abnormal for o in some) / max(1, sum(o.patterns for o in some)) for some in (own, others)]
    return f"; abnormal in {shares[0]:.0%} of its patterns, {shares[1]:.0%} of others'"


def _everybody(work: Mapping[int, RankWork], accused: Sequence[int]) -> Iterator[Finding]:
    """Did all the others work longer as well: more data, another phase?"""
    others = [one for rank, one in work.items() if rank not in accused]
    before, during = (median_ns([getattr(one, name) for one in others]) for name in ("before_ns", "during_ns"))
    if not others or not math.isfinite(before + during):
        return
    is_usual = during <= DELTA * before
    who = f"the median of the {len(others)} other ranks" if accused else "the median rank"
    yield Finding("the whole job", is_usual, f"{who} spent {duration(during)} between its operators, "
                  f"{'as before' if is_usual else 'longer than before'} ({duration(before)})")  # fmt: skip


def _other_suspects(suspects: Sequence[Suspect]) -> Iterator[Finding]:
    for one in suspects[1 : 1 + _SUSPECTS_SHOWN]:
        yield Finding("other suspect", None, f"{name_device(one)}: {one.probability:.1%}")
    if left := suspects[1 + _SUSPECTS_SHOWN :]:
        ranks = name_ranks([one.rank for one in left])
        yield Finding("other suspect", None, f"{len(left)} more ({ranks}): {sum(o.probability for o in left):.1%}")
    none = 1 - sum(one.probability for one in suspects)
    if none >= 0.0005:
        yield Finding("none of these", None, f"{none:.1%}")
