"""A worker's process from its start to its end: the app is wired, run, and ends within its time."""

from __future__ import annotations

import asyncio
import gc
import logging
import logging.config
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import faust
from faust.types import TP

from irregulars import stopping
from irregulars.errors import SendingGivenUp, ServiceUnavailable
from irregulars.in_thread import run_in_thread
from irregulars.kafka.topics import RANK_TOPICS, TopicSettings
from irregulars.printing import printable
from irregulars.sinks.protocol import Sink
from irregulars.streams.health.log_lines import logging_config
from irregulars.streams.health.observer import OBSERVE_S, serve_pages
from irregulars.streams.health.process import (
    GIVE_BACK_S,
    Need,
    StopDeadline,
    free_port_or_none,
    make_directory,
    new_loop,
    share_few_heaps,
    wait_for,
)
from irregulars.streams.stages.job_stage import JobStage
from irregulars.streams.stages.job_topics import EVIDENCE
from irregulars.streams.stages.rank_stage import RankStage
from irregulars.streams.stages.stage import Stage
from irregulars.streams.stages.stream_time import EVERY_S
from irregulars.streams.stages.word_log import OPINIONS_S, WORDS_S
from irregulars.streams.worker.app import LOOK_S, WorkerApp
from irregulars.streams.worker.monitors import Monitors, make_monitors
from irregulars.streams.worker.topic_watch import require_topics
from irregulars.streams.worker_settings import WorkerSettings

LOG: Final = logging.getLogger("irregulars.worker")
_TURN_S: Final = 0.0005
_CANCEL_S: Final = 1.0
_GARBAGE: Final = (20_000, 20, 20)


def make_app(settings: WorkerSettings, sink: Sink | None = None, monitors: Monitors | None = None) -> WorkerApp:
    """Build the Faust app of one worker; raises `InputError`."""
    app = WorkerApp(settings, sink, monitors or make_monitors(settings))
    add_agents(app, settings.topics, app.rank_stage, app.job_stage)
    # Faust's annotation asks for a handler that takes any positional arguments; it gives two.
    app.on_partitions_revoked.connect(_on_revoked, weak=False)  # type: ignore[arg-type]
    app.on_partitions_assigned.connect(_on_assigned, weak=False)  # type: ignore[arg-type]
    for every_s, work in (
        (app.topics_watch.every_s, app.topics_watch.look_for_missing),
        (settings.snapshot_s, app.start_snapshots),
        (settings.evidence_linger_s, app.rank_stage.settle_all),
        (EVERY_S, app.tell_progress),
        (OPINIONS_S, app.store_opinions),
        (WORDS_S, app.follow_thresholds),
        (EVERY_S, app.clocks.look),
        (EVERY_S, app.close_gaps),
        (1.0, app.tick),
        (LOOK_S, app.look_after_broker),
        (min(EVERY_S, settings.stall_s / 4), app.watch_reading),
        (OBSERVE_S, app.observer.observe),
        (GIVE_BACK_S, app.give_back_memory),
    ):
        app.task(_repeating(app, every_s, work))
    app.task(app.open_sink)
    return app


async def _on_revoked(app: WorkerApp, revoked: set[TP], **_: Any) -> None:
    await app.revoke(revoked)


async def _on_assigned(app: WorkerApp, assigned: set[TP], **_: Any) -> None:
    if not assigned:  # more workers than partitions: Faust seeks nowhere then, and nothing would be restored
        app.add_future(app.restore(assigned))  # not here: the whole group waits for this to return


