"""The protocol of a sink.

Rows travel as Arrow tables, by table name; `sinks.tables` lists the tables, their columns and their keys. A sink
stores at-least-once input exactly once: rows with equal keys are one row, however often and in whatever batches they
come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import pyarrow as pa

Rows = Mapping[str, pa.Table]  # Arrow tables by the names in `sinks.tables.TABLES`


class Sink(Protocol):
    """Somewhere to store rows. No base class is needed."""

    def open(self) -> None:
        """Connect and make the tables ready; called once before the first write, and harmless when called again.

        Raises `ServiceUnavailable` if the store does not answer within the time that the sink's settings give it;
        `ServiceRefused` if it answers and refuses us.
        """

    def write(self, rows: Rows) -> None:
        """Take all of `rows`, or none of them. Taken rows are stored by the next `flush` at the latest.

        Raises `SinkBusy` (nothing was taken: write the same rows again after ``retry_after_s``); `SinkRejected`
        (these rows will never be taken; ``rows`` holds them as pairs of table name and Arrow table).
        """

    def flush(self) -> None:
        """Return only when every row taken so far is stored. Commit offsets after this, never before.

        Raises `SinkBusy` (not all rows are stored; the sink keeps them. Flush again after ``retry_after_s``). Raises
        `SinkRejected` (the rows named will never be stored, and were dropped; all others are stored).
        """

    def close(self) -> None:
        """Flush and let go of all resources, even where the flush raises. Closing twice is fine."""
