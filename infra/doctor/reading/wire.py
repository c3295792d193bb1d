"""Two requests that every broker answers before anybody has logged in, written and read by hand."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

SASL_HANDSHAKE: Final = 17
_API_VERSIONS: Final = 18
_FETCH: Final = 1
_MOST_BYTES: Final = 1 << 16

NOT_OFFERED: Final = 33
"""Kafka's UNSUPPORTED_SASL_MECHANISM."""

NO_LOG_IN: Final = 34
"""Kafka's ILLEGAL_SASL_STATE: nobody logs in at this port."""

_FETCH_SINCE: Final = ((18, "4.1"), (17, "3.9"), (16, "3.7"), (15, "3.5"), (13, "3.1"), (12, "2.7"), (11, "2.3"))
"""Newest version of the request Fetch by the release of Apache Kafka that brought it."""

_FETCH_WITHOUT_OLD: Final = 4
"""Kafka 4.0 took away the versions of Fetch before this one."""


class LogIn(NamedTuple):
    """What a broker says to somebody who wants to log in: Kafka's number of an error, and the ways that it offers."""

    error: int
    mechanisms: tuple[str, ...]


def release_of(requests: Mapping[int, tuple[int, int]] | None) -> str | None:
    """Return the release of Kafka whose interface it is.

    >>> release_of({1: (4, 17)}), release_of({1: (0, 13)}), release_of({3: (0, 1)})
    ('4.0 or newer', '3.1 or newer', None)
    """
    if not requests or _FETCH not in requests:
        return None
    oldest, newest = requests[_FETCH]
    found = next((release for version, release in _FETCH_SINCE if newest >= version), None)
    if found is not None and oldest >= _FETCH_WITHOUT_OLD and found < "4.0":
        found = "4.0"
    return None if found is None else f"{found} or newer"


def ask_requests(connection: socket.socket) -> dict[int, tuple[int, int]] | None:
    """Return by number of a request its oldest and newest version; None: the answer is not Kafka's."""
    answer = _asked(connection, _API_VERSIONS, 0, b"")
    if answer is None:
        return None
    error, count = struct.unpack_from(">hi", answer, 4)
    if error or not 0 <= count <= (len(answer) - 10) // 6:
        return None
    found = (struct.unpack_from(">hhh", answer, 10 + 6 * place) for place in range(count))
    return {number: (oldest, newest) for number, oldest, newest in found}


def ask_log_in(connection: socket.socket, mechanism: str) -> LogIn | None:
    """Say how we would log in, and do not; None: the answer is not Kafka's."""
    name = mechanism.encode()
    answer = _asked(connection, SASL_HANDSHAKE, 1, struct.pack(">h", len(name)) + name)
    if answer is None:
        return None
    error, count = struct.unpack_from(">hi", answer, 4)
    return LogIn(error, tuple(_texts(answer, 10, count)))


def _texts(data: bytes, place: int, count: int) -> list[str]:
    found: list[str] = []
    for _ in range(count):
        if place + 2 > len(data):
            break
        (length,) = struct.unpack_from(">h", data, place)
        found.append(data[place + 2 : place + 2 + length].decode("ascii", "replace"))
        place += 2 + max(length, 0)
    return found


def _asked(connection: socket.socket, request: int, version: int, body: bytes) -> bytes | None:
    head = struct.pack(">hhih", request, version, 1, -1)
    connection.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
    (length,) = struct.unpack(">i", _exactly(connection, 4))
    return _exactly(connection, length) if 10 <= length <= _MOST_BYTES else None


def _exactly(connection: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        part = connection.recv(length - len(received))
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        received += part
    return received
