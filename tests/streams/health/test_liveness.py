"""A worker that stands says so; one that waits for others, or has nothing to do, does not."""

from __future__ import annotations

import pytest

from irregulars.streams.health.liveness import (
    BROKER_SILENT_S,
    LOOP_STANDS_S,
    LOOP_STUCK_S,
    STANDS_S,
    STUCK_S,
    Flow,
    FlowWatch,
    Health,
    Place,
    Reading,
)

AT = Place("commops", 3)


class Watched:
    """A worker with one partition, looked at once a second."""

    def __init__(self) -> None:
        self.health = Health(0.0)
        self.now_s = 0.0

    def run(
        self, seconds: float, lag: int, *, per_s: int = 0, is_restored: bool = True, is_broker_there: bool = True,
        is_sink_busy: bool = False, is_broker_away: bool = False,
    ) -> None:  # fmt: skip
        ends_at_s = self.now_s
        for _ in range(int(seconds)):
            self.now_s += 1.0
            ends_at_s = self.now_s if is_broker_there else ends_at_s
            readings = {AT: Reading(self.now_s * per_s, lag)} if is_restored else {}
            self.health.observe(
                self.now_s, readings, is_restored=is_restored, ends_at_s=ends_at_s, is_sink_busy=is_sink_busy,
                is_broker_away=is_broker_away,
            )  # fmt: skip

    @property
    def why_dead(self) -> str | None:
        return self.health.why_dead(self.now_s)

    @property
    def why_not_ready(self) -> str | None:
        return self.health.why_not_ready(self.now_s)


@pytest.mark.parametrize(("lag", "per_s"), [(0, 0), (1_000_000, 7)])
def test_a_worker_with_nothing_to_read_and_one_that_lags_and_reads_are_ready(lag: int, per_s: int) -> None:
    worker = Watched()
    worker.run(2 * STUCK_S, lag, per_s=per_s)
    assert (worker.why_dead, worker.why_not_ready) == (None, None)


def test_a_partition_that_stands_with_messages_makes_the_worker_first_not_ready_and_then_stuck() -> None:
    worker = Watched()
    worker.run(10, lag=5, per_s=1)
    worker.run(STANDS_S + 2, lag=5)
    assert worker.why_dead is None
    assert worker.why_not_ready is not None
    assert "commops/3" in worker.why_not_ready
    worker.run(STUCK_S - STANDS_S, lag=5)
    assert worker.why_dead is not None
    assert "commops/3" in worker.why_dead
    worker.run(1, lag=4, per_s=1)
    assert (worker.why_dead, worker.why_not_ready) == (None, None)


@pytest.mark.parametrize("waits", [{"is_sink_busy": True}, {"is_restored": False}])
def test_a_worker_that_waits_for_the_database_or_restores_for_long_is_not_stuck(waits: dict[str, bool]) -> None:
    worker = Watched()
    worker.run(10, lag=5, per_s=1)
    worker.run(2 * STUCK_S, lag=5, **waits)  # type: ignore[arg-type]
    assert worker.why_dead is None


def test_a_worker_whose_broker_is_away_is_not_ready_and_not_stuck() -> None:
    worker = Watched()
    worker.run(10, lag=5, per_s=1)
    worker.run(2 * STUCK_S, lag=5, is_broker_there=False)
    assert worker.why_dead is None
    assert worker.why_not_ready == f"broker must say within {BROKER_SILENT_S:g} s where topics end; it does not"


def test_a_worker_that_let_go_of_its_partitions_since_the_broker_is_away_says_so() -> None:
    worker = Watched()
    worker.run(10, lag=0)
    worker.run(10, lag=0, is_restored=False, is_broker_there=False, is_broker_away=True)
    assert worker.why_not_ready == "broker must answer; it does not"
    worker.run(1, lag=0, is_restored=False)
    assert worker.why_not_ready == "partitions must be restored; they are not yet"


def test_a_worker_is_not_ready_before_all_is_restored_and_something_read() -> None:
    worker = Watched()
    worker.run(5, lag=0, is_restored=False)
    assert worker.why_not_ready == "partitions must be restored; they are not yet"
    worker.run(5, lag=9)
    assert worker.why_not_ready == "partitions must be read; not yet: commops/3"
    worker.run(2, lag=9, per_s=1)
    assert worker.why_not_ready is None


def test_an_event_loop_that_does_not_come_round_is_seen_from_outside() -> None:
    worker = Watched()
    worker.run(10, lag=0)
    worker.now_s += LOOP_STANDS_S + 1
    assert worker.why_dead is None
    assert worker.why_not_ready is not None
    worker.now_s += LOOP_STUCK_S
    assert worker.why_dead is not None
    assert worker.why_dead.startswith("event loop must come round")


REFUSED = "messages arrive, and all of them are refused"
UNCLOSED = "operators arrive, and no iteration closes"
PAUSED = [*(Flow(min(s, 100), 0, min(s, 100) // 10) for s in range(800)), *(Flow(100 + s, 0, 10) for s in range(200))]
FLOWS: dict[str, tuple[list[Flow], list[tuple[float, str]]]] = {
    "a healthy flow": ([Flow(s, s // 20, s // 10) for s in range(2000)], []),
    "a quiet worker": ([Flow(0, 3, 0) for s in range(2000)], []),
    "operators without iterations are told once, after minutes": (
        [Flow(s, 0, 2) for s in range(1000)], [(330.0, UNCLOSED)],
    ),
    "an iteration that closes begins the wait anew": ([Flow(s, 0, s // 300) for s in range(2000)], []),
    "a pause does not count": (PAUSED, []),
    "all refused is told, and again after some got through": (
        [*(Flow(0, s, 0) for s in range(200)), *(Flow(1, 200 + s, 1) for s in range(100))],
        [(60.0, REFUSED), (260.0, REFUSED)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("flows", "expected"), FLOWS.values(), ids=FLOWS)
def test_a_worker_that_is_of_no_use_says_so(flows: list[Flow], expected: list[tuple[float, str]]) -> None:
    """Each flow is looked at a second after the one before it."""
    watch = FlowWatch(30.0)
    found = [(float(s), reason) for s, flow in enumerate(flows) for reason, _ in watch.look(float(s), flow)]
    assert found == expected
