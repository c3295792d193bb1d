"""Metrics of ranks: void and rates as counted by hand, and ranks that are unlike their peers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.path.rank_metrics import find_differences, join_windows, measure_bandwidth
from irregulars.dtypes import Column, Floats
from irregulars.messages.device_events import Summary
from irregulars.messages.records import OPERATOR_CODES, UNKNOWN
from irregulars.producers.importers.kineto_kernels import (
    Profile,
    Sample,
    gpu_times,
    sample_iterations,
    sample_kernels,
    summarize,
)

ORIGIN_NS = 1_700_000_000_000_000_000


def kernels(*rows: tuple[int, int, int, int], **columns: object) -> dict[str, Column]:
    """Kernels with their start, end, name and step."""
    start_ns, end_ns, name, step = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    count = len(start_ns)
    return {
        "start_ns": start_ns + ORIGIN_NS, "end_ns": end_ns + ORIGIN_NS, "name": name, "step": step,
        "latency_ns": np.full(count, np.nan), "is_communication": np.zeros(count, dtype=bool),
        "call": np.full(count, UNKNOWN), "flops": np.full(count, np.nan), "kind": np.full(count, UNKNOWN),
        "sort": np.zeros(count, np.int64),
    } | {key: np.array(value) for key, value in columns.items()}  # fmt: skip


def profile(frame: dict[str, Column], kinds: tuple[str, ...] = (), sorts: tuple[str, ...] = ()) -> Profile:
    none = np.empty(0, np.int64)
    return Profile(frame, kinds, sorts, none, np.empty(0), none.reshape(0, 2), none.reshape(0, 4), ())


def values(frame: dict[str, Column], kinds: tuple[str, ...] = ()) -> dict[str, float]:
    return {name: one.value for name, one in summarize(sample_kernels(profile(frame, kinds))).items()}


def values_of(amounts: Floats, per: Floats | None = None) -> Sample:
    return Sample(amounts, np.ones(len(amounts)) if per is None else per, np.zeros(len(amounts), np.int64))


def test_void_lies_between_steps_and_where_no_major_kernel_runs() -> None:
    # Of the 1st step nothing is known before it; the 2nd one lasts from 100 to 200. Name 9 holds 2 of 142 ns.
    frame = kernels((0, 40, 1, 1), (50, 100, 2, 1), (120, 150, 1, 2), (140, 160, 2, 2), (165, 167, 9, 2),
                    (190, 200, 1, 2))  # fmt: skip
    assert values(frame) == {
        "void_between_steps_ratio": pytest.approx(0.2),
        "void_minority_kernels_ratio": pytest.approx((10 + 30) / 200),
    }


def test_a_gpu_is_idle_until_a_launch_comes_and_not_while_it_waits_for_what_was_launched() -> None:
    # Launched at 0, at 45 while it ran nothing from 40 on, and at 20 though it starts 10 ns after the one before.
    frame = kernels((0, 40, 1, 1), (50, 100, 1, 1), (110, 150, 2, 1), (120, 160, 1, 1),
                    latency_ns=[0.0, 5.0, 90.0, np.nan], is_communication=[False, False, True, False])  # fmt: skip
    begin_ns = ORIGIN_NS + np.array([0, 42, 100])
    computing_ns, idle_ns = gpu_times(frame, begin_ns, ORIGIN_NS + np.array([42, 100, 160]))
    assert (computing_ns.tolist(), idle_ns.tolist()) == ([40.0, 50.0, 10.0], [2.0, 3.0, 0.0])


def test_a_step_that_was_not_recorded_is_not_taken_for_void() -> None:
    assert values(kernels((0, 40, 1, 1), (200, 240, 1, 3))) == {"void_minority_kernels_ratio": 0.0}


def test_without_steps_all_counts_as_one() -> None:
    assert values(kernels((0, 40, 1, UNKNOWN), (60, 100, 1, UNKNOWN)))["void_minority_kernels_ratio"] == 0.2


def test_multiplications_beside_communication_are_left_out() -> None:
    # Calls 0 and 1 take 10 and 20 ns, each of two kernels; a collective runs beside the second kernel of call 1.
    frame = kernels(
        (0, 6, 1, 1), (6, 10, 2, 1), (20, 30, 1, 1), (30, 40, 2, 1), (39, 50, 3, 1),
        call=[0, 0, 1, 1, UNKNOWN], kind=[1, 1, 1, 1, UNKNOWN], flops=[500.0, 500.0, 900.0, 900.0, np.nan],
        is_communication=[False, False, False, False, True],
    )  # fmt: skip
    assert values(frame, ("bmm", "mm"))["flops_per_s.mm"] == pytest.approx(500 / 10e-9)


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=12)


@given(spans, st.randoms())
def test_void_is_what_kernels_leave_in_whatever_order_they_come(own: list[tuple[int, int]], random: object) -> None:
    rows = [(start, start + length, 1, 1) for start, length in own]
    covered = {ns for start, end, *_ in rows for ns in range(start, end)}
    first, last = min(covered), max(covered) + 1
    expected = pytest.approx(1 - len(covered) / (last - first))
    random.shuffle(rows)  # type: ignore[attr-defined]
    assert values(kernels(*rows))["void_minority_kernels_ratio"] == expected


def test_windows_of_a_rank_add_up() -> None:
    windows = [
        {"steps_per_s": values_of(np.ones(2), np.array([1.0, 3.0]))},
        {"steps_per_s": values_of(np.ones(1))},
    ]
    joined = join_windows(map(summarize, windows))["steps_per_s"]
    assert (joined.value, joined.count) == (0.6, 3)


def test_iterations_alone_tell_the_throughput() -> None:
    found = summarize(sample_iterations(np.array([5e8, 5e8]), np.array([100.0, np.nan])))
    assert {name: one.value for name, one in found.items()} == {"steps_per_s": 2.0, "tokens_per_s": 200.0}


# --- bandwidth ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "algbw", "busbw"),
    [("all_reduce", 1.0, 1.5), ("all_gather", 4.0, 3.0), ("reduce_scatter", 1.0, 0.75), ("broadcast", 1.0, 1.0)],
)
@pytest.mark.parametrize("is_shared_clock", [True, False])
def test_bandwidth_leaves_waiting_out(operator: str, algbw: float, busbw: float, is_shared_clock: bool) -> None:
    """Of 4 ranks the last one arrives 900 ns late and spends 100 ns inside, for 100 bytes."""
    late = np.array([0, 100, 200, 900] * 2)
    columns = {
        "rank": np.arange(8) % 4, "communicator": np.zeros(8, np.int64), "sequence": np.arange(8) // 4,
        "operator": np.full(8, OPERATOR_CODES[operator]), "start_ns": ORIGIN_NS + late, "elapsed_ns": 1000.0 - late,
        "size_bytes": np.full(8, 100.0), "iteration": np.zeros(8, np.int64),
    }  # fmt: skip
    found = measure_bandwidth(columns, np.array([4]), is_shared_clock=is_shared_clock)
    assert (found.count.tolist(), found.shares.tolist(), found.members.tolist()) == ([2], [4], [4])
    assert (found.algbw.tolist(), found.busbw.tolist()) == (
        [pytest.approx(algbw * 1e9)],
        [pytest.approx(busbw * 1e9)],
    )


def test_bandwidth_of_nothing_is_nothing() -> None:
    empty = np.empty(0, np.int64)
    columns = dict.fromkeys(("rank", "communicator", "sequence", "operator", "start_ns", "iteration"), empty)
    columns |= dict.fromkeys(("elapsed_ns", "size_bytes"), np.empty(0))
    assert len(measure_bandwidth(columns, empty, is_shared_clock=True).algbw) == 0


# --- peers ----------------------------------------------------------------------------------------------------------


def latencies(seed: int, ranks: int = 8) -> dict[int, Sample]:
    """Issue latencies of healthy ranks: spread over decades, and of another median on each, by up to a fifth."""
    random = np.random.default_rng(seed)
    middle = 7e7 * random.uniform(0.8, 1.2, ranks)
    return {rank: values_of(random.lognormal(np.log(middle[rank]), 1.0, 400)) for rank in range(ranks)}


def odd_ones(samples: dict[int, Sample], stages: dict[int, int] | None = None) -> list[int]:
    ranks = {rank: summarize({"issue_latency_ns": one}) for rank, one in samples.items()}
    return [one.rank for one in find_differences(ranks, stages or dict.fromkeys(ranks, 0))]


@pytest.mark.parametrize("seed", range(20))
def test_healthy_ranks_are_alike(seed: int) -> None:
    assert odd_ones(latencies(seed)) == []


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_a_rank_whose_launches_wait_for_its_gpu_is_unlike_its_peers(share: float) -> None:
    """Of a rank with 40% of such launches the median is still that of its peers."""
    samples = latencies(0)
    amount = samples[3].amount.copy()
    amount[: int(share * 400)] = 13_000
    ranks = {rank: summarize({"issue_latency_ns": one}) for rank, one in (samples | {3: values_of(amount)}).items()}
    (one,) = find_differences(ranks, dict.fromkeys(ranks, 0))
    assert (one.value, one.quantile == 0.5) == (pytest.approx(13_000), share > 0.5)
    assert one.usual > 1e6
    assert odd_ones(samples | {3: values_of(amount)}) == [3]
    renamed = {7 - rank: one for rank, one in samples.items()} | {4: values_of(amount)}
    assert odd_ones(renamed) == [4]


def test_ranks_of_other_stages_and_few_values_are_not_compared() -> None:
    samples = {rank: values_of(np.full(50, 1e4 if rank == 3 else 1e8)) for rank in range(6)}
    assert odd_ones(samples) == [3]
    assert odd_ones(samples, {rank: rank // 2 for rank in range(6)}) == []
    assert odd_ones({rank: values_of(one.amount[:9]) for rank, one in samples.items()}) == []


def test_less_void_and_higher_rates_are_no_reason_to_tell() -> None:
    def one(value: float) -> Summary:
        return Summary(value, np.full(11, value), 50, 50.0)

    healthy = {"flops_per_s.mm": one(1e14), "void_minority_kernels_ratio": one(0.3)}
    better, worse = (
        {"flops_per_s.mm": one(1e14 * times), "void_minority_kernels_ratio": one(0.3 / times)} for times in (2.0, 0.5)
    )
    for odd, count in ((better, 0), (worse, 2)):
        found = find_differences(
            {rank: odd if rank == 1 else healthy for rank in range(5)}, dict.fromkeys(range(5), 0)
        )
        assert [one.rank for one in found] == [1] * count
