"""What of each source has arrived, and until when a rank's iterations are complete."""

from __future__ import annotations

from typing import Any

from irregulars.messages.announcements import SourceProgress
from irregulars.messages.records import UNKNOWN, Batch
from irregulars.streams.rank_hop.source_arrivals import SourceArrivals
from tests.stored_states import stored
from tests.streams.lockstep_job import iteration_batch, operator_batch


def operators(count: int, **header: Any) -> Batch:
    rows = [{"iteration": 0, "sequence": n, "start_ns": 10 * n, "elapsed_ns": 5.0} for n in range(count)]
    return operator_batch(0, rows, **header)


def count(arrivals: SourceArrivals, batch: Batch) -> None:
    arrivals.count(batch.header.schema, batch.header.rows_before, len(batch), batch.header.watermark_ns)


def test_rows_that_were_published_before_and_never_came_are_lost() -> None:
    arrivals = SourceArrivals(5)
    count(arrivals, operators(2, rows_before=3))
    count(arrivals, operators(1, rows_before=10))
    count(arrivals, operators(1, rows_before=10))  # read again
    assert arrivals.lost_rows == 5 + 3 + 5


def test_a_heartbeat_moves_watermarks_only_when_all_its_rows_have_come() -> None:
    arrivals = SourceArrivals()
    count(arrivals, operators(1))
    said = {"commops": SourceProgress(2, 900)}
    assert not arrivals.apply(said, ("commops",))
    assert arrivals.newest_ns == 5
    count(arrivals, operators(1, rows_before=1))
    assert arrivals.apply(said, ("commops",))
    assert arrivals.newest_ns == 900


def test_samples_hold_a_heartbeat_up_only_where_they_were_announced() -> None:
    said = {"bandwidth": SourceProgress(100, None), "gpu_health": SourceProgress(7, None)}
    assert SourceArrivals().apply(said, ("commops",))
    assert not SourceArrivals().apply(said, ("commops", "bandwidth"))


def test_iterations_wait_for_samples_that_were_announced() -> None:
    arrivals = SourceArrivals()
    count(arrivals, operators(1))
    assert arrivals.complete_until_ns(("commops",)) == 5
    assert arrivals.complete_until_ns(("commops", "bandwidth")) is None
    arrivals.apply({"bandwidth": SourceProgress(0, 3)}, ("commops", "bandwidth"))
    assert arrivals.complete_until_ns(("commops", "bandwidth")) == 3


def test_a_watermark_never_falls() -> None:
    arrivals = SourceArrivals()
    for watermark_ns in (70, 20, None):
        count(arrivals, operators(1, watermark_ns=watermark_ns))
    assert arrivals.complete_until_ns(("commops",)) == 70


def test_iteration_rows_tell_what_is_complete_only_where_no_operators_were_announced() -> None:
    arrivals = SourceArrivals()
    assert arrivals.newest_ns == UNKNOWN
    count(arrivals, iteration_batch(0, [{"iteration": 0, "start_ns": 0, "elapsed_ns": 40}]))
    assert arrivals.complete_until_ns(("commops", "iterations")) is None
    assert arrivals.complete_until_ns(("iterations",)) == 40
    count(arrivals, operators(1))
    assert arrivals.complete_until_ns(("iterations",)) == 5


def test_a_snapshot_restores_counts_and_watermarks() -> None:
    arrivals = SourceArrivals(2)
    count(arrivals, operators(3, rows_before=1))
    twin = SourceArrivals.from_state(stored(arrivals.state()))
    for each in (arrivals, twin):
        count(each, operators(1, rows_before=6))
    assert twin.state() == arrivals.state()
    assert twin.lost_rows == 2 + 1 + 2
