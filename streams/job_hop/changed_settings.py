"""The settings of a job's monitor, with what people changed of them while it ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from irregulars.messages.judgements import Verdict
from irregulars.streams.monitor_settings import MonitorSettings

_SEVERITY: Final = "alert_"
"""Before the name of each limit of `SeverityLimits`, in the names of settings."""


def changed_settings(settings: MonitorSettings, values: Mapping[str, float]) -> MonitorSettings:
    """Return settings with these values, by the names of `messages.threshold_changes.LIVE`.

    >>> changed = changed_settings(MonitorSettings(), {"delta": 1.3, "alert_page_share": 0.2})
    >>> changed.delta, changed.severity.page_share, changed.window
    (1.3, 0.2, 50)
    """
    limits: dict[str, Any] = {
        name.removeprefix(_SEVERITY): value for name, value in values.items() if name.startswith(_SEVERITY)
    }
    own: dict[str, Any] = {name: value for name, value in values.items() if not name.startswith(_SEVERITY)}
    return replace(settings, severity=replace(settings.severity, **limits), **own)


def judged_by(verdict: Verdict, values: Mapping[str, float]) -> Verdict:
    """Return a verdict that says by which changed thresholds it was judged, to programs and to people."""
    told = ", ".join(f"{name} = {value:g}" for name, value in values.items())
    return replace(
        verdict, thresholds=dict(values), evidence=f"{verdict.evidence}; judged with {told}, as changed live"
    )
