"""Checks of workers, producers and jobs, of dead letters, alerts and notify."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import urllib3

from irregulars.errors import InputError
from irregulars.infra.doctor.broker import CLOCK_S, clock_finding
from irregulars.infra.doctor.facts import JobFacts, KafkaFacts, TopicFacts, WorkerPage
from irregulars.infra.doctor.findings import (
    Finding,
    Level,
    finding,
    names,
    numbers,
    ok,
    span,
    unread,
    unseen,
    why_not,
)
from irregulars.infra.doctor.topics import RECENT_S
from irregulars.kafka.topics import RANK_TOPICS, partition_of
from irregulars.pages import parse_listen
from irregulars.printing import counted

_ANSWER_S: Final = 2.0
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where it listens, not where we do
_INFO: Final = re.compile(r'irregulars_worker_info\{group="(?P<group>[^"]*)",version="(?P<release>[^"]*)"\}')


def read_page(listen: str) -> WorkerPage | None:
    """Return the page of the worker at ``metrics_listen``; None if none answers: it may run on another machine."""
    try:
        address = parse_listen(listen)
    except InputError:
        return None
    if address is None or address[1] == 0:
        return None
    host, port = _EVERYWHERE.get(address[0], address[0]), address[1]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    try:
        metrics = _get(f"{url}/metrics")[1]
        health, ready = _get(f"{url}/healthz"), _get(f"{url}/readyz")
    except (OSError, urllib3.exceptions.HTTPError):
        return None
    # Another program may listen on that port: then the page is not a worker's.
    found = _INFO.search(metrics)
    if found is None:
        return None
    used, limit = _number(metrics, "unstored_bytes"), _number(metrics, "unstored_limit_bytes")
    return WorkerPage(
        url, found["release"], found["group"], _reason(health), _reason(ready),
        _number(metrics, "unstored_seconds"), used / limit if used is not None and limit else None,
        "; ".join(health[1].splitlines()[1:]) or None,
    )  # fmt: skip


def _number(metrics: str, name: str) -> float | None:
    found = re.search(rf"^irregulars_worker_{name} (\S+)$", metrics, re.MULTILINE)
    return None if found is None else float(found[1])


def _get(url: str) -> tuple[int, str]:
    answer = urllib3.request("GET", url, timeout=_ANSWER_S, retries=False, preload_content=False)
    try:
        # Bounded, as anything may listen there, and send without end.
        return answer.status, answer.read(1 << 20).decode(errors="replace")
    finally:
        answer.close()


def _reason(page: tuple[int, str]) -> str | None:
    return None if page[0] == 200 else page[1].partition("\n")[0]


GROUP: Final = "workers"
# A worker publishes its progress every two seconds: one without any for that long does not read
ALIVE_S: Final = 30.0

LATE_S: Final = 60.0
BEHIND_S: Final = 300.0  # age of unread messages that is a page, as in the alert IrregularsBehind


def check_workers(seen: KafkaFacts, own_release: str) -> Iterator[Finding]:
    """Yield the findings on the workers."""
    if "progress" in seen.topics and seen.topics["progress"].error:
        yield unseen(GROUP, "all", seen.topics["progress"])
        return
    waiting = waiting_messages(seen)
    yield from _readers(seen, waiting)
    yield from _unread_partitions(seen)
    yield from _lag(seen, waiting)
    # The second hop judges evidence up to the group's commits.
    late = {part: seen.now_s - at_s for (topic, part), at_s in seen.stream.waiting_s.items() if topic == "evidence"}
    if late and _has_readers(seen) and (longest_s := max(late.values())) >= BEHIND_S:
        text = f"evidence of {span(longest_s)} ago is not judged and stored, in partition {numbers(late)}"
        yield finding("problem", GROUP, "judging", text, "judging_behind")
    yield from _releases(seen, own_release)
    if seen.page is not None and seen.workers is not None and seen.page.group == seen.workers.name:
        page = seen.page
        if page.why_dead is not None:
            yield finding("problem", GROUP, "this one", f"{page.why_dead} ({page.url}/healthz)", "worker_stuck")
        elif page.why_not_ready is not None:
            text = f"{page.why_not_ready} ({page.url}/readyz)"
            yield finding("warning", GROUP, "this one", text, "worker_not_ready")
        else:
            yield ok(GROUP, "this one", f"the worker on this machine is ready ({page.url})")
        if seen.page.notes is not None:
            text = f"{seen.page.notes} ({seen.page.url}/healthz)"
            yield finding("warning", GROUP, "judgements", text, "judgement_slow")
        yield from _store(seen.page)


def waiting_messages(seen: KafkaFacts) -> dict[str, int]:
    """Return how many messages of the first hop's topics no worker has read, by topic."""
    found: Counter[str] = Counter()
    for topic in seen.topics.keys() & set(RANK_TOPICS):
        for partition, end in seen.topics[topic].ends.items():
            told = seen.stream.progress.get(partition)
            read_to = told.positions.get(topic, 0) if told else 0
            # Messages that retention has deleted are not waited for any more.
            found[topic] += max(end - max(read_to, seen.topics[topic].begins.get(partition, 0)), 0)
    return dict(+found)  # those above 0


