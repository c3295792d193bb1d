"""Apache Kafka as a company would run it: TLS, every way of logging in, and nobody may anything by default."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from irregulars.infra.runs.child_process import HOST, free_port
from tests.apache_kafka.broker import KafkaBroker
from tests.integration.certificates import Authority, TokenSigner

PACKAGE = "org.apache.kafka.common.security"
DEADLINE_S = 60.0


class SecuredKafka(KafkaBroker):
    """A broker with a listener for mutual TLS, and one for SASL over TLS, with an authoriser.

    The plain listener is for the test itself: who comes there is a super user.

    Attributes
    ----------
    tls_bootstrap, sasl_bootstrap
        Addresses of the two.
    password
        Of each user of `users`, whatever the mechanism.
    """

    def __init__(self, directory: Path, users: tuple[str, ...]) -> None:
        super().__init__(directory / "kafka")
        self.users, self.password = users, secrets.token_urlsafe(12)
        self.authority = Authority(directory / "ca")
        self.signer = TokenSigner(directory)
        self.tls_bootstrap, self.sasl_bootstrap = f"{HOST}:{free_port()}", f"{HOST}:{free_port()}"
        self._secrets = directory

    def start(self) -> None:
        super().start()
        self.change_password(self.password)

    def change_password(self, password: str) -> None:
        """Give all users another one, of SCRAM: connections that are there stay, later ones need it."""
        self.password = password
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for mechanism in (
            ScramMechanism.SCRAM_SHA_256,
            ScramMechanism.SCRAM_SHA_512,
        ):  # one request takes one of a user
            wanted = ScramCredentialInfo(mechanism, 4096)
            changes: list[Any] = [
                UserScramCredentialUpsertion(user, wanted, self.password.encode()) for user in self.users
            ]
            for done in admin.alter_user_scram_credentials(changes, request_timeout=DEADLINE_S).values():
                done.result(DEADLINE_S)

    def token_file(self, user: str) -> Path:
        """A file with a token of `user`."""
        path = self._secrets / f"{user}.token"
        path.write_text(self.signer.token(user) + "\n")
        return path

    def _java_options(self) -> tuple[str, ...]:
        return (f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.signer.jwks.as_uri()}",)

    def _own_properties(self) -> Mapping[str, str]:
        certificate, key = self.authority.issue("broker")
        store = self._secrets / "broker-store.pem"
        store.write_text(key.read_text() + certificate.read_text())
        users = " ".join(f'user_{user}="{self.password}"' for user in self.users)
        sasl = "listener.name.sasl"
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.certificate),
            "listener.name.tls.ssl.client.auth": "required",
            "listener.name.tls.ssl.principal.mapping.rules": "RULE:^CN=([^,]+)$/$1/",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            f"{sasl}.plain.sasl.jaas.config": f"{PACKAGE}.plain.PlainLoginModule required {users};",
            f"{sasl}.scram-sha-256.sasl.jaas.config": f"{PACKAGE}.scram.ScramLoginModule required;",
            f"{sasl}.scram-sha-512.sasl.jaas.config": f"{PACKAGE}.scram.ScramLoginModule required;",
            f"{sasl}.oauthbearer.sasl.jaas.config": f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule required;",
            f"{sasl}.oauthbearer.sasl.server.callback.handler.class":
                f"{PACKAGE}.oauthbearer.OAuthBearerValidatorCallbackHandler",
            "sasl.oauthbearer.jwks.endpoint.url": self.signer.jwks.as_uri(),
            "sasl.oauthbearer.expected.audience": "kafka",
            "sasl.oauthbearer.expected.issuer": "test",
            "sasl.oauthbearer.clock.skew.seconds": "1",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "false",
        }  # fmt: skip

    def _more_listeners(self) -> Mapping[str, tuple[str, str]]:
        return {"TLS": (self.tls_bootstrap, "SSL"), "SASL": (self.sasl_bootstrap, "SASL_SSL")}
