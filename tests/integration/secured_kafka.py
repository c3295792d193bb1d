"""Kafka as a company would run it, with certificates and tokens of its own, and TLS before servers without it.

Certificates and tokens are made with openssl: keys never leave the test's directory.
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from irregulars.infra.runs.child_process import HOST, free_port
from irregulars.infra.settings import Settings
from irregulars.kafka.access_roles import ROLES, grant, rights_of
from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import TopicSettings
from tests.apache_kafka.broker import KafkaBroker
from tests.conftest import failing_in_one_line
from tests.sinks.notices.receiver import CLOSING, Receiver, Reply, Request


def openssl(*arguments: str, given: bytes = b"") -> bytes:
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
        now_s = int(time.time())
        claims = {"sub": subject, "iat": now_s - 1, "exp": int(now_s + valid_s), "aud": audience, "iss": "test"}
        parts = [encode(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "test"}, claims)]
        signature = openssl("dgst", "-sha256", "-sign", str(self._key), given=".".join(parts).encode())
        return ".".join([*parts, encode(signature)])


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@contextmanager
def behind_tls(url: str, authority: Authority, days: int = 2) -> Iterator[str]:
    """Yield an https URL on loopback that leads to the http `url`, with a certificate of `authority`."""
    certificate, key = authority.issue("database", days)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    inner = ("127.0.0.1", int(url.rpartition(":")[2]))

    class Front(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with (
                contextlib.suppress(OSError),
                context.wrap_socket(self.request, server_side=True) as outside,
                socket.create_connection(inner) as inside,
            ):
                back = threading.Thread(target=_pump, args=(inside, outside))
                back.start()
                _pump(outside, inside)
                back.join()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Front) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        serving.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


PACKAGE = "org.apache.kafka.common.security"
DEADLINE_S = 60.0


class SecuredKafka(KafkaBroker):
    """A broker with a listener for mutual TLS, and one for SASL over TLS, with an authoriser.

    The plain listener is for the test itself: who comes there is a super user.

    `tls_bootstrap`, `sasl_bootstrap`: addresses of the two.
    `password`: of each user of `users`, whatever the mechanism.
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


@contextmanager
def kafka_of_ada(directory: Path, topics: TopicSettings) -> Iterator[SecuredKafka]:
    """Run a broker on which the user `ada` may do everything with some topics."""
    with failing_in_one_line(), SecuredKafka(directory, ("ada",)) as running:
        create_topics(running.bootstrap, topics)
        for role in ROLES:
            grant(running.bootstrap, {}, "User:ada", rights_of(role, topics, "irregulars"))
        yield running


def settings_of_ada(broker: SecuredKafka, folder: Path, **others: Any) -> Settings:
    """Make the settings of processes that log in as her over TLS, as quick as in `Pipeline`."""
    return Settings(
        kafka_bootstrap=broker.sasl_bootstrap, kafka_tls=True, kafka_ca_file=broker.authority.certificate,
        kafka_user="ada", partitions=1, session_s=6.0, snapshot_s=0.5, stop_s=60.0, metrics_listen="off",
        data_dir=folder / "data", **others,
    )  # fmt: skip


class TokenServer:
    """Gives a token to each user who says the broker's password; at one address over all starts and stops.

    `url`: of the token endpoint.
    `expires_in_s`: how long its tokens may be used.
    """

    def __init__(self, broker: SecuredKafka) -> None:
        self._broker = broker
        self._port = free_port()
        self._running = ExitStack()
        self.expires_in_s = 600
        self.url = f"http://{HOST}:{self._port}/token"

    def start(self) -> None:
        """Answer from now on."""
        self._running.enter_context(Receiver(self._answer, port=self._port))

    def stop(self) -> None:
        """Be away from now on. Twice is fine."""
        self._running.close()

    def _answer(self, request: Request) -> Reply:
        """Give the user who asks a token; a wrong secret gets none."""
        basic = base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
        user, _, secret = basic.partition(":")
        is_known = secret == self._broker.password
        token = self._broker.signer.token(user, self.expires_in_s) if is_known else None
        told = {"access_token": token, "expires_in": self.expires_in_s}
        return Reply(200 if is_known else 401, json.dumps(told).encode(), CLOSING)
