"""A group's rows are looked at together: what comes out is what each rank's monitor makes of its own rows alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from irregulars.errors import RecordError
from irregulars.messages.announcements import Announcement, Communicator, Heartbeat, SourceProgress
from irregulars.messages.bundles import MAX_GROUP_RANKS, bundle_of, decode_rows, encode_bundle
from irregulars.messages.evidence import CLASS_COLUMNS, Evidence
from irregulars.messages.records import UNKNOWN, Batch
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.source import simulate_trace
from irregulars.producers.trace.directory import read_trace
from irregulars.settings import JudgeSettings
from irregulars.streams.rank_hop.evidence_reduction import reduce_closings
from irregulars.streams.rank_hop.group_monitor import GroupMonitor
from irregulars.streams.rank_hop.message_rows import RowSummary, part_of, summarize
from irregulars.streams.rank_hop.rank_monitor import RankMonitor
from tests.stored_states import stored
from tests.streams.lockstep_job import iteration_batch, operator_batch

MS = 1_000_000
T0 = 1_800_000_000_000_000_000
RANKS = (3, 4, 7)
UNSEEN = RowSummary(1 << 62, UNKNOWN, is_usable=False)
"""Says nothing that could spare a look at each row."""


def announced(rank: int, sources: tuple[str, ...]) -> Announcement:
    world = (Communicator("world", "world", RANKS), Communicator(f"dp{rank}", "dp", (rank, 9)))
    return Announcement("lockstep", 1, rank, 10, 3, world, sources, host="node-1", group="node-1/0")


def rows_of(random: Random, iteration: int, at_ms: int) -> Iterator[dict[str, Any]]:
    """Some operators of an iteration; now and then one that no look at the whole can deal with."""
    for place in range(random.randrange(5)):
        odd = random.random() if random.random() < 0.1 else 1.0
        start_ns = T0 + (at_ms + place) * MS
        yield {
            "iteration": UNKNOWN if odd < 0.2 else iteration - 2 if odd < 0.3 else iteration,
            "sequence": at_ms + place,
            "start_ns": UNKNOWN if 0.3 < odd < 0.4 else start_ns + (1 << 60 if 0.4 < odd < 0.5 else 0),
            "elapsed_ns": np.nan if 0.5 < odd < 0.7 else -1.0 if 0.7 < odd < 0.8 else random.randrange(30) * MS / 10,
            "size_bytes": 64.0,
            "communicator": random.choice(("world", "tp")),
        }


class Sender:
    """Batches of one rank with true counts, but for some that are lost."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.sent = {"commops": 0, "iterations": 0}

    def batch(self, random: Random, schema: str, rows: list[dict[str, Any]], until_ms: int) -> Batch:
        make = operator_batch if schema == "commops" else iteration_batch
        watermark_ns = None if random.random() < 0.1 else T0 + until_ms * MS
        made = make(self.rank, rows, rows_before=self.sent[schema], watermark_ns=watermark_ns)
        self.sent[schema] += len(made) + (random.random() < 0.02)
        return replace(made, header=replace(made.header, group="node-1/0"))

    def heartbeat(self, sources: tuple[str, ...], until_ms: int) -> Heartbeat:
        known = {name: SourceProgress(self.sent[name], T0 + until_ms * MS) for name in sources}
        return Heartbeat("lockstep", 1, self.rank, known, group="node-1/0")


def messages(random: Random, sources: tuple[str, ...]) -> Iterator[list[Batch] | list[Heartbeat] | float]:
    """What the ranks of a group send over 40 iterations of 10 ms, and moments at which time speaks."""
    senders = [Sender(rank) for rank in RANKS]
    waiting: dict[int, list[dict[str, Any]]] = {rank: [] for rank in RANKS}
    told: dict[int, list[dict[str, Any]]] = {rank: [] for rank in RANKS}
    for iteration in range(40):
        for rank in RANKS:
            waiting[rank] += rows_of(random, iteration, 10 * iteration)
            told[rank].append({"iteration": iteration, "start_ns": T0 + 10 * iteration * MS, "elapsed_ns": 10.0 * MS})
        if random.random() < 0.4:
            for schema, rows in (("commops", waiting), ("iterations", told))[: len(sources)]:
                own = [sender for sender in senders if rows[sender.rank] and random.random() < 0.9]
                until_ms = 10 * iteration + random.randrange(9)
                yield [sender.batch(random, schema, rows[sender.rank], until_ms) for sender in own]
                for sender in own:
                    rows[sender.rank] = []
        if random.random() < 0.1:
            yield [one.heartbeat(sources, 10 * iteration) for one in senders]
        if random.random() < 0.05:
            yield T0 / 1e9 + iteration * 0.01 + random.choice((0.0, 100.0))


