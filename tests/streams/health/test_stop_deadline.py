from __future__ import annotations

import subprocess
import sys

HANGS = """
import threading, time
from irregulars.streams.health.stop_deadline import StopDeadline
StopDeadline({within_s}).arm()
threading.Thread(target=time.sleep, args=({hangs_s},)).start()  # the interpreter waits for it
"""


IN_ORDER = HANGS.replace(".arm()\n", "\n").replace("StopDeadline(", "deadline = StopDeadline(") + (
    "deadline.arm()\ndeadline.leave_with(0)\n"
)


def run(within_s: float, hangs_s: float, code: str = HANGS) -> subprocess.CompletedProcess[str]:
    code = code.format(within_s=within_s, hangs_s=hangs_s)
    return subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True, check=False)


def test_a_stop_that_hangs_is_cut_off_with_one_line() -> None:
    done = run(0.5, 600.0)
    assert done.returncode == 1
    assert done.stderr == "irregulars worker: stopping must end within 0.5 s; it did not\n"


def test_a_stop_that_ends_is_left_alone() -> None:
    done = run(600.0, 0.1)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_waits_when_all_work_has_ended_in_order_is_no_failure() -> None:
    done = run(0.5, 600.0, IN_ORDER)
    assert (done.returncode, done.stderr) == (0, "")
