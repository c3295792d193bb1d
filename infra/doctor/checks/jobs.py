"""Checks of producers and jobs: who is announced and silent, what is lost, and whether iterations close."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from irregulars.infra.doctor.checks.broker import CLOCK_S, clock_finding
from irregulars.infra.doctor.checks.facts import JobFacts, KafkaFacts, Letter
from irregulars.infra.doctor.checks.findings import Finding, Level, finding, ok, unread, unseen
from irregulars.infra.doctor.checks.topics import RECENT_S
from irregulars.infra.doctor.checks.words import count, names, numbers, span
from irregulars.infra.doctor.checks.workers import is_read

GROUP: Final = "jobs"
SILENT_S: Final = 60.0
"""A rank of a default agent is heard every ten seconds at least (``heartbeat_s``); six of these are no accident."""

ANNOUNCED_S: Final = 60.0
"""Ranks of a job start within this time of one another, else somebody waits for the rest."""

FIRST_CLOSING_S: Final = 120.0
CLOSING_S: Final = 300.0
"""Without a closed iteration for so long, while operators come, nothing of the job is judged. A checkpoint may take
some minutes, and so may the first iterations, which compile: sooner it is a warning."""

_MOST_JOBS: Final = 8
ALL_LOST: Final = 0.9
"""Share of what is sent that goes to the dead letters from which on nothing gets through."""


def check_jobs(seen: KafkaFacts, grace_s: float) -> Iterator[Finding]:
    """Give what is found of producers and their jobs; `grace_s` is how long a worker waits for one of them."""
    topics = [seen.topics[name] for name in ("jobs", "heartbeats") if name in seen.topics]
    lacking = [topic for topic in topics if topic.error]
    if lacking:
        yield unseen(GROUP, "jobs", lacking[0])
        return
    unread_topics = [name for name in ("jobs", "heartbeats") if name in seen.stream.unread]
    if unread_topics:
        yield unread(GROUP, "jobs", seen.stream.unread[unread_topics[0]])
    else:
        running = [job for job in seen.stream.jobs if not is_over(job)]
        yield from _heard(seen, running)
        for job in running[:_MOST_JOBS]:
            yield from _job(seen, job, grace_s)
        if len(running) > _MOST_JOBS:
            yield ok(GROUP, "jobs", f"{len(running) - _MOST_JOBS} more are not looked at one by one")
        yield from _host_clocks(seen)
    yield from _letters(seen)


def is_over(job: JobFacts) -> bool:
    """Whether every rank that announced itself has said that it ended."""
    return bool(job.ended) and job.announced <= job.ended


def newest_s(job: JobFacts) -> float:
    """Return when a job was last heard, s since 1970."""
    return max((*job.heard_s.values(), job.announced_s))


def _heard(seen: KafkaFacts, running: Sequence[JobFacts]) -> Iterator[Finding]:
    over = len(seen.stream.jobs) - len(running)
    ended = f"; {over} ended" if over else ""
    within = span(seen.now_s - seen.stream.heard_since_s)
    if not running:
        yield ok(GROUP, "jobs", f"none is running; what was sent in the last {within} was looked at{ended}")
        return
    hosts = {host for job in running for host in job.hosts.values()}
    ranks = sum(len(job.announced) for job in running)
    yield ok(
        GROUP, "jobs", f"{count(len(running), 'job')}, {count(ranks, 'rank')} on {count(len(hosts), 'host')}{ended}"
    )


def _job(seen: KafkaFacts, job: JobFacts, grace_s: float) -> Iterator[Finding]:
    yield from _contradictions(job)
    yield from _unannounced(seen, job)
    yield from _silent(seen, job)
    yield from _lost(job)
    yield from _closing(seen, job, grace_s)
    if job.unsampled and len(job.unsampled) == len(job.announced):
        text = "no rank samples its NIC: a slow NIC in a ring, and one that was always slow, are not told apart"
        yield finding("warning", GROUP, _name(job), text, "no_samples")
    elif job.unsampled:
        text = f"{count(len(job.unsampled), 'rank')} do not sample their NIC: {numbers(job.unsampled)}"
        yield finding("warning", GROUP, _name(job), text, "no_samples")
    if "per_host" in job.clocks and len(set(job.hosts.values())) > 1:
        yield ok(GROUP, _name(job), "clocks are each host's own: durations count, and order within a host")


def _name(job: JobFacts) -> str:
    return f"job {job.job}"


def _contradictions(job: JobFacts) -> Iterator[Finding]:
    if job.beside:
        hosts = names(sorted(job.beside | set(job.hosts.values())))
        yield finding("problem", GROUP, _name(job), f"two jobs send under this name: {hosts}", "two_jobs")
    elif job.contradicts is not None:
        text = f"announcements of one rank differ in {job.contradicts}: no device of the job can be named"
        yield finding("problem", GROUP, _name(job), text, "job_contradicts")


def _unannounced(seen: KafkaFacts, job: JobFacts) -> Iterator[Finding]:
    lacking = job.logged_ranks - len(job.announced)
    if lacking <= 0 or seen.now_s - job.announced_s < ANNOUNCED_S:
        return
    heard = f"; heard and not announced: {numbers(job.heard_s.keys() - job.announced)}"
    more = heard if job.heard_s.keys() - job.announced else ""
    text = f"{lacking} of {job.logged_ranks} ranks are not announced, and an iteration waits for all{more}"
    yield finding("problem", GROUP, _name(job), text, "not_announced")


def _silent(seen: KafkaFacts, job: JobFacts) -> Iterator[Finding]:
    since_s = seen.now_s - SILENT_S
    living = job.announced - job.ended
    silent = {rank for rank in living if max(job.heard_s.get(rank, 0.0), job.announced_s) < since_s}
    if not silent:
        yield ok(GROUP, _name(job), f"attempt {job.attempt}: all of {count(len(living), 'rank')} are heard")
    elif silent == living:
        for_s = span(seen.now_s - newest_s(job))
        text = f"attempt {job.attempt}: no rank heard for {for_s}, and it did not say that it ended"
        yield finding("warning", GROUP, _name(job), text, "job_silent")
    else:
        hosts = sorted({job.hosts[rank] for rank in silent if rank in job.hosts})
        where = f" on {names(hosts)}" if hosts else ""
        heard = [job.heard_s[rank] for rank in silent if rank in job.heard_s]
        for_s = f" for {span(seen.now_s - max(heard))}" if heard else ""
        text = f"{len(silent)} of {len(living)} ranks silent{for_s}: {numbers(silent)}{where}"
        yield finding("problem", GROUP, _name(job), text, "ranks_silent")


def _lost(job: JobFacts) -> Iterator[Finding]:
    lost = {source: rows for source, rows in job.lost_rows.items() if rows}
    if lost:
        told = ", ".join(f"{count(rows, 'row')} of {source}" for source, rows in sorted(lost.items()))
        yield finding("warning", GROUP, _name(job), f"lost before Kafka: {told}", "rows_lost")


def _closing(seen: KafkaFacts, job: JobFacts, grace_s: float) -> Iterator[Finding]:
    """Whether iterations close; where nobody reads or all is refused, that says why not."""
    if "evidence" in seen.stream.unread or not is_read(seen) or "commops" not in seen.topics:
        return
    if job.evidence_s is not None and seen.now_s - job.evidence_s < CLOSING_S + grace_s:
        yield ok(GROUP, _name(job), f"its newest iteration closed {span(max(seen.now_s - job.evidence_s, 0))} ago")
        return
    is_heard = max(job.heard_s.values(), default=0.0) > seen.now_s - SILENT_S
    waited_s = seen.now_s - job.announced_s - grace_s
    if not is_heard or waited_s < FIRST_CLOSING_S or not seen.topics["commops"].recent:
        return
    if job.evidence_s is None and not seen.stream.is_evidence_whole:
        return
    since = f"none for {span(seen.now_s - job.evidence_s)}" if job.evidence_s else "none so far"
    why = ", and no rank marks iterations" if job.without_marks == job.announced else ""
    code = "no_marks" if why else "none_closes"
    level: Level = "problem" if waited_s > CLOSING_S else "warning"
    yield finding(level, GROUP, _name(job), f"is heard, and no iteration closes ({since}){why}", code)


def _host_clocks(seen: KafkaFacts) -> Iterator[Finding]:
    off = {host: off_s for host, off_s in seen.stream.host_clocks_s.items() if abs(off_s) > CLOCK_S}
    for host in sorted(off, key=lambda one: -abs(off[one]))[:_MOST_JOBS]:
        yield clock_finding(GROUP, f"the clock of {host}", off[host])
    if len(off) > _MOST_JOBS:
        text = f"clocks of {len(off) - _MOST_JOBS} more hosts are off"
        yield finding("warning", GROUP, "clock", text, "clock_off")
    if seen.stream.host_clocks_s and not off:
        text = f"clocks of {count(len(seen.stream.host_clocks_s), 'host')} are not seen to be off by more than "
        yield ok(GROUP, "clock", text + span(CLOCK_S))


def _letters(seen: KafkaFacts) -> Iterator[Finding]:
    topic = seen.topics.get("deadletter")
    if topic is None or topic.error is not None:
        return
    if "deadletter" in seen.stream.unread:
        text = f"{count(topic.messages, 'message')} kept; we may not read why: {seen.stream.unread['deadletter']}"
        yield ok(GROUP, "dead letters", text) if not topic.recent else unread(GROUP, "dead letters", text)
        return
    recent = [one for one in seen.stream.letters if one.time_s > seen.now_s - RECENT_S]
    if not seen.stream.letters:
        yield ok(GROUP, "dead letters", "none")
        return
    newest = max(seen.stream.letters, key=lambda one: one.time_s)
    ago = span(max(seen.now_s - newest.time_s, 0.0))
    if not recent:
        yield ok(
            GROUP, "dead letters", f"{count(topic.messages, 'message')} kept; none is new, the last was {ago} ago"
        )
        return
    if _is_all_lost(seen, recent):
        text = f"nothing gets through of what was sent in the last {span(RECENT_S)}: {newest.reason}"
        yield finding("problem", GROUP, "dead letters", text, "all_refused")
        return
    where = newest.topic or "nowhere"
    text = f"{topic.recent} in the last {span(RECENT_S)}; the last, {ago} ago, from {where}: {newest.reason}"
    yield finding("warning", GROUP, "dead letters", text, "dead_letters")


def _sent(seen: KafkaFacts) -> int:
    return seen.topics["commops"].recent if "commops" in seen.topics else 0


def _is_all_lost(seen: KafkaFacts, recent: Sequence[Letter]) -> bool:
    of_commops = sum(one.topic.endswith("commops") for one in recent)
    share = of_commops / len(recent)
    return 0 < ALL_LOST * _sent(seen) <= share * seen.topics["deadletter"].recent
