"""Offsets and drifts of hosts' clocks, from what collectives and messages say."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.detectors.job.clocks import Clocks, _estimate, estimate_clocks, follow_clocks
from irregulars.messages.records import UNKNOWN
from tests.detectors.operator_graphs import columns_of, row

US = 1_000
MS = 1_000_000
S = 1_000_000_000
EPOCH = 1_700_000_000 * S
NOISE_NS = 2 * US

HOST_OF = {rank: f"h{rank // 2}" for rank in range(6)}
"""Three hosts of two ranks."""

Rows = list[dict[str, Any]]


def shown(host: str, time_ns: float, ahead_ns: Mapping[str, float], drift_ratio: Mapping[str, float]) -> int:
    """What a host's clock shows at a time."""
    return round(time_ns + ahead_ns.get(host, 0.0) + drift_ratio.get(host, 0.0) * (time_ns - EPOCH))


def collectives(
    ahead_ns: Mapping[str, float],
    drift_ratio: Mapping[str, float] | None = None,
    *,
    iterations: Sequence[int] = range(10),
    every_ns: int = S,
    members: Sequence[int] = range(6),
    group: int = 0,
    noise_ns: float = NOISE_NS,
    host_of: Mapping[int, str] = HOST_OF,
) -> Rows:
    """In each iteration three collectives of some ranks, which come at any time and leave together."""
    random = np.random.default_rng(group)
    rows = []
    for sequence in range(3 * (max(iterations) + 1)):
        iteration, turn = divmod(sequence, 3)
        come = random.uniform(0, 20 * MS, len(members))
        left = random.normal(0, noise_ns, len(members))
        if iteration not in iterations:
            continue
        end_ns = EPOCH + iteration * every_ns + (turn + 1) * every_ns // 10 + 30 * MS
        for at, rank in enumerate(members):
            times = (end_ns - 30 * MS + come[at], end_ns + left[at])
            own = [shown(host_of[rank], ns, ahead_ns, drift_ratio or {}) for ns in times]
            rows.append(row(rank, own[0], own[1], group=group, sequence=sequence, iteration=iteration))
    return rows


def messages(
    ahead_ns: Mapping[str, float],
    source: int,
    target: int,
    *,
    way_ns: int,
    count: int = 10,
    every_ns: int = S,
    drift_ratio: Mapping[str, float] = MappingProxyType({}),
) -> Rows:
    """Messages between two ranks whose receivers wait for them; the quickest is on its way for `way_ns`."""
    rows = []
    for number in range(count):
        sent_ns = EPOCH + number * every_ns + source * 7 * MS
        got_ns = sent_ns + way_ns + number * 3 * US
        sent, posted, got = (
            shown(HOST_OF[rank], ns, ahead_ns, drift_ratio)
            for rank, ns in ((source, sent_ns), (target, sent_ns - MS), (target, got_ns))
        )
        ends = {"group": 7, "sequence": number, "iteration": number}
        rows += [row(source, sent, sent + 5 * US, "send", peer=target, **ends)]
        rows += [row(target, posted, got, "recv", peer=source, **ends)]
    return rows


def offsets(rows: Rows, host_of: Mapping[int, str] = HOST_OF) -> dict[str, int]:
    return _estimate(columns_of(rows), host_of).offsets_ns


def clocks(rows: Rows, host_of: Mapping[int, str] = HOST_OF) -> Clocks:
    return estimate_clocks(columns_of(rows), host_of)


def centred(values: Mapping[str, float]) -> dict[str, float]:
    mean = sum(values.values()) / len(values)
    return {host: value - mean for host, value in values.items()}


# --- offsets --------------------------------------------------------------------------------------------------------


def test_offsets_by_collectives_and_messages() -> None:
    # One collective that a member left late moves no offset
    truth = {"h0": 500.0 * US, "h1": -500.0 * US, "h2": 0.0}
    rows = collectives(truth)
    rows[-1]["elapsed_ns"] += 80 * MS
    assert offsets(rows) == pytest.approx(truth, abs=5 * US)
    # Hosts are compared over a chain of collectives
    truth = {"h0": 2.0 * MS, "h1": 0.0, "h2": -2.0 * MS}
    rows = collectives(truth, members=(1, 2), group=1) + collectives(truth, members=(3, 4), group=2)
    assert offsets(rows) == pytest.approx(truth, abs=10 * US)
    # What stays inside a host says nothing
    truth = {"h0": 2.0 * MS, "h1": -2.0 * MS}
    rows = [one for host in range(3) for one in collectives(truth, members=(2 * host, 2 * host + 1), group=host)]
    assert offsets(rows) == {"h0": 0, "h1": 0, "h2": 0}
    # Messages in both directions join hosts that share no collective
    truth = {"h0": 2.0 * MS, "h1": -1.0 * MS}
    rows = messages(truth, 0, 2, way_ns=80 * US) + messages(truth, 2, 0, way_ns=80 * US)
    found = offsets(rows)
    assert found["h0"] - found["h1"] == pytest.approx(3 * MS, abs=5 * US)


