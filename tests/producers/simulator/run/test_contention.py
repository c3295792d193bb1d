from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.producers.simulator.job.settings import SimulatorSettings
from irregulars.producers.simulator.run.contention import others_in_the_way_ns
from irregulars.producers.simulator.run.engine import Engine

Tidy = Callable[..., SimulatorSettings]


def test_a_short_transfer_within_a_long_one_takes_twice_as_long_and_the_long_one_longer_by_it() -> None:
    nic = np.zeros(2, dtype=np.int64)
    begin, length = np.array([0.0, 400.0]), np.array([1000.0, 100.0])
    others = others_in_the_way_ns(nic, begin, length, length)
    assert others == pytest.approx([100.0, 100.0])


def test_transfers_on_other_nics_and_at_other_times_are_in_nobodys_way() -> None:
    begin, length = np.array([0.0, 0.0, 50.0]), np.array([50.0, 50.0, 9.0])
    assert others_in_the_way_ns(np.array([0, 1, 0]), begin, length, length) == pytest.approx([0, 0, 0], abs=1e-9)


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 500), st.integers(1, 300), st.floats(0.1, 1.0)),
        min_size=1,
        max_size=12,
    )
)
def test_it_equals_the_sum_over_all_pairs(rows: list[tuple[int, int, int, float]]) -> None:
    nic = np.array([row[0] for row in rows])
    begin, length = np.array([row[1] for row in rows], float), np.array([row[2] for row in rows], float)
    alone = length * np.array([row[3] for row in rows])
    wanted = np.zeros(len(rows))
    for one in range(len(rows)):
        for other in range(len(rows)):
            if one != other and nic[one] == nic[other]:
                ends = min(begin[one] + length[one], begin[other] + length[other])
                both = max(ends - max(begin[one], begin[other]), 0.0)
                wanted[one] += both * alone[other] / length[other]
    assert others_in_the_way_ns(nic, begin, length, alone) == pytest.approx(wanted, abs=1e-6)


def gradients_ns(settings: SimulatorSettings) -> np.ndarray:
    """How long the transfers of gradients take, in order of their communicators."""
    engine = Engine(settings)
    run = engine.advance()
    own = [n for n, one in enumerate(engine.topology.groups.communicators) if one.kind == "dp"]
    is_own = np.isin(run.plan.flows.path, own)
    return run.flow_ns[is_own]


def shared(tidy: Tidy, **values: object) -> SimulatorSettings:
    shape = {"dp": 2, "pp": 1, "tp": 4, "gpus_per_host": 4, "gpus_per_nic": 4, "gradient_bytes": 1 << 30}
    return tidy(**(shape | {"iterations": 1, "gradient_sync": "all_reduce"} | values))


def test_four_groups_that_share_a_nic_at_the_same_time_take_four_times_as_long(tidy: Tidy) -> None:
    alone = gradients_ns(shared(tidy, gpus_per_nic=1))
    together = gradients_ns(shared(tidy, is_nic_contended=True))
    assert together == pytest.approx(4 * alone, rel=0.02)
    assert gradients_ns(shared(tidy)) == pytest.approx(together, rel=0.02)  # as the fixed parts have it


def test_a_group_that_has_the_nic_for_itself_has_all_of_it(tidy: Tidy) -> None:
    lone = shared(tidy, tp=1, gpus_per_host=1, gpus_per_nic=4, is_nic_contended=True)
    assert gradients_ns(lone) == pytest.approx(gradients_ns(shared(tidy, gpus_per_nic=1))[:1], rel=0.02)


def test_a_late_group_finds_the_nic_free(tidy: Tidy) -> None:
    """Replicas whose pipelines end apart do not meet on the NIC, and are quicker for it."""
    engine = Engine(shared(tidy, dp=2, pp=2, tp=2, gpus_per_nic=4, is_nic_contended=True, micro_batches=2))
    contended = engine.advance()
    fixed = Engine(shared(tidy, dp=2, pp=2, tp=2, gpus_per_nic=4, micro_batches=2)).advance()
    assert contended.elapsed_ns < fixed.elapsed_ns


def test_without_overlap_contention_changes_nothing(tidy: Tidy) -> None:
    quiet = {"dp": 1, "pp": 2, "tp": 1, "micro_batches": 1, "gpus_per_host": 1}
    plain, contended = (Engine(tidy(**quiet, is_nic_contended=on)).advance() for on in (False, True))
    assert np.array_equal(plain.departure_ns, contended.departure_ns)
