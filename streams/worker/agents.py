"""The Faust agents: one per input topic. They hand blocks of messages to a stage, without acknowledging them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import faust

from irregulars.errors import SendingGivenUp
from irregulars.kafka.topics import TopicSettings
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
    # Without acknowledgements: snapshots decide where reading goes on, and Faust has nothing to commit.
    channel = app.topic(topics.name(topic), key_serializer="raw", value_serializer="raw", acks=False)

    async def agent(stream: Any) -> None:
        async for block in stream:
            try:
                with stage.taking():
                    if before is not None:
                        await before()
                    await stage.take(topic, block)
            except SendingGivenUp:  # by partitions that were dropped: they will be read again
                continue
            except Exception as error:  # Faust would start the agent again behind the block that broke it
                stage.services.fail(error)
                raise

    agent.__qualname__ = agent.__name__ = topic  # Faust's log and metrics show it
    app.agent(channel, name=f"irregulars.{topic}")(agent)
