"""Which connections stand at a time, and which of them has to go where there are too many. Pure: no socket in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

MOST: Final = 512
"""Connections at a time. Files that a process may open are 1,024 in most places; the database needs some too."""

MOST_OF_ONE: Final = 128
"""Connections of one address at a time. A browser opens six; an office behind one address shares these."""

Member = TypeVar("Member")


class Crowd(Generic[Member]):
    """Connections by address. One that waits for its visitor gives up its place to one that comes.

    Whoever opens connections and says nothing can't keep others out: those of the address that has the most of them
    go first, the oldest before the others. One whose answer we are making never has to go. One that takes its
    answer more slowly than we give it waits too, and may go in the middle of it: else slow readers keep others out.

    Parameters
    ----------
    key_of
        Under which name an address is counted; None: without a limit of its own, as a proxy stands for many visitors.
    most, most_of_one
        Limits of all together and of one name.

    Examples
    --------
    >>> crowd = Crowd(lambda address: address, most=3, most_of_one=2)
    >>> [crowd.enter(one, "a") for one in ("a1", "a2", "a3")]
    [None, None, 'a1']
    >>> crowd.enter("b1", "b"), crowd.enter("c1", "c")
    (None, 'a2')
    """

    def __init__(
        self, key_of: Callable[[str], str | None], *, most: int = MOST, most_of_one: int = MOST_OF_ONE
    ) -> None:
        self._key_of: Final = key_of
        self._most: Final = most
        self._most_of_one: Final = most_of_one
        self._keys: Final[dict[Member, str | None]] = {}
        self._counts: Final[dict[str | None, int]] = {}
        self._waiting: Final[dict[str | None, dict[Member, None]]] = {}  # of each key, the oldest first

    def enter(self, member: Member, address: str) -> Member | None:
        """Let in a connection, which waits; return the one that has to go for it, maybe itself, and is forgotten."""
        key = self._key_of(address)
        is_crowded = key is not None and self._counts.get(key, 0) >= self._most_of_one
        leaving = None
        if is_crowded:
            leaving = self._oldest(key)
        elif len(self._keys) >= self._most:
            leaving = self._most_crowding()
        if is_crowded and leaving is None:
            return member
        if leaving is not None:
            self.leave(leaving)
        self._keys[member] = key
        self._counts[key] = self._counts.get(key, 0) + 1
        self.wait(member)
        return leaving

    def wait(self, member: Member) -> None:
        """Note that a connection waits for its visitor, from now on."""
        if member in self._keys:
            self._waiting.setdefault(self._keys[member], {})[member] = None

    def work(self, member: Member) -> None:
        """Note that a connection's answer is being made, and that it must not go."""
        if member not in self._keys:
            return
        key = self._keys[member]
        waiting = self._waiting.get(key, {})
        waiting.pop(member, None)
        if not waiting:
            self._waiting.pop(key, None)

    def leave(self, member: Member) -> None:
        """Forget a connection; one that is not there is none."""
        self.work(member)
        if member not in self._keys:
            return
        key = self._keys.pop(member)
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]

    def _oldest(self, key: str | None) -> Member | None:
        return next(iter(self._waiting.get(key, ())), None)

    def _most_crowding(self) -> Member | None:
        if not self._waiting:
            return None
        return self._oldest(max(self._waiting, key=lambda key: len(self._waiting[key])))
