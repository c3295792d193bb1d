"""How much of each source of a rank has arrived, how far it is known to be complete, and what never came."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from irregulars.streams.messages.announcements import SourceProgress
from irregulars.streams.messages.records import UNKNOWN, Batch

UNAWAITED: Final = ("gpu_health",)
"""Sources whose rows hold nobody up: judgement does not read them."""


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

    def count(self, batch: Batch) -> None:
        """Count a batch: rows that were published before it and have not come are lost."""
        header = batch.header
        received = self._rows.get(header.schema, 0)
        self.lost_rows += max(header.rows_before - received, 0)
        self._rows[header.schema] = max(received, header.rows_before + len(batch))
        self._raise_watermark(header.schema, header.watermark_ns)

    def apply(self, sources: Mapping[str, SourceProgress], announced: Collection[str]) -> bool:
        """Move the watermarks to what a heartbeat says, if all rows that it counts are there; return whether so.

        States of GPUs hold nobody up, nor do samples that nobody announced.
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
        """How far the source that is ahead has come; `UNKNOWN` if none has."""
        return max(self._watermarks_ns.values(), default=UNKNOWN)

    def complete_until_ns(self, announced: Collection[str]) -> int | None:
        """Return the event time until which iterations are complete, None if nothing tells.

        Operators decide; iteration rows only where no operators were announced. Samples of bandwidth are waited for
        too, so that no order of arrival changes what they say.
        """
        has_operators = "commops" in self._watermarks_ns or "commops" in announced
        until_ns = self._watermarks_ns.get("commops" if has_operators else "iterations")
        if until_ns is None or "bandwidth" not in announced:
            return until_ns
        sampled_ns = self._watermarks_ns.get("bandwidth")
        return None if sampled_ns is None else min(until_ns, sampled_ns)

    def _raise_watermark(self, schema: str, watermark_ns: int | None) -> None:
        if watermark_ns is not None:
            self._watermarks_ns[schema] = max(self._watermarks_ns.get(schema, UNKNOWN), watermark_ns)

    def state(self) -> dict[str, Any]:
        """Everything that `from_state` needs, as JSON values."""
        return {"rows": dict(self._rows), "watermarks_ns": dict(self._watermarks_ns), "lost_rows": self.lost_rows}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SourceArrivals:
        """Restore."""
        arrivals = cls(state["lost_rows"])
        arrivals._rows = dict(state["rows"])
        arrivals._watermarks_ns = dict(state["watermarks_ns"])
        return arrivals
