from __future__ import annotations

import pytest

from irregulars.infra.doctor.diagnosis import MachineFacts, SecretFile, check_machine
from tests.infra.doctor.installations import troubles

WELL = {"settings_file": "irregulars.toml", "free_bytes": 50 << 30, "data_directory": ".irregulars"}


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ({}, []),
        ({"refused": ("setting must be a known one; got 'detla'",)}, [("problem", "setting_refused")]),
        ({"secrets": (SecretFile("kafka_password_file", "/run/secret", 0o600),)}, []),
        ({"secrets": (SecretFile("kafka_password_file", "/run/secret", 0o644),)}, [("problem", "secret_open")]),
        ({"secrets": (SecretFile("kafka_password_file", "/run/secret", 0o640),)}, [("warning", "secret_open")]),
        (
            {"secrets": (SecretFile("kafka_key_file", "/none", None, "No such file"),)},
            [("problem", "secret_missing")],
        ),
        ({"free_bytes": 100 << 20}, [("warning", "disk_small")]),
    ],
)
def test_what_is_found_of_a_machine(broken: dict[str, object], expected: list[tuple[str, str]]) -> None:
    assert troubles(check_machine(MachineFacts("0.1.0", **WELL | broken))) == expected  # type: ignore[arg-type]


def test_of_what_a_worker_needs_nobody_else_is_told() -> None:
    bare = MachineFacts("0.1.0", has_worker=False, **WELL)  # type: ignore[arg-type]
    assert troubles(check_machine(bare, "agent")) == []
    assert troubles(check_machine(bare, "worker")) == [("warning", "no_extra")]
