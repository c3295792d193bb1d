from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from irregulars.streams.health.process import SpareMemory, share_few_heaps


@pytest.mark.parametrize(("spent_s", "gives"), [(0.1, True), (9.9, True), (10.1, False)])
def test_memory_goes_back_unless_the_process_was_busy(spent_s: float, gives: bool) -> None:
    calls: list[None] = []
    clock_s, cpu_s = _steps(100.0, 120.0), _steps(5.0, 5.0 + spent_s)
    spare = SpareMemory(lambda: next(clock_s), lambda: next(cpu_s), lambda: calls.append(None))
    assert spare.look() is gives
    assert len(calls) == gives


def test_each_look_counts_from_the_one_before() -> None:
    clock_s, cpu_s = _steps(0.0, 20.0, 40.0), _steps(0.0, 19.0, 20.0)
    spare = SpareMemory(lambda: next(clock_s), lambda: next(cpu_s), lambda: None)
    assert [spare.look(), spare.look()] == [False, True]


def test_the_real_one_works_while_arrays_come_and_go() -> None:
    share_few_heaps()
    spare = SpareMemory()
    for size in (10, 100_000):
        kept = [np.arange(size) for _ in range(10)]
        spare.look()
        assert all(int(one[-1]) == size - 1 for one in kept)


def _steps(*values: float) -> Iterator[float]:
    yield from values
