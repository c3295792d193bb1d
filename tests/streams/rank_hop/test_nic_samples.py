"""Samples of a rank's NIC, and the iterations that they fall into."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from irregulars.messages.records import PATHS, Batch, Header
from irregulars.streams.rank_hop.message_rows import Part, part_of
from irregulars.streams.rank_hop.nic_patterns import place_in_blocks
from irregulars.streams.rank_hop.nic_samples import MOST_SAMPLES, NicSamples, Samples, joined_samples
from tests.stored_states import stored

MS = 1_000_000


def batch(rows: Sequence[tuple[int, str, float, float]], path: str = "nic") -> Batch:
    """Rows of time in ms, device, and rates sent and received."""
    names = sorted({device for _, device, _, _ in rows})
    header = Header("bandwidth", "j", 0, 0, 0, None, tuple(names))
    times, devices, tx, rx = zip(*rows, strict=True)
    columns = {
        "time_ns": np.array(times, dtype=np.int64) * MS,
        "path": np.full(len(rows), PATHS.index(path)),
        "device": np.array([names.index(device) for device in devices]),
        "tx_bytes_per_s": np.array(tx, dtype=np.float64),
        "rx_bytes_per_s": np.array(rx, dtype=np.float64),
    }
    return Batch(header, columns)


def of(rows: Sequence[tuple[int, str, float, float]], path: str = "nic") -> Part:
    return part_of(batch(rows, path), 0)


def peaks(samples: NicSamples, *iterations: tuple[int, int]) -> list[list[float]]:
    starts, ends = (np.array(column, dtype=np.int64) * MS for column in zip(*iterations, strict=True))
    parts = [(samples.take(int(ends[-1])), slice(0, len(starts)))]
    return [peak.tolist() for peak in place_in_blocks(parts, starts, ends - starts).peaks(len(starts))]


def test_an_iteration_has_the_highest_rates_of_the_intervals_whose_middle_lies_in_it() -> None:
    samples = NicSamples("eth0")
    samples.add(of([(n * 10, "eth0", float(n), 100.0 - n) for n in range(8)]))
    assert peaks(samples, (0, 30), (30, 50)) == [[3.0, 5.0], [99.0, 96.0]]


def test_the_first_sample_says_nothing_since_nobody_knows_when_its_interval_began() -> None:
    samples = NicSamples("eth0")
    samples.add(of([(10, "eth0", 9.0, 9.0)]))
    np.testing.assert_array_equal(peaks(samples, (0, 20)), [[np.nan], [np.nan]])
    samples.add(of([(30, "eth0", 5.0, 4.0)]))
    assert peaks(samples, (10, 40)) == [[5.0], [4.0]]


def test_samples_that_come_twice_or_late_make_no_second_interval() -> None:
    samples = NicSamples("eth0")
    rows = [(n * 10, "eth0", float(n), float(n)) for n in range(6)]
    for some in (rows, rows[1:4], [(20, "eth0", 9.0, 9.0), (45, "eth0", 9.0, 9.0), (60, "eth0", 6.0, 6.0)]):
        samples.add(of(some))
    (piece,) = samples.take(100 * MS)
    before_ms, end_ms = ((column // MS).tolist() for column in (piece.begin_ns, piece.end_ns))
    assert (before_ms, end_ms) == ([0, 10, 20, 30, 40, 50], [10, 20, 30, 40, 50, 60])


def test_other_devices_and_other_paths_are_not_this_nic() -> None:
    samples = NicSamples("eth0")
    samples.add(of([(n * 10, device, 1.0, 1.0) for n in range(4) for device in ("eth1",)]))
    samples.add(of([(n * 10, "eth0", 1.0, 1.0) for n in range(4)], path="pcie"))
    np.testing.assert_array_equal(peaks(samples, (0, 40)), [[np.nan], [np.nan]])
    unnamed = NicSamples(None)
    unnamed.add(of([(n * 10, "eth1", 1.0 + n, 1.0) for n in range(4)]))
    assert peaks(unnamed, (0, 40)) == [[4.0], [1.0]]


def test_samples_of_later_iterations_wait_and_survive_a_snapshot() -> None:
    samples = NicSamples("eth0")
    samples.add(of([(n * 10, "eth0", float(n), 0.0) for n in range(6)]))
    assert peaks(samples, (0, 20))[0] == [2.0]
    twin = NicSamples.from_state(stored(samples.state()))
    twin.add(of([(60, "eth0", 6.0, 0.0)]))
    assert peaks(twin, (20, 40), (40, 60))[0] == [4.0, 6.0]


def test_a_row_without_a_rate_is_no_rate_of_zero() -> None:
    samples = NicSamples("eth0")
    samples.add(of([(0, "eth0", 1.0, 1.0), (10, "eth0", np.nan, 3.0)]))
    np.testing.assert_array_equal(peaks(samples, (0, 20)), [[np.nan], [3.0]])


def test_memory_is_bounded() -> None:
    samples = NicSamples("eth0")
    samples.add(of([(n, "eth0", float(n), 0.0) for n in range(MOST_SAMPLES + 10)]))
    assert sum(piece.rows for piece in samples.take(10**18)) == MOST_SAMPLES
    for n in range(12):
        samples.add(of([(10_000 * (n + 1000) + m, "eth0", 1.0, 0.0) for m in range(10_000)]))
    assert sum(piece.rows for piece in samples.take(10**18)) == MOST_SAMPLES


def test_ranks_whose_clocks_are_ages_apart_have_their_samples_placed_alike() -> None:
    """Then their times can't be lifted above each other's, and each rank is searched by itself."""
    near = Samples(*(np.arange(4) * 10 + add for add in (0, 10)), np.arange(4.0), np.arange(4.0))
    far = Samples(near.begin_ns + (1 << 61), near.end_ns + (1 << 61), near.tx, near.rx)
    parts = [([near], slice(0, 2)), ([near], slice(2, 4)), ([far], slice(4, 6))]
    starts = np.array([3, 20, 12, 22, (1 << 61) + 3, (1 << 61) + 20])
    elapsed = np.array([17, 100, 10, 5, 17, 100])
    placed = place_in_blocks(parts, starts, elapsed)
    assert placed.block.tolist() == [0, 0, 1, 1, 2, 3, 4, 4, 5, 5]
    alone = [place_in_blocks([part], starts, elapsed).block.tolist() for part in parts]
    assert placed.block.tolist() == [block for one in alone for block in one]


@pytest.mark.parametrize("seed", range(5))
def test_samples_that_are_cut_are_those_that_are_looked_at_one_by_one(seed: int) -> None:
    """What comes late, twice or from another NIC is looked at; in between, and after a snapshot, all is cut again."""
    random = Random(seed)
    cut, seen = NicSamples("eth0"), NicSamples("eth0")
    now = 0
    for _ in range(40):
        rows = [(now + n * 10, random.choice(("eth0",) * 9 + ("eth1",)), random.random(), 0.0) for n in range(4)]
        rows = rows if random.random() < 0.8 else [*rows, random.choice(rows)]
        now += random.choice((0, 20, 40, 40, 40))
        part = of(rows)
        cut.add(part)
        seen.add(part._replace(summary=part.summary._replace(device=None)))
        until = now + random.randrange(-20, 40)
        if random.random() < 0.7:
            taken = [joined_samples(one.take(until * MS)) for one in (cut, seen)]
            for one, two in zip(*taken, strict=True):
                np.testing.assert_array_equal(one, two)
        if random.random() < 0.1:
            cut = NicSamples.from_state(stored(cut.state()))
