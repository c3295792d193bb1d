"""Services that run beside us for a while: started, and stopped whatever happens."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from irregulars.errors import ServiceUnavailable

_STARTS: Final = 3


class Service(ABC):
    """Something that runs from `start` to `stop`; a ``with`` block does both."""

    @abstractmethod
    def start(self) -> None:
        """Start it, and wait until it can be used; if that fails, nothing of it is left."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it. Twice is fine."""

    @contextmanager
    def _stopped_if_it_fails(self) -> Iterator[None]:
        """Stop the parts that are up, if the block ends in an error."""
        try:
            yield
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def start_on_free_ports(start: Callable[[float], None], within_s: float) -> None:
    """Start something on free ports; try again if it does not come up.

    The likely cause is a port that another process took between our look and the bind. `start`: Takes free ports, and
    waits for at most the given seconds; raises `ServiceUnavailable` if it does not come up. `within_s`: for all tries
    together.
    """
    deadline = time.monotonic() + within_s
    for attempt in range(1, _STARTS + 1):
        try:
            return start(deadline - time.monotonic())
        except ServiceUnavailable:
            if attempt == _STARTS or time.monotonic() > deadline:
                raise
