"""The topic ``progress``: how far the first hop has read each of its partitions, whichever worker has it.

One record for each partition, keyed by its number. It is written after all evidence that follows from what was read
stands on the bus, and again every few seconds, so that whoever starts needs nothing from before.
"""

from __future__ import annotations

import json
from typing import Final

from irregulars.kafka.log_reader import ReadingThread
from irregulars.kafka.outbox import Outbox
from irregulars.streams.snapshots.records import Offsets
from irregulars.version import VERSION


class ProgressLog:
    """Writes what this worker has read, and follows what all have."""

    def __init__(self, topic: str, reading: ReadingThread, outbox: Outbox) -> None:
        self._topic: Final = topic
        self._reading: Final = reading
        self._outbox: Final = outbox
        self._read_to: int | None = None
        self._told: dict[int, Offsets] = {}

    async def write(self, partition: int, positions: Offsets) -> None:
        """Tell the others; all evidence must have been acknowledged before."""
        record = {"partition": partition, "positions": positions, "release": VERSION}
        value = json.dumps(record, separators=(",", ":")).encode()
        await self._outbox.send(self._topic, str(partition).encode(), value, partition=0)

    async def read(self) -> dict[int, Offsets]:
        """Return how far each partition has been read, as far as it was told by now."""
        return await self._reading.run(self._follow)

    def _follow(self) -> dict[int, Offsets]:
        end = self._reading.reader.end_offset(self._topic, 0)
        if self._read_to is None or self._read_to > end:  # at the start, or the log was cut
            self._read_to, self._told = end, {}
        for message in self._reading.reader.read_tail(self._topic, 0, self._read_to):
            self._read_to = (message.offset() or 0) + 1
            found = _decode(message.value())
            if found is not None:
                self._told[found[0]] = found[1]
        return dict(self._told)


def _decode(value: bytes | None) -> tuple[int, Offsets] | None:
    """Return partition and positions; `None` of what no worker wrote: then the clocks stand, and accuse nobody."""
    try:
        record = json.loads(value or b"")
        return int(record["partition"]), {str(topic): int(at) for topic, at in record["positions"].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
