from __future__ import annotations

import ssl
from pathlib import Path

from irregulars.infra.doctor.reading.certificate import file_ends_s
from tests.integration.certificates import Authority


def test_a_certificate_s_end_is_what_openssl_says(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(cafile=str(authority.certificate))
    (known,) = context.get_ca_certs()
    assert file_ends_s(authority.certificate) == ssl.cert_time_to_seconds(str(known["notAfter"]))


def test_a_file_without_a_certificate_ends_never(tmp_path: Path) -> None:
    path = tmp_path / "own.pem"
    assert file_ends_s(path) is None
    for text in ("", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        path.write_text(text)
        assert file_ends_s(path) is None
