"""Mutes as people say them."""

from __future__ import annotations

import pytest

from irregulars.errors import InputError
from irregulars.sinks.notices.mutes import mute_span, new_mute, this_user

S = 10**9
NOW = 1_800_000_000 * S  # 2027-01-15T08:00:00Z


@pytest.mark.parametrize(("lasting", "begin", "end", "span"), [
    ("2h", None, None, (NOW, NOW + 7200 * S)),
    ("1h", "2027-01-15T10:00", None, (NOW + 7200 * S, NOW + 10_800 * S)),
    (None, None, "2027-01-15T10:00+01:00", (NOW, NOW + 3600 * S)),
])  # fmt: skip
def test_a_span_is_read(lasting: str | None, begin: str | None, end: str | None, span: tuple[int, int]) -> None:
    assert mute_span(NOW, lasting, begin, end) == span


@pytest.mark.parametrize(("lasting", "begin", "end"), [
    (None, None, None), ("2h", None, "2027-01-15T10:00"), ("soon", None, None), ("-2h", None, None),
    ("", None, None),
    ("0s", None, None), (None, None, "2027-01-15T07:00"), (None, "tomorrow", "2027-01-15T10:00"),
    ("1h", "2020-01-01", None), ("999999w", "9999-12-31", None),
])  # fmt: skip
def test_a_mute_must_end_and_not_in_the_past(lasting: str | None, begin: str | None, end: str | None) -> None:
    with pytest.raises(InputError):
        new_mute(mute_span(NOW, lasting, begin, end), "why", "ann", host="node-3")


def test_a_mute_has_an_id_a_reason_in_one_line_and_somebody_who_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    mute = new_mute((NOW, NOW + S), "new\nfirmware", None, host="node-3")
    assert mute.mute_id.startswith("m-20270115-0800-")
    assert mute.reason == "new firmware"
    assert "@" in mute.who
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 987_654)
    assert this_user().startswith("987654@")


def test_a_mute_names_something_by_a_kind_that_verdicts_have() -> None:
    with pytest.raises(InputError, match=r"kind must be, or match, one of slow_rank, .*; got 'slow_nick'"):
        new_mute((NOW, NOW + S), "why", "ann", kind="slow_nick")
    assert new_mute((NOW, NOW + S), "why", "ann", kind="slow_*").kind == "slow_*"
    with pytest.raises(InputError, match="must name a host, a job, a device or a kind"):
        new_mute((NOW, NOW + S), "why", "ann")
