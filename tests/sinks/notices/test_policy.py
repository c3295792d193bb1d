"""What is told of an incident, and when: whatever the order in which alerts come, and however often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.sinks.notices.ledger import Due, Ledger
from irregulars.sinks.notices.mutes import Mute
from irregulars.sinks.notices.notice import summary_of
from irregulars.sinks.notices.policy import Rules, decode_delivery, encode_delivery
from tests.present import present
from tests.sinks.notices.alerts import alert

S = 10**9
T0 = 1_800_000_000 * S
HOUR = 3600 * S
DAY = 24 * HOUR


def tell_all(ledger: Ledger, now_ns: int, channel: str = "c") -> list[Due]:
    """Deliver all that is due, as the process does."""
    told = []
    while (due := ledger.next_due(channel, now_ns)) is not None:
        ledger.intend(channel, due, now_ns)
        ledger.delivered(channel, due, None, now_ns)
        told.append(due)
    return told


def said(dues: Sequence[Due]) -> list[tuple[str, str]]:
    return [(one.notice.event, one.notice.severity) for one in dues]


def ledger_of(*alerts: dict[str, Any], mutes: Sequence[Mute] = (), **rules: Any) -> Ledger:
    """The ledger of one channel, to which alerts came at `T0`, when `mutes` were set."""
    ledger = Ledger({"c": Rules(**rules)})
    ledger.set_mutes(mutes)
    for one in alerts:
        ledger.apply_alert(one, T0)
    return ledger


def mute(until_ns: int, from_ns: int = T0 - HOUR, **patterns: str) -> Mute:
    return Mute("m1", from_ns, until_ns, "new firmware", "ann", **patterns)


# --- one incident, one life -----------------------------------------------------------------------------------------


def hang(**changes: Any) -> dict[str, Any]:
    return {**alert(severity="page"), "kind": "hang", **changes}


OPENED, PAGED, UPDATED, ENDED = (
    ("opened", "ticket"),
    ("opened", "page"),
    ("updated", "ticket"),
    ("resolved", "ticket"),
)
MUTED = mute(T0 + 2 * HOUR, host="node-3")
LESS_URGENT: dict[str, Any] = {"hold_s": 60.0, "least_severity": "page"}

# Rules; and seconds, the alert or the mutes that come then, and what is told of them then (None: nobody asks).
LIVES: dict[str, tuple[dict[str, Any], list[tuple[int, Any, Any]]]] = {
    "an incident opens, changes and ends once": (
        {}, [(0, alert(), [OPENED]), (1, alert(revision=2, event="changed"), [UPDATED]),
             (2, alert(revision=3, event="closed"), [ENDED]), (86_400, None, [])],
    ),
    "an incident that nobody was told of has no end to tell": (
        {}, [(0, alert(), None), (0, alert(revision=2, event="closed"), None), (86_400, None, [])],
    ),
    "the end of an incident that was told is told in spite of a mute": (
        {}, [(0, alert(), [OPENED]), (0, [MUTED], None), (1, alert(revision=2, event="changed"), []),
             (2, alert(revision=3, event="closed"), [ENDED])],
    ),
    "a page is told as a ticket until it was held long enough": (
        {"hold_s": 60.0}, [(0, alert(severity="page"), [OPENED]), (59, None, []), (60, None, [("updated", "page")])],
    ),
    "the hold time begins with the first page of the incident": (
        LESS_URGENT, [(0, alert(), None), (100, alert(revision=2, event="raised", severity="page"), None),
                      (130, alert(revision=3, event="changed", severity="page"), None), (159, None, []),
                      (160, None, [PAGED])],
    ),
    "a cost that nobody knows is no small one, and a severity that nobody said is a ticket": (
        {"least_gpu_hours": 26.0}, [(0, {**alert(severity=None), "gpu_hours_lost": None}, [OPENED])],
    ),
    "a hang is told however little it has lost when its verdict opens": (
        {"hold_s": 0.0, "least_gpu_hours": 1000.0}, [(0, hang(), [PAGED])],
    ),
    "a hang that came while muted is told when the mute is taken back": (
        {"hold_s": 0.0}, [(0, [MUTED], None), (0, hang(), []), (3600, [], [PAGED])],
    ),
    "a hang that is found as its job ends is told once, wakes nobody, and is over": (
        {}, [(0, hang(state="closed", close_reason="finished"), [OPENED, ENDED]), (60, None, []), (86_400, None, [])],
    ),
    "a hang that ended long before it is read is told to nobody": (
        {}, [(0, hang(state="closed", close_reason="finished"), None), (86_400, None, [])],
    ),
    "a hang that came while muted is not told when its job has ended": (
        {"hold_s": 0.0}, [(0, [MUTED], None), (0, hang(state="closed", close_reason="finished"), []), (3600, [], [])],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rules", "steps"), LIVES.values(), ids=LIVES)
def test_what_is_told_of_an_incident_and_when(rules: dict[str, Any], steps: list[tuple[int, Any, Any]]) -> None:
    ledger = ledger_of(**rules)
    for at_s, what, expected in steps:
        if isinstance(what, dict):
            ledger.apply_alert(what, T0 + at_s * S)
        elif what is not None:
            ledger.set_mutes(what)
        assert expected is None or said(tell_all(ledger, T0 + at_s * S)) == expected


@pytest.mark.parametrize("close_reason", ["recovered", "restarted", "finished", "silent"])
def test_a_hang_is_a_page_until_its_verdict_closes(close_reason: str) -> None:
    ledger = ledger_of(hang(), least_severity="page", repeat_s=3600.0)
    assert tell_all(ledger, T0) == []
    assert said(tell_all(ledger, T0 + 60 * S)) == [("opened", "page")]
    events = [event for hour in range(1, 30) for event, _ in said(tell_all(ledger, T0 + hour * HOUR + 60 * S))]
    assert events == ["updated"] * 29  # a channel that would forget it is given it again
    ledger.apply_alert(
        {**hang(state="closed", close_reason=close_reason), "revision": 2, "event": "closed"}, T0 + 2 * DAY
    )
    assert said(tell_all(ledger, T0 + 2 * DAY)) == [("resolved", "page")]
    assert tell_all(ledger, T0 + 3 * DAY) == []


def lives() -> st.SearchStrategy[list[tuple[dict[str, Any], int]]]:
    """Alerts of some incidents, each with when it came; duplicated, and in any order."""

    def life(number: int, events: list[str], severities: list[str]) -> list[tuple[dict[str, Any], int]]:
        names = ["opened", *events, "closed"]
        worst = sorted([*severities, "page"][: len(names)] + ["page"] * len(names))[::-1][: len(names)]
        return [(alert(f"v{number}", at + 1, name, severity=worst[at]), T0 + at * S) for at, name in enumerate(names)]

    events = st.lists(st.sampled_from(["changed", "raised"]), max_size=3)
    severities = st.lists(st.sampled_from(["ticket", "page"]), max_size=5)
    whole = st.lists(st.tuples(events, severities), min_size=1, max_size=3).map(
        lambda all_of: [one for number, (e, s) in enumerate(all_of) for one in life(number, e, s)]
    )
    return whole.flatmap(lambda alerts: st.lists(st.sampled_from(alerts), max_size=2 * len(alerts)).flatmap(
        lambda again: st.permutations([*alerts, *again])))  # fmt: skip


@given(lives(), st.lists(st.booleans(), min_size=60, max_size=60), st.sampled_from([0.0, 2.0, 60.0]))
def test_any_order_and_duplication_of_alerts_opens_an_incident_once_and_ends_it_at_most_once(
    alerts: list[tuple[dict[str, Any], int]], stops: list[bool], hold_s: float
) -> None:
    """The process tells what is due after some of the alerts, and may be restarted there: its records outlast it."""
    ledger, told, records = ledger_of(hold_s=hold_s), list[Due](), dict[bytes, bytes]()
    for step, (one, came_ns) in enumerate(alerts):
        ledger.apply_alert(one, came_ns)
        if stops[step % len(stops)]:
            while (due := ledger.next_due("c", T0 + step * S)) is not None:
                ledger.intend("c", due, T0 + step * S)
                for record in (*ledger.delivered("c", due, None, T0 + step * S), *ledger.take_unrecorded()):
                    records[record.key] = encode_delivery(record)
                told.append(due)
            ledger = ledger_of(hold_s=hold_s)
            for value in records.values():
                ledger.apply_delivery(decode_delivery(value))
            for seen, seen_ns in alerts[: step + 1]:
                ledger.apply_alert(seen, seen_ns)
    told += tell_all(ledger, T0 + DAY)
    counts = Counter((one.incident.verdict_id, one.notice.event) for one in told)
    opened = {name for name, event in counts if event == "opened"}
    assert {name for name, event in counts if event == "resolved"} == opened, "all have ended"
    assert all(count == 1 for (_, event), count in counts.items() if event != "updated")
    for name in opened:
        revisions = [one.notice.revision for one in told if one.incident.verdict_id == name]
        assert revisions == sorted(revisions)
        assert next(one.notice.event for one in told if one.incident.verdict_id == name) == "opened"


# --- severity, hold time, loss, jobs --------------------------------------------------------------------------------


def test_a_clock_that_is_set_back_holds_no_page_back_for_as_long() -> None:
    ledger = ledger_of(alert(severity="page"), hold_s=60.0, least_severity="page")
    assert tell_all(ledger, T0 + S) == []
    assert tell_all(ledger, T0 - DAY) == []
    ledger.forget_times()
    assert said(tell_all(ledger, T0 - DAY)) == [PAGED]


def test_an_incident_that_ends_within_the_hold_time_pages_nobody() -> None:
    ledger = ledger_of(alert(severity="page"), hold_s=60.0, least_severity="page")
    assert tell_all(ledger, T0 + 30 * S) == []
    assert ledger.waiting("c") == {"held": 1}
    ledger.apply_alert(alert(revision=2, event="closed", severity="page"), T0 + 40 * S)
    assert tell_all(ledger, T0 + HOUR) == []


@pytest.mark.parametrize(("rules", "is_told"), [
    ({"least_gpu_hours": 25.0}, True), ({"least_gpu_hours": 26.0}, False),
    ({"jobs": ("gpt*", "lla*")}, True), ({"jobs": ("gpt*",)}, False), ({"least_severity": "page"}, False),
])  # fmt: skip
def test_a_channel_hears_of_what_costs_enough_and_of_its_jobs(rules: dict[str, Any], is_told: bool) -> None:
    ledger = ledger_of(alert(lost_s=90.0), **rules)  # 25.6 GPU-hours on 1,024 GPUs
    assert bool(tell_all(ledger, T0)) == is_told


def test_an_alert_is_told_again_before_it_expires_while_it_is_open() -> None:
    ledger = ledger_of(alert(), repeat_s=200.0)
    assert said(tell_all(ledger, T0)) == [("opened", "ticket")]
    assert tell_all(ledger, T0 + 199 * S) == []
    (again,) = tell_all(ledger, T0 + 200 * S)
    assert (again.notice.event, again.is_repeat) == ("updated", True)
    assert ledger.unsettled(0) is None, "a repetition holds no offset back"


# --- mutes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("patterns", "is_muted"), [
    ({"host": "node-3"}, True), ({"host": "node-?"}, True), ({"host": "node-4"}, False), ({"job": "llama"}, True),
    ({"device": "nic:node-3/*"}, True), ({"device": "gpu:*"}, False), ({"kind": "slow_nic"}, True),
    ({"host": "node-3", "kind": "hang"}, False),
])  # fmt: skip
def test_a_mute_holds_back_what_all_its_patterns_match(patterns: dict[str, str], is_muted: bool) -> None:
    ledger = ledger_of(alert(), mutes=[mute(T0 + HOUR, **patterns)])
    assert bool(tell_all(ledger, T0)) != is_muted


def test_a_mute_holds_back_until_it_is_over_or_lifted_and_says_so() -> None:
    ledger = ledger_of(alert(), mutes=[mute(T0 + HOUR, host="node-3")])
    assert tell_all(ledger, T0 + HOUR - S) == []
    (due,) = tell_all(ledger, T0 + HOUR)
    assert due.notice.muted == "muted until 2027-01-15 09:00:00Z by ann: new firmware"
    assert summary_of(due.notice).endswith("It was muted until 2027-01-15 09:00:00Z by ann: new firmware.")
    ledger = ledger_of(alert(), mutes=[mute(T0 + DAY, host="node-3")])
    assert tell_all(ledger, T0) == []
    ledger.set_mutes([mute(T0 + HOUR, host="node-3")])
    (due,) = tell_all(ledger, T0 + HOUR)
    assert due.notice.muted is not None


def test_a_muted_incident_that_ends_meanwhile_is_never_told_nor_is_a_mute_that_was_over_before() -> None:
    ledger = ledger_of(alert(), mutes=[mute(T0 + HOUR, host="node-3")])
    assert tell_all(ledger, T0) == []
    ledger.apply_alert(alert(revision=2, event="closed"), T0 + S)
    assert tell_all(ledger, T0 + DAY) == []
    ledger.apply_alert(alert("after it"), T0 + HOUR)
    (due,) = tell_all(ledger, T0 + HOUR)
    assert due.notice.muted is None


def test_a_mute_makes_no_alert_seem_to_be_over_that_ends_unless_it_is_told_again() -> None:
    ledger = ledger_of(alert(), repeat_s=200.0)
    tell_all(ledger, T0)
    ledger.set_mutes([mute(T0 + HOUR, host="node-3")])
    assert tell_all(ledger, T0 + 199 * S) == []
    (again,) = tell_all(ledger, T0 + 200 * S)
    assert (again.notice.event, again.is_repeat) == ("updated", True)


@pytest.mark.parametrize("may_have_arrived", [False, True])
def test_a_channel_that_withdraws_gets_what_a_mute_holds_back_once_and_at_its_end(
    may_have_arrived: bool,
) -> None:
    ledger = ledger_of(alert(), withdraws=True)
    if may_have_arrived:
        ledger.given_up("c", present(ledger.next_due("c", T0)), T0, may_have_arrived=True)
    else:
        tell_all(ledger, T0)
    ledger.set_mutes([mute(T0 + HOUR, kind="slow_nic")])
    assert may_have_arrived or tell_all(ledger, T0) == []
    ledger.apply_alert(alert(revision=2, event="changed", host="node-4"), T0, offset=1)
    (due,) = tell_all(ledger, T0)
    assert (due.notice.event, due.notice.is_muted, due.notice.revision) == ("updated", True, 2)
    assert due.notice.is_doubtful is may_have_arrived
    assert tell_all(ledger, T0 + S) == []
    (due,) = tell_all(ledger, T0 + HOUR)
    assert (due.notice.event, due.notice.is_muted, due.notice.revision) == ("updated", False, 2)
    assert tell_all(ledger, T0 + DAY) == []


def test_an_end_under_a_mute_proposes_nothing_that_was_not_proposed() -> None:
    ledger = ledger_of(alert(), withdraws=True)
    tell_all(ledger, T0)
    ledger.set_mutes([mute(T0 + HOUR, kind="slow_nic")])
    ledger.apply_alert(alert(revision=2, event="closed", host="node-4"), T0, offset=1)
    (due,) = tell_all(ledger, T0)
    assert (due.notice.event, due.notice.is_muted) == ("resolved", True)


# --- repeat offenders -----------------------------------------------------------------------------------------------


def test_the_third_verdict_on_a_device_within_a_week_is_told_as_such_if_it_has_a_name() -> None:
    ledger = ledger_of()
    for number, days in enumerate([-8, -3, 0]):
        ledger.apply_alert(alert(f"v{number}"), T0 + days * DAY)
    ledger.apply_alert(alert("v3", nic="mlx5_2"), T0)
    ledger.apply_alert(alert("v4"), T0 + HOUR)
    found = {one.incident.verdict_id: one.notice for one in tell_all(ledger, T0 + HOUR)}
    assert found["v2"].earlier == ("v1",)
    assert found["v3"].earlier == ()
    assert found["v4"].earlier == ("v1", "v2")
    assert "third verdict on this device within 7 days" in summary_of(found["v4"])
    assert "within 7 days" not in summary_of(found["v2"])
    ledger = ledger_of(*(alert(f"v{number}", host=None) for number in range(4)))
    assert [one.notice.earlier for one in tell_all(ledger, T0)] == [()] * 4


# --- tries that fail ------------------------------------------------------------------------------------------------


def next_of(ledger: Ledger, now_ns: int) -> Due:
    return present(ledger.next_due("c", now_ns))


@pytest.mark.parametrize(("may_have_arrived", "ends"), [(False, 0), (True, 1)])
def test_the_end_is_told_to_whom_the_opening_may_have_reached(may_have_arrived: bool, ends: int) -> None:
    ledger = ledger_of(alert())
    due = next_of(ledger, T0)
    assert ledger.intend("c", due, T0) is not None
    retracted = ledger.postpone("c", due, T0 + S, may_have_arrived=may_have_arrived)
    assert (retracted is None) == may_have_arrived
    ledger.apply_alert(alert(revision=2, event="closed"), T0 + S)
    assert len(tell_all(ledger, T0 + S)) == ends


def test_a_later_try_that_surely_failed_makes_nothing_of_an_earlier_one_certain() -> None:
    ledger = ledger_of(alert())
    due = next_of(ledger, T0)
    ledger.intend("c", due, T0)
    ledger.postpone("c", due, T0, may_have_arrived=True)
    again = next_of(ledger, T0)
    assert ledger.intend("c", again, T0) is None
    assert ledger.postpone("c", again, T0, may_have_arrived=False) is None
    assert ledger.given_up("c", again, T0, may_have_arrived=False)[0].state == "doubtful"


def test_a_notice_that_was_refused_is_not_tried_again_and_the_next_one_opens_the_incident() -> None:
    ledger = ledger_of(alert())
    due = next_of(ledger, T0)
    ledger.intend("c", due, T0)
    assert ledger.given_up("c", due, T0, may_have_arrived=False)[0].state == "refused"
    assert tell_all(ledger, T0) == []
    ledger.apply_alert(alert(revision=2, event="raised"), T0)
    assert said(tell_all(ledger, T0)) == [("opened", "ticket")]


def test_an_offset_is_settled_when_every_channel_was_told() -> None:
    ledger = Ledger({"a": Rules(), "b": Rules()})
    ledger.apply_alert(alert("v1"), T0, 0, 7)
    ledger.apply_alert(alert("v2"), T0, 0, 8)
    tell_all(ledger, T0, "a")
    assert ledger.unsettled(0) == 7
    due = present(ledger.next_due("b", T0))
    ledger.delivered("b", due, None, T0)
    assert ledger.next_due("b", T0) is not None
    assert ledger.unsettled(0) == 8
    tell_all(ledger, T0, "b")
    assert ledger.unsettled(0) is None


def test_what_is_over_is_forgotten_and_what_is_open_is_not() -> None:
    ledger = ledger_of(alert("v1"), alert("v2"))
    tell_all(ledger, T0)
    ledger.apply_alert(alert("v1", 2, "closed"), T0 + S)
    tell_all(ledger, T0 + S)
    (old,) = ledger.forget_old(T0 + 31 * DAY)
    assert (old.verdict_id, old.state) == ("v1", "closed")
    assert ledger.oldest_open(0) == 0


def test_what_no_end_will_follow_holds_no_alert_back_and_is_forgotten_in_time() -> None:
    gone, refusing = (Ledger({"gone": Rules(), "c": Rules()}) for _ in range(2))
    gone.apply_alert(alert("v1"), T0, 0, 7)
    due = present(gone.next_due("gone", T0))
    (of_gone,) = gone.delivered("gone", due, None, T0)
    refusing.apply_alert(alert("v2"), T0, 0, 8)
    (refused,) = refusing.given_up("c", next_of(refusing, T0), T0, may_have_arrived=False)

    ledger = ledger_of()  # of a process that has the channel `c` alone
    ledger.apply_delivery(of_gone)
    ledger.apply_delivery(refused)
    assert ledger.oldest_open(0) is None
    assert ledger.forget_old(T0 + 29 * DAY) == []
    assert ledger.forget_old(T0 + 31 * DAY) == [of_gone, refused]


def test_a_refused_notice_of_an_incident_that_goes_on_is_not_tried_again_when_its_record_is_old() -> None:
    ledger = ledger_of(alert("v1"))
    ledger.given_up("c", next_of(ledger, T0), T0, may_have_arrived=False)
    assert ledger.forget_old(T0 + 31 * DAY) == []
    ledger.set_mutes([mute(T0 + 40 * DAY, job="another")])  # each open incident is decided on anew
    assert ledger.next_due("c", T0 + 31 * DAY) is None