def is_read(seen: KafkaFacts) -> bool:
    """Whether a worker lives, as far as is known."""
    group = seen.workers
    is_deserted = group is not None and group.error is None and not (
        group.members or group.is_settling or group.is_stable)  # fmt: skip
    return not is_deserted and _newest_s(seen) > seen.now_s - ALIVE_S


def _has_readers(seen: KafkaFacts) -> bool:
    """Whether workers should read: one that stands still keeps its place in the group, and says nothing any more."""
    return is_read(seen) or bool(seen.workers and seen.workers.members)


def _newest_s(seen: KafkaFacts) -> float:
    return max((one.time_s for one in seen.stream.progress.values()), default=0.0)


def _readers(seen: KafkaFacts, waiting: dict[str, int]) -> Iterator[Finding]:
    group = seen.workers
    if group is None:
        return
    ago = span(max(seen.now_s - _newest_s(seen), 0.0))
    if group.error is not None:
        yield unread(GROUP, "group", why_not(f"consumer group {group.name}", group.error))
    elif group.members:
        yield ok(GROUP, "group", f"{counted(len(group.members), 'worker')} in {group.name}: {names(group.members)}")
        return
    elif group.is_settling or (group.is_stable and not is_read(seen)):
        yield ok(GROUP, "group", f"{group.name} has workers, and shares out its partitions or has just done so")
        return
    # A group that is hidden from us may still show by its records on the topic progress.
    if is_read(seen):
        yield ok(GROUP, "reading", f"a worker last said {ago} ago how far it is")
    elif group.error is None or seen.stream.progress:
        since = f"; the last one was heard {ago} ago" if _newest_s(seen) else ""
        left = f"; {counted(sum(waiting.values()), 'message')} wait" if waiting else ""
        text = f"no worker reads (consumer group {group.name}){since}{left}"
        yield finding("problem", GROUP, "group", text, "no_worker", group=group.name)


def _unread_partitions(seen: KafkaFacts) -> Iterator[Finding]:
    if not is_read(seen) or "commops" not in seen.topics:
        return
    told = seen.stream.progress
    late = [number for number in range(seen.topics["commops"].partitions)
            if number not in told or told[number].time_s < seen.now_s - ALIVE_S]  # fmt: skip
    # While a group shares out its partitions nobody reads them, and that passes.
    if late and not (seen.workers and seen.workers.is_settling):
        text = f"{counted(len(late), 'partition')} not read for {span(ALIVE_S)}: {numbers(late)}"
        yield finding("problem", GROUP, "partitions", text, "partitions_unread")


def _lag(seen: KafkaFacts, waiting: dict[str, int]) -> Iterator[Finding]:
    if "progress" in seen.stream.unread:
        yield unread(GROUP, "lag", seen.stream.unread["progress"])
        return
    # `_readers` reports that no worker reads; the lag follows from it.
    if not _has_readers(seen):
        return
    oldest = {place: seen.now_s - at_s for place, at_s in seen.stream.waiting_s.items() if place[0] != "evidence"}
    longest_s = max(oldest.values(), default=0.0)
    if longest_s < LATE_S:
        left = f"{counted(sum(waiting.values()), 'message')} not read" if waiting else "everything is read"
        yield ok(GROUP, "lag", f"{left}, the oldest of {span(longest_s)} ago" if waiting and oldest else left)
        return
    late = sorted((place for place, s in oldest.items() if s >= LATE_S), key=lambda place: -oldest[place])
    where = names(f"{topic}/{partition} ({span(oldest[topic, partition])})" for topic, partition in late)
    text = f"{counted(sum(waiting.values()), 'message')} not read; the oldest of {span(longest_s)} ago: {where}"
    level: Level = "problem" if longest_s >= BEHIND_S else "warning"
    yield finding(level, GROUP, "lag", text, "behind")


