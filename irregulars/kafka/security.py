"""Who we are to Kafka, and how we know the broker: one set of values for producers, agent, workers and commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from irregulars.errors import InputError
from irregulars.private_files import read_secret

if TYPE_CHECKING:
    from irregulars.kafka.oauth_tokens import TokenSource

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""SASL mechanisms that need a secret alone."""

# Where a secret may go without TLS: it does not leave the machine.
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_TLS_FILES: Final = ("ca_file", "cert_file", "key_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSecurity:
    """The settings whose names begin with ``kafka_``, without that; ``infra/docs/settings.md`` explains each.

    Raises `InputError` if they don't fit together.
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: Path | None = None
    mechanism: str = "SCRAM-SHA-512"
    tls: bool = False
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    token_file: Path | None = None
    token_url: str | None = None
    token_scope: str | None = None

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise InputError(f"kafka_mechanism must be one of {', '.join(MECHANISMS)}; got {self.mechanism!r}")
        if self.password is not None and self.password_file is not None:
            raise InputError("one of kafka_password and kafka_password_file must be set; got both")
        if (self.cert_file is None) != (self.key_file is None):
            raise InputError("kafka_cert_file and kafka_key_file must be set together; got one of them")
        for name in _TLS_FILES:
            if getattr(self, name) is not None and not self.tls:
                raise InputError(f"kafka_tls must be true where kafka_{name} is set; got false")
        if self._takes_tokens:
            self._check_token()
            return
        for name in ("token_file", "token_url", "token_scope"):
            if getattr(self, name) is not None:
                raise InputError(
                    f"kafka_mechanism must be OAUTHBEARER where kafka_{name} is set; got {self.mechanism}"
                )
        self._check_password()

    def client(self, *, is_asking: bool = True) -> dict[str, Any]:
        """Return librdkafka's settings of protocol and credentials; they hold secrets, so never log them.

        Secrets are read from their files now: an error in them shows at once.

        `is_asking`: fetch a first token now as well. Who can wait for it fetches it later, by calling ``oauth_cb``;
        librdkafka makes no client without one.

        Raises `InputError` if a file of a secret can't be read; `ServiceRefused` or `ServiceUnavailable` if the token
        endpoint refuses us, or gives no token.
        """
        has_login = self.user is not None or self._takes_tokens
        values: dict[str, Any] = {
            "security.protocol": ("sasl_" if has_login else "") + ("ssl" if self.tls else "plaintext")
        }
        if self._takes_tokens:
            source = self._tokens()
            if is_asking:
                source()
            values |= {"sasl.mechanism": self.mechanism, "oauth_cb": source}
        elif self.user is not None:
            # Not at the top: settings hold this class, and a command that only reads them loads no Kafka client.
            from irregulars.kafka.login_password import LoginPassword

            values |= {
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.user,
                "sasl.password": LoginPassword(self._secret(), self.user, self.password_file),
            }
        librdkafka = {"ca_file": "ssl.ca.location", "cert_file": "ssl.certificate.location",
                      "key_file": "ssl.key.location"}  # fmt: skip
        return values | {librdkafka[name]: str(path) for name in _TLS_FILES if (path := getattr(self, name))}

    @property
    def _takes_tokens(self) -> bool:
        return self.mechanism == "OAUTHBEARER"

    def _check_password(self) -> None:
        if self.user is not None and self.password is None and self.password_file is None:
            raise InputError(
                "kafka_password or kafka_password_file must be set where kafka_user is; got none. "
                "Set IRREGULARS_KAFKA_PASSWORD"
            )
        if self.user is None and (self.password is not None or self.password_file is not None):
            raise InputError("kafka_user must be set where its password is; got none")

    def _check_token(self) -> None:
        if (self.token_file is None) == (self.token_url is None):
            raise InputError("one of kafka_token_file and kafka_token_url must be set with OAUTHBEARER; "
                             f"got {'none' if self.token_url is None else 'both'}")  # fmt: skip
        self._check_password()
        if self.token_url is None:
            return
        parts = urlsplit(self.token_url)
        if self.user is None:
            raise InputError("kafka_user must be the client id where kafka_token_url is set; got none")
        if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
            raise InputError(
                f"kafka_token_url must be https://…, as the client's secret goes there; got {self.token_url!r}"
            )

    def _tokens(self) -> TokenSource:
        from irregulars.kafka.oauth_tokens import TokenEndpoint, TokenSource, token_of_file

        path, url = self.token_file, self.token_url
        if path is not None:
            return TokenSource(lambda: token_of_file(path))

        def endpoint() -> TokenEndpoint:
            return TokenEndpoint(url or "", self.user or "", self._secret(), self.token_scope, self.ca_file)

        endpoint()  # errors in its files show now; for each token they are read again
        return TokenSource(lambda: endpoint()())

    def _secret(self) -> str:
        if self.password_file is not None:
            return read_secret(self.password_file, "kafka_password_file")
        return self.password or ""


def security_of_environment(environment: Mapping[str, str]) -> KafkaSecurity:
    """Read the same values where no settings file is read: in a training process; raises `InputError`.

    `environment`: variables; ``IRREGULARS_KAFKA_USER`` and so on count.

    >>> security_of_environment({"IRREGULARS_KAFKA_TLS": "true"}).client()
    {'security.protocol': 'ssl'}
    """
    found: dict[str, Any] = {}
    for one in fields(KafkaSecurity):
        text = environment.get(f"IRREGULARS_KAFKA_{one.name.upper()}")
        if text:
            found[one.name] = Path(text) if one.name.endswith("_file") else text
    tls = str(found.pop("tls", "false")).lower()
    if tls not in ("true", "false", "1", "0"):
        raise InputError(f"kafka_tls must be true or false; got {tls!r} (environment variable IRREGULARS_KAFKA_TLS)")
    return KafkaSecurity(tls=tls in ("true", "1"), **found)
