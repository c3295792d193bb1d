"""One name for a device over all jobs: by it mutes are matched, and repeat offenders found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def device_of(alert: Mapping[str, Any]) -> str | None:
    """Name the device of the first suspect, the same in each job; None where nobody can tell which device it is.

    Parameters
    ----------
    alert
        A message of the topic ``alerts``, decoded.

    Examples
    --------
    >>> device_of({"job": "j", "suspects": [{"device": "nic", "rank": 1, "host": "node-3", "nic": "mlx5_1"}]})
    'nic:node-3/mlx5_1'
    >>> device_of({"job": "j", "suspects": [{"device": "gpu", "rank": 1, "host": None, "gpu": 2}]}) is None
    True
    """
    suspects = alert.get("suspects") or ()
    return _name(suspects[0], str(alert.get("job"))) if suspects else None


def host_of(alert: Mapping[str, Any]) -> str | None:
    """Return the host of the first suspect; None: not known."""
    suspects = alert.get("suspects") or ()
    host = suspects[0].get("host") if suspects else None
    return None if host is None else str(host)


def _name(suspect: Mapping[str, Any], job: str) -> str | None:
    device, host = suspect["device"], suspect.get("host")
    if device == "switch":
        return None if suspect.get("switch") is None else f"switch:{suspect['switch']}"
    if device == "link":  # the receiver's host is not told: a link is known inside of its job alone
        return f"link:{job}/{suspect['rank']}>{suspect.get('peer')}"
    if host is None or device == "stage":  # a stage is a share of a model, no device that could be replaced
        return None
    if device == "host":
        return f"host:{host}"
    own = suspect.get(device) if device in ("gpu", "nic") else None
    return None if own is None else f"{device}:{host}/{own}"
