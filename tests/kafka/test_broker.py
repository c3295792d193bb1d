from __future__ import annotations

import math
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from irregulars.errors import ServiceRefused, ServiceUnavailable
from irregulars.infra.runs.child_process import free_port
from irregulars.kafka import broker
from irregulars.kafka.broker import REFUSALS, client_config, open_admin, service_error
from irregulars.kafka.login_password import LoginPassword


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_a_refusal_names_the_address_and_what_to_check(code: int) -> None:
    error = service_error(KafkaError(code), "broker:9092", 3.0)
    assert isinstance(error, ServiceRefused)
    assert str(error).startswith("Kafka at broker:9092 must accept our credentials; got ")


def test_a_password_from_a_file_that_was_right_before_may_be_refused_for_a_while(tmp_path: Path) -> None:
    refused, denied = KafkaError(KafkaError._AUTHENTICATION), KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    for password, is_final in ((LoginPassword("x", "ada", tmp_path), False), (LoginPassword("x", "ada", None), True)):
        security = {"sasl.password": password}
        assert isinstance(service_error(refused, "broker:9092", security=security), ServiceRefused)
        password.note_right()
        assert isinstance(service_error(refused, "broker:9092", security=security), ServiceRefused) == is_final
        assert isinstance(service_error(denied, "broker:9092", security=security), ServiceRefused)


class RefusingAdmin:
    """librdkafka tells of the refused login in the background; the call itself finds no broker to ask."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._tell: Callable[[KafkaError], None] = config["error_cb"]

    def list_topics(self, timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def poll(self, timeout: float) -> None:
        self._tell(KafkaError(KafkaError._AUTHENTICATION))


def test_a_login_that_is_refused_for_a_while_is_said_to_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(broker, "AdminClient", RefusingAdmin)
    password = LoginPassword("x", "ada", tmp_path)
    password.note_right()
    with pytest.raises(ServiceUnavailable, match="must accept our login; got _AUTHENTICATION"):
        open_admin("broker:9092", {"sasl.password": password}, timeout_s=0.1)


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN])
@pytest.mark.parametrize(("timeout_s", "within"), [(None, ""), (2.5, " within 2.5 s")])
def test_anything_else_is_a_broker_that_does_not_answer(code: int, timeout_s: float | None, within: str) -> None:
    error = service_error(KafkaError(code), "broker:9092", timeout_s)
    assert isinstance(error, ServiceUnavailable)
    assert str(error).startswith(f"Kafka at broker:9092 must answer{within}; got ")


def test_nobody_at_the_address_is_one_line_and_credentials_are_in_no_error() -> None:
    security = {"security.protocol": "sasl_plaintext", "sasl.password": "swordfish"}
    assert client_config("broker:9092", security).items() >= {"bootstrap.servers": "broker:9092", **security}.items()
    with pytest.raises(ServiceUnavailable, match="No such configuration property") as caught:
        open_admin("broker:9092", {**security, "no.such.setting": "1"})
    assert "swordfish" not in str(caught.value)
    bootstrap = f"127.0.0.1:{free_port()}"
    with pytest.raises(ServiceUnavailable, match=rf"^Kafka at {bootstrap} must answer within 0\.2 s; got .+$"):
        open_admin(bootstrap, {}, timeout_s=0.2)
    with pytest.raises(ServiceUnavailable, match=r"within 0\.1 s; got .*Connection refused"):
        open_admin(bootstrap, {}, timeout_s=math.inf, refused_s=0.1)
    with socket.create_server(("127.0.0.1", 0)) as slow:  # one of two brokers that has not answered yet is waited for
        both = f"{bootstrap},127.0.0.1:{slow.getsockname()[1]}"
        with pytest.raises(ServiceUnavailable, match=r"within 2\.5 s; got "):
            open_admin(both, {}, timeout_s=2.5, refused_s=0.1)
