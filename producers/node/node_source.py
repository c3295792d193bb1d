"""All sources of a node as one: their announcements fill the roster, their ends empty it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from irregulars.errors import InputError, IrregularsError
from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.bundles import group_of
from irregulars.messages.records import Batch
from irregulars.producers.node.roster import Owner, Roster
from irregulars.producers.publishing.agent import announcing_message
from irregulars.producers.publishing.sources import GONE, Process, RankKey, Record, Source, key_of, row_count
from irregulars.validation import shown

_LOG: Final = logging.getLogger("irregulars.agent")


class NodeSource:
    """Polls sources in turn. One that fails is logged, closed and left out; the others go on.

    Any source of records on a node fits in here: a socket into which training processes write, followers of files, a
    recorded job. A source keeps the protocol `producers.publishing.sources.Source`. It counts
    ``rows_before`` itself, and ends a rank with a heartbeat of state ``ended``; samples of devices come
    from `devices`. A source whose ranks may run on other hosts has the attribute ``speaks_for_other_hosts = True``:
    devices of this host are not theirs. ``closed_connections``, if it has that, is a metric.

    `roster`: the ranks of this host. `devices`: samples of the devices of those in the roster; polled last.
    """

    def __init__(self, sources: Mapping[str, Source], roster: Roster, devices: Source | None = None) -> None:
        self._sources = dict(sources)
        self._roster, self._devices = roster, devices
        self._all: Final = [*sources.values(), *([devices] if devices is not None else [])]
        self._groups: dict[RankKey, str | None] = {}
        self._refused: set[RankKey] = set()  # ranks that no message can announce
        self.failed_sources = 0
        self._has_failing_devices = False

    @property
    def names(self) -> tuple[str, ...]:
        """Sources that are polled."""
        return tuple(self._sources)

    @property
    def closed_connections(self) -> int:
        """Connections of processes that were closed because of the bytes that they sent."""
        return sum(getattr(source, "closed_connections", 0) for source in self._all)

    def processes(self) -> Mapping[Owner, Process]:
        """Return the processes of this host's ranks, as far as they are connected. Any thread may ask."""
        found: dict[Owner, Process] = {}
        for source in list(self._sources.values()):
            for key, process in dict(getattr(source, "processes", {})).items():
                if key in self._groups:
                    job, attempt, rank, start, since_ns = key
                    found[Owner(job, attempt, rank, self._groups.get(key), start, since_ns)] = process
        return found

    def poll(self, max_records: int) -> Sequence[Record]:
        """Poll the sources, each up to the rest of `max_records`."""
        polled: list[Record] = []
        # A copy: a source that fails is taken out meanwhile.
        for name in list(self._sources):
            records: Sequence[Record] = ()
            try:
                records = self._sources[name].poll(max_records)
            except (IrregularsError, OSError) as error:
                _LOG.error("event=source_failed source=%s reason=%r", name, str(error))
                self._sources.pop(name).close()
                self.failed_sources += 1
            max_records -= sum(map(row_count, records))
            is_remote = getattr(self._sources.get(name), "speaks_for_other_hosts", False)
            polled += [passed for record in records for passed in self._pass(record, is_remote=is_remote)]
            if max_records <= 0:
                break
        if len(self._sources) > 1:  # the next poll begins with another source: none starves behind a busy one
            first = next(iter(self._sources))
            self._sources[first] = self._sources.pop(first)
        if self._devices is not None and max_records > 0:
            polled += self._poll_devices(self._devices, max_records)
        return polled

    def _poll_devices(self, devices: Source, max_records: int) -> Sequence[Record]:
        """Poll the devices; an error is logged once while it lasts, and the ranks' records go on."""
        try:
            records = devices.poll(max_records)
        except (IrregularsError, OSError) as error:
            if not self._has_failing_devices:
                _LOG.error("event=devices_unreadable reason=%r", str(error))
            self._has_failing_devices = True
            return ()
        self._has_failing_devices = False
        return records

    def position(self) -> str:
        """Return the positions of all sources."""
        return " ".join(f"{name}[{source.position()}]" for name, source in sorted(self._sources.items()))

    @property
    def is_exhausted(self) -> bool:
        """Never: a node's agent runs until it is stopped."""
        return False

    def close(self) -> None:
        """Close all sources."""
        for source in self._all:
            source.close()

    def _pass(self, record: Record, *, is_remote: bool) -> Iterator[Record]:
        """Yield a record as it is published; none of a rank that no message can announce, and the others go on."""
        key = key_of(record.header if isinstance(record, Batch) else record)
        if isinstance(record, Announcement):
            admitted = record
            if record.is_logged and is_remote:  # its GPU is one of another host, and none of it is sampled here
                admitted = self._roster.fabric.place(replace(record, group=group_of(record.host, record.rank)))
            elif record.is_logged:  # else it sends no rows, so no device is sampled for it
                admitted = self._roster.admit(record)
            try:
                announcing_message(admitted)
            except InputError as error:
                _LOG.error("event=rank_refused job=%s rank=%d reason=%r", shown(record.job), record.rank, str(error))
                self._roster.release(Heartbeat(*key[:3], start=key[3], since_ns=key[4]))
                self._refused.add(key)
                return
            self._refused.discard(key)
            if record.is_logged:
                self._groups[key] = admitted.group
            yield admitted
            return
        is_refused = key in self._refused
        if isinstance(record, Batch):
            group = self._groups.get(key)
            record = record if group is None else replace(record, header=replace(record.header, group=group))
        elif record.state in ("ended", GONE):
            self._roster.release(record)
            self._groups.pop(key, None)
            self._refused.discard(key)
        if not is_refused:
            yield record
