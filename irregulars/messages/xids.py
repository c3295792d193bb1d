"""NVIDIA's numbers of GPU errors (XIDs), and the class of each by NVIDIA's catalogue of XIDs."""

from __future__ import annotations

from typing import Final

CLASSES: Final = {
    "memory": (48, 63, 64, 92, 94, 95, 140, 156, 157, 171, 172),
    "link": (74, 121, 136, 137, *range(144, 151), 155),
    "bus or device": (54, 62, 79, 158, 167, 169),
    "firmware": (109, 110, 119, 120, 143, 154),
    "application": (11, 13, 25, 31, 32, 43, 45, 69),
}
"""Numbers of each class. Those of an application follow from its own errors, and not from the device."""

_CLASS_OF: Final = {number: name for name, numbers in CLASSES.items() for number in numbers}

SYMPATHETIC: Final = frozenset({43, 45, 94, 95})
"""Numbers that often only follow from another error of the same GPU within seconds: look for that one."""


def class_of_xid(number: int | None) -> str | None:
    """Return the class of an XID, one of `CLASSES`; None where it is not known.

    >>> class_of_xid(79), class_of_xid(31), class_of_xid(9999)
    ('bus or device', 'application', None)
    """
    return _CLASS_OF.get(-1 if number is None else number)
