"""Whether two verdicts accuse the same device."""

from __future__ import annotations

from typing import Any

from irregulars.messages.judgements import Suspect
from irregulars.messages.kinds import DEVICE_KINDS


def device_name(suspect: Suspect) -> dict[str, Any] | None:
    """Return the columns that name a device in every job; None where its ranks alone name it.

    >>> device_name(Suspect("nic", 3, (3,), 0.9, host="node-0", gpu=1, nic="mlx5_1"))
    {'device': 'nic', 'host': 'node-0', 'nic': 'mlx5_1'}
    >>> device_name(Suspect("nic", 3, (3,), 0.9))
    """
    kind = DEVICE_KINDS.get(suspect.device)
    names = {one: getattr(suspect, one) for one in (() if kind is None else kind.named_by)}
    if not names or any(value is None for value in names.values()):
        return None
    return {"device": suspect.device, **names}


def is_same_device(one: Suspect, other: Suspect) -> bool:
    """Tell whether two suspects of one job are the same device.

    >>> gpu = Suspect("gpu", 3, (3,), 0.9)
    >>> is_same_device(gpu, Suspect("gpu", 3, (3,), 0.4)), is_same_device(gpu, Suspect("gpu", 4, (4,), 0.4))
    (True, False)
    """
    names = device_name(one)
    if names is not None:
        return names == device_name(other)
    return (one.device, one.ranks, one.peer) == (other.device, other.ranks, other.peer)