def _repeating(app: WorkerApp, every_s: float, work: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    async def repeating() -> None:
        await app.repeat(every_s, work)

    repeating.__qualname__ = repeating.__name__ = f"repeat_{getattr(work, '__name__', 'work')}"
    return repeating


def share_the_interpreter() -> None:
    """Let threads take turns ten times as often as Python does by itself, and look for cyclic garbage less often.

    Numpy lets go of the interpreter's lock in each call, and a thread that wants it back waits for as long as a turn
    of the event loop's thread may last: with Python's 5 ms judging 1,024 ranks stood still for ten seconds beside a
    busy first hop. Objects that exist when a worker starts live on, and rows are arrays, which are in no cycles.
    """
    sys.setswitchinterval(_TURN_S)
    gc.freeze()
    gc.set_threshold(*_GARBAGE)


def wait_for_services(settings: WorkerSettings, sink: Sink | None) -> bool:
    """Open the sink, and wait until the broker answers; False if a signal asks to stop meanwhile.

    A database that is away is told and not waited for: alerts need none, and rows wait in memory (`SinkWriter`).

    Raises `ServiceUnavailable` if the broker, or the OAuth server that has tokens for it, is away for
    ``broker_away_s``; `ServiceRefused` or `TopicMismatch` if one of them refuses us, or the topics do not fit
    together: that does not mend itself.
    """
    try:
        with stopping.raises():
            if sink is not None:
                try:
                    run_in_thread(sink.open)
                except ServiceUnavailable as error:
                    LOG.warning(
                        "event=database_away reason=%r "
                        "do='judging and alerts go on, and rows wait in memory until it is there'",
                        str(error),
                    )
            needs = [Need("broker", partial(require_topics, settings), settings.broker_away_s)]
            if "oauth_cb" in settings.security:  # before the broker, which would only report a failed login
                needs.insert(0, Need("token_endpoint", settings.security["oauth_cb"], settings.broker_away_s))
            wait_for(needs)
    except stopping.StopAsked:
        deadline = StopDeadline(settings.stop_s)
        deadline.leave_with(0)
        deadline.arm()  # a question without an answer yet holds the sink's lock
        LOG.info("event=stop status=0")
        return False
    return True


@stopping.held()
def run_worker(settings: WorkerSettings, sink: Sink | None = None, monitors: Monitors | None = None) -> int:
    """Run one worker until a signal asks to stop, and return its exit status: 0 when it was asked to stop, else 1.

    This owns the process: once stopping has begun, the process has ``stop_s`` to end, the caller included.

    `sink`: where rows go; it is opened here, and the caller closes it.

    Raises `ServiceUnavailable` or `ServiceRefused` or `TopicMismatch` if the broker or the sink's database can't be
    used, or the topics do not fit together: before anything is started. One that is away is waited for first;
    `InputError` if a setting is unusable.
    """
    share_few_heaps()
    share_the_interpreter()
    make_directory(settings.data_directory)
    logging.config.dictConfig(logging_config(settings.log_level))
    if not wait_for_services(settings, sink):
        return 0
    settings = replace(settings, web_port=free_port_or_none(settings.web_host, settings.web_port))
    loop = new_loop()
    asyncio.set_event_loop(loop)
    app = make_app(settings, sink, monitors)
    LOG.info("event=start group=%s bootstrap=%s", settings.group, settings.bootstrap)
    with serve_pages(app.observer, settings.metrics_listen), app.watchdog:
        try:
            loop.run_until_complete(_serve(app))
            _close(loop)
        except Exception as error:  # of Faust's own
            app.failure = app.failure or error
            LOG.debug("event=crashed", exc_info=True)
        app.deadline.arm()  # the rest, down to the end of the interpreter, must end in time too
    if app.failure is not None:
        print(f"irregulars worker: {printable(app.failure)}", file=sys.stderr)
        return 1
    LOG.info("event=stop status=0")
    app.deadline.leave_with(0)
    return 0


async def _serve(app: WorkerApp) -> None:
    """Run the app until a signal asks to stop, or Faust fails; `WorkerApp.fail` sends a signal too.

    `faust.Worker` would do that as well. It has no public place for our signals and for the time that a stop may
    take, and waits another second at the end.
    """
    asked = asyncio.Event()
    with stopping.on_stop(partial(asyncio.get_running_loop().call_soon_threadsafe, asked.set)):
        starting = asyncio.ensure_future(app.start())
        ends = {asyncio.ensure_future(asked.wait()), asyncio.ensure_future(app.wait_until_stopped())}
        await asyncio.wait({starting, *ends}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and starting.exception() is None:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        app.deadline.arm()
        await app.stop()
        for task in (starting, *ends):
            task.cancel()
        await asyncio.wait({starting, *ends})
    error = None if starting.cancelled() else starting.exception()
    if error or app.crash_reason:
        raise error or app.crash_reason or AssertionError


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks that are left, and close the loop."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=_CANCEL_S))
    loop.close()


def add_agents(app: faust.App, topics: TopicSettings, rank_stage: RankStage, job_stage: JobStage) -> None:
    """Subscribe the stages to their topics."""
    for topic in RANK_TOPICS:
        _add_agent(app, topics, topic, rank_stage, job_stage.give_way)
    _add_agent(app, topics, EVIDENCE, job_stage)


def _add_agent(
    app: faust.App, topics: TopicSettings, topic: str, stage: Stage[Any],
    before: Callable[[], Awaitable[None]] | None = None,
) -> None:  # fmt: skip
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