def test_nothing_tells_the_offsets() -> None:
    # Messages in one direction say nothing
    rows = messages({"h0": 2.0 * MS}, 0, 2, way_ns=80 * US)
    assert offsets(rows) == {"h0": 0, "h1": 0, "h2": 0}
    # Without times no clock is ahead
    assert offsets([]) == {"h0": 0, "h1": 0, "h2": 0}
    assert offsets([row(0, None, None)]) == {"h0": 0, "h1": 0, "h2": 0}
    assert clocks([row(0, None, None)]) == Clocks(dict.fromkeys(range(6), 0))


def test_messages_between_some_of_many_hosts_take_no_room_for_all_pairs_of_them() -> None:
    hosts = 3000
    rows = messages({}, 0, 2, way_ns=80 * US) + messages({}, 2, 0, way_ns=80 * US)
    names = {0: hosts - 1, 2: hosts - 2}
    for one in rows:
        one["rank"], one["peer"] = names[one["rank"]], names[one["peer"]]
    columns, host_of = columns_of(rows), {rank: f"h{rank:04}" for rank in range(hosts)}
    tracemalloc.start()
    found = _estimate(columns, host_of).offsets_ns
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(found), found["h2999"] - found["h2998"]) == (hosts, pytest.approx(0, abs=5 * US))
    assert peak < 8 << 20  # one number for each pair would take 72 MB


@settings(max_examples=25)
@given(truth=st.fixed_dictionaries({host: st.integers(-S, S) for host in ("h0", "h1", "h2")}))
def test_any_offsets_are_found(truth: dict[str, int]) -> None:
    assert offsets(collectives(truth)) == pytest.approx(centred(truth), abs=5 * US)


@settings(max_examples=25)
@given(order=st.permutations(range(6)), shift_s=st.integers(-(10**6), 10**6))
def test_other_names_of_ranks_and_another_time_change_nothing(order: list[int], shift_s: int) -> None:
    rows = collectives({"h0": 3.0 * MS, "h1": -1.5 * MS})
    for one in rows:
        one["start_ns"] += shift_s * S
    renamed = [{**one, "rank": order[one["rank"]]} for one in rows]
    hosts = {order[rank]: host for rank, host in HOST_OF.items()}
    assert offsets(renamed, hosts) == pytest.approx(offsets(rows), abs=2)


# --- drifts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ppm", [20.0, -50.0, 100.0])
def test_with_its_drift_a_clock_is_right_in_the_middle_and_after_the_end(ppm: float) -> None:
    ahead, drifts = {"h0": 5.0 * MS, "h1": -MS}, {"h2": ppm * 1e-6}
    found = clocks(collectives(ahead, drifts))
    rank = np.arange(6)
    for second in (5, 10, 15):
        time_ns = EPOCH + second * S
        by_host = {host: shown(host, time_ns, ahead, drifts) - time_ns for host in ("h0", "h1", "h2")}
        expected = centred(by_host)
        own_ns = np.array([shown(HOST_OF[one], time_ns, ahead, drifts) for one in range(6)])
        right_ns = own_ns - found.ahead(rank, own_ns)
        wrong_ns = right_ns - right_ns.mean()
        assert np.abs(wrong_ns).max() < 40 * US, (second, expected)
        assert [found.ahead_of(one, int(own_ns[one])) for one in range(6)] == found.ahead(rank, own_ns).tolist()


def test_the_drift_of_hosts_that_only_messages_join_is_found_too() -> None:
    ahead, drifts = {"h0": 2.0 * MS}, {"h0": 20e-6, "h1": -20e-6}
    ways = [(0, 2), (2, 0), (2, 4), (4, 2)]
    rows = [
        one
        for source, target in ways
        for one in messages(ahead, source, target, way_ns=80 * US, every_ns=60 * S, drift_ratio=drifts)
    ]
    found = clocks(rows)
    assert found.drift_ratio == pytest.approx({0: 20e-6, 1: 20e-6, 2: -20e-6, 3: -20e-6}, abs=1e-6)
    time_ns = EPOCH + 540 * S  # of the last messages
    right_ns = [
        own - found.ahead_of(2 * at, own)
        for at, own in enumerate(shown(f"h{at}", time_ns, ahead, drifts) for at in range(3))
    ]
    assert max(right_ns) - min(right_ns) < 100 * US


