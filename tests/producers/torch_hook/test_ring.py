"""The ring in Python: what is written is taken once, and the oldest gives way, counted."""

from __future__ import annotations

import ctypes
import sys
import threading
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.producers.torch_hook.hooks.native_library import NativeHook, main
from irregulars.producers.torch_hook.hooks.ring import CAPACITY, NO_PEER, ROW, PythonRing


def add(ring: PythonRing, issued_ns: int) -> int:
    return ring.add(issued_ns, 4, 7, 1, NO_PEER, 2, 3)


def test_a_row_is_taken_once_when_it_has_ended() -> None:
    ring = PythonRing(8)
    first, second = add(ring, 10), add(ring, 20)
    ring.finish(second, 50)
    (row,) = ring.take()
    names = ("issued", "ended", "size", "iteration", "group", "op")
    assert [row[name] for name in names] == [20, 50, 4, 7, 2, 3]
    assert ring.take().size == 0
    assert ring.still_open()["issued"].tolist() == [10]
    ring.finish(first, 60, 15)
    assert [(row["started"], row["ended"]) for row in ring.take()] == [(15, 60)]
    assert ring.still_open().size == 0
    assert ring.dropped_rows == 0


@given(st.lists(st.sampled_from(["add", "finish oldest", "finish newest", "take"]), max_size=200))
def test_every_row_is_taken_or_counted_or_still_open(actions: list[str]) -> None:
    ring, unended, taken, added = PythonRing(8), [], [], 0
    for action in actions:
        if action == "add":
            unended.append(add(ring, added))
            added += 1
        elif action == "take":
            taken += ring.take()["issued"].tolist()
        elif unended:
            ring.finish(unended.pop(0 if "oldest" in action else -1), 1_000)
    taken += ring.take()["issued"].tolist()
    assert len(set(taken)) == len(taken)
    assert len(taken) + ring.dropped_rows + ring.still_open().size == added


def test_an_end_behind_its_row_changes_nothing_and_sequences_begin_anew_as_in_the_native_ring() -> None:
    ring = PythonRing(2)
    gone = add(ring, 1)
    add(ring, 2)
    add(ring, 3)
    ring.finish(gone, 9)
    assert ring.take().size == 0
    assert ring.dropped_rows == 1
    assert ring.still_open()["issued"].tolist() == [2, 3]
    ring = PythonRing(8)
    ring.finish(ring.add(1, 4, 7, 2**32 - 1, NO_PEER, 2, 3), 2)
    ring.finish(ring.add(1, 4, 7, 2**32 + 5, NO_PEER, 2, 3), 2)
    assert ring.take()["sequence"].tolist() == [2**32 - 1, 5]


def test_of_rows_missed_for_hours_the_number_is_known_and_the_memory_is_bounded() -> None:
    ring, missed = PythonRing(8), 2 * 10**9
    taken = [add(ring, number) for number in range(3)]
    ring.finish(taken[1], 5)
    assert ring.take().size == 1
    ring._rows["id"] = np.arange(missed + 1, missed + 9)
    ring._rows["ended"] = 1
    tracemalloc.start()
    try:
        assert ring.take()["id"].tolist() == list(range(missed + 1, missed + 9))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert ring.dropped_rows == missed - 1
    assert ring.take().size == ring.still_open().size == 0


def test_several_threads_write_while_one_takes() -> None:
    ring, taken, threads, each = PythonRing(1 << 10), [], 4, 2_000

    def write(number: int) -> None:
        for index in range(each):
            ring.finish(add(ring, number * each + index), 1)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(threads)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        taken += ring.take()["issued"].tolist()
    taken += ring.take()["issued"].tolist()
    assert len(set(taken)) == len(taken)
    assert len(taken) + ring.dropped_rows == threads * each


def test_all_open_rows_of_the_native_ring_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """They went into a buffer of a quarter of the ring: of more, the newest were in no evidence of a hang."""
    rows = np.zeros(CAPACITY, ROW)
    rows["id"] = np.arange(CAPACITY) + 1

    def take(target: ctypes.c_void_p, most: ctypes.c_uint64, _is_open: int, _dropped: object) -> int:
        count = min(most.value, len(rows))
        ctypes.memmove(target, rows.ctypes.data, count * ROW.itemsize)
        return count

    library = SimpleNamespace(
        irregulars_take=take, irregulars_errors=lambda *_: 0, irregulars_open_ring=lambda _capacity: 0
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda _path: library)
    assert NativeHook(Path("hook.so")).still_open()["id"].tolist() == rows["id"].tolist()


def test_building_without_torch_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main([]) == 2
    assert "torch must be installed; got none. Run in a checkout of irregulars: pip install '.[torch]'" in (
        capsys.readouterr().err
    )
