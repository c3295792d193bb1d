"""Keep Python's state of torch's own threads, so that it is not made anew for each callback."""

from __future__ import annotations

import ctypes


def keep_thread_state() -> None:
    """Keep Python's state of the calling thread, one of torch's, until the process ends.

    Torch makes it when a callback enters Python, and throws it away behind it: memory is mapped and unmapped, which
    takes longer than all that the callback does. A reference that is never given back keeps it; that costs some
    20 KiB per thread, and gloo has two per group. To be called from within a callback, once per thread.
    """
    ctypes.pythonapi.PyGILState_Ensure()