def outcome(closed: list[Any]) -> list[Any]:
    """Evidence of each rank by itself: which iterations of which ranks close together is no matter."""
    found: list[Any] = []
    for rank in RANKS:
        for one in reduce_closings("lockstep", [one for one in closed if one.rank == rank]):
            found += told(one) if isinstance(one, Evidence) else [one]
    return found


def told(evidence: Evidence) -> Iterator[Any]:
    """Each row, with its classes; communicators by name, since a message's codes are its own."""
    names = [evidence.names[code] for code in evidence.classes["communicator"].tolist()]
    own = [
        np.nan_to_num(evidence.classes[name], nan=-1.0).tolist() for name in CLASS_COLUMNS if name != "communicator"
    ]
    owners = evidence.classes.of_entries(np.arange(len(evidence))).tolist()
    classes = sorted(zip(owners, names, *own, strict=True))
    columns = (np.nan_to_num(column, nan=-1.0).tolist() for column in evidence.columns.values())
    for number, row in enumerate(zip(*columns, evidence.offsets.lists("offset"), strict=True)):
        yield row, [one[1:] for one in classes if one[0] == number]


@pytest.mark.parametrize("sources", [("commops",), ("commops", "iterations")])
@pytest.mark.parametrize("seed", range(3))
def test_a_look_at_the_whole_changes_nothing(seed: int, sources: tuple[str, ...]) -> None:
    settings = JudgeSettings(grace_s=10.0, silence_s=50.0)
    group = GroupMonitor("lockstep", settings, partition=2)
    alone = {rank: RankMonitor("lockstep", rank, settings, partition=2) for rank in RANKS}
    closed: tuple[list[Any], list[Any]] = ([], [])
    for rank in RANKS:
        group.announce(announced(rank, sources))
        alone[rank].announce(announced(rank, sources))
    for offset, message in enumerate(messages(Random(seed), sources)):
        if isinstance(message, float):
            group.tick(message, message)
            for one in alone.values():
                one.tick(message, message)
        elif message and isinstance(message[0], Heartbeat):
            for beat in message:
                assert isinstance(beat, Heartbeat)
                with suppress(RecordError):
                    group.beat(beat)
                with suppress(RecordError):
                    alone[beat.rank].beat(beat)
        elif message:
            feed(group, alone, message, offset)
        closed[0].extend(group.take_closed())
        closed[1].extend(one for monitor in alone.values() for one in monitor.take_closed())
        if seed % 3 == 0:
            group = GroupMonitor.from_state(stored(group.state()), settings)
    assert len(closed[0]) == len(closed[1]) > 20
    assert outcome(closed[0]) == outcome(closed[1])


def feed(group: GroupMonitor, alone: dict[int, RankMonitor], batches: list[Any], offset: int) -> None:
    """Give the same rows to the group at once, and to each rank without a summary; both refuse the same."""
    refused = []
    bundle = decode_rows(encode_bundle(bundle_of(batches)), batches[0].header.schema)
    assert not isinstance(bundle, Batch)
    for batch in bundle.batches():
        try:
            alone[batch.header.rank].add_part(part_of(batch, offset, UNSEEN))
        except RecordError as error:
            refused.append((batch.header.rank, str(error)))
    assert [(one.batch.header.rank, one.reason) for one in group.add(bundle, offset)] == refused


def test_runs_are_those_of_rows_that_stand_together_by_iteration() -> None:
    ordinary = operator_batch(0, [{"iteration": n, "start_ns": T0 + n, "elapsed_ns": 2.0} for n in (4, 4, 6)])
    back = operator_batch(0, [{"iteration": n, "start_ns": T0 + n, "elapsed_ns": np.nan} for n in (6, 4)])
    columns = {name: np.concatenate([ordinary.columns[name], back.columns[name]]) for name in ordinary.columns}
    first, second = summarize("commops", columns, [3, 2])
    assert first.runs == ([4, 6], [0, 2, 3], [T0 + 4, T0 + 6], [T0 + 6, T0 + 8])
    assert (first.newest_ns, first.newest_iteration, first.is_usable, first.has_unended) == (T0 + 8, 6, True, False)
    assert second == (T0 + 6, 6, True, True, None, None)


