"""The password with which we log in, whose file may be replaced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from irregulars.kafka import login_password
from irregulars.kafka.login_password import LoginPassword
from irregulars.kafka.security import KafkaSecurity


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_password, "LOOK_S", -1.0)


class Told:
    def __init__(self) -> None:
        self.logins: list[tuple[str, str]] = []

    def set_sasl_credentials(self, username: str, password: str, /) -> None:
        self.logins.append((username, password))


def test_a_client_is_told_once_of_each_new_password_and_of_none_while_the_file_can_t_be_read(tmp_path: Path) -> None:
    path, client = tmp_path / "password", Told()
    path.write_text("old\n")
    password = LoginPassword("old", "ada", path)
    password.follow(client)
    assert password.newest() == "old"
    path.write_text("new\n")
    assert [password.newest(), password.newest()] == ["new", "new"]
    assert client.logins == [("ada", "new")]
    assert password == "old", "the settings stay as they were"
    password = LoginPassword("old", "ada", tmp_path / "gone")
    assert password.newest() == "old"
    (tmp_path / "gone").write_text("")
    assert password.newest() == "old"


def test_it_shows_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "password"
    path.write_text("swordfish")
    password = LoginPassword("hunter2", "ada", path)
    with caplog.at_level(logging.DEBUG):
        password.newest()
        password.note(KafkaError(KafkaError._AUTHENTICATION))
    assert "swordfish" not in repr(password) + caplog.text
    assert "hunter2" not in repr(password) + repr({"sasl.password": password}) + caplog.text


def test_a_refusal_at_the_start_ends_the_process_and_is_told_by_that_alone(caplog: pytest.LogCaptureFixture) -> None:
    password = LoginPassword("x", "ada", None)
    password.note(KafkaError(KafkaError._AUTHENTICATION))
    assert caplog.records == []
    assert "refused the login of 'ada'" in str(password.refusal(60.0))


def test_a_refusal_is_told_once_with_whom_and_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_password, "START_S", 0.0)
    for path, advice in ((tmp_path / "password", str(tmp_path / "password")), (None, "start it again")):
        caplog.clear()
        password = LoginPassword("x", "ada", path)
        assert password.refusal(60.0) is None
        for code in (KafkaError._TRANSPORT, KafkaError._AUTHENTICATION, KafkaError._AUTHENTICATION):
            password.note(KafkaError(code))
        (line,) = [one.getMessage() for one in caplog.records]
        assert line.startswith("event=login_refused service=kafka user='ada'")
        assert advice in line
        assert "refused the login of 'ada'" in str(password.refusal(60.0))


def test_all_clients_of_a_user_with_a_password_get_it_from_the_settings() -> None:
    found = KafkaSecurity(user="ada", password="x").client()["sasl.password"]
    assert isinstance(found, LoginPassword)
    assert (found, found.user, found.path) == ("x", "ada", None)


@pytest.mark.parametrize("make", [login_password.new_consumer, login_password.new_producer])
def test_a_client_logs_in_with_a_new_password_as_soon_as_it_is_used(
    make: Callable[[Mapping[str, Any]], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "password"
    path.write_text("old")
    password = LoginPassword("old", "ada", path)
    client = make({
        "bootstrap.servers": "127.0.0.1:1", "group.id": "g", "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN", "sasl.username": "ada", "sasl.password": password,
    })  # fmt: skip
    told: list[tuple[str, str]] = []
    monkeypatch.setattr(client, "set_sasl_credentials", lambda *login: told.append(login))
    client.poll(0.0)
    path.write_text("new")
    for _ in range(2):
        client.poll(0.0)
    assert told == [("ada", "new")]
    assert type(client).__mro__[1] in (Consumer, Producer)
