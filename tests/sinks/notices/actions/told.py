"""The whole from notices to nodes: a channel that publishes on a real broker, and the command that acts on it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import time_ns

from irregulars.kafka.broker import client_config
from irregulars.kafka.topic_admin import create_topics
from irregulars.kafka.topics import SENDING, TopicSettings
from irregulars.messages.judgements import Verdict
from irregulars.sinks.notices.actions.actions import ActionsChannel
from tests import warm
from tests.sinks.notices.made_up_notices import notice_of

ROOT = Path(__file__).resolve().parents[4]


def open_channel(bootstrap: str, topics: TopicSettings, timeout_s: float = 30.0) -> ActionsChannel:
    config = client_config(bootstrap, {}) | dict(SENDING)
    return ActionsChannel("actions", topics.name("actions"), config, timeout_s)


class Told:
    """Tells notices through the channel, and runs the command on what it published."""

    def __init__(self, orchestrator: str, bootstrap: str, prefix: str) -> None:
        self._command = [sys.executable, "-m", "irregulars", "act", orchestrator]
        topics = TopicSettings(prefix, 1)
        create_topics(bootstrap, topics)
        self._options = ("--bootstrap", bootstrap, "--topic-prefix", prefix)
        self._channel = open_channel(bootstrap, topics)
        self._reference: str | None = None

    def tell(self, verdict: Verdict) -> None:
        event = "resolved" if verdict.state == "closed" else "opened" if verdict.revision == 1 else "updated"
        notice = notice_of(replace(verdict, time_ns=time_ns()), event, self._reference)  # type: ignore[arg-type]
        self._reference = self._channel.deliver(notice)

    def act(self, *arguments: str) -> list[str]:
        done = warm.run([*self._command, *self._options, "--end", *arguments], cwd=ROOT, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    @contextmanager
    def acting(self) -> Iterator[subprocess.Popen[str]]:
        """Run the command for ever; it is killed at the end if it still runs."""
        command = [*self._command, *self._options, "--do-it"]
        process = warm.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()
