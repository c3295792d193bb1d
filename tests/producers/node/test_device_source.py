from __future__ import annotations

import numpy as np
import pytest

from irregulars.messages.announcements import Heartbeat, SourceProgress
from irregulars.messages.records import PATHS, UNKNOWN, Batch, decode_batch, encode_batch
from irregulars.producers.node.device_source import DeviceSource
from irregulars.producers.node.roster import HealthSample, Owner, Samples

ONE, TWO = Owner("job", 2, 1), Owner("job", 2, 5)
MS = 1_000_000


class Scripted:
    """A feed that gives one list at a time."""

    def __init__(self, *given: list[Samples]) -> None:
        self.given, self.closes = list(given), 0

    def take(self) -> list[Samples]:
        return self.given.pop(0) if self.given else []

    def close(self) -> None:
        self.closes += 1


def samples(owner: Owner, device: str, times_ms: list[int], path: str = "nic") -> Samples:
    times_ns = np.array(times_ms, dtype=np.int64) * MS
    return Samples(owner, device, PATHS.index(path), times_ns, np.stack([times_ns, times_ns * 2], axis=1) / 1.0)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def now_ns(self) -> int:
        return round(self.now_s * 1e9)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def second(source: DeviceSource, clock: Clock, most: int = 10_000) -> list[Batch]:
    clock.now_s += 1.0
    return [record for record in source.poll(most) if isinstance(record, Batch)]


def test_all_devices_of_a_rank_travel_each_second_in_one_batch_in_order_of_time(clock: Clock) -> None:
    feeds = [Scripted([samples(ONE, "mlx5_0", [10, 20, 30])]), Scripted([samples(ONE, "gpu1", [15, 25], "pcie")])]
    source = DeviceSource(feeds, clock_s=clock)
    clock.now_s = 0.9
    assert source.poll(100) == []
    [batch] = second(source, clock)
    assert batch.columns["time_ns"].tolist() == [t * MS for t in (10, 15, 20, 25, 30)]
    assert [batch.header.names[code] for code in batch.columns["device"]] == [
        "mlx5_0", "gpu1", "mlx5_0", "gpu1", "mlx5_0",
    ]  # fmt: skip
    assert (batch.header.job, batch.header.attempt, batch.header.rank) == ("job", 2, 1)


def test_the_watermark_leaves_half_a_second_for_what_is_on_its_way(clock: Clock) -> None:
    nic = Scripted(*([samples(ONE, "mlx5_0", times)] for times in ([600, 990], [1_400, 1_990])))
    gpu = Scripted([], [samples(ONE, "gpu1", [450, 980], "pcie")])
    source = DeviceSource([nic, gpu], clock_s=clock, now_ns=clock.now_ns)
    first, later = [batch for _ in range(2) for batch in second(source, clock)]
    assert (first.header.watermark_ns, later.header.watermark_ns) == (500 * MS, 1_500 * MS)
    assert later.columns["time_ns"].tolist() == [t * MS for t in (980, 1_400, 1_990)]  # 450 came too late
    assert (first.header.rows_before, later.header.rows_before) == (0, 2)


def test_ranks_whose_devices_say_nothing_hold_nobody_up(clock: Clock) -> None:
    feed = Scripted([samples(ONE, "mlx5_0", [990])], [])
    source = DeviceSource([feed], owners=lambda: [ONE, TWO], clock_s=clock, now_ns=clock.now_ns)
    clock.now_s = 1.0
    batch, told = source.poll(100)
    assert isinstance(batch, Batch)
    assert told == Heartbeat("job", 2, 5, {"bandwidth": SourceProgress(0, 500 * MS)})
    clock.now_s = 2.0
    assert source.poll(100) == [
        Heartbeat("job", 2, 1, {"bandwidth": SourceProgress(1, 1_500 * MS)}),
        Heartbeat("job", 2, 5, {"bandwidth": SourceProgress(0, 1_500 * MS)}),
    ]


def test_ranks_that_left_a_day_ago_take_no_memory_and_those_that_left_before_are_counted_on(clock: Clock) -> None:
    feed = Scripted([samples(ONE, "mlx5_0", [990]), samples(TWO, "mlx5_1", [990])])
    here = [ONE, TWO]
    source = DeviceSource([feed], owners=lambda: here, clock_s=clock, now_ns=clock.now_ns)
    assert len(second(source, clock)) == 2
    here.remove(TWO)
    clock.now_s = 86_000.0
    feed.given = [[samples(TWO, "mlx5_1", [86_000_900])]]
    assert [one.header.rows_before for one in second(source, clock)] == [1]
    for clock.now_s in (172_000.0, 180_000.0):
        assert second(source, clock) == []
    assert {owner for _, owner in (*source._rows, *source._watermarks_ns)} == {ONE}


