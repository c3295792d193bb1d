"""Until when certificates are valid, read by hand: Python's own reader asks for an authority that we may lack."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_UTC_TIME: Final = 0x17
_VERSION: Final = 0xA0


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
