"""Checks of the workers: does one read, how far is it behind, do all run the same release."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import urllib3

from irregulars.errors import InputError
from irregulars.infra.doctor.facts import KafkaFacts, WorkerPage
from irregulars.infra.doctor.findings import (
    Finding,
    Level,
    count,
    finding,
    names,
    numbers,
    ok,
    span,
    unread,
    unseen,
    why_not,
)
from irregulars.pages import parse_listen

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
        return answer.status, answer.read(1 << 20).decode(errors="replace")
    finally:
        answer.close()


def _reason(page: tuple[int, str]) -> str | None:
    return None if page[0] == 200 else page[1].partition("\n")[0]


GROUP: Final = "workers"
ALIVE_S: Final = 30.0
"""A worker says how far it is every two seconds: one that has said nothing for that long does not read."""

LATE_S: Final = 60.0
BEHIND_S: Final = 300.0  # age of unread messages that is a page, as in the alert IrregularsBehind
FIRST_HOP: Final = ("commops", "iterations", "heartbeats", "bandwidth", "gpu_health", "jobs")


def check_workers(seen: KafkaFacts, own_release: str) -> Iterator[Finding]:
    """Yield the findings on the workers."""
    if "progress" in seen.topics and seen.topics["progress"].error:
        yield unseen(GROUP, "all", seen.topics["progress"])
        return
    waiting = waiting_messages(seen)
    yield from _readers(seen, waiting)
    yield from _unread_partitions(seen)
    yield from _lag(seen, waiting)
    yield from _judging(seen)
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
    found = {}
    for topic in FIRST_HOP:
        ends = seen.topics[topic].ends if topic in seen.topics else {}
        begins = seen.topics[topic].begins if topic in seen.topics else {}
        lag = 0
        for partition, end in ends.items():
            told = seen.stream.progress.get(partition)
            read_to = told.positions.get(topic, 0) if told else 0
            lag += max(end - max(read_to, begins.get(partition, 0)), 0)
        found[topic] = lag
    return {topic: lag for topic, lag in found.items() if lag}


def is_read(seen: KafkaFacts) -> bool:
    """Whether a worker lives, as far as is known."""
    group = seen.workers
    is_deserted = group is not None and group.error is None and not (
        group.members or group.is_settling or group.is_stable)  # fmt: skip
    return not is_deserted and _newest_s(seen) > seen.now_s - ALIVE_S


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
        yield ok(GROUP, "group", f"{count(len(group.members), 'worker')} in {group.name}: {names(group.members)}")
        return
    elif group.is_settling or (group.is_stable and not is_read(seen)):
        yield ok(GROUP, "group", f"{group.name} has workers, and shares out its partitions or has just done so")
        return
    if is_read(seen):
        yield ok(GROUP, "reading", f"a worker last said {ago} ago how far it is")
    elif group.error is None or seen.stream.progress:
        since = f"; the last one was heard {ago} ago" if _newest_s(seen) else ""
        left = f"; {count(sum(waiting.values()), 'message')} wait" if waiting else ""
        text = f"no worker reads (consumer group {group.name}){since}{left}"
        yield finding("problem", GROUP, "group", text, "no_worker", group=group.name)


def _unread_partitions(seen: KafkaFacts) -> Iterator[Finding]:
    if not is_read(seen) or "commops" not in seen.topics:
        return
    told = seen.stream.progress
    late = [number for number in range(seen.topics["commops"].partitions)
            if number not in told or told[number].time_s < seen.now_s - ALIVE_S]  # fmt: skip
    if late and not (seen.workers and seen.workers.is_settling):
        text = f"{count(len(late), 'partition')} not read for {span(ALIVE_S)}: {numbers(late)}"
        yield finding("problem", GROUP, "partitions", text, "partitions_unread")


def _lag(seen: KafkaFacts, waiting: dict[str, int]) -> Iterator[Finding]:
    if "progress" in seen.stream.unread:
        yield unread(GROUP, "lag", seen.stream.unread["progress"])
        return
    if not is_read(seen):
        return
    oldest = {place: seen.now_s - at_s for place, at_s in seen.stream.waiting_s.items() if place[0] != "evidence"}
    longest_s = max(oldest.values(), default=0.0)
    if longest_s < LATE_S:
        left = f"{count(sum(waiting.values()), 'message')} not read" if waiting else "everything is read"
        yield ok(GROUP, "lag", f"{left}, the oldest of {span(longest_s)} ago" if waiting and oldest else left)
        return
    late = sorted((place for place, s in oldest.items() if s >= LATE_S), key=lambda place: -oldest[place])
    where = names(f"{topic}/{partition} ({span(oldest[topic, partition])})" for topic, partition in late)
    text = f"{count(sum(waiting.values()), 'message')} not read; the oldest of {span(longest_s)} ago: {where}"
    level: Level = "problem" if longest_s >= BEHIND_S else "warning"
    yield finding(level, GROUP, "lag", text, "behind")


def _judging(seen: KafkaFacts) -> Iterator[Finding]:
    """Yield whether the second hop judges: evidence is judged up to the group's commits."""
    late = {part: seen.now_s - at_s for (topic, part), at_s in seen.stream.waiting_s.items() if topic == "evidence"}
    longest_s = max(late.values(), default=0.0)
    if is_read(seen) and longest_s >= BEHIND_S:
        text = f"evidence of {span(longest_s)} ago is not judged and stored, in partition {numbers(late)}"
        yield finding("problem", GROUP, "judging", text, "judging_behind")


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
