"""The Faust agents: one per input topic. They hand blocks of messages to a stage, without acknowledging them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import faust

from irregulars.errors import SendingGivenUp
from irregulars.kafka.topics import TopicSettings
from irregulars.streams.faust_client.message_blocks import events_of
from irregulars.streams.stages.job_stage import JobStage
from irregulars.streams.stages.job_topics import EVIDENCE
from irregulars.streams.stages.rank_stage import RANK_TOPICS, RankStage
from irregulars.streams.stages.stage import Stage


def add_agents(app: faust.App, topics: TopicSettings, rank_stage: RankStage, job_stage: JobStage) -> None:
    """Subscribe the stages to their topics."""
    for topic in RANK_TOPICS:
        _add_agent(app, topics, topic, rank_stage, job_stage.give_way)
    _add_agent(app, topics, EVIDENCE, job_stage)


def _add_agent(
    app: faust.App,
    topics: TopicSettings,
    topic: str,
    stage: Stage[Any],
    before: Callable[[], Awaitable[None]] | None = None,
) -> None:
    channel = app.topic(topics.name(topic), key_serializer="raw", value_serializer="raw")

    async def agent(stream: Any) -> None:
        stream.enable_acks = False  # else an event is acknowledged as soon as the loop has seen it
        async for event in stream.events():
            # What was given up belongs to partitions that were dropped: they will be read again.
            with suppress(SendingGivenUp), stage.taking():
                if before is not None:
                    await before()
                await stage.take(topic, events_of(event.value, event))

    agent.__qualname__ = agent.__name__ = topic  # Faust's log and metrics show it
    app.agent(channel, name=f"irregulars.{topic}")(agent)
