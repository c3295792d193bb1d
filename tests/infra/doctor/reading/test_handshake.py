from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from irregulars.infra.doctor.reading.handshake import shake_hands
from irregulars.kafka.security import KafkaSecurity
from tests.integration.certificates import Authority


def test_where_nobody_listens_it_says_so_of_each_address() -> None:
    obstacle = shake_hands("127.0.0.1:1,localhost:1", KafkaSecurity(), 1.0).obstacle
    assert obstacle is not None
    assert obstacle.code == "kafka_unreachable"
    assert obstacle.text.endswith("127.0.0.1:1: Connection refused; localhost:1: Connection refused")


def test_who_never_answers_is_waited_for_no_longer_than_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begin_s = time.monotonic()
        obstacle = shake_hands(f"127.0.0.1:{silent.getsockname()[1]}", KafkaSecurity(tls=True), 0.5).obstacle
        assert obstacle is not None
        assert obstacle.code == "kafka_away"
        assert time.monotonic() - begin_s < 30.0


# --- with a certificate of ours -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@contextmanager
def played(authority: Authority, asks: bool, after: Callable[[ssl.SSLSocket], None]) -> Iterator[str]:
    """Shake hands with whoever connects, then do something else than answer; connections stay until the end."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("broker"))
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.certificate)

    def serve(plain: socket.socket) -> None:
        with suppress(OSError):
            safe = stack.enter_context(context.wrap_socket(plain, server_side=True))
            after(safe)

    def accept() -> None:
        with suppress(OSError):
            while True:
                plain, _ = listening.accept()
                threading.Thread(target=serve, args=(plain,), daemon=True).start()

    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def stay_silent(_: ssl.SSLSocket) -> None:
    return


def reset(safe: ssl.SSLSocket) -> None:
    safe.recv(4)  # what we asked has arrived: the handshake is over on both sides
    safe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    safe.close()


@pytest.mark.parametrize(
    ("asks", "after", "code", "words"),
    [
        (False, stay_silent, "kafka_away", "takes connections, and does not answer as Kafka does"),
        (False, reset, "own_certificate_refused", "refuses our certificate (kafka_cert_file): "),
        (True, stay_silent, "own_certificate_refused", "refuses our certificate (kafka_cert_file): "),
    ],
    ids=["slow", "hangs up", "alerts"],
)
def test_only_who_says_so_or_hangs_up_refuses_our_certificate(
    authority: Authority, tmp_path: Path, asks: bool, after: Callable[[ssl.SSLSocket], None], code: str, words: str
) -> None:
    """The certificate is a stranger's. A broker that is slow has refused nothing."""
    certificate, key = Authority(tmp_path, "a stranger").issue("worker")
    security = KafkaSecurity(tls=True, ca_file=authority.certificate, cert_file=certificate, key_file=key)
    with played(authority, asks, after) as address:
        obstacle = shake_hands(address, security, 2.0).obstacle
    assert obstacle is not None
    assert (obstacle.code, words in obstacle.text) == (code, True), obstacle
