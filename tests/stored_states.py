"""States on their way through a snapshot."""

from __future__ import annotations

from typing import Any, TypeVar

from irregulars.state_codec import decode_state, encode_state

T = TypeVar("T")


def stored(state: T, kind: Any = None) -> T:
    """Return what another process reads of a state; `kind` where the state is a bare tuple."""
    again: T = decode_state(encode_state(state, 1), kind or type(state), 1)
    return again
