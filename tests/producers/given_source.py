"""A source of given records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from irregulars.producers.publishing.sources import Record


class GivenSource:
    """Gives the records of one step after the other.

    `is_endless`: it says of no step that it was the last.
    """

    def __init__(self, *steps: Sequence[Record], is_endless: bool = False) -> None:
        self._left, self._is_endless = list(steps), is_endless

    def poll(self, max_records: int) -> Sequence[Record]:
        return self._left.pop(0) if self._left else ()

    def position(self) -> str:
        return str(len(self._left))

    @property
    def is_exhausted(self) -> bool:
        return not (self._left or self._is_endless)

    def close(self) -> None:
        return


def one_by_one(records: Iterable[Record], *, is_endless: bool = True) -> GivenSource:
    return GivenSource(*([one] for one in records), is_endless=is_endless)
