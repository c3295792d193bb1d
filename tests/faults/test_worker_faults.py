"""What goes wrong inside a worker: a message, a partition or a port must not stop it; what must, does so in time."""

from __future__ import annotations

import signal
import socket
import time

import pytest

from tests.integration.worker_runs import Bus, Job, StartWorker, Worker, partition_of, require_each_once, wait_until

pytestmark = pytest.mark.integration

STOP_S = 5.0
ENDED_S = 30.0  # the process counts from the signal on; a busy machine may take long to end it


@pytest.fixture
def partitions() -> int:
    return 1


def has_ended(worker: Worker) -> bool:
    return not worker.is_running


def test_a_message_that_a_monitor_cannot_take_is_buried(bus: Bus, start_worker: StartWorker) -> None:
    job = Job(bus, "odd", ranks=2)
    job.run_whole(8)
    worker = start_worker(faults={"raises_at": 3}, evidence_linger_s=0.05)
    wait_until(lambda: len(bus.read("deadletter")) > 0 or has_ended(worker), "dead letter")
    buried = bus.read("deadletter")[0]
    headers = {name: value.decode() for name, value in buried.headers()}
    assert "it raised OverflowError: Python int too large" in headers["reason"]
    assert headers["topic"] == bus.topics.name("evidence")
    assert buried.value(), "the message is kept as it came"
    other = Job(bus, "even", ranks=2)
    other.run_whole(3)  # its iterations are 0 to 2
    wait_until(lambda: set(bus.verdict_ids()) >= other.wanted_ids() or has_ended(worker), "other verdicts")
    assert worker.stop() == 0


def test_a_fatal_error_ends_the_process_in_time_and_with_status_1(bus: Bus, start_worker: StartWorker) -> None:
    job = Job(bus, "fatal", ranks=2)
    job.begin(4)
    worker = start_worker(faults={"is_fatal": True}, stop_s=STOP_S)
    wait_until(lambda: "level=CRITICAL" in worker.output() or has_ended(worker), "fatal error")
    assert worker.process.wait(ENDED_S) == 1
    assert "alerts can't be made" in worker.output()
    assert "Traceback" not in worker.output()


def test_a_worker_stops_in_time_while_its_database_hangs(bus: Bus, start_worker: StartWorker) -> None:
    job = Job(bus, "hanging", ranks=2)
    job.begin(4)
    worker = start_worker(faults={"has_hanging_sink": True}, stop_s=STOP_S)
    wait_until(lambda: len(bus.verdict_ids()) > 0 or has_ended(worker), "first verdict")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(ENDED_S) in (0, 1)
    assert "Traceback" not in worker.output()


def test_a_worker_stops_in_order_though_its_commits_get_no_answer(bus: Bus, start_worker: StartWorker) -> None:
    job = Job(bus, "uncommitted", ranks=2)
    job.run_whole(4)
    worker = start_worker(faults={"hangs_in_commits": True})
    wait_until(lambda: set(bus.verdict_ids()) >= job.wanted_ids() or has_ended(worker), "verdicts")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(ENDED_S) == 0


def test_a_busy_port_costs_the_page_and_no_worker(bus: Bus, start_worker: StartWorker) -> None:
    job = Job(bus, "port", ranks=2)
    job.run_whole(4)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        worker = start_worker(web_port=taken.getsockname()[1])
        wait_until(lambda: set(bus.verdict_ids()) >= job.wanted_ids() or has_ended(worker), "verdicts")
        assert worker.output().count("event=no_page") == 1
        assert "Traceback" not in worker.output()
        assert worker.stop() == 0


@pytest.mark.parametrize("partitions", [2])
@pytest.mark.parametrize("is_for_good", [False, True])
def test_an_unread_partition_is_told_and_healed(bus: Bus, start_worker: StartWorker, is_for_good: bool) -> None:
    """Faust's issue 629, made to happen: by seeking, or by ending the process, so that another one reads on."""
    jobs = [Job(bus, f"unread-{number}", ranks=4) for number in range(2)]
    for job in jobs:
        job.run_whole(4)
    assert {partition_of(b"unread-%d/%d" % (j, r), bus) for j in range(2) for r in range(4)} == {0, 1}
    wanted = set().union(*(job.wanted_ids() for job in jobs))
    faults = {"unread": bus.topics.name("commops"), "for_good": is_for_good}
    worker = start_worker(faults=faults, stall_s=3.0)
    if is_for_good:
        assert worker.process.wait(120.0) == 1
        assert "must be read; got nothing from" in worker.output()
        worker = start_worker()
    else:
        wait_until(lambda: set(bus.verdict_ids()) >= wanted or has_ended(worker), "verdicts")
        assert worker.output().count("event=stalled") == 1
    require_each_once(bus, wanted, worker)


def test_a_flow_that_is_stopped_and_never_resumed_is_told_and_healed(bus: Bus, start_worker: StartWorker) -> None:
    job = Job(bus, "stopped-flow", ranks=4)
    worker = start_worker(faults={"stops_flow": True}, stall_s=3.0)
    wait_until(lambda: "event=ready" in worker.output() or has_ended(worker), "a start that resumes no flow any more")
    job.announce()

    def is_stalled() -> bool:  # of messages that come at once it takes any number as one block
        job.run(1)
        bus.flush()
        time.sleep(0.2)
        return "event=stalled" in worker.output() or has_ended(worker)

    wait_until(is_stalled, "a stall that is told")
    job.finish()
    require_each_once(bus, job.wanted_ids(), worker)


def test_a_message_that_is_passed_over_is_read_again_at_once(bus: Bus, start_worker: StartWorker) -> None:
    """Though Faust has others of the partition on their way, and drops what lies before them."""
    job = Job(bus, "passed-over", ranks=4)
    job.run_whole(200)
    worker = start_worker(faults={"loses": bus.topics.name("commops")})
    wait_until(lambda: set(bus.verdict_ids()) >= job.wanted_ids() or has_ended(worker), "verdicts")
    said = worker.output()
    assert said.count("event=passed_over") == 1
    assert "event=stalled" not in said
    require_each_once(bus, job.wanted_ids(), worker)