def test_messages_of_long_ago_say_nothing_of_offsets_today() -> None:
    drifts = {"h0": 100e-6}
    rows = [
        one
        for source, target in ((0, 2), (2, 0))
        for one in messages({}, source, target, way_ns=80 * US, every_ns=60 * S, drift_ratio=drifts)
    ]
    found = offsets(rows)
    assert found["h0"] - found["h1"] == pytest.approx(100e-6 * 540 * S, abs=100 * US)


@pytest.mark.parametrize("every_ns", [50 * MS, S, 60 * S])
def test_no_drift_is_invented_where_clocks_keep_pace(every_ns: int) -> None:
    found = clocks(collectives({"h0": 7.0 * MS, "h1": -3.0 * MS}, every_ns=every_ns))
    assert found.drift_ratio == {}
    assert [found.ahead_ns[rank] for rank in (0, 2, 4)] == pytest.approx(
        [17 / 3 * MS, -13 / 3 * MS, -4 / 3 * MS], abs=5 * US
    )


@settings(max_examples=25)
@given(truth=st.fixed_dictionaries({host: st.integers(-S, S) for host in ("h0", "h1", "h2")}))
def test_no_offset_is_taken_for_a_drift(truth: dict[str, int]) -> None:
    assert clocks(collectives(truth)).drift_ratio == {}


def test_clocks_without_a_drift() -> None:
    # A clock that was set meanwhile does not drift
    before = collectives({}, iterations=range(5))
    after = collectives({"h0": 90.0 * MS}, iterations=range(5, 10))
    found = clocks(before + after)
    assert found.drift_ratio == {}
    assert found.ahead_ns[0] - found.ahead_ns[2] == pytest.approx(90 * MS, abs=5 * US)
    # One iteration shows no drift
    found = clocks(collectives({"h0": MS}, {"h1": 90e-6}, iterations=[4]))
    assert found.drift_ratio == {}
    # A clock that does not drift is ahead by as much at all times
    found = Clocks({0: 5, 3: -7}, {}, EPOCH)
    assert found.ahead(np.array([0, 3, 2, 9]), np.array([1, EPOCH, UNKNOWN, 5])).tolist() == [5, -7, 0, 0]
    assert [found.ahead_of(rank, 10 * EPOCH) for rank in (0, 3, 9)] == [5, -7, 0]
    # A time that is not known is ahead by what is known at the origin
    found = Clocks({0: 5, 1: 8}, {1: 1e-4}, EPOCH)
    ahead = found.ahead(np.array([0, 1, 1]), np.array([EPOCH + S, EPOCH + S, UNKNOWN]))
    assert ahead.tolist() == [5, 8 + 100 * US, 8]


# --- near the thresholds --------------------------------------------------------------------------------------------

TWO_HOSTS = {rank: f"h{rank // 3}" for rank in range(6)}


def exchanges(*shifts: tuple[int, int, float]) -> Rows:
    """Collectives of two hosts (communicator, age in s, by how much the first host's clock shows more in ns)."""
    rows = []
    for number, (group, age_s, shift_ns) in enumerate(sorted(shifts, key=lambda one: -one[1])):
        end_ns = EPOCH - age_s * S
        rows += [
            row(rank, end_ns - MS, end_ns + round(shift_ns) * (rank == 0), group=group, sequence=number)
            for rank in (0, 1)
        ]
    return rows


def ahead_us(*shifts: tuple[int, int, float]) -> float:
    """By how much the first of two hosts is found to be ahead of the second, µs."""
    found = offsets(exchanges(*shifts), {0: "a", 1: "b"})
    return (found["a"] - found["b"]) / US


def test_only_the_newest_collectives_count() -> None:
    # The newest four collectives of a communicator are compared
    shifts = [(0, age_s, shift_us * US) for age_s, shift_us in enumerate((0, 0, 0, 40, 80))]
    assert ahead_us(*shifts) == pytest.approx(40 / 4, abs=0.01)
    # Collectives of the last ten seconds are compared
    assert ahead_us((0, 0, 0), (0, 9, 30 * US), (0, 11, 60 * US)) == pytest.approx(30 / 2, abs=0.01)


