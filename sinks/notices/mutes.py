"""Mutes: who shall not be told of what, from when until when, and why. A message each on the topic ``mutes``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

from msgspec import Meta

from irregulars.errors import InputError, RecordError
from irregulars.messages.records import decode_json, encode_json
from irregulars.sinks.notices.devices import device_of, host_of
from irregulars.validation import Integer, checked

Pattern = Annotated[str, Meta(min_length=1, max_length=300)]
Words = Annotated[str, Meta(min_length=1, max_length=500)]

KEPT_NS: Final = 30 * 86_400 * 10**9
"""How long a mute that is over is kept: an incident that it held back may still be told as having been muted."""


@dataclass(frozen=True, slots=True)
class Mute:
    """Nobody is told of incidents that all of its patterns match, from `from_ns` to before `until_ns`.

    Parameters
    ----------
    mute_id
        Names it, for its end.
    from_ns, until_ns
        Times, ns since the epoch.
    reason, who
        Why, and who says so.
    host, job, device, kind
        Shell patterns; None: any. `device` is a name as `device_of` makes it. At least one is given.

    Raises
    ------
    InputError
        If it would mute everything, or ends before it begins.
    """

    mute_id: Words
    from_ns: Integer
    until_ns: Integer
    reason: Words
    who: Words
    host: Pattern | None = None
    job: Pattern | None = None
    device: Pattern | None = None
    kind: Pattern | None = None

    def __post_init__(self) -> None:
        if not any(self.patterns.values()):
            raise InputError("mute must name a host, a job, a device or a kind; got none of them")
        if self.until_ns < self.from_ns:
            raise InputError(f"mute must end after it begins; got {_utc(self.from_ns)} to {_utc(self.until_ns)}")

    @property
    def patterns(self) -> dict[str, str | None]:
        """What it matches, by name."""
        return {"host": self.host, "job": self.job, "device": self.device, "kind": self.kind}

    def is_active(self, now_ns: int) -> bool:
        """Whether it holds at a time."""
        return self.from_ns <= now_ns < self.until_ns

    def matches(self, alert: Mapping[str, Any]) -> bool:
        """Whether it is about an incident, by its newest alert; what is not known matches no pattern."""
        values = {"host": host_of(alert), "job": alert["job"], "device": device_of(alert), "kind": alert["kind"]}
        wanted = ((values[name], pattern) for name, pattern in self.patterns.items() if pattern is not None)
        return all(value is not None and fnmatchcase(str(value), pattern) for value, pattern in wanted)

    def what(self) -> str:
        """Say what it mutes: ``host=node-3 kind=slow_nic``."""
        return " ".join(f"{name}={pattern}" for name, pattern in self.patterns.items() if pattern is not None)

    def begins(self) -> str:
        """Say when it begins."""
        return f"from {_utc(self.from_ns)} on"

    def describe(self) -> str:
        """Say for people until when, by whom and why."""
        return f"muted until {_utc(self.until_ns)} by {self.who}: {self.reason}"


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
    try:
        mute: Mute = checked(decode_json(value, "mutes"), Mute, "", error=RecordError)
    except InputError as error:
        raise error if isinstance(error, RecordError) else RecordError(str(error)) from error
    return mute


def _utc(time_ns: int) -> str:
    try:
        return f"{datetime.fromtimestamp(time_ns // 10**9, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (OverflowError, ValueError, OSError):
        return f"{time_ns} ns"
