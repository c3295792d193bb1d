"""Join the dumps of a job's ranks: which operators each rank entered, left, and never left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from irregulars.errors import InputError
from irregulars.messages.announcements import Communicator
from irregulars.messages.records import OPERATOR_CODES, RECV, SEND, UNKNOWN
from irregulars.producers.foreign_files.groups import Group, communicators_of
from irregulars.producers.foreign_files.imported import ImportedJob, Place, RankRows
from irregulars.producers.importers.flight_recorder.dumps import ENDED_NS, Dump, Entry

ITERATION: Final = 0
"""A dump knows no iterations: all that it holds counts as one."""

_FIRST_OPEN: Final = 1 << 20
"""Number of the first send or recv of a pair that never ended. The recorder's own numbers differ at the two ends, and
what both have completed is the same."""

_ANY: Final = OPERATOR_CODES["barrier"]
"""For a collective that ended, and whose name nobody wrote down."""

NOTE_TIMES: Final = "flight recorder dumps hold times of the enqueue: use them for hangs, not to find who is slow"


def job_of_dumps(
    dumps: Iterable[Dump], job: str, *, is_whole: bool = True, dumped_ns: Mapping[int, int] | None = None
) -> ImportedJob:
    """Join the dumps of a job.

    Parameters
    ----------
    is_whole
        Whether these are the dumps of all ranks.
    dumped_ns
        When the dump of each rank was written, where that is known: then the iteration is marked, and ends before.

    Raises
    ------
    InputError
        If there is none, or two are of the same rank.
    """
    by_rank: dict[int, Dump] = {}
    for dump in dumps:
        if dump.rank in by_rank:
            raise InputError(f"dumps must be of different ranks; got two of rank {dump.rank}")
        by_rank[dump.rank] = dump
    if not by_rank:
        raise InputError("dumps must be at least one; got none")
    known = {group for dump in by_rank.values() for group in dump.groups.values()}
    world_size = 1 + max(by_rank)
    for group in known:
        world_size = max(world_size, 1 + max(group.ranks))
    communicators = communicators_of(known, world_size, is_whole=is_whole)
    with_pairs = {d.groups[e.group] for d in by_rank.values() for e in d.entries if e.ends is not None}
    ranks = {rank: _rows(dump, communicators, with_pairs) for rank, dump in by_rank.items()}
    for rank, until_ns in (dumped_ns or {}).items():
        _mark_iteration(ranks[rank], by_rank[rank], until_ns)
    skipped = sum(dump.skipped for dump in by_rank.values())
    return ImportedJob(
        job=job,
        world_size=world_size,
        clock="per_host",
        communicators={one.id: one for one in communicators.values()},
        ranks=ranks,
        places={rank: Place(lost_rows=0) for rank in by_rank},  # the ring drops the oldest: a tail is complete
        notes=(NOTE_TIMES,),
        complete_until_ns=dumped_ns or {},
        skipped={"no operator that we know, or part of one that ended": skipped} if skipped else {},
    )


def _rows(dump: Dump, communicators: Mapping[Group, Communicator], with_pairs: set[Group]) -> RankRows:
    rows = RankRows()
    seen: set[tuple[str, int]] = set()
    numbers = _pair_numbers(dump.entries)
    for entry, number in zip(dump.entries, numbers, strict=True):
        group = dump.groups[entry.group]
        if dump.rank not in group.ranks:
            rows.unusable += 1
            continue
        seen.add((entry.group, number))
        rows.add(
            communicators[group].id,
            entry.operator,
            number,
            peer=_peer(entry, dump.rank),
            start_ns=entry.start_ns,
            elapsed_ns=entry.elapsed_ns,
            size_bytes=entry.size_bytes,
            iteration=ITERATION,
        )
    for name, last in dump.completed.items():
        group = dump.groups[name]
        if group not in with_pairs and (name, last) not in seen and dump.rank in group.ranks:
            rows.add(communicators[group].id, _ANY, last, elapsed_ns=ENDED_NS, iteration=ITERATION)
    return rows


def _mark_iteration(rows: RankRows, dump: Dump, until_ns: int) -> None:
    """Let the iteration last while operators were issued; a rank that issued none enters it at its end."""
    starts_ns = [entry.start_ns for entry in dump.entries if UNKNOWN < entry.start_ns <= until_ns]
    first_ns = min(starts_ns, default=until_ns)
    rows.add_iteration(ITERATION, first_ns, max(starts_ns, default=until_ns) - first_ns)


def _pair_numbers(entries: Sequence[Entry]) -> list[int]:
    """Return the sequence of each entry. Sends and recvs count from the first of their pair that never ended."""
    pairs: dict[tuple[str, tuple[int, int]], list[int]] = {}
    for at, entry in enumerate(entries):
        if entry.ends is not None:
            pairs.setdefault((entry.group, entry.ends), []).append(at)
    numbers = [entry.sequence for entry in entries]
    for places in pairs.values():
        ended = next((n for n, at in enumerate(places) if np.isnan(entries[at].elapsed_ns)), len(places))
        for n, at in enumerate(places):
            numbers[at] = _FIRST_OPEN + n - ended
    return numbers


def _peer(entry: Entry, rank: int) -> int:
    if entry.ends is None:
        return UNKNOWN
    return entry.ends[1] if entry.operator == SEND else entry.ends[0] if entry.operator == RECV else rank
