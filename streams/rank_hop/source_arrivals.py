"""Counts the rows of each source of a rank that arrived or are lost, and keeps how far the source is complete."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from irregulars.errors import RecordError
from irregulars.messages.announcements import SourceProgress
from irregulars.messages.records import UNKNOWN

MOST_LOST_ROWS: Final = 1 << 40
"""Rows that can be lost between two batches of a rank: a million a second, for twelve days."""

UNAWAITED: Final = ("gpu_health",)
"""Sources that no iteration waits for: judgement does not read them."""


@dataclass(frozen=True, slots=True)
class ArrivalsState:
    """What `SourceArrivals` keeps: rows received and watermark of each source, and rows that never came."""

    rows: Mapping[str, int]
    watermarks_ns: Mapping[str, int]
    lost_rows: int


class SourceArrivals:
    """Rows received and watermark of each source of one rank in one attempt.

    Parameters
    ----------
    lost_rows
        Rows that the producer lost before they could be sent.
    """

    def __init__(self, lost_rows: int = 0) -> None:
        self.lost_rows = lost_rows
        self._rows: dict[str, int] = {}  # received of each schema
        self._watermarks_ns: dict[str, int] = {}

    def count(self, schema: str, rows_before: int, rows: int, watermark_ns: int | None) -> None:
        """Count the rows of a message; rows that were published before them and have not arrived are lost.

        Of 30 rows before them, 20 have arrived: 10 are lost. Messages come in their order, so that these never will.

        Raises
        ------
        RecordError
            If more were published than can be. Nothing is changed then.
        """
        received = self._rows.get(schema, 0)
        if rows_before - received > MOST_LOST_ROWS:
            rule = f"at most {received + MOST_LOST_ROWS} after {received} rows that arrived"
            raise RecordError(f"rows_before must be {rule}; got {rows_before}")
        self.lost_rows += max(rows_before - received, 0)
        self._rows[schema] = max(received, rows_before + rows)
        self._raise_watermark(schema, watermark_ns)

    def apply(self, sources: Mapping[str, SourceProgress], announced: Collection[str]) -> bool:
        """Raise the watermarks to those of a heartbeat, if all rows that it counts have arrived; return whether so.

        It does not wait for states of GPUs, nor for samples of bandwidth that the rank did not announce.
        """
        unawaited = UNAWAITED if "bandwidth" in announced else (*UNAWAITED, "bandwidth")
        for schema, progress in sources.items():
            if self._rows.get(schema, 0) < progress.rows and schema not in unawaited:
                return False
        for schema, progress in sources.items():
            self._raise_watermark(schema, progress.watermark_ns)
        return True

    @property
    def newest_ns(self) -> int:
        """Event time up to which the source that is ahead is complete; `UNKNOWN` if no source says."""
        return max(self._watermarks_ns.values(), default=UNKNOWN)

    def complete_until_ns(self, announced: Collection[str]) -> int | None:
        """Return the event time until which iterations are complete; None if it is not known.

        The watermark of the operators decides, or that of the iteration rows if no operators were announced. Samples
        of bandwidth that were announced are waited for too: otherwise the peaks would depend on the order of arrival.
        """
        has_operators = "commops" in self._watermarks_ns or "commops" in announced
        until_ns = self._watermarks_ns.get("commops" if has_operators else "iterations")
        if until_ns is None or "bandwidth" not in announced:
            return until_ns
        sampled_ns = self._watermarks_ns.get("bandwidth")
        return None if sampled_ns is None else min(until_ns, sampled_ns)

    def _raise_watermark(self, schema: str, watermark_ns: int | None) -> None:
        if watermark_ns is not None and watermark_ns > self._watermarks_ns.get(schema, UNKNOWN):
            self._watermarks_ns[schema] = watermark_ns

    def state(self) -> ArrivalsState:
        """Everything that `from_state` needs."""
        return ArrivalsState(dict(self._rows), dict(self._watermarks_ns), self.lost_rows)

    @classmethod
    def from_state(cls, state: ArrivalsState) -> SourceArrivals:
        """Restore."""
        arrivals = cls(state.lost_rows)
        arrivals._rows = dict(state.rows)
        arrivals._watermarks_ns = dict(state.watermarks_ns)
        return arrivals
