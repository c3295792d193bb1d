"""A call that nothing can interrupt, in a thread of its own: signals are handled meanwhile, and it can be left."""

from __future__ import annotations

import threading
from collections.abc import Callable


def run_in_thread(call: Callable[[], object], within_s: float | None = None) -> bool:
    """Make a call, and return whether it came back within a time (None: however long it takes); raises its error.

    A call that is given up goes on in its thread, which no exit waits for: nothing may be done beside it that it
    does not bear.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # raised again below, in the thread that waits
            errors.append(error)

    # A daemon, since Python waits at its exit for all other threads, and this one may never end.
    thread = threading.Thread(target=run, name="irregulars-call", daemon=True)
    thread.start()
    thread.join(within_s)
    if errors:
        raise errors[0]
    return not thread.is_alive()
