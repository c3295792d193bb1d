from __future__ import annotations

import numpy as np
import pytest

from irregulars.messages.records import OPERATOR_CODES
from irregulars.producers.simulator.engine import Engine
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.topology import Topology
from irregulars.producers.simulator.untidiness import Untidiness
from tests.producers.simulator.conftest import Tidy, record


def moe(tidy: Tidy, **values: object) -> SimulatorSettings:
    shape = {"dp": 2, "pp": 1, "tp": 1, "ep": 4, "micro_batches": 2, "tp_operators": 0, "iterations": 30}
    return tidy(**(shape | {"expert_spread_ratio": 0.3} | values))


def test_tokens_are_dealt_among_experts_none_is_lost_and_all_ranks_together_work_the_same(tidy: Tidy) -> None:
    untidiness = Untidiness(Topology(moe(tidy)))
    load = untidiness.expert_load(7)
    assert load is not None
    assert load.reshape(2, 4).mean(axis=1) == pytest.approx([1, 1])
    assert load.std() == pytest.approx(0.3, rel=0.6)
    even, uneven = (Engine(moe(tidy, expert_spread_ratio=ratio)).plan for ratio in (0.0, 0.3))
    assert uneven.work_ns().sum() == pytest.approx(even.work_ns().sum())


def test_what_a_router_prefers_lasts_and_differs_a_little_from_replica_to_replica(tidy: Tidy) -> None:
    untidiness = Untidiness(Topology(moe(tidy, ep=16)))
    now, soon = (np.log(untidiness.expert_load(n)) for n in (3, 4))  # type: ignore[arg-type]
    assert np.corrcoef(now, soon)[0, 1] > 0.6
    assert 0.5 < np.corrcoef(now[:16], now[16:])[0, 1] < 0.999


def test_ranks_whose_experts_get_more_work_longer_and_others_wait_for_them(tidy: Tidy) -> None:
    job = moe(tidy, gradient_bytes=1)
    engine, columns = Engine(job), record(job).commops
    run = engine.advance()
    assert run.expert_load is not None
    own = (columns["operator"] == OPERATOR_CODES["all_to_all"]) & (columns["iteration"] == 0)
    back = own & (columns["sequence"] % 2 == 0)  # tokens come back after the experts
    waited = np.array([columns["elapsed_ns"][back & (columns["rank"] == rank)].sum() for rank in range(8)])
    for group in (range(4), range(4, 8)):
        ranks = np.array(group)
        assert np.array_equal(np.argsort(waited[ranks]), np.argsort(-run.expert_load[ranks]))


def test_the_busiest_rank_decides_how_long_an_exchange_takes_and_sizes_show_its_tokens(tidy: Tidy) -> None:
    even, uneven = (Engine(moe(tidy, expert_spread_ratio=ratio, gpus_per_host=1)) for ratio in (0.0, 0.3))
    flows = even.plan.flows
    ep = [n for n, one in enumerate(even.topology.groups.communicators) if one.kind == "ep"]
    usual, run = even.advance(), uneven.advance()
    assert run.expert_load is not None
    for number, path in enumerate(ep):
        own = np.flatnonzero(flows.path == path)
        ratio = run.flow_ns[own] / usual.flow_ns[own]
        assert ratio == pytest.approx(run.expert_load[4 * number : 4 * number + 4].max(), rel=0.05)
    columns = record(moe(tidy, iterations=1)).commops
    is_exchange = columns["operator"] == OPERATOR_CODES["all_to_all"]
    there, back = (columns["size_bytes"][is_exchange & (columns["sequence"] % 2 == n)] for n in (1, 0))
    assert len(set(there.tolist())) == 1
    assert len(set(back.tolist())) == 8
