"""What a broker shows to whoever connects: its certificate, and which requests it takes. Nobody logs in for it."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from irregulars.streams.kafka.security import KafkaSecurity

_API_VERSIONS: Final = 18
_FETCH: Final = 1
_MOST_BYTES: Final = 1 << 16
_UTC_TIME: Final = 0x17
_VERSION: Final = 0xA0

_FETCH_SINCE: Final = ((18, "4.1"), (17, "3.9"), (16, "3.7"), (15, "3.5"), (13, "3.1"), (12, "2.7"), (11, "2.3"))
"""Newest version of the request Fetch by the release of Apache Kafka that brought it."""

_FETCH_WITHOUT_OLD: Final = 4
"""Kafka 4.0 took away the versions of Fetch before this one."""


@dataclass(frozen=True, slots=True)
class Handshake:
    """What came of it; `error` says why nothing did.

    Parameters
    ----------
    certificate_ends_s
        Until when its certificate is valid, s since 1970.
    requests
        By number of the request: its oldest and newest version.
    """

    certificate_ends_s: float | None = None
    requests: Mapping[int, tuple[int, int]] | None = None
    error: str | None = None


def shake_hands(bootstrap: str, security: KafkaSecurity, timeout_s: float) -> Handshake:
    """Connect to the first broker of a list that can be reached, and ask which requests it takes."""
    error = "no broker can be reached"
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as plain:
                return _talk(plain, host, security)
        except (OSError, ValueError) as failure:
            error = str(failure) or type(failure).__name__
    return Handshake(error=error)


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


def file_ends_s(path: Path) -> float | None:
    """Return until when the first certificate of a PEM file is valid, s since 1970; None: there is none."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    try:
        _, found, rest = path.read_text("ascii", "replace").partition(begin)
        if not found:
            return None
        return ends_s(ssl.PEM_cert_to_DER_cert(begin + rest.partition(end)[0] + end))
    except (OSError, ValueError, IndexError):
        return None


def ends_s(certificate: bytes) -> float:
    """Return until when a certificate (DER, RFC 5280) is valid, s since 1970; raises ValueError or IndexError."""
    _, place, _ = _element(certificate, 0)  # Certificate
    _, place, _ = _element(certificate, place)  # TBSCertificate
    tag, _, past = _element(certificate, place)
    for _ in range(4 if tag == _VERSION else 3):  # version if it is told, serial number, algorithm, issuer
        place = past
        tag, _, past = _element(certificate, place)
    _, place, _ = _element(certificate, place)  # validity: from, until
    _, _, place = _element(certificate, place)
    tag, first, past = _element(certificate, place)
    text = certificate[first:past].decode("ascii")
    form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()


def _element(data: bytes, place: int) -> tuple[int, int, int]:
    """Return the tag of the element at `place`, where its content begins, and where it ends."""
    tag, length, first = data[place], data[place + 1], place + 2
    if length & 0x80:
        first += length & 0x7F
        length = int.from_bytes(data[place + 2 : first], "big")
    return tag, first, first + length


def _talk(plain: socket.socket, host: str, security: KafkaSecurity) -> Handshake:
    if not security.tls:
        return Handshake(requests=_requests(plain))
    # Only looked at, whoever it is: librdkafka verifies it when we log in, and says what is wrong with it.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if security.cert_file is not None and security.key_file is not None:
        context.load_cert_chain(security.cert_file, security.key_file)
    with context.wrap_socket(plain, server_hostname=host.strip("[]")) as safe:
        certificate = safe.getpeercert(binary_form=True)
        found = None if certificate is None else ends_s(certificate)
        try:
            return Handshake(found, _requests(safe))
        except OSError:
            return Handshake(found)


def _requests(connection: socket.socket) -> dict[int, tuple[int, int]] | None:
    """Send ApiVersions, version 0, which every broker answers before a log-in."""
    body = struct.pack(">hhih", _API_VERSIONS, 0, 1, -1)
    connection.sendall(struct.pack(">i", len(body)) + body)
    (length,) = struct.unpack(">i", _exactly(connection, 4))
    if not 10 <= length <= _MOST_BYTES:
        return None
    answer = _exactly(connection, length)
    error, count = struct.unpack_from(">hi", answer, 4)
    if error or not 0 <= count <= (length - 10) // 6:
        return None
    found = (struct.unpack_from(">hhh", answer, 10 + 6 * place) for place in range(count))
    return {number: (oldest, newest) for number, oldest, newest in found}


def _exactly(connection: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        part = connection.recv(length - len(received))
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        received += part
    return received
