"""Who writes a checkpoint so long that the others wait: through the whole judge, and as arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from irregulars.detectors.job.topology import Place, Topology
from irregulars.detectors.verdicts.slow_checkpoints import (
    CheckpointState,
    LateWriters,
    SlowCheckpoints,
    Writes,
    late_writers,
)
from irregulars.messages.judgements import Verdict
from irregulars.settings import SeverityLimits
from irregulars.state_codec import decode_state, encode_state
from tests.present import present
from tests.streams.eight_ranks import EightRanks
from tests.streams.judged_streams import MonitoredJob, in_order, judge_trace
from tests.streams.lockstep_job import MS, LockstepJob

EACH, CHECKPOINTS = 10, 8
RANKS = tuple(range(8))
TOPOLOGY = Topology(8, {rank: Place(host=f"node-{rank // 2}") for rank in RANKS}, {})
ALLOWED_NS = 10.0 * MS
Written = Callable[[int, int], float]  # checkpoint and rank: for how many times 200 ms it writes


def job_of(written: Written) -> EightRanks:
    """Return a job whose ranks write, and then meet in an all_reduce."""

    def checkpoint(job: LockstepJob, number: int) -> None:
        made.body(job, number)
        for rank in RANKS:
            job.work(rank, round(written(number // EACH, rank) * 200 * MS * (1 + (number + rank * 3) % 7 / 40)))
        job.collective("world", MS)

    made = EightRanks()
    for first in range(0, EACH * CHECKPOINTS, EACH):
        made.job.iterate(range(first, first + EACH - 1), made.body)
        made.job.iterate([first + EACH - 1], checkpoint, "checkpoint")
    return made


def late(ranks: Sequence[int], checkpoints: Sequence[int]) -> Written:
    return lambda number, rank: 6.0 if rank in ranks and number in checkpoints else 1.0


def rank_0_alone(number: int, rank: int) -> float:
    return float(rank == 0)


def judged(written: Written) -> list[Verdict]:
    outcome = judge_trace(job_of(written).job.trace())
    assert not any(one.is_irregular for one in outcome.iterations)
    return list(outcome.verdicts.values())


@pytest.mark.parametrize(("written", "device", "ranks", "iterations", "severity"), [
    (late([5], range(3, 7)), "gpu", (5,), (39, 70), "ticket"),
    (late([5], range(8)), "gpu", (5,), (19, 80), "ticket"),  # from the start: its peers tell
    (late([0], range(3, 7)), "gpu", (0,), (39, 70), "ticket"),
    (late([4, 5], range(3, 7)), "host", (4, 5), (39, 70), "ticket"),
    (late([5], [4]), "gpu", (5,), (49, 50), "note"),  # once
    (lambda n, rank: 4.0 * (rank == 0) * (1 + 2 * (n >= 5)), "gpu", (0,), (59, 80), "ticket"),  # rank 0 alone
])  # fmt: skip
def test_who_writes_late_is_named(
    written: Written, device: str, ranks: tuple[int, ...], iterations: tuple[int, int], severity: str
) -> None:
    (verdict,) = judged(written)
    (suspect,) = verdict.suspects
    assert (verdict.kind, verdict.layer, verdict.cause) == ("slow_checkpoint", "software", "checkpoint_write")
    assert (suspect.device, suspect.ranks) == (device, ranks)
    assert (verdict.iterations, verdict.severity, verdict.state) == (iterations, severity, "closed")
    assert "the others waited" in verdict.evidence


@pytest.mark.slow
@pytest.mark.parametrize("written", [
    late([], []),
    rank_0_alone,
    late([0], range(8)),  # rank 0 always writes more
    late(RANKS, range(3, 7)),  # the storage is slow for all
    late([2, 5], range(3, 7)),  # two hosts at once: storage
    lambda n, rank: 1.6 if rank == 5 and n > 3 else 1.0,  # less than twice
])  # fmt: skip
def test_nobody_is_named_where_no_device_is_late(written: Written) -> None:
    assert judged(written) == []


def test_restarts_change_nothing() -> None:
    messages = in_order(job_of(late([5], range(3, 7))).job.trace())
    whole, restarted = MonitoredJob("lockstep"), MonitoredJob("lockstep")
    whole.feed(messages)
    for at in range(0, len(messages), 97):
        restarted.feed(messages[at : at + 97])
        restarted.restore()
    assert restarted.outcome.verdicts == whole.outcome.verdicts != {}


def test_a_restored_judge_keeps_no_more_checkpoints_than_another() -> None:
    judge = SlowCheckpoints("job", 0, SeverityLimits())
    for number in range(12):
        judge.observe(writes(dict.fromkeys(RANKS, 100.0)), TOPOLOGY, number, (number, number + 1), ALLOWED_NS)
        state = decode_state(encode_state(judge.state(), 1), CheckpointState, 1)
        judge = SlowCheckpoints("job", 0, SeverityLimits(), state)
    assert len(state.past) == 4


def writes(elapsed_ms: Mapping[int, float]) -> Writes:
    ranks = np.array(sorted(elapsed_ms))
    return Writes(ranks, np.array([elapsed_ms[rank] for rank in ranks.tolist()]) * MS)


def test_its_own_past_goes_before_its_peers() -> None:
    usual = writes(dict.fromkeys(RANKS, 100.0) | {6: 900.0})
    found = late_writers(usual, [usual, usual], TOPOLOGY, ALLOWED_NS)
    assert found is None  # rank 6 always has more to write
    found = present(late_writers(usual, [usual], TOPOLOGY, ALLOWED_NS))
    assert (found.device.ranks, found.is_of_past, found.held_ns) == ((6,), False, 800.0 * MS)


def test_the_one_host_of_a_job_is_not_told_from_its_storage() -> None:
    """Every third checkpoint is a full one. One rank of the host, or the host beside another one, is late itself."""
    one_host = Topology(8, {rank: Place(host="node-0") for rank in RANKS}, {})
    usual, full = writes(dict.fromkeys(RANKS, 100.0)), writes(dict.fromkeys(RANKS, 300.0))
    assert late_writers(full, [usual, usual], one_host, ALLOWED_NS) is None
    late_alone = late_writers(writes(dict.fromkeys(RANKS, 100.0) | {6: 900.0}), [usual, usual], one_host, ALLOWED_NS)
    assert late_alone is not None
    assert late_alone.device.ranks == (6,)
    two_hosts = Topology(8, {rank: Place(host=f"node-{rank // 7}") for rank in RANKS}, {})
    beside = late_writers(writes(dict.fromkeys(RANKS, 300.0) | {7: 100.0}), [usual, usual], two_hosts, ALLOWED_NS)
    assert beside is not None
    assert beside.device.kind == "host"


def test_the_one_host_that_writes_is_not_told_from_its_storage() -> None:
    """Nor where ranks of other hosts write nothing. Where one rank writes for all, it is late itself."""
    two_hosts = Topology(8, {rank: Place(host=f"node-{rank // 4}") for rank in RANKS}, {})
    usual, full = (writes({rank: ms * (rank < 4) for rank in RANKS}) for ms in (100.0, 300.0))
    assert late_writers(full, [usual, usual], two_hosts, ALLOWED_NS) is None
    usual, late_alone = (writes({rank: ms * (rank == 0) for rank in RANKS}) for ms in (100.0, 900.0))
    found = present(late_writers(late_alone, [usual, usual], two_hosts, ALLOWED_NS))
    assert (found.device.kind, found.device.ranks) == ("gpu", (0,))


def test_what_was_late_is_not_usual_later() -> None:
    usual, slow = writes(dict.fromkeys(RANKS, 100.0)), writes(dict.fromkeys(RANKS, 100.0) | {6: 900.0})
    found = late_writers(slow, [usual, usual], TOPOLOGY, ALLOWED_NS)
    assert isinstance(found, LateWriters)
    assert found.usual(slow).of(np.array([5, 6])).tolist() == [100.0 * MS, 100.0 * MS]
    found = late_writers(slow, [], TOPOLOGY, ALLOWED_NS)
    assert isinstance(found, LateWriters)
    assert np.isnan(found.usual(slow).of(np.array([6]))).all()  # peers told what is usual: it has none of its own


@pytest.mark.parametrize("elapsed_ms", [{}, {3: 500.0}, dict.fromkeys(RANKS, 0.0) | {5: 500.0}])
def test_too_few_writers_tell_nothing(elapsed_ms: Mapping[int, float]) -> None:
    assert late_writers(writes(elapsed_ms), [], TOPOLOGY, ALLOWED_NS) is None
