"""Thresholds that people change while workers run. A message each on the compacted topic ``thresholds``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from msgspec import Meta

from irregulars.errors import InputError
from irregulars.messages.records import decode_as, encode_json
from irregulars.validation import Integer, JobName, Positive, PositiveSeconds, Seconds, Share, checked, require_known

Words = Annotated[str, Meta(min_length=1, max_length=500)]
Values = Mapping[str, int | float | None]

LIVE: Final[Mapping[str, Any]] = {
    "delta": Annotated[float, Meta(gt=1, le=1e308)],
    "silence_s": PositiveSeconds,
    "alert_least_seen": Annotated[int, Meta(ge=1)],
    "alert_least_lost_s": Seconds,
    "alert_ticket_gpu_hours": Positive,
    "alert_ticket_job_s": PositiveSeconds,
    "alert_page_gpu_hours": Positive,
    "alert_page_share": Share,
    "alert_page_after_s": Seconds,
}
"""Settings that may change while workers run, and their rules: a test holds these to be those of the settings.

A monitor asks for them whenever it judges. Its state keeps none of them, nor a limit made with one: such limits are
made anew. Only times that have entered a window stay clipped by the δ of their iteration."""

LEAD_NS: Final = 5_000_000_000
"""A change without a begin holds this long after it was made, ns. Workers read changes every 2 s and know it by then,
so that a worker which judges an iteration again after a restart judges it by the same thresholds."""

FIXED: Final[Mapping[str, str]] = {
    "window": "it is the size of what snapshots keep",
    "grace_s": "it says which rows an iteration has, and those are counted before it is judged",
    "detectors": "snapshots keep what they have learnt",
    "event_verdicts": "verdicts that it opened are to be closed",
    "alert_least_severity": "who was told of an incident must hear of its end; irregulars mutes holds notices back",
}
"""Settings of the judgement that may not, and why."""

_AT_ONCE: Final = "silence_s"  # a job that is silent has no event time from which this could hold


@dataclass(frozen=True, slots=True)
class ThresholdChange:
    """Thresholds that one person changed at once. All of its values hold, or none.

    Raises `InputError` if it changes nothing, or something that must not change, or breaks a setting's rule.
    """

    change_id: Words  # names it; key of its message
    values: Values  # new values by the names of settings, those of `LIVE`; None: the value of the settings
    # who, reason, time_ns: Who changed them, why, and when, ns since the epoch
    who: Words
    reason: Words
    time_ns: Integer
    job: JobName | None = None  # the training job; None: all of them. A change of one job beats one of all.
    # It holds for iterations that start at this event time or later, ns since the epoch; None: `LEAD_NS` after
    # `time_ns`. A silence holds at once.
    from_ns: Integer | None = None

    def __post_init__(self) -> None:
        if not self.values:
            raise InputError("change of thresholds must name one at least; got none")
        for name, value in self.values.items():
            require_live(name)
            if value is not None:
                checked(value, LIVE[name], name, "change of thresholds")
        if self.from_ns is not None and _AT_ONCE in self.values:
            raise InputError(f"{_AT_ONCE} must change at once; got a time from which on it shall hold. A job that "
                             "is silent has no event time by which it could begin")  # fmt: skip

    @property
    def begin_ns(self) -> int:
        """Event time from which on it holds, ns since the epoch."""
        return self.time_ns + LEAD_NS if self.from_ns is None else self.from_ns

    def values_at(self, start_ns: int | None) -> Values:
        """Return the values that hold for an iteration that starts then; None: no iteration, and a silence alone."""
        is_begun = start_ns is not None and self.begin_ns <= start_ns
        return {name: value for name, value in self.values.items() if is_begun or name == _AT_ONCE}

    def describe(self) -> str:
        """Describe the change: ``delta = 1.3, alert_page_share as set``."""
        return ", ".join(
            f"{name} as set" if value is None else f"{name} = {value:g}" for name, value in self.values.items()
        )


def require_live(name: str) -> None:
    """Raise `InputError`, with the reason, unless the setting of this name may change while workers run."""
    if name in FIXED:
        raise InputError(f"{name} must not change while workers run, since {FIXED[name]}; set it and restart them")
    require_known(name, LIVE, "threshold", "change of thresholds", f"those are {', '.join(LIVE)}")


def values_in_force(changes: Iterable[ThresholdChange], start_ns: int | None) -> dict[str, float]:
    """Return the changed thresholds of one job that hold for an iteration that starts at `start_ns`.

    `changes`: those of this job and those of all, in the order of the topic: of several the last one counts.

    Examples
    --------
    >>> everywhere = ThresholdChange("a", {"delta": 1.2}, "ann", "noisy network", 0, from_ns=0)
    >>> here = ThresholdChange("b", {"delta": 1.5}, "bob", "short iterations", 0, job="j", from_ns=100)
    >>> values_in_force([here, everywhere], 99), values_in_force([here, everywhere], 100)
    ({'delta': 1.2}, {'delta': 1.5})
    """
    of_all: dict[str, int | float | None] = {}
    own: dict[str, int | float | None] = {}
    for change in changes:
        (of_all if change.job is None else own).update(change.values_at(start_ns))
    for name, value in own.items():
        if value is not None:  # a value that was unset for the job: it goes by that of all
            of_all[name] = value
    return {name: value for name, value in sorted(of_all.items()) if value is not None}


def encode_change(change: ThresholdChange) -> bytes:
    """Encode for the topic ``thresholds``, whose key is the change's id."""
    return encode_json("thresholds", asdict(change))


def decode_change(value: bytes | None) -> ThresholdChange:
    """Decode a message of the topic ``thresholds``; raises `RecordError`."""
    return decode_as(value, "thresholds", ThresholdChange)
