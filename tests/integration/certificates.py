"""Certificates and signed tokens of a test, made with openssl: keys never leave the test's directory."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from pathlib import Path


def openssl(*arguments: str, given: bytes = b"") -> bytes:
    """Run openssl and return what it prints."""
    return subprocess.run(["openssl", *arguments], input=given, capture_output=True, check=True).stdout


class Authority:
    """A certificate authority in a directory of its own; `certificate` is its file, in PEM."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.certificate, self._key = directory / "ca.pem", directory / "ca.key"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                "-subj", f"/CN={name}", "-keyout", str(self._key), "-out", str(self.certificate))  # fmt: skip

    def issue(self, name: str, days: int = 2) -> tuple[Path, Path]:
        """Return certificate and key of `name`, which may also listen on loopback; of -1 days: it has expired."""
        certificate, key = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        request = openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                          "-subj", f"/CN={name}", "-keyout", str(key))  # fmt: skip
        extensions = self._directory / f"{name}.ext"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        openssl("x509", "-req", "-days", str(days), "-CA", str(self.certificate), "-CAkey", str(self._key),
                "-extfile", str(extensions), "-out", str(certificate), given=request)  # fmt: skip
        return certificate, key


class TokenSigner:
    """Signs JSON web tokens (RS256), as an OAuth server does; `jwks` is the file that a broker checks them with."""

    def __init__(self, directory: Path) -> None:
        self._key = directory / "signer.key"
        self.jwks = directory / "jwks.json"
        openssl("genrsa", "-out", str(self._key), "2048")
        modulus = openssl("rsa", "-in", str(self._key), "-noout", "-modulus").decode().strip().partition("=")[2]
        key = {"kty": "RSA", "kid": "test", "use": "sig", "alg": "RS256", "e": "AQAB",
               "n": encode(bytes.fromhex(modulus))}  # fmt: skip
        self.jwks.write_text(json.dumps({"keys": [key]}))

    def token(self, subject: str, valid_s: float = 600.0, audience: str = "kafka") -> str:
        """Return a token of `subject`."""
        now_s = int(time.time())
        claims = {"sub": subject, "iat": now_s - 1, "exp": int(now_s + valid_s), "aud": audience, "iss": "test"}
        parts = [encode(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "test"}, claims)]
        signature = openssl("dgst", "-sha256", "-sign", str(self._key), given=".".join(parts).encode())
        return ".".join([*parts, encode(signature)])


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