@pytest.mark.parametrize(("stray_us", "is_kept"), [(5.4, True), (6.6, False)])
def test_an_end_four_deviations_away_is_left_out(stray_us: float, is_kept: bool) -> None:
    """Of 32 collectives 31 differ by a microsecond to either side: each end by 0.74 deviations of half of that."""
    shifts = [(number // 4, number % 4, (-1) ** number * US) for number in range(31)]
    found = ahead_us(*shifts, (7, 3, stray_us * US))
    assert found == pytest.approx((1 + stray_us) / 32 if is_kept else 1 / 31, abs=0.02)


@pytest.mark.parametrize(("ppm", "every_ns", "noise_ns", "drifts"), [
    pytest.param(1.8, S, 50.0, False, id="9 us"),
    pytest.param(2.2, S, 50.0, True, id="11 us"),
    pytest.param(180.0, S, 50.0, True, id="as oscillators may"),
    pytest.param(220.0, S, 50.0, False, id="as no oscillator does"),
    pytest.param(60.0, 180 * MS, 50.0, False, id="over 0.9 s"),
    pytest.param(60.0, 220 * MS, 50.0, True, id="over 1.1 s"),
    pytest.param(12.4, S, 20.0 * US, False, id="less than three deviations"),
    pytest.param(16.4, S, 20.0 * US, True, id="more than three deviations"),
])  # fmt: skip
def test_what_a_drift_is(ppm: float, every_ns: int, noise_ns: float, drifts: bool) -> None:
    rows = collectives(
        {}, {"h0": ppm * 1e-6, "h1": -ppm * 1e-6}, every_ns=every_ns, noise_ns=noise_ns, host_of=TWO_HOSTS
    )
    assert bool(clocks(rows, TWO_HOSTS).drift_ratio) is drifts


# --- following clocks while an incident lasts -----------------------------------------------------------------------

LATER = range(60, 61)


def followed(now: Rows, before: Rows | None = None) -> Clocks:
    return follow_clocks(clocks(before or collectives({"h0": 2 * MS})), columns_of(now), HOST_OF)


def test_a_clock_whose_rate_has_changed_is_right_again_a_minute_later() -> None:
    """At first it keeps pace; a minute later it shows what 40 ppm have made of it."""
    now = collectives({"h0": 2 * MS, "h1": 2.4 * MS}, iterations=LATER)
    extrapolated, found = clocks(collectives({"h0": 2 * MS})), followed(now)
    late_ns = EPOCH + 60 * S
    before, after = (one.ahead_of(2, late_ns) - one.ahead_of(4, late_ns) for one in (extrapolated, found))
    assert before == pytest.approx(0, abs=20 * US)
    assert after == pytest.approx(2.4 * MS, abs=20 * US)


@pytest.mark.parametrize(("moved_ms", "is_followed"), [(0.005, False), (0.1, True), (7.0, True), (30.0, False)])
def test_what_is_noise_or_faster_than_any_drift_is_not_followed(moved_ms: float, is_followed: bool) -> None:
    found = followed(collectives({"h0": 2 * MS, "h1": moved_ms * MS}, iterations=LATER))
    moved_ns = found.ahead_of(2, found.origin_ns) - found.ahead_of(4, found.origin_ns)
    assert moved_ns == pytest.approx(moved_ms * MS if is_followed else 0, abs=30 * US)


@pytest.mark.parametrize(("moved_ms", "followed_ms"), [(0.0, 0.0), (2.0, 2.0), (30.0, 0.0)])
def test_hosts_that_only_messages_join_move_by_what_causality_demands(moved_ms: float, followed_ms: float) -> None:
    """Messages of a link that is slow one way show a wrong offset; quick ones back come before they were sent."""
    quick = [*messages({}, 0, 2, way_ns=80 * US), *messages({}, 2, 0, way_ns=80 * US)]
    moved = {"h1": moved_ms * MS}
    slow = [
        one
        for source, target, way_ns in ((0, 2, 10 * MS), (2, 0, 80 * US))
        for one in messages(moved, source, target, way_ns=way_ns, count=max(LATER) + 1)
        if one["iteration"] in LATER
    ]
    found = followed(slow, quick)
    assert found.ahead_of(2, found.origin_ns) - found.ahead_of(0, found.origin_ns) == pytest.approx(
        followed_ms * MS, abs=300 * US
    )


def test_clocks_that_are_not_followed() -> None:
    # Hosts without collectives drift on
    drifts = {"h0": 20e-6, "h1": -20e-6}
    before = collectives({}, drifts, iterations=range(30))
    found = followed(collectives({}, drifts, iterations=LATER, members=(0, 2)), before)
    since_ns = 60 * S
    assert found.ahead_of(4, EPOCH + since_ns) == pytest.approx(0, abs=60 * US)
    apart_ns = found.ahead_of(0, EPOCH + since_ns) - found.ahead_of(2, EPOCH + since_ns)
    assert apart_ns == pytest.approx(40e-6 * since_ns, abs=60 * US)
    # Clocks are not followed within a second
    known = clocks(collectives({"h0": 2 * MS}))
    assert follow_clocks(known, columns_of(collectives({"h0": 2 * MS})), HOST_OF) == known
    assert follow_clocks(Clocks(), columns_of(collectives({}, iterations=LATER)), HOST_OF) == Clocks()
