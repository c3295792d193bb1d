"""Thresholds that people change while workers run. A message each on the compacted topic ``thresholds``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from msgspec import Meta

from irregulars.errors import InputError, RecordError
from irregulars.messages.records import decode_json, encode_json
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

A monitor asks for them whenever it judges, and keeps none of them in its state."""

FIXED: Final[Mapping[str, str]] = {
    "window": "it is the size of what snapshots keep",
    "grace_s": "it says which rows an iteration has, and those are counted before it is judged",
    "detectors": "snapshots keep what they have learnt",
    "alert_least_severity": "who was told of an incident must hear of its end; irregulars mutes holds notices back",
}
"""Settings of the judgement that may not, and why."""

_UNPLANNED: Final = "silence_s"


@dataclass(frozen=True, slots=True)
class ThresholdChange:
    """What one person changed at once. All of its values hold, or none.

    Parameters
    ----------
    change_id
        Names it; key of its message.
    values
        New values by the names of settings, those of `LIVE`; None: as before anybody changed it.
    who, reason, time_ns
        Who says so, why, and when, ns since the epoch.
    job
        The training job; None: all of them. What is said of one job beats what is said of all.
    from_ns
        It holds for iterations that start at this event time or later, ns since the epoch; None: whenever they start.

    Raises
    ------
    InputError
        If it changes nothing, or something that must not change, or breaks a setting's rule.
    """

    change_id: Words
    values: Values
    who: Words
    reason: Words
    time_ns: Integer
    job: JobName | None = None
    from_ns: Integer | None = None

    def __post_init__(self) -> None:
        if not self.values:
            raise InputError("change of thresholds must name one at least; got none")
        for name, value in self.values.items():
            require_live(name)
            if value is not None:
                checked(value, LIVE[name], name, "change of thresholds")
        if self.from_ns is not None and _UNPLANNED in self.values:
            raise InputError(f"{_UNPLANNED} must change at once; got a time from which on it shall hold. A job that "
                             "is silent has no event time by which it could begin")  # fmt: skip

    def holds_at(self, start_ns: int | None) -> bool:
        """Whether it holds for an iteration that starts then; None: it is not known when."""
        return self.from_ns is None or (start_ns is not None and self.from_ns <= start_ns)

    def describe(self) -> str:
        """Say what it changes: ``delta = 1.3, alert_page_share as set``."""
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

    Parameters
    ----------
    changes
        Those of this job and those of all, in the order of the topic: of several the last one counts.

    Examples
    --------
    >>> everywhere = ThresholdChange("a", {"delta": 1.2}, "ann", "noisy network", 0)
    >>> here = ThresholdChange("b", {"delta": 1.5}, "bob", "short iterations", 0, job="j", from_ns=100)
    >>> values_in_force([here, everywhere], 99), values_in_force([here, everywhere], 100)
    ({'delta': 1.2}, {'delta': 1.5})
    """
    found: dict[str, int | float | None] = {}
    holding = [change for change in changes if change.holds_at(start_ns)]
    for is_own in (False, True):
        own: dict[str, int | float | None] = {}
        for change in holding:
            own |= change.values if (change.job is not None) is is_own else {}
        found |= {name: value for name, value in own.items() if value is not None}
    return {name: value for name, value in sorted(found.items()) if value is not None}


def encode_change(change: ThresholdChange) -> bytes:
    """Encode for the topic ``thresholds``, whose key is the change's id."""
    return encode_json("thresholds", asdict(change))


def decode_change(value: bytes | None) -> ThresholdChange:
    """Decode a message of the topic ``thresholds``; raises `RecordError`."""
    try:
        change: ThresholdChange = checked(decode_json(value, "thresholds"), ThresholdChange, "", error=RecordError)
    except InputError as error:
        raise error if isinstance(error, RecordError) else RecordError(str(error)) from error
    return change