def _releases(seen: KafkaFacts, own_release: str) -> Iterator[Finding]:
    since_s = seen.now_s - ALIVE_S
    found = {one.release for one in seen.stream.progress.values() if one.time_s >= since_s}
    told = sorted(release or "one that does not say" for release in found)
    if len(told) > 1:
        yield finding(
            "warning", GROUP, "release", f"workers run different releases: {names(told)}", "releases_differ"
        )
    elif told and found != {own_release}:
        text = f"workers run {told[0]}, and this is {own_release}"
        yield finding("warning", GROUP, "release", text, "releases_differ")


def _store(page: WorkerPage) -> Iterator[Finding]:
    if page.unstored_s is None or page.unstored_s < LATE_S:
        return
    ratio = page.unstored_ratio
    full = f"; the memory for what waits is {ratio:.0%} full, at 100% alerts stop" if ratio is not None else ""
    text = f"what was judged for {span(page.unstored_s)} is not in the database{full} ({page.url}/metrics)"
    yield finding("problem", GROUP, "storing", text, "not_stored")


# A rank of a default agent is heard every ten seconds at least (``heartbeat_s``); six of these are no accident
SILENT_S: Final = 60.0

ANNOUNCED_S: Final = 60.0  # ranks of a job start within this time of one another, else the others wait for the rest
FIRST_CLOSING_S: Final = 120.0
# Without a closed iteration for so long, while operators come, nothing of the job is judged. A checkpoint may take
# some minutes, and so may the first iterations, which compile: sooner it is a warning.
CLOSING_S: Final = 300.0

_MOST_JOBS: Final = 8
ALL_LOST: Final = 0.9  # share of messages in the dead letters from which on nothing gets through


def check_jobs(seen: KafkaFacts, grace_s: float) -> Iterator[Finding]:
    """Yield the findings on producers and jobs; `grace_s` is how long a worker waits for a rank."""
    topics = [seen.topics[name] for name in ("jobs", "heartbeats") if name in seen.topics]
    lacking = [topic for topic in topics if topic.error]
    if lacking:
        yield unseen("jobs", "jobs", lacking[0])
        return
    unread_topics = [name for name in ("jobs", "heartbeats") if name in seen.stream.unread]
    if unread_topics:
        yield unread("jobs", "jobs", seen.stream.unread[unread_topics[0]])
    else:
        running = [job for job in seen.stream.jobs if not is_over(job)]
        yield from _heard(seen, running)
        for job in running[:_MOST_JOBS]:
            yield from _job(seen, job, grace_s)
        if len(running) > _MOST_JOBS:
            yield ok("jobs", "jobs", f"{len(running) - _MOST_JOBS} more are not looked at one by one")
        off = {host: off_s for host, off_s in seen.stream.host_clocks_s.items() if abs(off_s) > CLOCK_S}
        for host in sorted(off, key=lambda one: -abs(off[one]))[:_MOST_JOBS]:
            yield clock_finding("jobs", f"the clock of {host}", off[host])
        if len(off) > _MOST_JOBS:
            text = f"clocks of {len(off) - _MOST_JOBS} more hosts are off"
            yield finding("warning", "jobs", "clock", text, "clock_off")
        if seen.stream.host_clocks_s and not off:
            text = f"clocks of {counted(len(seen.stream.host_clocks_s), 'host')} are not seen to be off by more than "
            yield ok("jobs", "clock", text + span(CLOCK_S))
    yield from _letters(seen)


def is_over(job: JobFacts) -> bool:
    """Whether every rank that announced itself has reported its end."""
    return bool(job.ended) and job.announced <= job.ended


def _heard(seen: KafkaFacts, running: Sequence[JobFacts]) -> Iterator[Finding]:
    over = len(seen.stream.jobs) - len(running)
    ended = f"; {over} ended" if over else ""
    within = span(seen.now_s - seen.stream.heard_since_s)
    if not running:
        yield ok("jobs", "jobs", f"none is running; what was sent in the last {within} was looked at{ended}")
        return
    hosts = {host for job in running for host in job.hosts.values()}
    ranks = sum(len(job.announced) for job in running)
    yield ok(
        "jobs",
        "jobs",
        f"{counted(len(running), 'job')}, {counted(ranks, 'rank')} on {counted(len(hosts), 'host')}{ended}",
    )


