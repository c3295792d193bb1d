"""Mutes as people say them: for two hours, from tonight on."""

from __future__ import annotations

import getpass
import re
import secrets
import socket
from datetime import UTC, datetime, timedelta
from typing import Final

from irregulars.errors import InputError
from irregulars.sinks.notices.mutes import Mute
from irregulars.validation import checked

_NS: Final = 10**9
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_LASTING: Final = re.compile(r"(?:\d{1,6}[smhdw])+")


def mute_span(now_ns: int, lasting: str | None, begin: str | None, end: str | None) -> tuple[int, int]:
    """Return from when until when a mute holds, ns since the epoch.

    Parameters
    ----------
    lasting
        How long: ``2h``, ``1d12h``.
    begin, end
        ISO 8601 times, UTC where they name no zone; `begin` None: now.

    Raises
    ------
    InputError
        If a time can't be read, the mute is over already, or not exactly one of `lasting` and `end` is given: a mute
        that nobody remembers must end by itself.

    Examples
    --------
    >>> mute_span(10**18, "2h", None, None)[1] - 10**18
    7200000000000
    """
    if (lasting is None) == (end is None):
        raise InputError("one of --for and --until must be given; got both or neither")
    from_ns = now_ns if begin is None else time_ns_of(begin, "--from")
    until_ns = from_ns + seconds_of(lasting) * _NS if lasting is not None else time_ns_of(end or "", "--until")
    if until_ns <= max(now_ns, from_ns):
        raise InputError("end of a mute must be after its beginning, and after now; got an earlier one")
    return from_ns, until_ns


def seconds_of(text: str) -> int:
    """Return how many seconds a text like ``1d12h`` means.

    >>> seconds_of("90m"), seconds_of("1d12h")
    (5400, 129600)
    """
    if not _LASTING.fullmatch(text):
        raise InputError(f"--for must be a time like 90m, 2h, 3d or 1w; got {text!r}")
    return sum(int(one[:-1]) * _UNITS[one[-1]] for one in re.findall(r"\d+[smhdw]", text))


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
    """Name who calls, and where."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def time_ns_of(text: str, flag: str) -> int:
    """Read an ISO 8601 time, UTC where it names no zone, as ns since the epoch; raises `InputError`."""
    try:
        found = datetime.fromisoformat(text)
        known = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return (known - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
    except (ValueError, OverflowError) as error:
        raise InputError(f"{flag} must be a time like 2026-11-25T22:00Z; got {text!r}") from error
