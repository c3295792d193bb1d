"""Large jobs are judged with little reading, and as if all had been read."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from irregulars.detectors.judging.operator_reader import OperatorReader
from irregulars.detectors.judging.thresholds import JUDGING
from irregulars.messages.announcements import Heartbeat
from irregulars.messages.evidence import decode_evidence, encode_evidence
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import Batch
from irregulars.producers.publishing.batches import BATCH_ROWS, BATCH_SPAN_S, cut_in_order
from irregulars.producers.simulator.faults import parse_fault
from irregulars.producers.simulator.settings import OFF_CLOCKS, RECORDED_START_NS, SimulatorSettings
from irregulars.producers.simulator.source import Simulation
from irregulars.producers.simulator.truth import measure
from irregulars.settings import JudgeSettings
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.local_pipeline import LocalPipeline
from tests.detectors.operator_graphs import columns_of, row
from tests.room_thresholds import moved
from tests.sinks import made_up_job
from tests.stored_states import stored
from tests.streams.lockstep_job import MS

pytestmark = pytest.mark.slow

JOB = SimulatorSettings(dp=20, pp=2, tp=1, micro_batches=2, iterations=34, seed=5)
"""40 ranks; gradients are reduced over 20 of them, which is wide."""


@pytest.fixture(autouse=True)
def large_from_32() -> Iterator[None]:
    with moved(JUDGING, "whole_ranks", 32):
        yield


def test_a_rank_that_was_not_announced_has_a_clock_of_its_own() -> None:
    second_ns = 1000 * MS
    ends_ns = [(rank, number * second_ns + 7 * MS * (rank == 3)) for number in range(1, 20) for rank in range(4)]
    rows = [row(rank, end_ns - MS, end_ns, sequence=end_ns // second_ns) for rank, end_ns in ends_ns]
    reader, columns = OperatorReader(), columns_of(rows)
    reader.set_announcements(
        {rank: replace(made_up_job.announcement(rank), host=f"host-{rank // 2}") for rank in range(3)}
    )
    ahead_ns = reader.clocks_of(columns).ahead_ns
    assert ahead_ns[3] - ahead_ns[0] == pytest.approx(7 * MS, abs=1000)


class Stream:
    """What the first hop makes of a simulated job: for each step of it the evidence messages, and all batches."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self.job = settings.job
        self.pipeline = LocalPipeline(settings.job)
        self.steps: list[list[bytes]] = []
        simulation = Simulation(settings, RECORDED_START_NS)
        for announcement in simulation.announcements():
            self.pipeline.take(announcement)
        for batches in self.messages(simulation):
            for batch in batches:
                self.pipeline.take(batch)
            self.drain()
        for rank in self.pipeline.ranks:
            self.pipeline.take(Heartbeat(settings.job, settings.attempt, rank, {}, "ended", "finished"))
        self.drain()

    @staticmethod
    def messages(simulation: Simulation) -> Iterator[list[Batch]]:
        for part in simulation.parts(max_span_s=1.0, max_rows=30_000):
            yield [cut for batch in part.batches for cut in cut_in_order(batch, BATCH_ROWS, BATCH_SPAN_S)]

    def drain(self) -> None:
        monitors = self.pipeline.ranks.values()
        self.steps.append([one for each in monitors for one in encode_evidence(each.drain(), self.pipeline.job)])


stream_of = functools.cache(Stream)
"""Several tests judge the same jobs: each is simulated and reduced once."""


class Run:
    """A job that the second hop judges, step by step."""

    def __init__(self, settings: SimulatorSettings, *, restores: bool = False) -> None:
        stream = stream_of(settings)
        self.log = stream.pipeline.log
        self.verdicts: dict[str, Verdict] = {}
        self.monitor = JobMonitor(settings.job, JudgeSettings())
        for messages in stream.steps:
            for message in messages:
                self.monitor.add(decode_evidence(message))
            self.verdicts |= {one.verdict_id: one for one in self.monitor.advance(self.log.read_back).verdicts}
            if restores:
                self.monitor = JobMonitor.from_state(stored(self.monitor.state()), JudgeSettings())

    @property
    def blamed(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(one.kind, one.suspects[0].ranks if one.suspects else ()) for one in self.verdicts.values()]


