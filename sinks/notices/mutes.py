"""Mutes hold notices back; opinions of people on verdicts correct probabilities, and may mute. On own topics."""

from __future__ import annotations

import getpass
import math
import os
import re
import secrets
import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from glob import escape
from typing import Annotated, Any, Final

from msgspec import Meta

from irregulars.errors import InputError
from irregulars.messages.judgements import Verdict
from irregulars.messages.kinds import VERDICT_KINDS
from irregulars.messages.opinions import Opinion, newest_opinions
from irregulars.messages.records import decode_as, encode_json
from irregulars.sinks.notices.incidents import device_of, host_of
from irregulars.validation import Integer, checked
from irregulars.words import moment

Pattern = Annotated[str, Meta(min_length=1, max_length=300)]
Words = Annotated[str, Meta(min_length=1, max_length=500)]

# How long a mute that is over is kept: the notice of an incident that it held back still names it
KEPT_NS: Final = 30 * 86_400 * 10**9

_NS: Final = 10**9
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_LASTING: Final = re.compile(r"(?:\d{1,6}[smhdw])+")


@dataclass(frozen=True, slots=True)
class Mute:
    """Holds back notices of incidents that all of its patterns match, from `from_ns` to before `until_ns`.

    Raises `InputError` if it would mute everything, or ends before it begins.
    """

    mute_id: Words  # names it, for its end
    # from_ns, until_ns: times, ns since the epoch
    from_ns: Integer
    until_ns: Integer
    # reason, who: why, and who made it
    reason: Words
    who: Words
    # host, job, device, kind: shell patterns; None: any. `device` is a name as `device_of` makes it. At least one is
    # given.
    host: Pattern | None = None
    job: Pattern | None = None
    device: Pattern | None = None
    kind: Pattern | None = None

    def __post_init__(self) -> None:
        if not self.patterns:
            raise InputError("mute must name a host, a job, a device or a kind; got none of them")
        if self.until_ns < self.from_ns:
            raise InputError(f"mute must end after it begins; got {moment(self.from_ns)} to {moment(self.until_ns)}")

    @property
    def patterns(self) -> dict[str, str]:
        """The patterns that are given, by name."""
        found = {"host": self.host, "job": self.job, "device": self.device, "kind": self.kind}
        return {name: pattern for name, pattern in found.items() if pattern is not None}

    def is_active(self, now_ns: int) -> bool:
        """Whether it holds at a time."""
        return self.from_ns <= now_ns < self.until_ns

    def matches(self, alert: Mapping[str, Any]) -> bool:
        """Whether it is about an incident, by its newest alert; a fact that is not known matches no pattern."""
        facts = {"host": host_of(alert), "job": alert["job"], "device": device_of(alert), "kind": alert["kind"]}
        return all(
            facts[name] is not None and fnmatchcase(str(facts[name]), pattern)
            for name, pattern in self.patterns.items()
        )

    def what(self) -> str:
        """Return the patterns as text: ``host=node-3 kind=slow_nic``."""
        return " ".join(f"{name}={pattern}" for name, pattern in self.patterns.items())

    def describe(self) -> str:
        """Return end, author and reason for people."""
        return f"muted until {moment(self.until_ns)} by {self.who}: {self.reason}"


def mute_of(alert: Mapping[str, Any], mutes: Iterable[Mute], now_ns: int) -> Mute | None:
    """Return the mute that holds an incident back now: of several the one that ends last."""
    active = [one for one in mutes if one.is_active(now_ns) and one.matches(alert)]
    return max(active, key=lambda one: (one.until_ns, one.mute_id), default=None)


def past_mute_of(alert: Mapping[str, Any], mutes: Iterable[Mute], since_ns: int, now_ns: int) -> Mute | None:
    """Return the mute that held an incident back some time between its beginning and now, and is over; the last."""
    over = [one for one in mutes if since_ns < one.until_ns <= now_ns and one.from_ns < one.until_ns]
    return max((one for one in over if one.matches(alert)), key=lambda one: (one.until_ns, one.mute_id), default=None)


def encode_mute(mute: Mute) -> bytes:
    """Encode for the topic ``mutes``, whose key is the mute's id."""
    return encode_json("mutes", asdict(mute))


def decode_mute(value: bytes | None) -> Mute:
    """Decode a message of the topic ``mutes``; raises `RecordError`."""
    return decode_as(value, "mutes", Mute)


# --- as people give them: for two hours, from tonight on ------------------------------------------------------------


