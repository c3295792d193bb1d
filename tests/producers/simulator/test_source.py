from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from irregulars.messages.announcements import Announcement
from irregulars.messages.records import Batch
from irregulars.producers.publishing.sources import check_source
from irregulars.producers.simulator.faults import parse_fault
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.source import SimulatorSource, simulate_trace
from irregulars.producers.trace.directory import read_trace

SMALL = SimulatorSettings(dp=2, pp=2, tp=2, gpus_per_host=2, micro_batches=4, iterations=12)


@pytest.mark.parametrize("settings", [
    SMALL,
    replace(SMALL, clock="per_host", gpus_per_nic=2, is_send_buffered=True),
    replace(SMALL, bandwidth_period_ms=0.0, checkpoint_every=4),
    replace(SMALL, loss_ratio=0.1, repeat_ratio=0.1, evaluate_every=3),
    SimulatorSettings(iterations=8, faults=(parse_fault("slow_nic:rank=17,from=4,factor=8"),)),
])  # fmt: skip
def test_it_keeps_the_protocol_of_a_source(settings: SimulatorSettings) -> None:
    check_source(lambda position: SimulatorSource(settings, position=position))


def test_at_real_pace_nothing_comes_before_its_time() -> None:
    start_ns = 1_900_000_000_000_000_000
    now_ns = start_ns - 1
    source = SimulatorSource(SMALL, start_ns=start_ns, now_ns=lambda: now_ns)
    assert source.poll(1000) == ()
    now_ns = start_ns
    announced = source.poll(1000)
    assert [a.rank for a in announced if isinstance(a, Announcement)] == list(range(8))
    assert source.poll(1000) == ()
    newest_ns = start_ns
    while not source.is_exhausted:
        now_ns += 50_000_000
        for batch in source.poll(100_000):
            assert isinstance(batch, Batch)
            ends = batch.columns.get("time_ns")
            if ends is None:
                ends = batch.columns["start_ns"] + batch.columns["elapsed_ns"].astype(np.int64)
                newest_ns = max(newest_ns, int(ends.max()))
                assert ends.max() <= now_ns
    assert newest_ns > now_ns - 50_000_000


def test_closing_ends_it() -> None:
    source = SimulatorSource(SMALL)
    source.poll(3)
    source.close()
    source.close()
    assert source.is_exhausted
    assert source.poll(10) == ()


def test_a_written_trace_reads_back_complete(tmp_path: Path) -> None:
    settings = replace(SMALL, faults=(parse_fault("slow_link:src=0,dst=4,from=5,to=9,factor=30"),))
    simulate_trace(tmp_path, settings)
    trace = read_trace(tmp_path)
    source = SimulatorSource(settings)
    announced = [record for record in source.poll(8) if isinstance(record, Announcement)]
    assert trace.rejected.count == 0
    assert (trace.copies, trace.world_size, trace.clock) == (0, 8, "shared")
    assert sum(map(len, trace.iterations.values())) == 8 * 12
    for found, sent in zip(trace.announcements, announced, strict=True):
        assert (found.host, found.gpu, found.nic, found.switch) == (sent.host, sent.gpu, sent.nic, sent.switch)
        assert set(found.communicators) == set(sent.communicators)
        assert set(found.sources) == set(sent.sources)
    label = json.loads((tmp_path / "label.json").read_text())
    assert (label["kind"], label["rank"], label["peer"], label["ranks"]) == ("slow_link", 0, 4, [0, 4])
    assert (label["communicator"], label["iterations"]) == ("pp_d0_t0", [5, 9])
    assert label["dims"] == {"dp": 2, "pp": 2, "tp": 2}


def test_a_trace_of_the_same_seed_is_the_same_bytes_and_of_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        simulate_trace(tmp_path / name, replace(SMALL, seed=seed))
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "same" / path.name).read_bytes()
    one, other = (tmp_path / name / "commops.parquet" for name in ("one", "other"))
    assert one.read_bytes() != other.read_bytes()
