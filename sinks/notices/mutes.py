"""Mutes: which notices are held back, from when until when, and why. A message each on the topic ``mutes``."""

from __future__ import annotations

import getpass
import re
import secrets
import socket
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

from msgspec import Meta

from irregulars.errors import InputError, RecordError
from irregulars.messages.records import decode_json, encode_json
from irregulars.sinks.notices.incidents import device_of, host_of
from irregulars.validation import Integer, checked

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
            raise InputError(f"mute must end after it begins; got {utc(self.from_ns)} to {utc(self.until_ns)}")

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
        return f"muted until {utc(self.until_ns)} by {self.who}: {self.reason}"


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
    except InputError as error:  # the mute's own check of its times
        raise error if isinstance(error, RecordError) else RecordError(str(error)) from error
    return mute


# --- as people give them: for two hours, from tonight on ------------------------------------------------------------


def mute_span(now_ns: int, lasting: str | None, begin: str | None, end: str | None) -> tuple[int, int]:
    """Return from when until when a mute holds, ns since the epoch.

    Raises `InputError` if a time can't be read, the mute is over already, or not exactly one of `lasting` and `end`
    is given: a mute that is forgotten must end by itself.

    Parameters
    ----------
    lasting
        How long: ``2h``, ``1d12h``.
    begin, end
        ISO 8601 times, UTC where they name no zone; `begin` None: now.

    Examples
    --------
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
    """Return a mute with an id of its own; raises `InputError` for texts that are empty or too long."""
    begin = datetime.fromtimestamp(span[0] // _NS, UTC)
    values = {
        "mute_id": f"m-{begin:%Y%m%d-%H%M}-{secrets.token_hex(2)}",
        "from_ns": span[0],
        "until_ns": span[1],
        "reason": " ".join(reason.split()),
        "who": who or this_user(),
        **patterns,
    }
    mute: Mute = checked(values, Mute, "mute")
    return mute


def this_user() -> str:
    """Return ``user@host`` of the caller."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def time_ns_of(text: str, flag: str) -> int:
    """Read an ISO 8601 time, UTC where it names no zone, as ns since the epoch; raises `InputError`."""
    try:
        found = datetime.fromisoformat(text)
        known = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return (known - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
    except (ValueError, OverflowError) as error:
        raise InputError(f"{flag} must be a time like 2026-11-25T22:00Z; got {text!r}") from error


def utc(time_ns: int) -> str:
    """Return a time for people, UTC; one beyond the calendar as a number."""
    try:
        return f"{datetime.fromtimestamp(time_ns // _NS, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (OverflowError, ValueError, OSError):
        return f"{time_ns} ns"
