"""`irregulars feedback` on a real broker: what people say is stored, and silences what was wrong three times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from irregulars.messages.judgements import Suspect, Verdict, encode_verdict
from tests.integration.notify_runs import NotifyRun, send_alert, webhook
from tests.integration.pipelines import Pipeline, run_command
from tests.integration.worker_runs import Bus, wait_until
from tests.sinks.notices.receiver import Receiver

pytestmark = pytest.mark.integration

NIC = Suspect("nic", 17, (17,), 0.97, host="node-3", gpu=1, nic="mlx5_1")
VERDICT = Verdict("v", 1, "open", "llama", "slow_nic", (60, 80), 1.4, 5.8, None, (NIC,), "slow", world_size=64,
                  severity="ticket")  # fmt: skip


@pytest.fixture
def notify(bus: Bus, tmp_path: Path) -> Iterator[tuple[NotifyRun, Receiver]]:
    with Receiver() as receiver:
        run = NotifyRun(bus, tmp_path, webhook(receiver.url))
        yield run, receiver
        run.close()


def publish(bus: Bus, *names: str) -> None:
    for name in names:
        bus.send("verdicts", name.encode(), encode_verdict(replace(VERDICT, verdict_id=name)))
    bus.flush()


def test_three_wrong_verdicts_silence_the_next_one_and_a_right_one_lets_it_through(
    bus: Bus, notify: tuple[NotifyRun, Receiver]
) -> None:
    run, receiver = notify
    wait_until(run.is_loaded, "start")
    publish(bus, "v1", "v2", "v3", "v4")
    for name in ("v1", "v2", "v3"):
        said = run_command("feedback", name, "wrong", "--note", "NIC fine", on=bus)
        assert said.returncode == 0, said.stderr
    assert "Silenced: device=nic:node-3/mlx5_1 kind=slow_nic" in said.stdout
    assert "called wrong" in run_command("mutes", "list", on=bus).stdout
    wait_until(lambda: run.metric("mutes") == 1, "the silence")
    send_alert(bus, "v4", kind="slow_nic", suspects=[_plain(NIC)])
    wait_until(lambda: run.metric('waiting{channel="hook",reason="muted"}') == 1, "silence")
    assert receiver.requests == []
    assert run_command("feedback", "v3", "right", "--who", "bob", on=bus).returncode == 0
    wait_until(lambda: len(receiver.requests) == 1, "a notice")
    (told,) = receiver.bodies()
    assert "Of 3 such verdicts (slow nic) that people here judged, 1 were right" in told["summary"]
    assert told["probability"] < 0.97


def test_what_people_say_stands_in_the_database(pipeline: Pipeline) -> None:
    publish(pipeline.bus, "v1", "v2")
    worker = pipeline.start_worker()
    run_command("feedback", "v1", "wrong", "--who", "ann", on=pipeline.bus)
    run_command("feedback", "v1", "right", "--who", "ann", "--note", "it was the cable", on=pipeline.bus)
    run_command("feedback", "v2", "wrong", "--who", "bob", on=pipeline.bus)
    wait_until(lambda: _stored(pipeline) == 2, "two rows")
    assert pipeline.query("SELECT is_right, note FROM feedback FINAL WHERE verdict_id = 'v1'") == [
        "true",
        "it was the cable",
    ]
    asked = pipeline.start("sql", "how_often_right", "--json")
    assert asked.wait() == 0, asked.output()
    (kind,) = json.loads(asked.output())
    assert (kind["kind"], kind["judged"], kind["right"], kind["told_probability"]) == ("slow_nic", 2, 1, 0.97)
    assert worker.stop() == 0


def test_an_unknown_verdict_and_an_unknown_word_get_one_line(bus: Bus) -> None:
    for arguments in (("v9", "wrong"), ("v9", "perhaps"), ("v9",), ()):
        said = run_command("feedback", *arguments, on=bus)
        assert (said.returncode, said.stdout, said.stderr.count("\n")) == (2, "", 1), arguments


def _stored(pipeline: Pipeline) -> int:
    return pipeline.count("feedback") if pipeline.query("EXISTS TABLE feedback") else 0


def _plain(suspect: Suspect) -> dict[str, Any]:
    values = {name: getattr(suspect, name) for name in suspect.__slots__}
    return values | {"ranks": list(suspect.ranks)}