def with_fault(fault: str) -> SimulatorSettings:
    return replace(JOB, faults=(parse_fault(f"{fault},from=18,to=30"),))


def with_excess(settings: SimulatorSettings) -> SimulatorSettings:
    return measure(settings).settings


FAULTS = {
    "slow_rank:rank=37,factor=1.6": ("slow_rank", (37,)),
    "slow_nic:rank=22,factor=20": ("slow_nic", (22,)),
    "slow_link:src=9,dst=29,factor=30": ("slow_link", (9, 29)),
    "slow_host:host=3,factor=1.6": ("slow_rank", tuple(range(24, 32))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_little_reading_names_the_same_device_as_reading_all(fault: str) -> None:
    settings = with_fault(fault)
    run = Run(settings)
    assert run.blamed == [FAULTS[fault]]
    with moved(JUDGING, "whole_ranks", settings.world_size):
        whole = Run(settings)
    assert whole.blamed == run.blamed
    assert run.monitor.traffic.read < whole.monitor.traffic.read / 2


def test_reading_of_large_jobs() -> None:
    # A verdict does not explain the fault after it: both cost as much, and no rank is late in either: that other
    # transfers are slow is seen in the evidence.
    faults = ("slow_nic:rank=5,from=14,to=22,factor=8", "slow_nic:rank=77,from=22,to=30,factor=8")
    run = Run(replace(JOB, tp=2, faults=tuple(parse_fault(fault) for fault in faults)))
    assert run.blamed == [("slow_nic", (5,)), ("slow_nic", (77,))]
    assert [one.iterations for one in run.verdicts.values()] == [(14, 22), (22, 30)]
    # Clocks that differ need no more than the ranks that are read
    run = Run(replace(with_fault("slow_rank:rank=37,factor=1.6"), **OFF_CLOCKS))
    assert run.blamed == [("slow_rank", (37,))]
    # A restored monitor goes on as if nothing had been
    settings = with_fault("slow_rank:rank=37,factor=1.6")
    one, other = Run(settings), Run(settings, restores=True)
    assert one.verdicts == other.verdicts
    # A healthy large job is not read at all
    run = Run(JOB)
    assert run.verdicts == {}
    assert run.monitor.traffic.read == 0
    assert run.monitor.traffic.flowed == sum(map(len, run.log.batches))


@pytest.mark.parametrize(
    ("fault", "blamed"),
    [("slow_rank:rank=37,factor=1.6", ("slow_rank", (37,))), ("slow_nic:rank=37,excess=0.5", ("slow_nic", (37,)))],
)
def test_a_fault_from_before_is_found_among_many_ranks(fault: str, blamed: tuple[str, tuple[int, ...]]) -> None:
    run = Run(with_excess(replace(JOB, faults=(parse_fault(f"{fault},shape=from_start"),))))
    assert run.blamed == [blamed]
    assert run.monitor.traffic.read < run.monitor.traffic.flowed


def test_hangs_and_heavy_stages_of_large_jobs() -> None:
    # A hang of a large job is found
    run = Run(replace(JOB, faults=(parse_fault("hang:rank=37,from=20"),)))
    assert ("hang", (37,)) in run.blamed
    # A heavy stage is found where nothing is usual yet and clocks differ: the first review walks paths before any
    # iteration was learned: it has to set the clocks right by itself.
    fault = parse_fault("slow_stage:stage=2,factor=1.8,shape=from_start")
    clocks = {**OFF_CLOCKS, "clock_offset_ms": 50.0}
    run = Run(replace(JOB, pp=4, iterations=22, faults=(fault,), **clocks))
    assert [kind for kind, _ in run.blamed] == ["slow_stage"]
