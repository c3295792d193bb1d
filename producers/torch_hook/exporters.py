"""Ways for records to leave the training process: a trace directory, the agent's socket, or Kafka.

Each exporter runs in the session's thread until the source is exhausted, and never touches training: a failure is
logged, and sending over a socket or to Kafka is tried again. ``wait`` sleeps, and is True once the session ends.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

from confluent_kafka import KafkaError

from irregulars.errors import IrregularsError
from irregulars.kafka.security import KafkaSecurity
from irregulars.kafka.topics import TopicSettings
from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.records import Batch
from irregulars.producers.iteration_inference.inferring_source import InferringSource
from irregulars.producers.publishing.publisher import AgentSettings, Delivered, Publisher
from irregulars.producers.publishing.sources import PassingSource, Record, Source
from irregulars.producers.torch_hook.frames import End, Lost, Unmarked, Waiting, encode_frame
from irregulars.producers.torch_hook.profiling import Profiler
from irregulars.producers.torch_hook.source import TorchSource
from irregulars.producers.torch_hook.trace_parts import assemble_if_whole, part_path

POLL_S: Final = 0.2
# Ten batches (`BATCH_ROWS`) a poll.
_POLL_ROWS: Final = 15_000
# Seconds between polls at the end, while the source still waits for operators that are about to end.
_LAST_POLL_S: Final = 0.01
_RETRY_S: Final = 2.0
_OPEN_PERIOD_S: Final = 1.0  # seconds from one search for operators that do not end to the next, at most
# An agent that takes nothing for this long, seconds, is left, and connected to anew.
_SEND_S: Final = 5.0
_BROKER_WAIT_S: Final = 30.0
# Seconds for which the end of training waits for an exporter.
_STOP_S: Final = 15.0
# A disk answers where a network may not, and parts of which nobody makes a directory look like a crash.
_STOP_DISK_S: Final = 120.0
_LAST_TRY_S: Final = 2.0  # seconds for which a broker that never answered is still asked when training has ended


class TraceDirectory:
    """Writes this rank's part below the directory; the last rank to end puts the trace directory together.

    `directory`: shared by all ranks, or each host's own: then the parts must be brought together later. `open_s`:
    seconds after which an operator that has not ended is written into the part too: a job that hangs is killed, and
    only this shows in which operator it hung.
    """

    stop_s: ClassVar[float] = _STOP_DISK_S

    def __init__(self, directory: Path, open_s: float = 5.0) -> None:
        self._directory, self._open_s = directory, open_s
        self._next_open_s = 0.0
        self._written_open = b""
        self.delivered_rows = 0

    def run(self, source: TorchSource, wait: Callable[[float], bool]) -> None:
        """Append frames to the part as they come."""
        path, world_size = None, 0
        for records in _polls(source, wait):
            for record in records:
                if path is None and isinstance(record, Announcement):
                    path, world_size = part_path(self._directory, record.attempt, record.rank), record.world_size
                    path.parent.mkdir(parents=True, exist_ok=True)
                    # Of an earlier process of this rank in the same attempt: frames are appended.
                    path.unlink(missing_ok=True)
                if path is not None:
                    _append(path, _frame_of(record, source))
                    self.delivered_rows += _operators(record)
            if path is not None:
                self._write_open(source, path)
        if path is not None:
            _append(path, encode_frame(End(source.lost_rows)))
            assemble_if_whole(self._directory, world_size)

    def _write_open(self, source: TorchSource, path: Path) -> None:
        now_s = time.monotonic()
        if now_s < self._next_open_s:
            return
        self._next_open_s = now_s + min(self._open_s, _OPEN_PERIOD_S)
        batch = source.open_for(self._open_s)
        frame = b"" if batch is None else encode_frame(Waiting(batch))
        if frame and frame != self._written_open:
            _append(path, frame)
        self._written_open = frame


def _polls(source: TorchSource, wait: Callable[[float], bool]) -> Iterator[Sequence[Record]]:
    """Yield the records of each poll until the source, which ends with training, is exhausted."""
    while not source.is_exhausted:
        records = source.poll(_POLL_ROWS)
        yield records
        if not records and wait(POLL_S):
            source.end()
            time.sleep(_LAST_POLL_S)


def _frame_of(record: Record, source: TorchSource) -> bytes:
    # Lost rows are written as soon as they are known: a rank that is killed writes no `End`.
    return encode_frame(Lost(source.lost_rows) if isinstance(record, Heartbeat) else record)


def _operators(record: Record) -> int:
    return len(record) if isinstance(record, Batch) and record.header.schema == "commops" else 0


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


class AgentSocket:
    """Sends frames to the node's agent over its Unix socket.

    While the agent is away rows wait in the ring, and the oldest are overwritten. Rows on their way to it are lost.

    `on_trouble`: is given each error, while the agent is not reached. `profiler`: serves the agent's requests.
    """

    stop_s: ClassVar[float] = _STOP_S

    def __init__(self, path: Path, on_trouble: Callable[[Exception], None], profiler: Profiler | None = None) -> None:
        self._path, self._on_trouble, self.profiler = path, on_trouble, profiler
        self.delivered_rows = 0

    def run(self, source: TorchSource, wait: Callable[[float], bool]) -> None:
        """Connect, send, and connect again."""
        is_ending = False
        while not source.is_exhausted:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                    connection.settimeout(_SEND_S)
                    connection.connect(os.fspath(self._path))
                    # It may be another agent than before, which does not know this rank.
                    source.start_over()
                    if source.is_unmarked:
                        connection.sendall(encode_frame(Unmarked()))
                    for records in _polls(source, wait):
                        if self.profiler is not None:
                            self.profiler.serve(connection)
                        for record in records:
                            connection.sendall(_frame_of(record, source))
                            self.delivered_rows += _operators(record)
                    connection.sendall(encode_frame(End(source.lost_rows)))
            except OSError as error:
                self._on_trouble(error)
                if is_ending:
                    return
                is_ending = wait(_RETRY_S)  # one more try


class Kafka:
    """Publishes from this process, through the agent's own publisher.

    `on_trouble`: is given each error, while the broker is not reached.
    """

    stop_s: ClassVar[float] = _STOP_S

    def __init__(
        self,
        bootstrap: str,
        topics: TopicSettings,
        on_trouble: Callable[[Exception], None],
        security: KafkaSecurity | None = None,
    ) -> None:
        self._bootstrap, self._topics, self._on_trouble = bootstrap, topics, on_trouble
        self._security = security or KafkaSecurity()
        self._delivered = Delivered()  # of the publisher that runs, or ran last
        self._delivered_before = 0  # operators, of those before it

    @property
    def delivered_rows(self) -> int:
        """Operators that the broker acknowledged."""
        return self._delivered_before + self._delivered.rows["commops"]

    def run(self, source: TorchSource, wait: Callable[[float], bool]) -> None:
        """Publish; when the broker has been away for too long, begin anew."""
        from irregulars.producers.publishing.agent import Agent

        def make_publisher(settings: AgentSettings) -> Publisher:
            publisher = _EndingPublisher(settings, wait)
            self._delivered_before, self._delivered = self.delivered_rows, publisher.delivered
            return publisher

        numbered = InferringSource(source, lambda _: True) if source.is_unmarked else source
        while not numbered.is_exhausted:
            paced = _Paced(numbered, source.end, wait)
            try:
                settings = AgentSettings(
                    self._bootstrap, self._topics, self._security.client(), broker_wait_s=_BROKER_WAIT_S
                )
                Agent(paced, settings, make_publisher=make_publisher).run()
            except IrregularsError as error:
                self._on_trouble(error)
                if paced.is_ending or wait(_RETRY_S):
                    return
                source.start_over()


Exporter = TraceDirectory | AgentSocket | Kafka


class _EndingPublisher(Publisher):
    """Gives up soon on a broker that never answered, once training has ended: a wrong address must not delay that."""

    def __init__(self, settings: AgentSettings, wait: Callable[[float], bool]) -> None:
        super().__init__(settings)
        self._wait = wait
        self._give_up_s: float | None = None

    def serve(self, wait_s: float = 0.0) -> None:
        """As `Publisher.serve`, which `connect` calls while no broker answers."""
        super().serve(wait_s)
        if self._is_connected or not self._wait(0.0):
            return
        now_s = time.monotonic()
        self._give_up_s = self._give_up_s or now_s + _LAST_TRY_S
        if now_s > self._give_up_s:
            raise self._service_error(self._last_trouble or KafkaError(KafkaError._TIMED_OUT))


class _Paced(PassingSource):
    """The source as the agent polls it, no more often than `POLL_S`: each poll takes Python's lock from training."""

    def __init__(self, source: Source, end: Callable[[], None], wait: Callable[[float], bool]) -> None:
        super().__init__(source)
        self._end, self._wait = end, wait
        self._next_s = 0.0
        self.is_ending = False

    def poll(self, max_records: int) -> Sequence[Record]:
        """Poll the source, if the last poll is `POLL_S` ago."""
        if not self.is_ending and self._wait(0.0):
            self.is_ending = True
            self._end()
        if not self.is_ending and time.monotonic() < self._next_s:
            return ()
        self._next_s = time.monotonic() + POLL_S
        return super().poll(max_records)

    def close(self) -> None:
        """Do nothing: it is polled again after the broker came back."""
