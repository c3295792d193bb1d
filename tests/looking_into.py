"""Whether this machine lets py-spy look into a process."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

from irregulars.producers.node.stacks import find_py_spy


@cache
def refusal() -> str:
    """Return why no process can be looked into here; empty: it works."""
    py_spy = find_py_spy()
    if py_spy is None:
        return "py-spy must be installed to look into processes; it is not"
    script = "print('ready', flush=True); import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            command = [py_spy, "dump", "--pid", str(process.pid), "--nonblocking"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        finally:
            process.kill()
    said = " ".join(done.stderr.split())[:200]
    return f"py-spy must be allowed to look into processes; it says: {said}" if done.returncode else ""
