"""Large jobs are judged with little reading, and as if all had been read."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.judging.iteration_rows import IterationRows, split_by_iteration
from irregulars.detectors.judging.operator_reader import OperatorReader, _seeds
from irregulars.detectors.judging.thresholds import JUDGING
from irregulars.detectors.judging.usual_operators import UsualOperators
from irregulars.messages.announcements import Heartbeat
from irregulars.messages.evidence import concatenate, decode_evidence, encode_evidence, no_patterns
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import Batch
from irregulars.producers.publishing.batches import BATCH_ROWS, BATCH_SPAN_S, cut_in_order
from irregulars.producers.simulator.faults import parse_fault
from irregulars.producers.simulator.presets import OFF_CLOCKS
from irregulars.producers.simulator.settings import RECORDED_START_NS, SimulatorSettings
from irregulars.producers.simulator.source import Simulation
from irregulars.producers.simulator.truth import measure
from irregulars.settings import JudgeSettings
from irregulars.streams.job_hop.job_monitor import JobMonitor
from irregulars.streams.local_pipeline import LocalPipeline
from tests.detectors.judging.read_job import ReadJob
from tests.room_thresholds import moved
from tests.stored_states import stored
from tests.streams.evidence_rows import came, evidence_of, no_entries, no_operators
from tests.streams.lockstep_job import MS, WORLD_OF_4, LockstepJob

JOB = SimulatorSettings(dp=20, pp=4, tp=1, micro_batches=4, iterations=34, seed=5)
"""80 ranks; gradients are reduced over 20 of them, which is wide."""


@pytest.fixture(autouse=True)
def large_from_64() -> Iterator[None]:
    with moved(JUDGING, "whole_ranks", 64):
        yield


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
    """Settings with the strengths that give the excess which is wanted."""
    return measure(settings).settings


FAULTS = {
    "slow_rank:rank=77,factor=1.6": ("slow_rank", (77,)),
    "slow_nic:rank=42,factor=20": ("slow_nic", (42,)),
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
    run = Run(replace(with_fault("slow_rank:rank=77,factor=1.6"), **OFF_CLOCKS))
    assert run.blamed == [("slow_rank", (77,))]
    # A restored monitor goes on as if nothing had been
    settings = with_fault("slow_rank:rank=77,factor=1.6")
    one, other = Run(settings), Run(settings, restores=True)
    assert one.verdicts == other.verdicts
    # A healthy large job is not read at all
    run = Run(JOB)
    assert run.verdicts == {}
    assert (run.monitor.traffic.read, run.monitor.traffic.read_share) == (0, 0.0)
    assert run.monitor.traffic.flowed == sum(map(len, run.log.batches))


@pytest.mark.parametrize(
    ("fault", "blamed"),
    [("slow_rank:rank=77,factor=1.6", ("slow_rank", (77,))), ("slow_nic:rank=77,excess=0.5", ("slow_nic", (77,)))],
)
def test_a_fault_older_than_the_recording_is_found_among_many_ranks(
    fault: str, blamed: tuple[str, tuple[int, ...]]
) -> None:
    run = Run(with_excess(replace(JOB, faults=(parse_fault(f"{fault},shape=from_start"),))))
    assert run.blamed == [blamed]
    assert run.monitor.traffic.read_share < 1


def test_hangs_and_heavy_stages_of_large_jobs() -> None:
    # A hang of a large job is found
    run = Run(replace(JOB, faults=(parse_fault("hang:rank=77,from=20"),)))
    assert ("hang", (77,)) in run.blamed
    # A heavy stage is found where nothing is usual yet and clocks differ: the first review walks paths before any
    # iteration was learned: it has to set the clocks right by itself.
    fault = parse_fault("slow_stage:stage=2,factor=1.8,shape=from_start")
    clocks = {**OFF_CLOCKS, "clock_offset_ms": 50.0}
    run = Run(replace(JOB, dp=64, iterations=22, faults=(fault,), **clocks))
    assert [kind for kind, _ in run.blamed] == ["slow_stage"]


def iteration(
    number: int, elapsed_ns: Sequence[int], work_ns: Sequence[float], operators: Sequence[int]
) -> IterationRows:
    count = len(elapsed_ns)
    columns = {
        "rank": np.arange(count),
        "iteration": np.full(count, number),
        "elapsed_ns": np.array(elapsed_ns),
        "work_ns": np.array(work_ns),
        "operators": np.array(operators),
    }
    return IterationRows((), columns, no_entries(count, "offset"), no_entries(count), no_patterns(count))


def seeds(rows: IterationRows, usual: UsualOperators) -> set[int]:
    return _seeds(rows, usual.work_excess_ns(rows), usual.complete_ranks(rows))


USUAL = UsualOperators([iteration(n, [100] * 6, [10.0] * 6, [50] * 6) for n in range(3)], is_whole=False)


def test_ranks_that_are_read_first() -> None:
    # Who took longest and who worked longest over their usual are read first
    assert seeds(iteration(3, [100, 100, 100, 101, 100, 100], [10, 90, 10, 10, 80, 10], [50] * 6), USUAL) == {1, 3, 4}
    # Who lost rows and seems to have worked does not displace who worked: ranks 1 and 4 lost the operators in which
    # they waited for rank 2.
    rows = iteration(3, [100, 100, 100, 101, 100, 100], [10, 90, 85, 10, 95, 12], [50, 49, 50, 50, 49, 50])
    assert 2 in seeds(rows, USUAL)
    assert not {1, 4} & seeds(rows, USUAL)
    # Where all run fewer operators than ever those who worked longest are read
    assert seeds(iteration(3, [101] + [100] * 5, [10, 90, 10, 10, 80, 10], [40] * 6), USUAL) == {0, 1, 4}


OF_FOUR = UsualOperators(
    [iteration(n, [100] * 4, [10.0 + n, 20.0, 30.0, 40.0], [50, 50 - (n == 1), 50, 50]) for n in range(3)],
    is_whole=True,
)


def test_usual_work_of_ranks() -> None:
    # The usual work of a rank is its median
    assert dict(zip(OF_FOUR.work_ranks.tolist(), OF_FOUR.work_ns.tolist(), strict=True)) == {
        0: 11,
        1: 20,
        2: 30,
        3: 40,
    }
    # Work that all ranks do longer by the same factor is nobody s excess
    rows = iteration(3, [100] * 4, [22.0, 40.0, 60.0, 95.0], [50] * 4)
    assert OF_FOUR.common_factor(rows) == 2.0
    assert OF_FOUR.work_excess_ns(rows) == {0: 0.0, 1: 0.0, 2: 0.0, 3: 15.0}
    # The common factor of work that is not known is one
    assert OF_FOUR.common_factor(iteration(3, [100] * 4, [0.0] * 4, [50] * 4)) == 1.0
    unknown = UsualOperators([iteration(0, [100] * 2, [0.0] * 2, [1] * 2)], is_whole=True)
    assert unknown.common_factor(iteration(1, [100] * 2, [5.0] * 2, [1] * 2)) == 1.0
    # Ranks with as many operators as ever lost none
    assert OF_FOUR.complete_ranks(iteration(3, [100] * 5, [1.0] * 5, [50, 49, 51, 50, 50])) == {0, 2, 3}


def lockstep() -> ReadJob:
    job = LockstepJob(WORLD_OF_4)

    def body(one: LockstepJob, number: int) -> None:
        for rank in range(4):
            one.work(rank, 10 * MS + (number + rank) % 3 * 5000)
        one.collective("world", 2 * MS)

    job.iterate(range(8), body)
    return ReadJob(job.trace())


def read_of_usual(reader_of: ReadJob) -> set[int]:
    """Iterations that were read to learn what is usual."""
    reader: OperatorReader = reader_of.reader
    reader.set_usual(reader_of.rows, reader_of.read_back)
    reader.learn({0}, reader_of.read_back)
    assert reader._usual is not None
    return {rows.number for rows in reader._usual.iterations}


def test_a_job_that_is_read_whole_learns_from_all_its_regular_iterations_and_another_from_six() -> None:
    assert read_of_usual(lockstep()) == set(range(8))
    with moved(JUDGING, "whole_ranks", 3):
        assert read_of_usual(lockstep()) == set(range(2, 8))


def test_what_is_usual_on_lanes_is_kept_for_as_long_as_the_same_ranks_are_asked_for() -> None:
    job = LockstepJob(WORLD_OF_4)

    def body(one: LockstepJob, number: int) -> None:
        for sender in range(3):
            one.message("world", sender, sender + 1, (2 + sender) * MS)

    job.iterate(range(8), body)
    read = ReadJob(job.trace())
    codes, topology = read.reader.codes, read.reader.topology
    kept = UsualOperators(read.rows, is_whole=True)
    for ranks in ([0], [0], [1, 2], [3], [0]):
        found = kept.lanes(codes, ranks, topology)
        assert found == UsualOperators(read.rows, is_whole=True).lanes(codes, ranks, topology)
        assert found.keys() == {
            Lane("pair", one, one + 1) for one in range(3) if not {one, one + 1}.isdisjoint(ranks)
        }
    assert kept.lanes(codes, [0], topology) is found
    assert kept.lanes(codes, [0], replace(topology)) is not found  # who is a member may have changed


@pytest.mark.parametrize(("most_rows", "is_known"), [(4, True), (3, False)])
def test_single_operators_are_known_of_iterations_that_are_not_too_large(most_rows: int, is_known: bool) -> None:
    job = lockstep()
    with moved(JUDGING, "most_replayed_rows", most_rows):
        job.reader.set_usual(job.rows, job.read_back)
        assert job.reader._usual is not None
        job.reader._usual.reference(job.reader.build)
        assert (job.reader._usual.pieces is not None) == is_known


def many(ranks: int, number: int) -> IterationRows:
    """One iteration of many ranks, none of which logged an operator."""
    parts = [evidence_of(rank, {number: 10.0}) for rank in range(ranks)]
    (rows,) = split_by_iteration(concatenate(parts), np.ones(ranks, dtype=bool))
    return rows


@pytest.mark.parametrize(("ranks", "iterations"), [(450, 8), (600, 6)])
def test_jobs_of_up_to_512_ranks_are_read_whole(ranks: int, iterations: int) -> None:
    """It shows in the number of regular iterations that are read."""
    reader, rows = OperatorReader(), many(ranks, 0)
    reader.set_usual([rows] * 8, no_operators)
    assert reader._usual is not None
    assert len(reader._usual.iterations) == iterations


def test_of_one_iteration_no_more_than_1024_ranks_are_read() -> None:
    reader = OperatorReader()
    came_first = came(0, 1300).announcement
    assert came_first is not None
    reader.set_announcements({0: came_first})
    read, _ = reader.follow([many(1300, 0)], range(1300), 0.0, no_operators)
    assert read == set(range(1024))