def mute_span(now_ns: int, lasting: str | None, begin: str | None, end: str | None) -> tuple[int, int]:
    """Return from when until when a mute holds, ns since the epoch.

    `begin` (None: now) and `end` are ISO 8601 times, UTC where they name no zone. Raises `InputError` if a time can't
    be read, the mute is over already, or not exactly one of `lasting` and `end` is given: a mute that is forgotten
    must end by itself.

    >>> mute_span(10**18, "1d12h", None, None)[1] - 10**18
    129600000000000
    """
    if (lasting is None) == (end is None):
        raise InputError("one of --for and --until must be given; got both or neither")
    from_ns = now_ns if begin is None else time_ns_of(begin, "--from")
    if lasting is None:
        until_ns = time_ns_of(end or "", "--until")
    elif _LASTING.fullmatch(lasting):
        until_ns = from_ns + sum(int(one[:-1]) * _UNITS[one[-1]] for one in re.findall(r"\d+[smhdw]", lasting)) * _NS
    else:
        raise InputError(f"--for must be a time like 90m, 2h, 3d or 1w; got {lasting!r}")
    if until_ns <= max(now_ns, from_ns):
        raise InputError("end of a mute must be after its beginning, and after now; got an earlier one")
    return from_ns, until_ns


def new_mute(span: tuple[int, int], reason: str, who: str | None, **patterns: str | None) -> Mute:
    """Return a mute with an id of its own.

    Raises `InputError` for texts that are empty or too long, and for a kind that no verdict has.
    """
    kind = patterns.get("kind")
    if kind is not None and not any(fnmatchcase(one, kind) for one in VERDICT_KINDS):
        raise InputError(f"kind must be, or match, one of {', '.join(VERDICT_KINDS)}; got {kind!r}")
    begin = datetime.fromtimestamp(span[0] // _NS, UTC)
    values = {
        "mute_id": f"m-{begin:%Y%m%d-%H%M}-{secrets.token_hex(2)}", "from_ns": span[0], "until_ns": span[1],
        "reason": " ".join(reason.split()), "who": who or this_user(), **patterns,
    }  # fmt: skip
    mute: Mute = checked(values, Mute, "mute")
    return mute


def this_user() -> str:
    """Return ``user@host`` of the caller; in a container the user may have a number alone."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # KeyError until Python 3.12
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def time_ns_of(text: str, flag: str) -> int:
    """Read an ISO 8601 time, UTC where it names no zone, as ns since the epoch; raises `InputError`."""
    try:
        found = datetime.fromisoformat(text)
        known = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        # In whole numbers: a float can't hold ns since the epoch.
        return (known - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
    except (ValueError, OverflowError) as error:
        raise InputError(f"{flag} must be a time like 2026-11-25T22:00Z; got {text!r}") from error


WORDS: Final = ("right", "wrong", "withdraw")
# Verdicts on one pattern that are called wrong, with none that is called right after them, until it is silenced
WRONG_IN_A_ROW: Final = 3

# How long it stays silent. 30 days: a fleet, its drivers and its jobs have changed by then.
SILENCE_NS: Final = 30 * 86_400 * 10**9

SAYS_SO: Final = "feedback"
# Standard deviation, in log odds, by which verdicts of one installation may be more or less sure than ours were when
# probabilities were calibrated. 1: odds of 9 to 1 may be 3 to 1 or 25 to 1; about four opinions weigh as much as it.
_SPREAD: Final = 1.0
# Probabilities count as 0.01 to 0.99: log odds of 0 and 1 are infinite, and no verdict is that sure.
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
    records = {}
    for kind, own in by_kind.items():
        right = sum(bool(one.is_right) for one in own)
        told = [(_log_odds(one.probability), bool(one.is_right)) for one in own if one.probability is not None]
        records[kind] = TrackRecord(right, len(own) - right, _shift(told))
    return records


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
    # Names stay whole, beyond the bounds of people's mutes: this one goes onto no topic. A name that is cut matches
    # other devices than its own, and of two mutes with one id only one would hold.
    return Mute(
        mute_id=f"{SAYS_SO}:{kind}:{device or job}", from_ns=begin_ns, until_ns=last[-1].time_ns + SILENCE_NS,
        reason=f"its last {since_right} verdicts were called wrong, the newest by {last[-1].who}"[:500], who=SAYS_SO,
        kind=escape(kind), device=device and escape(device), job=job and escape(job),
    )  # fmt: skip


def _shift(told: Sequence[tuple[float, bool]]) -> float:
    """Return the most probable shift of log odds, by Newton's method: the logarithm is concave."""
    shift = 0.0
    for _ in range(_STEPS):
        shares = [_share(odds + shift) for odds, _ in told]
        slope = sum(is_right - share for share, (_, is_right) in zip(shares, told, strict=True)) - shift / _SPREAD**2
        bend = sum(share * (1 - share) for share in shares) + 1 / _SPREAD**2
        step = slope / bend
        # Where all shares are near 0 or 1 the curve is flat, and a whole step would swing far beyond the maximum.
        shift += max(-1.0, min(1.0, step))
        if abs(step) < 1e-9:
            break
    return shift


def _log_odds(probability: float) -> float:
    bounded = min(max(probability, 1 - _SUREST), _SUREST)
    return math.log(bounded / (1 - bounded))


def _share(log_odds: float) -> float:
    return 1 / (1 + math.exp(-log_odds))
