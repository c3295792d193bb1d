"""Changes of bytes that turn sound messages into ones that are nearly so; deterministic for a seed."""

from __future__ import annotations

from random import Random
from typing import Final

_INTERESTING: Final = (
    b"\0" * 8, b"\xff" * 8, b"\xff" * 7 + b"\x7f", b"\0" * 7 + b"\x40", b"\0" * 7 + b"\x80", b"\xff\xff\xff\x7f",
    b"\0\0\0\x80", b"\0\0\0\x01", b"\x7f", b"\x80", b"null", b"[]", b"{}", b"true", b"1e999", b"-1", b'"\\ud800"',
    b"9" * 30, b"4611686018427387904", b"\x1b[31m", b"\xc2\x9b",
)  # fmt: skip


def mutate(value: bytes, random: Random) -> bytes:
    """Change a few places of `value`."""
    changed = bytearray(value)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        _change(changed, random)
    return bytes(changed)


def _change(value: bytearray, random: Random) -> None:
    at = random.randrange(len(value) + 1)
    how = random.randrange(6)
    if how == 0 and at < len(value):
        value[at] ^= 1 << random.randrange(8)
    elif how == 1 and at < len(value):
        value[at] = random.randrange(256)
    elif how == 2:
        odd = random.choice(_INTERESTING)
        value[at : at + len(odd)] = odd
    elif how == 3:
        del value[at : at + random.choice((1, 2, 4, 8, 64))]
    elif how == 4:
        value[at:at] = random.choice(_INTERESTING)
    else:
        source = random.randrange(len(value) + 1)
        value[at:at] = value[source : source + random.choice((1, 4, 8, 64))]