def _job(seen: KafkaFacts, job: JobFacts, grace_s: float) -> Iterator[Finding]:
    if job.beside:
        hosts = names(sorted(job.beside | set(job.hosts.values())))
        yield finding("problem", "jobs", f"job {job.job}", f"two jobs send under this name: {hosts}", "two_jobs")
    elif job.contradicts is not None:
        text = f"announcements of one rank differ in {job.contradicts}: no device of the job can be named"
        yield finding("problem", "jobs", f"job {job.job}", text, "job_contradicts")
    yield from _unannounced(seen, job)
    yield from _silent(seen, job)
    lost = {source: rows for source, rows in job.lost_rows.items() if rows}
    if lost:
        told = ", ".join(f"{counted(rows, 'row')} of {source}" for source, rows in sorted(lost.items()))
        yield finding("warning", "jobs", f"job {job.job}", f"lost before Kafka: {told}", "rows_lost")
    yield from _closing(seen, job, grace_s)
    if job.unsampled and len(job.unsampled) == len(job.announced):
        text = "no rank samples its NIC: a slow NIC in a ring, and one that was always slow, are not told apart"
        yield finding("warning", "jobs", f"job {job.job}", text, "no_samples")
    elif job.unsampled:
        text = f"{counted(len(job.unsampled), 'rank')} do not sample their NIC: {numbers(job.unsampled)}"
        yield finding("warning", "jobs", f"job {job.job}", text, "no_samples")
    if "per_host" in job.clocks and len(set(job.hosts.values())) > 1:
        yield ok("jobs", f"job {job.job}", "clocks are each host's own: durations count, and order within a host")


def _unannounced(seen: KafkaFacts, job: JobFacts) -> Iterator[Finding]:
    lacking = job.logged_ranks - len(job.announced)
    if lacking <= 0 or seen.now_s - job.announced_s < ANNOUNCED_S:
        return
    heard = f"; heard and not announced: {numbers(job.heard_s.keys() - job.announced)}"
    more = heard if job.heard_s.keys() - job.announced else ""
    text = f"{lacking} of {job.logged_ranks} ranks are not announced, and an iteration waits for all{more}"
    yield finding("problem", "jobs", f"job {job.job}", text, "not_announced")


def _silent(seen: KafkaFacts, job: JobFacts) -> Iterator[Finding]:
    since_s = seen.now_s - SILENT_S
    living = job.announced - job.ended
    # A rank that has just announced itself need not have sent a heartbeat yet.
    silent = {rank for rank in living if max(job.heard_s.get(rank, 0.0), job.announced_s) < since_s}
    if not silent:
        yield ok("jobs", f"job {job.job}", f"attempt {job.attempt}: all of {counted(len(living), 'rank')} are heard")
    elif silent == living:
        for_s = span(seen.now_s - max((*job.heard_s.values(), job.announced_s)))
        text = f"attempt {job.attempt}: no rank heard for {for_s}, and it did not say that it ended"
        yield finding("warning", "jobs", f"job {job.job}", text, "job_silent")
    else:
        hosts = sorted({job.hosts[rank] for rank in silent if rank in job.hosts})
        where = f" on {names(hosts)}" if hosts else ""
        heard = [job.heard_s[rank] for rank in silent if rank in job.heard_s]
        for_s = f" for {span(seen.now_s - max(heard))}" if heard else ""
        text = f"{len(silent)} of {len(living)} ranks silent{for_s}: {numbers(silent)}{where}"
        yield finding("problem", "jobs", f"job {job.job}", text, "ranks_silent")


def _closing(seen: KafkaFacts, job: JobFacts, grace_s: float) -> Iterator[Finding]:
    """Yield whether iterations close; nothing where no worker reads, or all is refused, since that explains it."""
    if "evidence" in seen.stream.unread or not is_read(seen) or "commops" not in seen.topics:
        return
    if job.evidence_s is not None and seen.now_s - job.evidence_s < CLOSING_S + grace_s:
        yield ok(
            "jobs", f"job {job.job}", f"its newest iteration closed {span(max(seen.now_s - job.evidence_s, 0))} ago"
        )
        return
    is_heard = max(job.heard_s.values(), default=0.0) > seen.now_s - SILENT_S
    waited_s = seen.now_s - job.announced_s - grace_s
    if not is_heard or waited_s < FIRST_CLOSING_S or not seen.topics["commops"].recent:
        return
    # Older evidence of its partition was left out, and may hold a closed iteration of this job.
    partition = partition_of(job.job.encode(), max(seen.topics["evidence"].partitions, 1))
    if job.evidence_s is None and partition in seen.stream.cut_evidence:
        return
    since = f"none for {span(seen.now_s - job.evidence_s)}" if job.evidence_s else "none so far"
    why = ", and no rank marks iterations" if job.without_marks == job.announced else ""
    code = "no_marks" if why else "none_closes"
    level: Level = "problem" if waited_s > CLOSING_S else "warning"
    yield finding(level, "jobs", f"job {job.job}", f"is heard, and no iteration closes ({since}){why}", code)


