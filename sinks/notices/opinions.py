"""Consequences of people's opinions on verdicts: how probable suspects are here, and which patterns are silenced."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from glob import escape
from typing import Final

from irregulars.messages.judgements import Verdict
from irregulars.messages.opinions import Opinion, newest_opinions
from irregulars.sinks.notices.incidents import device_of
from irregulars.sinks.notices.mutes import Mute
from irregulars.validation import checked

WORDS: Final = ("right", "wrong", "withdraw")
# Verdicts on one pattern that are called wrong, with none that is called right after them, until it is silenced
WRONG_IN_A_ROW: Final = 3

# How long it stays silent. 30 days: a fleet, its drivers and its jobs have changed by then.
SILENCE_NS: Final = 30 * 86_400 * 10**9

SAYS_SO: Final = "feedback"
# Standard deviation, in log odds, by which verdicts of one installation may be more or less sure than ours were when
# probabilities were calibrated. 1: odds of 9 to 1 may be 3 to 1 or 25 to 1; about four opinions weigh as much as it.
_SPREAD: Final = 1.0
_SUREST: Final = 0.99
_STEPS: Final = 30


@dataclass(frozen=True, slots=True)
class TrackRecord:
    """How often verdicts of one kind were right here, as far as people said so.

    `right`, `wrong`: How many verdicts were called so; `shift`: Added to the log odds of a suspect's probability.
    """

    right: int
    wrong: int
    shift: float

    def probability(self, told: float) -> float:
        """Return a suspect's probability as it is here, 0 to 1, from the one that the verdict says.

        Examples
        --------
        >>> round(TrackRecord(0, 0, 0.0).probability(0.9), 3), round(TrackRecord(1, 4, -1.5).probability(0.9), 3)
        (0.9, 0.668)
        """
        return _share(_log_odds(told) + self.shift)


def opinion_on(verdict: Verdict, *, is_right: bool | None, who: str, note: str, time_ns: int) -> Opinion:
    """Return a person's word on a verdict; raises `InputError` for texts that are empty or too long."""
    first = verdict.suspects[0] if verdict.suspects else None
    values = {
        "verdict_id": verdict.verdict_id, "job": verdict.job, "kind": verdict.kind, "iterations": verdict.iterations,
        "is_right": is_right, "who": who, "time_ns": time_ns, "note": note,
        "device": device_of(verdict.to_json()), "rank": None if first is None else first.rank,
        "probability": None if first is None else first.probability,
    }  # fmt: skip
    opinion: Opinion = checked(values, Opinion, "feedback")
    return opinion


def track_records(opinions: Iterable[Opinion]) -> dict[str, TrackRecord]:
    """Return the track record of each kind of verdict that people judged.

    The shift is the most probable one (maximum a posteriori of a logistic model with a fixed slope: Platt's scaling
    without its slope, which a handful of opinions can't tell), with a normal prior around 0.
    """
    by_kind: dict[str, list[Opinion]] = defaultdict(list)
    for one in newest_opinions(opinions):
        by_kind[one.kind].append(one)
    return {kind: _track_record(own) for kind, own in by_kind.items()}


def silences(opinions: Iterable[Opinion]) -> list[Mute]:
    """Return a mute for each pattern of which the newest `WRONG_IN_A_ROW` verdicts were called wrong.

    A pattern is a kind of verdict on one device; where the device has no name, in one job. A verdict that is called
    right ends it, and so does time. A withdrawn opinion has no consequence any more.
    """
    by_pattern: dict[tuple[str, str | None, str | None], list[Opinion]] = defaultdict(list)
    for one in newest_opinions(opinions):
        by_pattern[one.kind, one.device, None if one.device else one.job].append(one)
    found = (_silence(*pattern, own) for pattern, own in by_pattern.items())
    return [one for one in found if one is not None]


def _silence(kind: str, device: str | None, job: str | None, own: Sequence[Opinion]) -> Mute | None:
    last = own[-WRONG_IN_A_ROW:]
    if len(last) < WRONG_IN_A_ROW or any(one.is_right for one in last):
        return None
    since_right = next((at for at, one in enumerate(reversed(own)) if one.is_right), len(own))
    begin_ns = own[len(own) - since_right + WRONG_IN_A_ROW - 1].time_ns  # the word that made it three
    return Mute(
        mute_id=f"{SAYS_SO}:{kind}:{device or job}"[:500],
        from_ns=begin_ns,
        until_ns=last[-1].time_ns + SILENCE_NS,
        reason=f"its last {since_right} verdicts were called wrong, the newest by {last[-1].who}"[:500],
        who=SAYS_SO,
        kind=escape(kind),
        device=None if device is None else escape(device)[:300],
        job=None if job is None else escape(job)[:300],
    )


def _track_record(own: Sequence[Opinion]) -> TrackRecord:
    right = sum(bool(one.is_right) for one in own)
    told = [(_log_odds(one.probability), bool(one.is_right)) for one in own if one.probability is not None]
    return TrackRecord(right, len(own) - right, _shift(told))


def _shift(told: Sequence[tuple[float, bool]]) -> float:
    """Return the most probable shift of log odds, by Newton's method: the logarithm is concave."""
    shift = 0.0
    for _ in range(_STEPS):
        shares = [_share(odds + shift) for odds, _ in told]
        slope = sum(is_right - share for share, (_, is_right) in zip(shares, told, strict=True)) - shift / _SPREAD**2
        bend = sum(share * (1 - share) for share in shares) + 1 / _SPREAD**2
        step = slope / bend
        shift += max(-1.0, min(1.0, step))
        if abs(step) < 1e-9:
            break
    return shift


def _log_odds(probability: float) -> float:
    bounded = min(max(probability, 1 - _SUREST), _SUREST)
    return math.log(bounded / (1 - bounded))


def _share(log_odds: float) -> float:
    return 1 / (1 + math.exp(-log_odds))
