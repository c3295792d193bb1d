"""Fetches the messages of assigned partitions with librdkafka, in a thread beside the event loop.

librdkafka fetches in C, without the lock that all threads of a worker share, and with every partition in each of its
fetches. Who has which partitions is for `GroupMember` to know; this only reads where it is told to.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from irregulars.kafka.broker import client_config
from irregulars.kafka.dead_letters import KeptMessage
from irregulars.kafka.login_password import new_consumer

# Faust and asyncio cost some 0.2 ms for each event, in which a thousand operators could be summed up. So neighbouring
# messages of a partition travel as a block from the fetch to the stage, which takes them one by one.
MOST_MESSAGES: Final = 64
MOST_BYTES: Final = 1 << 20  # of a block: taking it in must not hold up the event loop for long


@dataclass(slots=True)
class Record(KeptMessage):
    """One message, as it was fetched."""

    generation_id: int = 0  # of the assignment for which it was fetched

    @property
    def size_bytes(self) -> int:
        """Of key and value."""
        return len(self.key or b"") + len(self.value or b"")


def cut_blocks(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Cut the messages of a partition into blocks.

    >>> records = [Record("commops", 0, offset, 0.0, None, b"") for offset in range(70)]
    >>> [len(block) for block in cut_blocks(records)]
    [64, 6]
    """
    # A record above the limit is a block by itself: no block is empty.
    first, size_bytes = 0, 0
    for place, record in enumerate(records):
        if place > first and (place - first >= MOST_MESSAGES or size_bytes + record.size_bytes > MOST_BYTES):
            yield records[first:place]
            first, size_bytes = place, 0
        size_bytes += record.size_bytes
    if first < len(records):
        yield records[first:]


LOG: Final = logging.getLogger("irregulars.worker")
Place = tuple[str, int]  # topic and partition
MOST_READY_BYTES: Final = 16 << 20  # of messages that were fetched and not taken: then fetching waits
_POLL_S: Final = 0.1
_MOST_TAKEN: Final = 2 * MOST_MESSAGES
_AT_ONCE: Final = 256


