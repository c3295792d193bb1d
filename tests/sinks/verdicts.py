"""Verdicts as hypothesis draws them: every kind, device and event, any names, known and unknown places."""

from __future__ import annotations

from hypothesis import strategies as st

from irregulars.messages.judgements import SEVERITIES, Suspect, Verdict
from irregulars.messages.kinds import DEVICE_KINDS, VERDICT_KINDS

NAMES = st.text(min_size=1, max_size=12).filter(lambda name: name[0] != "\0")  # no name of a job
RANKS = st.integers(0, 10**6)
PLACES = st.none() | NAMES


@st.composite
def suspects(draw: st.DrawFn) -> Suspect:
    device = draw(st.sampled_from(sorted(DEVICE_KINDS)))
    ranks = draw(st.lists(RANKS, min_size=1, max_size=8, unique=True))
    return Suspect(
        device, ranks[0], tuple(ranks), draw(st.floats(0, 1)), peer=ranks[-1] if device == "link" else None,
        host=draw(PLACES), gpu=draw(st.none() | st.integers(0, 15)), nic=draw(PLACES), switch=draw(PLACES),
    )  # fmt: skip


@st.composite
def verdicts(
    draw: st.DrawFn,
    events: tuple[str, ...] = ("opened", "changed", "raised", "continued", "closed"),
    severities: tuple[str | None, ...] = (None, *SEVERITIES),
) -> Verdict:
    event = draw(st.sampled_from(events))
    first, length = draw(st.integers(0, 10**9)), draw(st.integers(1, 10**4))
    reasons = st.sampled_from(["recovered", "finished", "restarted", "silent", "merged"])
    return Verdict(
        verdict_id=draw(NAMES), revision=draw(st.integers(1, 10**6)), state="closed" if event == "closed" else "open",
        job=draw(NAMES), kind=draw(st.sampled_from(tuple(VERDICT_KINDS))), iterations=(first, first + length),
        delta=draw(st.floats(1, 1e6)), lost_s=draw(st.floats(0, 1e9)), communicator=draw(PLACES),
        suspects=tuple(draw(st.lists(suspects(), max_size=3))), evidence=draw(st.text()),
        attempt=draw(st.integers(0, 10**9)), world_size=draw(st.integers(0, 10**6)),
        time_ns=draw(st.none() | st.integers(0, 2**62)), close_reason=draw(reasons) if event == "closed" else None,
        event=event, severity=draw(st.sampled_from(severities)), recovers_ratio=draw(st.none() | st.floats(0, 1)),
    )  # fmt: skip
