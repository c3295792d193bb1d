"""An id for this start of the job, on which all ranks agree, and whether a rank has been another process in it."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import uuid4

_KEYS: Final = "irregulars/start/", "irregulars/processes/"
_WAIT_S: Final = 5.0
"""The store answers within a millisecond. One that has gone would be waited for until its own time is over."""


class Start(NamedTuple):
    """A start of the job, as a rank's process finds it.

    Parameters
    ----------
    id
        The same on all ranks; None: the store of the process group does not answer.
    is_again
        Whether the rank asked before in this start: then by another process, or before the group was resized.
    """

    id: str | None = None
    is_again: bool = False


def agreed_start(attempt: int, rank: int) -> Start:
    """Return the start whose id the first rank that asks put into the store of the process group.

    Any rank may be the first: nobody waits for another, and no collective is needed. A connection of our own leaves
    that of the training alone. A new launcher has a new store; torchrun keeps its own when it starts the ranks again,
    and counts that as an attempt, but where nodes came or went: a rank asks again then in one start.
    """
    found: list[Start] = []

    def ask() -> None:
        with suppress(Exception):  # of the store: whatever it is, training goes on
            store, (start, processes) = _store(), _KEYS
            id = store.compare_set(f"{start}{attempt}", "", uuid4().hex).decode()
            found.append(Start(id, store.add(f"{processes}{attempt}/{rank}", 1) > 1))

    asking = threading.Thread(target=ask, name="irregulars-start", daemon=True)
    asking.start()
    asking.join(_WAIT_S)
    return found[0] if found else Start()


def _store() -> Any:
    from torch import distributed
    from torch.distributed import distributed_c10d as c10d

    world: Any = distributed.group.WORLD
    store = world.get_group_store() if hasattr(world, "get_group_store") else c10d._get_default_store()
    return store.clone() if hasattr(store, "clone") else store
