"""Somebody says whether a verdict was right: the same from the command line and from the console."""

from __future__ import annotations

import time
from typing import Final

from irregulars.errors import InputError
from irregulars.infra.notifying.state_log import StateLog
from irregulars.messages.judgements import Verdict
from irregulars.sinks.notices.opinions import opinion_on

WORDS: Final = ("right", "wrong", "withdraw")


def say(log: StateLog, verdict: Verdict, word: str, who: str, note: str = "") -> None:
    """Keep somebody's word on a verdict.

    Parameters
    ----------
    word
        One of `WORDS`.

    Raises
    ------
    InputError
        If the word is none of these, a text is too long, or there is nothing to withdraw.
    """
    if word not in WORDS:
        raise InputError(f"feedback must be one of {', '.join(WORDS)}; got {word!r}")
    is_right = None if word == "withdraw" else word == "right"
    said = " ".join(note.split())
    opinion = opinion_on(verdict, is_right=is_right, who=who, note=said, time_ns=time.time_ns())
    if is_right is None and opinion.key not in {one.key for one in log.opinions()}:
        raise InputError(f"opinion must be there to be withdrawn; got none of {who} on {verdict.verdict_id}")
    log.say(opinion)
