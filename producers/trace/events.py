"""Events of a trace: what nodes and devices reported, as batches of the ranks that use the devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from irregulars.messages.bounds import Bound
from irregulars.messages.device_events import MOST_TEXT, DeviceEvent, batch_of
from irregulars.messages.records import EVENT_KINDS, UNKNOWN, Batch, Header
from irregulars.producers.trace.columns import TableFile
from irregulars.producers.trace.job_file import JobFile
from irregulars.producers.trace.rows import Check, Rejected


def read_events(job: JobFile, tables: Iterable[TableFile]) -> tuple[dict[int, Batch], Rejected]:
    """Return the events of each rank, in order of time, each once.

    One without a rank belongs to the rank that uses its device, or to the lowest one on its host.
    """
    found: defaultdict[int, set[DeviceEvent]] = defaultdict(set)
    rejected = Rejected()
    users = _users(job)
    for table in tables:
        events, left_out = _checked(table, job, users)
        rejected += left_out
        for event in events:
            found[event.rank].add(event)
    return {
        rank: batch_of(sorted(own), Header("events", job.job, job.attempt, rank))
        for rank, own in sorted(found.items())
    }, rejected


def _users(job: JobFile) -> dict[tuple[str, str], int]:
    """Return the lowest rank of each host and device; an empty device is the host itself."""
    users: dict[tuple[str, str], int] = {}
    for rank, place in sorted(job.places.items()):
        if place.host is not None:
            for device in ("", place.nic, None if place.gpu is None else f"gpu{place.gpu}"):
                if device is not None:
                    users.setdefault((place.host, device), rank)
    return users


def _checked(
    table: TableFile, job: JobFile, users: Mapping[tuple[str, str], int]
) -> tuple[list[DeviceEvent], Rejected]:
    check = Check(table)
    times = check.integers("time_ns")
    kinds = check.codes("kind", EVENT_KINDS)
    ranks, codes = check.integers("rank", Bound(0, job.world_size - 1)), check.integers("code")
    host, device, detail = (check.words(name) for name in ("host", "device", "detail"))
    for row in (ranks == UNKNOWN).nonzero()[0].tolist():
        ranks[row] = users.get((host[row], device[row]), users.get((host[row], ""), UNKNOWN))
    check.reject(ranks == UNKNOWN, "host", "one of job.json's ranks, where no rank is given")
    rejected = check.rejected()
    rows = check.is_good.nonzero()[0].tolist()
    return [
        DeviceEvent(
            int(times[row]), int(ranks[row]), EVENT_KINDS[kinds[row]], host[row], device[row],
            None if codes[row] == UNKNOWN else int(codes[row]), detail[row][:MOST_TEXT],
        )
        for row in rows
    ], rejected  # fmt: skip
