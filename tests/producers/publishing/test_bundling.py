"""Batches of a host's ranks go out together, none waits long, and none overtakes another of its rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from irregulars.errors import InputError
from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.bundles import decode_batches
from irregulars.messages.records import Batch
from irregulars.producers.publishing.batches import MAX_ROWS, Bundler, encode_together
from tests.streams.lockstep_job import iteration_batch, operator_batch

GROUP = "node-1/0"


def batch(rank: int, rows: int = 1, **header: Any) -> Batch:
    return operator_batch(
        rank, [{"iteration": 1, "start_ns": n, "elapsed_ns": 1.0} for n in range(rows)], group=GROUP, **header
    )


def ranks_of(bundles: Iterable[Sequence[Batch]]) -> list[list[int]]:
    return [[one.header.rank for one in batches] for batches in bundles]


@pytest.fixture
def bundler() -> Bundler:
    made = Bundler(0.25)
    for rank in range(3):
        made.announce(Announcement("lockstep", 1, rank, 3, 3, (), group=GROUP))
    return made


def test_a_bundle_is_complete_with_the_last_rank_of_the_group(bundler: Bundler) -> None:
    assert ranks_of(bundler.add(batch(0), 0.0)) == []
    assert ranks_of(bundler.add(batch(2), 0.0)) == []
    assert ranks_of(bundler.add(batch(1), 0.0)) == [[0, 2, 1]]
    assert ranks_of(bundler.take_all()) == []


def test_nobody_waits_for_a_rank_that_has_ended(bundler: Bundler) -> None:
    bundler.forget(Heartbeat("lockstep", 1, 2, state="ended"), GROUP)
    assert ranks_of(bundler.add(batch(0), 0.0)) == []
    assert ranks_of(bundler.add(batch(1), 0.0)) == [[0, 1]]


def test_a_rank_that_nobody_announced_here_waits_for_none(bundler: Bundler) -> None:
    """A resumed source does not announce again."""
    assert ranks_of(Bundler(0.25).add(batch(0), 0.0)) == [[0]]


def test_what_has_waited_for_long_enough_goes_out(bundler: Bundler) -> None:
    assert ranks_of(bundler.add(batch(0), 10.0)) == []
    assert ranks_of(bundler.take_due(10.2)) == []
    assert ranks_of(bundler.take_due(10.25)) == [[0]]


def test_a_second_batch_of_a_rank_never_overtakes_the_first(bundler: Bundler) -> None:
    assert ranks_of(bundler.add(batch(0), 0.0)) == []
    assert ranks_of(bundler.add(batch(1), 0.0)) == []
    (sent,) = bundler.add(batch(0, rows_before=1), 0.0)
    assert [(one.header.rank, one.header.rows_before) for one in sent] == [(0, 0), (1, 0)]
    assert ranks_of(bundler.take_all()) == [[0]]


def test_schemas_and_attempts_do_not_mix(bundler: Bundler) -> None:
    told = [{"iteration": 1, "start_ns": 0, "elapsed_ns": 1.0}]
    assert ranks_of(bundler.add(batch(0), 0.0)) == []
    assert ranks_of(bundler.add(iteration_batch(1, told, group=GROUP), 0.0)) == []
    assert ranks_of(bundler.add(batch(1, attempt=2), 0.0)) == [[1]]  # of an attempt that nobody announced
    assert sorted(ranks_of(bundler.take_all())) == [[0], [1]]


def test_a_bundle_is_bounded(bundler: Bundler) -> None:
    assert ranks_of(bundler.add(batch(0, MAX_ROWS - 1), 0.0)) == []
    assert ranks_of(bundler.add(batch(1, 2), 0.0)) == [[0]]
    assert ranks_of(bundler.add(batch(2, MAX_ROWS), 0.0)) == [[1], [2]]


def test_bundles_fit_into_a_message_however_large_the_batches_are() -> None:
    batches = [batch(rank, 60 * (rank + 1)) for rank in range(4)]
    sent = list(encode_together(batches, 6_000))
    assert all(len(value) < 6_000 for _, value in sent)
    parts = [one for _, value in sent for one in decode_batches(value, "commops")]
    for rank, whole in enumerate(batches):
        own = [part for part in parts if part.header.rank == rank]
        assert [part.header.rows_before for part in own] == [sum(map(len, own[:n])) for n in range(len(own))]
        assert sum(map(len, own)) == len(whole)
    with pytest.raises(InputError, match="one row of commops must be below 500 bytes"):
        list(encode_together(batches, 500))