def test_a_group_has_no_more_ranks_than_a_host() -> None:
    group = GroupMonitor("lockstep", JudgeSettings())
    for rank in range(MAX_GROUP_RANKS):
        group.announce(announced(rank, ("commops",)))
    with pytest.raises(RecordError, match=f"ranks of a group must be at most {MAX_GROUP_RANKS}; got rank 64"):
        group.announce(announced(64, ("commops",)))
    refused = group.add(operator_batch(64, [{"iteration": 0, "start_ns": T0, "elapsed_ns": 1.0}]), 0)
    assert [one.batch.header.rank for one in refused] == [64]


def test_a_group_counts_the_ranks_that_were_announced_and_have_not_ended() -> None:
    group = GroupMonitor("lockstep", JudgeSettings())
    for rank in RANKS:
        group.announce(announced(rank, ("commops",)))
    group.beat(Heartbeat("lockstep", 1, RANKS[0], {"commops": SourceProgress(0, None)}, "ended", "finished"))
    group.add(operator_batch(9, [{"iteration": 0, "start_ns": T0, "elapsed_ns": 1.0}]), 0)  # never announced
    group.drain()
    assert group.ranks == len(RANKS) - 1


def test_operators_of_an_attempt_that_is_over_are_counted_once_and_samples_are_not() -> None:
    group = GroupMonitor("lockstep", JudgeSettings())
    rank = RANKS[0]
    group.announce(announced(rank, ("commops",)))
    group.beat(Heartbeat("lockstep", 1, rank, {"commops": SourceProgress(0, None)}, "ended", "finished"))
    group.drain()
    group.add(operator_batch(rank, [{"iteration": 0, "start_ns": T0, "elapsed_ns": 1.0}] * 3), 0)
    assert (group.take_rows_over(), group.take_rows_over()) == (3, 0)
    assert group.drain() == []


def test_hosts_whose_ranks_come_together_give_the_evidence_of_ranks_that_come_alone(tmp_path: Path) -> None:
    """In a job with communicators of more ranks than are read back whole, which each rank announces for itself."""
    settings = SimulatorSettings(job="lockstep", dp=24, pp=1, tp=2, iterations=6, micro_batches=1, seed=3)
    simulate_trace(tmp_path, settings)
    trace = read_trace(tmp_path)
    announced = [replace(one, group=f"{one.host}/0") for one in trace.announcements]
    groups = {one.group: GroupMonitor("lockstep", JudgeSettings()) for one in announced}
    alone = {one.rank: RankMonitor("lockstep", one.rank, JudgeSettings()) for one in announced}
    for one in announced:
        groups[one.group].announce(one)
        alone[one.rank].announce(one)
    for schema in ("iterations", "commops"):
        batches = trace.batches(schema)
        for offset, (group, monitor) in enumerate(groups.items()):
            ranks = [one.rank for one in announced if one.group == group]
            monitor.add(bundle_of([with_group(batches[rank], str(group)) for rank in ranks]), offset)
            for rank in ranks:
                alone[rank].add(batches[rank], offset)
    for one in announced:
        for hearer in (groups[one.group], alone[one.rank]):
            hearer.beat(Heartbeat("lockstep", trace.attempt, one.rank, {}, "ended", "finished", one.group))
    together = [one for monitor in groups.values() for one in monitor.take_closed()]
    apart = [one for monitor in alone.values() for one in monitor.take_closed()]
    assert rows_told(reduce_closings("lockstep", together)) == rows_told(
        [row for one in apart for row in reduce_closings("lockstep", [one])]
    )


def with_group(batch: Batch, group: str) -> Batch:
    return replace(batch, header=replace(batch.header, group=group))


def rows_told(rows: list[Any]) -> list[Any]:
    found = sorted(row for one in rows if isinstance(one, Evidence) for row in told(one))
    assert any(classes for _, classes in found)
    return found
