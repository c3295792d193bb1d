"""Work that is given up ends, and nothing of it is left for the next."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from irregulars.streams.health import watchdog
from irregulars.streams.health.watchdog import MOST_CRASHES, CrashMarks, GaveUp, Guard, Limits, Watchdog, WorkGivenUp


def give_up_now(guard: Guard) -> None:
    """Let the watchdog's thread raise into this one, at whatever step it is then."""
    with guard.lock:
        if guard.work is not None:
            guard.work.reason, guard.work.raised_s = "now", 0.0
            guard.raise_gave_up()


def test_what_is_raised_at_any_moment_is_raised_inside_or_not_at_all() -> None:
    """A raise that came a step too late would end the thread, and with the main thread the worker."""
    guard, is_over, ended = Watchdog().guard("job"), threading.Event(), [0, 0]

    def press() -> None:
        while not is_over.is_set():
            give_up_now(guard)
            time.sleep(0.0005)

    presser = threading.Thread(target=press)
    presser.start()
    until_s = time.monotonic() + 2.0
    while time.monotonic() < until_s:
        try:
            guard.run(b"j", 0, 1.0, lambda: sum(range(200)))
            ended[0] += 1
        except WorkGivenUp as why:
            ended[1] += 1
            holds = why.__context__
    is_over.set()
    presser.join()
    assert all(ended), ended
    assert holds is None, "it would hold all that the work had made"
    assert guard.work is None


@pytest.mark.parametrize("does", ["catches", "reads"])
def test_work_that_can_t_be_ended_at_once_ends_later(does: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_AGAIN_S", 0.1)
    with (dog := Watchdog(Limits(job_cpu_s=0.1, lost_s=600.0))):
        guard, reached = dog.guard("job"), []

        def catch() -> None:
            try:
                while True:
                    pass
            except GaveUp:
                reached.append("caught")
            while True:
                pass

        def read() -> None:
            def poll() -> None:
                work = guard.work
                assert work is not None
                while work.reason is None:  # until it is given up; then on for some looks that must not end it
                    pass
                until_s = time.monotonic() + 1.0
                while time.monotonic() < until_s:
                    pass
                reached.append("read to its end")

            while True:
                guard.undisturbed(poll)

        with pytest.raises(WorkGivenUp, match=r"within 0\.1 s of processor time"):
            guard.run(b"j", 0, 0.1, catch if does == "catches" else read)
    assert len(reached) == 1


def test_marks_outlive_a_process_and_count_its_ends(tmp_path: Path) -> None:
    for number in range(MOST_CRASHES + 1):
        marks = CrashMarks(tmp_path)
        other = CrashMarks(tmp_path)  # of a worker beside it
        slot = other.new_slot()
        assert not other.begin(slot, 0, b"j", 7)
        other.end(slot)
        slot = marks.new_slot()
        assert not marks.begin(slot, 0, b"j", 6)
        marks.end(slot)
        assert marks.begin(slot, 0, b"j", 7) == (number == MOST_CRASHES)
        for one in (marks, other):
            one.close()  # as the end of a process does
    assert len(list(tmp_path.iterdir())) == 2
