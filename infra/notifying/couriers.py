"""A thread for each channel, with one notice at a time: a channel that is slow or away stops no other."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import Final

from irregulars.errors import InputError, SinkBusy, SinkRejected
from irregulars.sinks.notices.ledger import Due
from irregulars.sinks.notices.notice import Channel, NotArrived


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one try.

    Parameters
    ----------
    channel
        Its name.
    due
        What was to be delivered.
    reference
        What the channel returned, if it took it.
    failure
        Why it did not; None: it did.
    is_final
        Whether it never will.
    may_have_arrived
        Whether it may have taken it nevertheless.
    retry_after_s
        Seconds for which it wants to be left alone; 0: it may take other notices.
    """

    channel: str
    due: Due
    reference: str | None = None
    failure: str | None = None
    is_final: bool = False
    may_have_arrived: bool = True
    retry_after_s: float = 0.0


_UNREADABLE_S: Final = 30.0
"""Seconds until a secret that can't be read is looked for again: somebody may be exchanging the file."""


def deliver(channel: Channel, due: Due) -> Outcome:
    """Try once, whatever the channel raises."""
    name = channel.name
    try:
        return Outcome(name, due, channel.deliver(due.notice))
    except NotArrived as error:
        return Outcome(name, due, None, str(error), may_have_arrived=False, retry_after_s=error.retry_after_s)
    except SinkBusy as error:
        return Outcome(name, due, None, str(error), retry_after_s=error.retry_after_s)
    except SinkRejected as error:
        return Outcome(name, due, None, str(error), is_final=True, may_have_arrived=False)
    except InputError as error:
        return Outcome(name, due, None, str(error), may_have_arrived=False, retry_after_s=_UNREADABLE_S)
    except Exception as error:  # a stranger's channel: the error's text may hold what it was given
        text = f"channel must raise SinkBusy or SinkRejected; got {type(error).__name__}"
        return Outcome(name, due, None, text)


class Courier:
    """Delivers for one channel in a thread of its own, which ends with the process.

    Parameters
    ----------
    outcomes
        Takes what became of each try.
    """

    def __init__(self, channel: Channel, outcomes: queue.SimpleQueue[Outcome]) -> None:
        self._channel: Final = channel
        self._outcomes: Final = outcomes
        self._inbox: Final[queue.SimpleQueue[Due | None]] = queue.SimpleQueue()
        self.is_busy = False
        self._thread: Final = threading.Thread(target=self._run, name=f"courier-{channel.name}", daemon=True)
        self._thread.start()

    def send(self, due: Due) -> None:
        """Hand over a notice; one at a time."""
        self.is_busy = True
        self._inbox.put(due)

    def close(self, wait_s: float = 1.0) -> None:
        """End the thread, if it is not in the middle of a try, and let go of the channel."""
        self._inbox.put(None)
        self._thread.join(wait_s)
        if not self._thread.is_alive():
            self._channel.close()

    def _run(self) -> None:
        while (due := self._inbox.get()) is not None:
            self._outcomes.put(deliver(self._channel, due))
