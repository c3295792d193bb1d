from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.sinks.memory_sink import MemorySink
from tests.sinks.sink_promises import check_sink


class Forgetful(MemorySink):
    """Loses all that was not flushed before it is read."""

    def flush(self) -> None:
        self.__init__()  # type: ignore[misc]


def making(kind: type[MemorySink]) -> Callable[[], tuple[MemorySink, Callable[[str], pa.Table]]]:
    def make() -> tuple[MemorySink, Callable[[str], pa.Table]]:
        sink = kind()
        return sink, sink.read

    return make


def test_the_sink_in_memory_keeps_every_promise_and_one_that_does_not_is_found() -> None:
    check_sink(making(MemorySink))
    with pytest.raises(AssertionError, match="after flush"):
        check_sink(making(Forgetful))