class BlockFetcher:
    """Reads partitions on from given offsets; calls `on_ready` from its thread when there is something to take."""

    def __init__(self, bootstrap: str, security: Mapping[str, Any], on_ready: Callable[[], None]) -> None:
        self._config: Final = client_config(bootstrap, security) | {
            "group.id": "irregulars-read-back",  # librdkafka asks for one; nothing is ever committed to it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",  # retention may have deleted messages still to be read
            # It shows where a partition ends in offsets without messages, which `position` passes.
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": MOST_READY_BYTES >> 10,
            "fetch.queue.backoff.ms": 5,  # by default reading rests for 1 s whenever the queue is full
            "reconnect.backoff.max.ms": 1000,
            "isolation.level": "read_uncommitted",
        }
        self._on_ready: Final = on_ready
        self._lock: Final = threading.Lock()
        self._has_room: Final = threading.Condition(self._lock)
        self._wanted: dict[Place, int] = {}  # assigned, each with the offset behind its fetched messages
        self._generation = 0
        self._is_changed = False  # where to read, since the thread's last turn
        self._ready: dict[Place, deque[Record]] = {}
        self._ready_bytes = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to fetch; also after `close`."""
        self._is_closed, self._is_changed = False, True
        self._thread = threading.Thread(target=self._run, name="irregulars-fetch", daemon=True)
        self._thread.start()

    # --- for the event loop -----------------------------------------------------------------------------------------

    def assign(self, positions: Mapping[Place, int], generation: int) -> None:
        """Read these partitions from these offsets, and no others; messages fetched before are thrown away."""
        with self._lock:
            self._wanted, self._generation = dict(positions), generation
            self._ready, self._ready_bytes = {}, 0
            self._is_changed = True
            self._has_room.notify()

    def seek(self, positions: Mapping[Place, int]) -> None:
        """Read some of the assigned partitions from other offsets; those that are not assigned are left out."""
        with self._lock:
            own = {place: at for place, at in positions.items() if place in self._wanted}
            self._wanted |= own
            for place in own:
                self._ready_bytes -= sum(record.size_bytes for record in self._ready.pop(place, ()))
            # librdkafka begins all partitions anew: the others behind their ready messages.
            self._is_changed = True
            self._has_room.notify()

    def take(self, places: Collection[Place] | None) -> dict[Place, list[Record]]:
        """Return fetched messages of some partitions (None: of all), each one's in their order.

        Of each partition only some: a caller that has no room for more leaves it out next time.
        """
        with self._lock:
            taken = dict[Place, list[Record]]()
            for place in [place for place in self._ready if places is None or place in places]:
                ready, own, size_bytes = self._ready[place], list[Record](), 0
                while ready and len(own) < _MOST_TAKEN and size_bytes < MOST_BYTES:
                    own.append(ready.popleft())
                    size_bytes += own[-1].size_bytes
                if not ready:
                    del self._ready[place]
                taken[place] = own
                self._ready_bytes -= size_bytes
            self._has_room.notify()
        return taken

    def position(self, place: Place) -> int:
        """Return the offset behind all that was taken, or holds no message; -1: it is not assigned."""
        with self._lock:
            ready = self._ready.get(place)
            return ready[0].offset if ready else self._wanted.get(place, -1)

    def close(self, within_s: float) -> None:
        """Stop fetching."""
        with self._lock:
            self._is_closed = True
            self._has_room.notify()
        if self._thread is not None:
            self._thread.join(within_s)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        consumer: Consumer | None = None
        while not self._is_closed:
            try:
                consumer = consumer or new_consumer(self._config)
                self._turn(consumer)
            except Exception as error:  # of any kind: without this thread nothing more would be read
                # No token to log in with, for example, is no news: it is tried again.
                log = LOG.debug if isinstance(error, KafkaException) else LOG.warning
                log("event=fetch_again error=%s reason=%r", type(error).__name__, str(error))
                with self._has_room:
                    # The error may have come between noting a change and assigning it: assign again.
                    self._is_changed = True
                    self._has_room.wait(_POLL_S)
        if consumer is not None:
            consumer.close()

    def _turn(self, consumer: Consumer) -> None:
        with self._has_room:
            is_changed, self._is_changed = self._is_changed, False
            wanted = dict(self._wanted)
            # A change is applied though all is full: it throws away ready messages, and so makes room.
            if not is_changed and self._ready_bytes >= MOST_READY_BYTES:
                self._has_room.wait(_POLL_S)
                return
        if is_changed:
            consumer.assign([TopicPartition(*place, at) for place, at in wanted.items()])
        # `consume` waits until it has as many as it was asked for, or for its whole timeout. So wait for one message,
        # and take those that are there already.
        first = consumer.poll(_POLL_S)
        if first is not None:
            self._keep([first, *consumer.consume(_AT_ONCE, 0)])

    def _keep(self, messages: Iterable[Message]) -> None:
        found: dict[Place, deque[Record]] = {}
        passed: dict[Place, int] = {}
        for message in messages:
            place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
            error = message.error()
            if error is None:
                found.setdefault(place, deque()).append(
                    Record(*place, offset, (message.timestamp()[1] or 0) / 1000, message.key(), message.value())
                )
            elif error.code() == KafkaError._PARTITION_EOF:
                passed[place] = offset
            else:
                # librdkafka tries again by itself; `ReadingWatch` finds a partition that stays unread.
                LOG.debug("event=not_fetched topic=%s partition=%d reason=%r", *place, error.str())
        with self._lock:
            if self._is_changed:  # these may be of partitions, or from offsets, that are not wanted any more
                return
            for place, own in found.items():
                if place in self._wanted:
                    for record in own:
                        record.generation_id = self._generation
                    self._wanted[place] = own[-1].offset + 1
                    self._ready_bytes += sum(record.size_bytes for record in own)
                    self._ready.setdefault(place, deque()).extend(own)
            for place, offset in passed.items():
                if place in self._wanted:
                    self._wanted[place] = max(offset, self._wanted[place])
        if found:
            self._on_ready()
