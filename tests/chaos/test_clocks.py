"""A process's time of day steps, and nothing else of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.clocks import Clock, can_compile, compile_library

TOLD = """
import threading, time
def say():
    began_s = time.monotonic()
    time.sleep(0.05)
    threading.Event().wait(0.05)
    print(round(time.time()), time.monotonic() - began_s, flush=True)
say()
input()
say()
"""


@pytest.mark.skipif(not can_compile(), reason="needs a C compiler (Debian: apt-get install gcc)")
@pytest.mark.parametrize("seconds", [3600, -3600])
def test_the_time_of_day_steps_and_waiting_lasts_as_long_as_before(tmp_path: Path, seconds: int) -> None:
    library, clock = compile_library(tmp_path), Clock(tmp_path / "clock")
    assert library is not None
    environment = {**os.environ, **clock.environment(library)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", TOLD], env=environment, text=True, **pipes) as process:
        assert process.stdout is not None
        before_s, before_took_s = map(float, process.stdout.readline().split())
        clock.step(seconds)
        after_s, after_took_s = map(float, process.communicate("\n", timeout=60)[0].split())
    assert after_s - before_s == pytest.approx(seconds, abs=60)
    assert 0.1 <= before_took_s < 60
    assert 0.1 <= after_took_s < 60
