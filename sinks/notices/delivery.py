"""Delivery of notices: a thread per channel tries, and failed tries are repeated after growing pauses."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from irregulars.errors import InputError, SinkBusy, SinkRejected
from irregulars.sinks.notices.ledger import Due
from irregulars.sinks.notices.notice import AWAY_S, Channel, NotArrived

FIRST_S: Final = 1.0  # seconds to the second try; each later one takes twice as long as the one before
LONGEST_S: Final = 300.0  # most seconds between two tries, unless the channel itself asks for more

# Seconds until a secret that can't be read is read again: the file may be being exchanged
_UNREADABLE_S: Final = 30.0

_NS: Final = 10**9


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one try."""

    channel: str  # its name
    due: Due
    reference: str | None = None  # returned by the channel, if it took the notice
    failure: str | None = None  # why it did not; None: it did
    is_final: bool = False  # whether it never will
    may_have_arrived: bool = True  # whether it may have taken it nevertheless
    retry_after_s: float = 0.0  # seconds for which it wants to be left alone; 0: it may take other notices


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
    except Exception as error:  # a stranger's channel: the error's text may hold secrets that it was given
        text = f"channel must raise SinkBusy or SinkRejected; got {type(error).__name__}"
        return Outcome(name, due, None, text)


# Seconds after which a try is left, with its thread: several times what our own channels take at most, each of whose
# waits is bounded. An endpoint that gives its answer byte by byte, or a stranger's channel, may never come to an end.
LONGEST_TRY_S: Final = 1800.0
MOST_LEFT: Final = 16  # threads of a channel that are left in tries: with more of them the next one is waited for


class Courier:
    """Delivers for one channel in a thread of its own: a channel that is slow or away stops no other."""

    def __init__(
        self, channel: Channel, outcomes: queue.SimpleQueue[Outcome], give_up_s: float, *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.retries: Final = Retries(give_up_s)
        self.is_busy = False
        self._channel: Final = channel
        self._outcomes: Final = outcomes
        self._clock_s: Final = clock_s
        self._lock: Final = threading.Lock()  # so that a try has one outcome: its own, or that it was left
        self._left: list[threading.Thread] = []  # in the middle of tries that were left
        self._trying: tuple[Due, float] | None = None  # with the time at which it was handed over
        self._inbox: queue.SimpleQueue[Due | None] = queue.SimpleQueue()
        self._thread = self._new_thread()

    def send(self, due: Due) -> None:
        """Hand over a notice; one at a time."""
        self.is_busy = True
        self._trying = due, self._clock_s()
        self._inbox.put(due)

    def leave_stuck(self) -> None:
        """Leave a try that has lasted for too long: it counts as failed, and a new thread makes the next one."""
        with self._lock:
            if self._trying is None:
                return
            due, since_s = self._trying
            self._left = [one for one in self._left if one.is_alive()]
            if self._clock_s() - since_s < LONGEST_TRY_S or len(self._left) >= MOST_LEFT:
                return
            self._left.append(self._thread)
            self._trying, self._inbox = None, queue.SimpleQueue()
        self._thread = self._new_thread()
        text = f"channel must answer within {LONGEST_TRY_S:g} s; it did not"
        self._outcomes.put(Outcome(self._channel.name, due, None, text, retry_after_s=AWAY_S))

    def close(self, wait_s: float = 1.0) -> None:
        """End the thread, if it is not in the middle of a try, and close the channel."""
        self._inbox.put(None)
        self._thread.join(wait_s)
        if not any(one.is_alive() for one in (self._thread, *self._left)):
            self._channel.close()

    def _new_thread(self) -> threading.Thread:
        name = f"courier-{self._channel.name}"
        thread = threading.Thread(target=self._run, args=(self._inbox,), name=name, daemon=True)
        thread.start()
        return thread

    def _run(self, inbox: queue.SimpleQueue[Due | None]) -> None:
        while (due := inbox.get()) is not None:
            outcome = deliver(self._channel, due)
            with self._lock:
                if inbox is not self._inbox:  # it took too long, and another thread goes on
                    return
                self._trying = None
                self._outcomes.put(outcome)


class Retries:
    """Tries that failed, of one channel. A notice rests, and the channel only where its other side wants it to.

    `give_up_s`: Seconds from the first failure of a notice after which it is not tried again.
    """

    def __init__(self, give_up_s: float) -> None:
        self._give_up_ns: Final = int(give_up_s * _NS)
        self._failed: Final[dict[str, tuple[int, int]]] = {}  # time of the first failure, and number of failures
        self._failures = 0
        self.rests_until_ns = 0  # when the channel may be given any notice again, ns since the epoch

    def failed(self, notice: str, now_ns: int, retry_after_s: float) -> int | None:
        """Record a failure; return when the notice is tried again, or None: it is given up.

        `retry_after_s`: Seconds for which the channel wants to be left alone; 0: it does not, and may take other
        notices.
        """
        since_ns, failures = self._failed.get(notice, (now_ns, 0))
        again_ns = now_ns + _pause_ns(failures)
        if retry_after_s > 0:
            self.rests_until_ns = now_ns + max(_pause_ns(self._failures), int(retry_after_s * _NS))
            self._failures += 1
            again_ns = max(again_ns, self.rests_until_ns)
        if again_ns - since_ns > self._give_up_ns:
            self._failed.pop(notice, None)
            return None
        self._failed[notice] = since_ns, failures + 1
        return again_ns

    def done(self, notice: str) -> None:
        """Record that the channel answered: it is well again."""
        self._failed.pop(notice, None)
        self._failures = 0


def _pause_ns(failures: int) -> int:
    # 30: the pause is at its longest long before, and a power without a bound overflows a float.
    return int(min(FIRST_S * 2 ** min(failures, 30), LONGEST_S) * _NS)
