"""Events of a trace: what nodes and devices reported, as batches of the ranks that use the devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

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
    users: dict[tuple[str, str], int] = {}  # the lowest rank of each host and device; an empty one is the host itself
    for rank, place in sorted(job.places.items()):
        for device in ("", place.nic, None if place.gpu is None else f"gpu{place.gpu}"):
            if place.host is not None and device is not None:
                users.setdefault((place.host, device), rank)
    for table in tables:
        check = Check(table)
        times, kinds = check.integers("time_ns"), check.codes("kind", EVENT_KINDS)
        ranks, codes = check.ranks(job), check.integers("code")
        hosts, devices, details = (check.words(name) for name in ("host", "device", "detail"))
        for row in (ranks == UNKNOWN).nonzero()[0].tolist():
            ranks[row] = users.get((hosts[row], devices[row]), users.get((hosts[row], ""), UNKNOWN))
        check.reject(ranks == UNKNOWN, "host", "one of job.json's ranks, where no rank is given")
        rejected += check.rejected()
        for row in check.is_good.nonzero()[0].tolist():
            code = None if codes[row] == UNKNOWN else int(codes[row])
            kind, detail = EVENT_KINDS[kinds[row]], details[row][:MOST_TEXT]
            rank = int(ranks[row])
            found[rank].add(DeviceEvent(int(times[row]), rank, kind, hosts[row], devices[row], code, detail))
    return {
        rank: batch_of(sorted(own), Header("events", job.job, job.attempt, rank))
        for rank, own in sorted(found.items())
    }, rejected
