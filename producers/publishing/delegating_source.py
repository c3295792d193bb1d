"""A source in front of another."""

from __future__ import annotations

from collections.abc import Sequence

from irregulars.producers.publishing.sources import Record, Source


class PassingSource:
    """Lets everything of another source through. Base of those that pace, watch or fill in what passes.

    Parameters
    ----------
    source
        What stands behind; closed with this one.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    def poll(self, max_records: int) -> Sequence[Record]:
        """Poll the source."""
        return self._source.poll(max_records)

    def position(self) -> str:
        """Say where the source stands."""
        return self._source.position()

    @property
    def is_exhausted(self) -> bool:
        """Whether the source has ended."""
        return self._source.is_exhausted

    @property
    def closed_connections(self) -> int:
        """Connections that the source closed for what came over them."""
        return getattr(self._source, "closed_connections", 0)

    def close(self) -> None:
        """Close the source."""
        self._source.close()
