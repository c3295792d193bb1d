"""Send mutated messages through a whole worker: ``python -m tests.fuzz.worker_run --messages 10000 --seed 1``.

Each hostile job sends sound messages and changed ones, on all topics that a worker reads. Between them comes an
innocent job, which must be judged in time and as if it were alone. Status 1 if it is not, or if the worker dies or is
not ready at the end: the seed and the messages sent since the last witness are left under ``build/``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from irregulars.errors import InputError
from irregulars.messages.threshold_changes import decode_change
from tests.conftest import ROOT, clickhouse_address
from tests.fuzz.mutations import mutate_message
from tests.fuzz.watched_worker import (
    JUDGED_WITHIN_S,
    Sent,
    WatchedWorker,
    other_messages,
    sound_messages,
    watched_worker,
)
from tests.services import shared_services

JOBS_PER_WITNESS = 4
CHANGED_SHARE = 0.5  # of a hostile job's messages: the others let it come far enough to be judged


class HostileJobs:
    """Messages of hostile jobs, one job after the other; the same for a seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._jobs = 0
        self.changed: Counter[str] = Counter()
        self.recent: list[Sent] = []

    def next_job(self) -> Iterator[Sent]:
        """Yield what the next job sends: what its ranks send in order, and the rest of it somewhere between."""
        self._jobs += 1
        name, random = b"fzz-%06d" % self._jobs, self._random
        messages = list(sound_messages())
        for message in other_messages():
            messages.insert(random.randrange(len(messages) + 1), message)
        for message in messages:
            own = message.of(name)
            if random.random() >= CHANGED_SHARE:
                if own.topic != "thresholds":
                    yield own
                continue
            changed = Sent(own.topic, own.key, mutate_message(own.value, random))
            if is_of_all_jobs(changed):
                continue
            self.changed[own.topic] += 1
            self.recent.append(changed)
            yield changed
            if random.random() < 0.5:
                yield own  # so that the job goes on as if nothing had been


def is_of_all_jobs(message: Sent) -> bool:
    """Whether it changes a threshold of all jobs, which whoever may write there has the right to do."""
    if message.topic != "thresholds":
        return False
    try:
        change = decode_change(message.value)
    except InputError:
        return False
    return change.job is None


def send_hostile_jobs(watched: WatchedWorker, hostile: HostileJobs, messages: int, within_s: float) -> None:
    """Send so many changed messages, with witnesses between them; raises `AssertionError` as these do."""
    began_s, jobs = time.monotonic(), 0
    while hostile.changed.total() < messages:
        for message in hostile.next_job():
            watched.send(message)
        jobs += 1
        if jobs % JOBS_PER_WITNESS == 0 or hostile.changed.total() >= messages:
            watched.require_witness(within_s)
            hostile.recent.clear()
        if jobs % (10 * JOBS_PER_WITNESS) == 0:
            print(f"{hostile.changed.total():>7} messages, {time.monotonic() - began_s:.0f} s, slowest witness "
                  f"{watched.slowest_s:.1f} s", flush=True)  # fmt: skip
    watched.require_ready()
    watched.restart()  # what it kept of them is read again
    watched.require_ready()
    watched.require_witness(within_s)


def save(hostile: HostileJobs, seed: int, error: BaseException) -> Path:
    """Keep the messages that may have done it."""
    path = ROOT / "build" / f"fuzz-worker-seed-{seed}.json"
    path.parent.mkdir(exist_ok=True)
    sent = [{"topic": m.topic, "key": m.key.decode(), "value": b64encode(m.value).decode()} for m in hostile.recent]
    path.write_text(json.dumps({"seed": seed, "error": str(error), "messages": sent}))
    return path


def main() -> int:
    """Run a worker, and send."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000, help="changed ones; sound ones come beside them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--within-s", type=float, default=JUDGED_WITHIN_S, help="until an innocent job is judged")
    own = parser.parse_args()
    hostile = HostileJobs(own.seed)
    with shared_services() as services, TemporaryDirectory() as folder:
        server = clickhouse_address(services["CLICKHOUSE_URL"])
        with watched_worker(services["KAFKA_BOOTSTRAP"], server, Path(folder)) as watched:
            try:
                send_hostile_jobs(watched, hostile, own.messages, own.within_s)
            except AssertionError as error:
                print(f"seed {own.seed}: {error}\n{save(hostile, own.seed, error)}")
                return 1
            letters = len(watched.pipeline.bus.read("deadletter"))
            each = ", ".join(f"{topic} {count}" for topic, count in sorted(hostile.changed.items()))
            print(f"seed {own.seed}: {hostile.changed.total()} changed messages ({each}), {letters} dead letters; "
                  f"slowest of the innocent jobs: {watched.slowest_s:.1f} s")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
