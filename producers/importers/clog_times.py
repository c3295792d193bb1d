"""Whether the times of a log can be trusted: by when its starts and ends were written, next to its calls.

clog writes a start and an end when TorchComms *learns* of them. On gloo that is at once, and a call returns when the
operator has ended, so the start adds nothing and the call is the start. On NCCL a watchdog looks at the events of the
GPU, every second (every 100 ms on NCCLX) and at each further call. An operator that began and ended between two looks
has the same time twice, and a rank that waited in between seems not to have waited.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final

LONG_MS: Final = 2  # from the call to the end: of a shorter operator, either of both times may be its begin
_SAME_MS: Final = 1
_MOST_HOLLOW: Final = 0.9
_MOST_OVERLAPPED: Final = 0.05
_MOST_AT_CALLS: Final = 0.5
_LEAST_ENDED: Final = 20
_LEAST_CALLS: Final = 50
_LEAST_FOLLOWED: Final = 0.1
"""Share of the operators that ended; fewer calls that should block prove nothing about the others."""

START, CALL, UNCLEAR = "start", "call", "unclear"
"""From when an operator of a rank is counted: its start, its call, or neither can be trusted."""


@dataclass(slots=True)
class TimeCounts:
    """Counts of one log."""

    # followed, overlapped: Calls that should block and had another one behind them; those of them that had not ended
    # by then
    followed: int = 0
    overlapped: int = 0
    # ended, hollow: Operators of calls that should block whose end comes `LONG_MS` after the call or later; those of
    # them that began where they ended
    ended: int = 0
    hollow: int = 0
    # ended_apart, hollow_apart: The same of calls that return at once
    ended_apart: int = 0
    hollow_apart: int = 0
    # Of both, those whose end was written right after the call of another one, at which the watchdog looked
    at_calls: int = 0

    def add_call(self, *, is_after_sync: bool, is_open: bool) -> None:
        """Count a call; `is_open`: one that should block has not ended."""
        self.followed += is_after_sync
        self.overlapped += is_open

    def add_end(
        self, called_ms: int, start_ms: int | None, end_ms: int, other_call_ms: int | None, *, is_async: bool
    ) -> None:
        """Count an end; `other_call_ms`: when the newest call was made, if that was another one."""
        if end_ms - called_ms < LONG_MS:
            return
        is_hollow = start_ms is None or end_ms - start_ms <= _SAME_MS
        self.at_calls += other_call_ms is not None and 0 <= end_ms - other_call_ms <= _SAME_MS
        if is_async:
            self.ended_apart += 1
            self.hollow_apart += is_hollow
        else:
            self.ended += 1
            self.hollow += is_hollow

    def do_block(self, least: int = _LEAST_CALLS) -> bool:
        """Whether a call returns when its operator has ended, as far as `least` calls show."""
        return self.followed >= least and self.overlapped <= _MOST_OVERLAPPED * self.followed

    def trusted(self) -> str:
        """Return the time from which operators are counted.

        >>> TimeCounts(followed=100, overlapped=0, ended=90, hollow=90).trusted()  # gloo
        'call'
        >>> TimeCounts(followed=100, overlapped=70, ended=90, hollow=80, at_calls=80).trusted()  # NCCL
        'unclear'
        """
        ended = self.ended + self.ended_apart
        is_told = self.followed >= max(1.0, _LEAST_FOLLOWED * ended)
        if is_told and not self.do_block(1):
            return UNCLEAR  # only GPUs let the caller of such a call go on, and those are looked at
        if not is_told and ended >= _LEAST_ENDED and self.at_calls >= _MOST_AT_CALLS * ended:
            return UNCLEAR
        if self.ended_apart >= _LEAST_ENDED and self.hollow_apart >= _MOST_HOLLOW * self.ended_apart:
            return UNCLEAR
        if self.hollow < max(1.0, _MOST_HOLLOW * self.ended):
            return START
        return CALL if self.do_block(1) else UNCLEAR

    @classmethod
    def of_all(cls, logs: Iterable[TimeCounts]) -> TimeCounts:
        """Add up the counts of several logs: ranks of one job are of one backend."""
        listed = list(logs)
        return cls(*(sum(getattr(one, field.name) for one in listed) for field in fields(cls)))
