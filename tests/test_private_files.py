"""What we write is nobody else's to read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from irregulars.errors import InputError
from irregulars.infra.runs.data_directory import DataDirectory
from irregulars.infra.settings import Settings, load_settings
from irregulars.kafka.security import KafkaSecurity, security_of_environment
from irregulars.private_files import make_private_directory, read_secret, write_private_file
from irregulars.producers.publishing.spool import Message, Spool


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0o000)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_spool_and_a_service_s_directory_are_ours_alone_also_one_that_was_left_open(tmp_path: Path) -> None:
    directory = tmp_path / "agent" / "spool"
    Spool(directory, 1 << 24, lambda _: None).append(1, [Message("commops", b"k", b"v")])
    assert {mode(path) for path in (directory, directory.parent)} == {0o700}
    assert {mode(path) for path in directory.iterdir()} == {0o600}
    directory.chmod(0o755)
    Spool(directory, 1 << 24, lambda _: None)
    assert mode(directory) == 0o700
    data = DataDirectory(tmp_path / "a" / "b", "test-")
    data.take()
    data.release()
    assert [mode(path) for path in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700, 0o700]


def test_a_directory_that_people_name_stays_as_it_is_and_a_file_in_it_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private_directory(tmp_path)
    assert mode(tmp_path) == 0o755
    path = tmp_path / "state"
    path.write_text("open")
    path.chmod(0o644)
    write_private_file(path, b"closed")
    assert (mode(path), path.read_bytes()) == (0o600, b"closed")


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines", b"\xff\xfe", b"x" * 70_000])
def test_a_file_that_holds_no_secret_is_an_error_without_its_content(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(InputError, match="kafka_password_file must be a file with one line of text") as caught:
        read_secret(path, "kafka_password_file")
    assert "lines" not in str(caught.value)


def test_a_secret_is_given_by_no_flag() -> None:
    with pytest.raises(InputError, match="kafka_password must not be given by a flag") as caught:
        load_settings({"kafka_password": "swordfish"}, environment={})
    assert "swordfish" not in str(caught.value)


@pytest.mark.parametrize(("values", "said"), [
    ({"kafka_cert_file": Path("c")}, "kafka_cert_file and kafka_key_file must be set together"),
    ({"kafka_ca_file": Path("c")}, "kafka_tls must be true where kafka_ca_file is set"),
    ({"kafka_mechanism": "OAUTHBEARER"}, "one of kafka_token_file and kafka_token_url must be set"),
    ({"kafka_token_file": Path("t")}, "kafka_mechanism must be OAUTHBEARER where kafka_token_file is set"),
    (
        {"kafka_mechanism": "OAUTHBEARER", "kafka_token_url": "http://far.example:80/t", "kafka_user": "u",
         "kafka_password": "swordfish"},
        "kafka_token_url must be https://",
    ),
    ({"kafka_password": "swordfish"}, "kafka_user must be set where its password is"),
    ({"kafka_user": "u", "kafka_password": "swordfish", "kafka_password_file": Path("p")}, "got both"),
    ({"clickhouse_password": "swordfish", "clickhouse_password_file": Path("p")}, "got both"),
])  # fmt: skip
def test_settings_that_do_not_fit_are_named_and_no_secret_with_them(values: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        Settings(**values)  # type: ignore[arg-type]  # whatever a person may have written
    assert "swordfish" not in str(caught.value)


def test_a_training_process_reads_the_same_names_from_its_environment(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("swordfish\n")
    environment = {"IRREGULARS_KAFKA_USER": "ada", "IRREGULARS_KAFKA_PASSWORD_FILE": str(secret),
                   "IRREGULARS_KAFKA_TLS": "1", "IRREGULARS_DELTA": "2"}  # fmt: skip
    found = security_of_environment(environment)
    assert found == KafkaSecurity(user="ada", password_file=secret, tls=True)
    assert found == load_settings(environment=environment).kafka_security()
    assert found.client()["sasl.password"] == "swordfish"