def test_states_of_a_gpu_become_rows_and_what_was_not_said_is_unknown(clock: Clock) -> None:
    states = [
        HealthSample(ONE, "gpu1", 20 * MS, {"sm_clock_mhz": 1980.0, "throttle_reasons": 4, "ecc_corrected": 1}),
        HealthSample(ONE, "gpu1", 10 * MS, {"xid": 79.0}),
    ]
    source = DeviceSource([], lambda: [states.pop(0) for _ in list(states)], health_s=1.0, clock_s=clock)
    [batch] = second(source, clock)
    found = decode_batch(encode_batch(batch), "gpu_health")
    assert found.columns["time_ns"].tolist() == [10 * MS, 20 * MS]
    assert found.columns["xid"].tolist() == [79, UNKNOWN]
    assert found.columns["throttle_reasons"].tolist() == [UNKNOWN, 4]
    np.testing.assert_array_equal(found.columns["sm_clock_mhz"], [np.nan, 1980.0])
    np.testing.assert_array_equal(found.columns["power_w"], [np.nan, np.nan])


def test_no_state_is_left_out_since_the_feed_that_brings_it_is_taken_first(clock: Clock) -> None:
    waiting: list[HealthSample] = []
    taken: list[HealthSample] = []

    class Feed(Scripted):
        def take(self) -> list[Samples]:
            taken.extend(waiting)
            waiting.clear()
            return []

    def health() -> list[HealthSample]:
        states = taken.copy()
        taken.clear()
        return states

    source = DeviceSource([Feed()], health, clock_s=clock, now_ns=clock.now_ns)
    rows = 0
    for step in range(1, 401):  # polls of 70 ms: both periods drift apart
        clock.now_s += 0.07
        if step % 2 == 0 and step <= 300:
            waiting.append(HealthSample(ONE, "gpu1", clock.now_ns(), {"temperature_c": 60.0}))
        rows += sum(len(record) for record in source.poll(10_000) if isinstance(record, Batch))
    assert rows == 150


def test_a_long_batch_is_handed_out_in_portions_and_feeds_are_closed(clock: Clock) -> None:
    source = DeviceSource([Scripted([samples(ONE, "mlx5_0", list(range(1, 101)))])], clock_s=clock)
    parts = second(source, clock, 30)
    parts += [record for most in (60, 60) for record in source.poll(most) if isinstance(record, Batch)]
    assert [len(part) for part in parts] == [30, 60, 10]
    assert [part.header.rows_before for part in parts] == [0, 30, 90]
    feed = Scripted()
    source = DeviceSource([feed], clock_s=clock)
    source.close()
    assert (feed.closes, source.is_exhausted, source.position()) == (1, False, "")


def test_a_clock_that_was_set_back_is_told_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    given = [[samples(ONE, "mlx5_0", [at * 1000])] for at in (7200, 3601, 3602, 7203, 3604)]
    source = DeviceSource([Scripted(*given)], clock_s=clock, now_ns=lambda: now_ns[0])
    counts = []
    for at in (7200, 3601, 3602, 7203, 3604):
        now_ns = [at * 10**9 + 500 * MS]
        counts.append(sum(map(len, second(source, clock))))
    assert counts == [1, 0, 0, 1, 0]
    assert [one.getMessage() for one in caplog.records] == [
        "event=clock_set_back seconds=3599.0 effect='samples are left out until it is where it was'",
        "event=clock_set_back seconds=3599.0 effect='samples are left out until it is where it was'",
    ]


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, -(2**63), 1e300, float("inf"), float("nan")])
def test_a_state_that_the_bus_has_no_room_for_is_unknown(clock: Clock, value: float) -> None:
    states = [HealthSample(ONE, "gpu1", 5 * MS, {"throttle_reasons": value, "xid": value, "power_w": 300.0})]
    source = DeviceSource([], lambda: states, health_s=1.0, clock_s=clock)
    [batch] = second(source, clock)
    found = decode_batch(encode_batch(batch), "gpu_health").columns
    assert (found["throttle_reasons"][0], found["xid"][0], found["power_w"][0]) == (UNKNOWN, UNKNOWN, 300.0)