def _letters(seen: KafkaFacts) -> Iterator[Finding]:
    topic = seen.topics.get("deadletter")
    # `check_topics` reports it.
    if topic is None or topic.error is not None:
        return
    if "deadletter" in seen.stream.unread:
        text = f"{counted(topic.messages, 'message')} kept; we may not read why: {seen.stream.unread['deadletter']}"
        yield ok("jobs", "dead letters", text) if not topic.recent else unread("jobs", "dead letters", text)
        return
    recent = [one for one in seen.stream.letters if one.time_s > seen.now_s - RECENT_S]
    if not seen.stream.letters:
        yield ok("jobs", "dead letters", "none")
        return
    newest = max(seen.stream.letters, key=lambda one: one.time_s)
    ago = span(max(seen.now_s - newest.time_s, 0.0))
    if not recent:
        yield ok(
            "jobs", "dead letters", f"{counted(topic.messages, 'message')} kept; none is new, the last was {ago} ago"
        )
        return
    sent = seen.topics["commops"].recent if "commops" in seen.topics else 0
    # Only the newest letters were read: the share of operators among them stands for all recent ones.
    share = sum(one.topic.endswith("commops") for one in recent) / len(recent)
    if 0 < ALL_LOST * sent <= share * topic.recent:
        text = f"nothing gets through of what was sent in the last {span(RECENT_S)}: {newest.reason}"
        yield finding("problem", "jobs", "dead letters", text, "all_refused")
        return
    where = newest.topic or "nowhere"
    text = f"{topic.recent} in the last {span(RECENT_S)}; the last, {ago} ago, from {where}: {newest.reason}"
    yield finding("warning", "jobs", "dead letters", text, "dead_letters")


def check_alerts(seen: KafkaFacts, least_severity: str) -> Iterator[Finding]:
    """Yield the findings on alerts and on notify; `least_severity` is the setting."""
    alerts = seen.topics.get("alerts")
    if alerts is not None and alerts.error is None:
        verdicts = seen.topics.get("verdicts")
        if alerts.messages:
            ago = (
                "" if alerts.newest_s is None else f", the newest {span(max(seen.now_s - alerts.newest_s, 0.0))} ago"
            )
            text = f"{counted(alerts.messages, 'alert')} kept{ago}"
        elif verdicts is not None and verdicts.error is None and verdicts.messages > 0:
            text = f"none yet, and {verdicts.messages:,} revisions of verdicts below {least_severity}"
        else:
            text = "none yet"
        yield ok("alerts", "alerts", text)
    yield from _notify(seen, alerts)
    for channel, text in sorted(seen.stream.troubled.items()):
        yield finding("warning", "alerts", f"channel {channel}", text, "channel_fails")
    failing = [one for one in seen.stream.letters if one.channel]
    if failing:
        text = f"{counted(len(failing), 'notice')} given up, the last of {failing[-1].channel}: {failing[-1].reason}"
        yield finding("warning", "alerts", "notices", text, "channel_fails")
    mutes = seen.topics.get("mutes")
    # `check_topics` reports it.
    if mutes is None or mutes.error is not None:
        return
    if "mutes" in seen.stream.unread:
        yield unread("alerts", "mutes", seen.stream.unread["mutes"])
    elif seen.stream.mutes:
        yield ok("alerts", "mutes", f"{counted(len(seen.stream.mutes), 'mute')} in force: {names(seen.stream.mutes)}")
    else:
        yield ok("alerts", "mutes", "none in force")


def _notify(seen: KafkaFacts, alerts: TopicFacts | None) -> Iterator[Finding]:
    group = seen.notify
    if group is None:
        return
    if group.error is not None:
        yield unread("alerts", "notify", why_not(f"consumer group {group.name}", group.error))
        return
    unread_alerts = 0
    if alerts is not None and group.committed:
        # A partition without a commit counts as read, at its end.
        read_to = {partition: at for (topic, partition), at in group.committed.items() if topic == alerts.name}
        unread_alerts = sum(max(end - read_to.get(number, end), 0) for number, end in alerts.ends.items())
    if group.members:
        left = f", {counted(unread_alerts, 'alert')} not told yet" if unread_alerts else ""
        yield ok("alerts", "notify", f"runs on {names(group.members)}{left}")
    elif group.is_settling or group.is_stable:
        yield ok("alerts", "notify", f"{group.name} has members")
    elif group.committed:
        text = f"has run and does not run now; {counted(unread_alerts, 'alert')} since then"
        yield finding("problem", "alerts", "notify", text, "notify_stopped")
    else:
        yield ok("alerts", "notify", "has never run here: alerts stand on the topic, and nobody else is told")
