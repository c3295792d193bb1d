"""Threads that use the same types for the first time at once: without the lock the process dies of SIGSEGV."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.integration.worker_runs import ROOT

PROGRAM = """
    import sys
    import threading
    from dataclasses import make_dataclass

    from irregulars.state_codec import decode_state, encode_state
    from irregulars.validation import checked

    USES = {
        "checked": lambda value, kind: checked(value, kind, ""),
        "decode_state": lambda value, kind: decode_state(encode_state(value, 1), kind, 1),
    }
    use = USES[sys.argv[1]]
    sys.setswitchinterval(1e-6)
    for number in range(60):
        inner = make_dataclass(f"Inner{number}", [(f"a{one}", int) for one in range(12)])
        outer = make_dataclass(f"Outer{number}", [(f"b{one}", inner) for one in range(6)])
        value = {f"b{one}": {f"a{other}": 1 for other in range(12)} for one in range(6)}
        begin = threading.Barrier(4)

        def run() -> None:
            begin.wait()
            assert use(value, outer).b5.a11 == 1

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
"""


@pytest.mark.parametrize("use", ["checked", "decode_state"])
def test_threads_may_use_a_type_for_the_first_time_at_once(use: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), use], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
