from __future__ import annotations

import logging
import threading

import pytest

from irregulars.infra.doctor.diagnosis import BlockWatch, MachineFacts, SecretFile, check_machine, is_blocking
from irregulars.infra.doctor.findings import Finding, finding, ok
from irregulars.infra.doctor.topics import check_topics
from irregulars.kafka.topics import TOPICS
from tests.infra.doctor.installations import LAYOUT, kafka, topic, troubles

MISSING = finding("problem", "topics", "topics", "1 topic missing: a.jobs", "topic_missing")
OTHER = finding("problem", "machine", "secrets", "others may read it", "secret_open", path="x")
SLOW = finding("warning", "workers", "lag", "the oldest of 70 s ago", "behind")


def test_it_looks_by_itself_while_the_block_runs_and_each_reason_is_said_once_until_it_comes_back() -> None:
    said: list[str] = []
    looks: list[list[Finding]] = [[MISSING, OTHER, SLOW], [MISSING], [ok("topics", "topics", "all")], [MISSING]]
    watch = BlockWatch(lambda: looks.pop(0), said.append)
    watch.look()
    watch.look()
    assert said == ["NO ALERT CAN COME: topics: 1 topic missing: a.jobs. What to do: irregulars topics create"]
    watch.look()
    watch.look()
    assert len(said) == 2
    said = threading.Event()
    with BlockWatch(lambda: [MISSING], lambda _: said.set(), first_s=0.01, every_s=0.01) as watch:
        assert said.wait(60)
    assert not watch._thread.is_alive()


def test_whoever_may_read_alerts_alone_is_not_told_that_none_come() -> None:
    hidden = {name: topic(name, error="refused") for name in TOPICS if name not in ("alerts", "verdicts", "actions")}
    found = [*check_topics(kafka(topics=hidden), LAYOUT, 30.0)]
    assert {one.code for one in found if one.level != "ok"} == {"topic_hidden"}
    assert not any(map(is_blocking, found))
    assert is_blocking(MISSING)


@pytest.mark.parametrize("code", ["kafka_away", "kafka_unreachable", "kafka_refuses", "log_in_refused"])
def test_a_broker_that_can_t_be_used_blocks_whatever_the_cause(code: str) -> None:
    assert is_blocking(finding("problem", "kafka", "broker", "no broker can be reached", code))
    assert not is_blocking(finding("warning", "kafka", "broker", "answered in 3 s", "kafka_slow"))


def test_a_fault_of_the_look_is_said_once_and_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []
    is_told = threading.Event()
    looks = iter([ValueError("odd answer"), ValueError("odd answer"), [MISSING]])

    def look() -> list[Finding]:
        found = next(looks, [])
        if isinstance(found, ValueError):
            raise found
        return found

    def say(line: str) -> None:
        said.append(line)
        if "topic missing" in line:
            is_told.set()

    with caplog.at_level(logging.ERROR), BlockWatch(look, say, first_s=0.01, every_s=0.01):
        assert is_told.wait(60)
    assert len(said) == 2
    assert "looking raised ValueError: odd answer" in said[0]
    assert [record.message for record in caplog.records] == ["event=block_watch_failed"]


WELL = {"settings_file": "irregulars.toml", "free_bytes": 50 << 30, "data_directory": ".irregulars"}


@pytest.mark.parametrize(("broken", "expected"), [
    ({}, []),
    ({"refused": ("setting must be a known one; got 'detla'",)}, [("problem", "setting_refused")]),
    ({"secrets": (SecretFile("kafka_password_file", "/run/secret", 0o600),)}, []),
    ({"secrets": (SecretFile("kafka_password_file", "/run/secret", 0o644),)}, [("problem", "secret_open")]),
    ({"secrets": (SecretFile("kafka_password_file", "/run/secret", 0o640),)}, [("warning", "secret_open")]),
    ({"secrets": (SecretFile("kafka_key_file", "/none", None, "No such file"),)}, [("problem", "secret_missing")]),
    ({"free_bytes": 100 << 20}, [("warning", "disk_small")]),
])  # fmt: skip
def test_what_is_found_of_a_machine(broken: dict[str, object], expected: list[tuple[str, str]]) -> None:
    assert troubles(check_machine(MachineFacts("0.1.0", **WELL | broken))) == expected  # type: ignore[arg-type]


def test_of_what_a_worker_needs_nobody_else_is_told() -> None:
    bare = MachineFacts("0.1.0", has_worker=False, **WELL)  # type: ignore[arg-type]
    assert troubles(check_machine(bare, "agent")) == []
    assert troubles(check_machine(bare, "worker")) == [("warning", "no_extra")]
