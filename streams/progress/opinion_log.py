"""The topic ``feedback`` as a worker follows it: what people say of verdicts goes into the database.

Opinions are few, and the topic keeps the newest of each for ever: a worker that starts reads all of them.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from irregulars.errors import RecordError, ServiceError
from irregulars.streams.kafka.log_reader import LogReader
from irregulars.streams.messages.opinions import Opinion, decode_opinion

LOG: Final = logging.getLogger("irregulars.worker")
OPINIONS_S: Final = 10.0
"""Seconds between two looks: nobody waits for a row of feedback."""


class OpinionLog:
    """Reads what was said since the last look.

    Parameters
    ----------
    topic
        Full name.
    reader
        For this log alone: it is used in a thread of its own.
    """

    def __init__(self, topic: str, reader: LogReader) -> None:
        self._topic: Final = topic
        self._reader: Final = reader
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix="irregulars-feedback")
        self._read_to = 0
        self._trouble = ""

    async def read(self) -> list[Opinion]:
        """Return what is new; nothing while the topic is not there, or the broker does not send it."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._follow)

    def forget(self) -> None:
        """Read all of the topic again: it was made anew."""
        self._thread.submit(self._begin_anew)

    def _begin_anew(self) -> None:
        self._read_to = 0

    def close(self) -> None:
        """Let go of thread and connection, without waiting for a broker that does not answer."""
        self._thread.submit(self._reader.close)
        self._thread.shutdown(wait=False)

    def _follow(self) -> list[Opinion]:
        try:
            found = self._read()
        except ServiceError as error:  # a worker does without: verdicts do not rest on it
            if str(error) != self._trouble:
                self._trouble = str(error)
                LOG.warning("event=no_feedback reason=%r", self._trouble)
            return []
        self._trouble = ""
        return found

    def _read(self) -> list[Opinion]:
        begin, end = self._reader.bounds(self._topic, 0)
        if self._read_to > end:  # the topic was made anew
            self._read_to = begin
        found, read_to = [], self._read_to
        for message in self._reader.each_of_tail(self._topic, 0, self._read_to) if end > self._read_to else ():
            read_to = (message.offset() or 0) + 1
            try:
                found.append(decode_opinion(message.value()))
            except RecordError as error:
                LOG.warning("event=unreadable offset=%d reason=%r", read_to - 1, str(error))
        self._read_to = max(read_to, end)
        return found
