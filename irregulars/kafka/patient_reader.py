"""Reads operators back for a judge, and waits while the broker is away."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Final

from irregulars.errors import ServiceUnavailable
from irregulars.kafka.log_reader import LogReader, OffsetsOfRank
from irregulars.messages.records import Batch

LOG: Final = logging.getLogger("irregulars.worker")
_AGAIN_S: Final = 0.5


class PatientReader:
    """Reads spans of ``commops`` in the thread of the judges.

    Parameters
    ----------
    reader
        For this one alone.
    topic
        Full name.
    patience_s
        How long the broker may be away.
    """

    def __init__(self, reader: LogReader, topic: str, patience_s: float) -> None:
        self._reader: Final = reader
        self._topic: Final = topic
        self._patience_s: Final = patience_s
        self._is_given_up = False

    def read(self, spans: Sequence[OffsetsOfRank]) -> Sequence[Batch]:
        """Return the batches of some spans, as far as they still exist."""
        until_s = time.monotonic() + self._patience_s
        while True:
            try:
                found = self._reader.read_commops(self._topic, spans)
                break
            except ServiceUnavailable:  # the broker is away
                if self._is_given_up or time.monotonic() > until_s:
                    raise
                time.sleep(_AGAIN_S)
        if found.missing:
            LOG.warning("event=read_back_incomplete missing=%d read=%d", len(found.missing), len(found.batches))
        return found.batches

    def give_up(self) -> None:
        """Wait no more, whichever thread does."""
        self._is_given_up = True

    def close(self) -> None:
        """Let go of the connection, in the thread that reads."""
        self._reader.close()
