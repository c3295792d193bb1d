"""An id for this start of the job, on which all ranks agree."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

_KEY: Final = "irregulars/start/"
_WAIT_S: Final = 5.0
"""The store answers within a millisecond. One that has gone would be waited for until its own time is over."""


def agreed_start(attempt: int) -> str | None:
    """Return what the first rank that asks put into the store of the process group; None: the store does not answer.

    Any rank may be the first: nobody waits for another, and no collective is needed. A connection of our own leaves
    that of the training alone. A new launcher has a new store; torchrun keeps its own when it starts the ranks again,
    and counts that as an attempt.
    """
    found: list[str] = []

    def ask() -> None:
        with suppress(Exception):  # of the store: whatever it is, training goes on
            found.append(_store().compare_set(f"{_KEY}{attempt}", "", uuid4().hex).decode())

    asking = threading.Thread(target=ask, name="irregulars-start", daemon=True)
    asking.start()
    asking.join(_WAIT_S)
    return found[0] if found else None


def _store() -> Any:
    from torch import distributed
    from torch.distributed import distributed_c10d as c10d

    world: Any = distributed.group.WORLD
    store = world.get_group_store() if hasattr(world, "get_group_store") else c10d._get_default_store()
    return store.clone() if hasattr(store, "clone") else store
