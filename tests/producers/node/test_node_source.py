from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from irregulars.errors import InputError
from irregulars.messages.announcements import Announcement, Heartbeat
from irregulars.messages.records import Batch, Header
from irregulars.producers.node.node_source import NodeSource
from irregulars.producers.node.roster import Roster
from irregulars.producers.publishing.sources import GONE, Record, row_count


def announced(rank: int) -> Announcement:
    return Announcement("job", 0, rank, 8, 8, (), ("commops",), gpu=rank)


def rows(rank: int, count: int) -> Batch:
    columns = {"time_ns": np.arange(count), "path": np.zeros(count, np.uint8), "device": np.zeros(count, np.uint16),
               "tx_bytes_per_s": np.zeros(count), "rx_bytes_per_s": np.zeros(count)}  # fmt: skip
    return Batch(Header("bandwidth", "job", 0, rank), columns)


class Given:
    """Gives what it was given, as much as fits; raises what it was told to."""

    def __init__(self, *records: Record | Exception) -> None:
        self.records, self.closes, self.asked = list(records), 0, list[int]()

    def poll(self, max_records: int) -> Sequence[Record]:
        self.asked.append(max_records)
        polled: list[Record] = []
        while self.records:
            record = self.records[0]
            if isinstance(record, Exception):
                self.records.pop(0)
                raise record
            max_records -= row_count(record)
            if max_records < 0:
                break
            self.records.pop(0)
            polled.append(record)
        return polled

    def position(self) -> str:
        return f"left={len(self.records)}"

    @property
    def is_exhausted(self) -> bool:
        return False

    def close(self) -> None:
        self.closes += 1


@pytest.mark.parametrize("state", ["ended", GONE])
def test_announcements_fill_the_roster_and_ends_empty_it(state: str) -> None:
    roster = Roster("host", gpus=range(8))
    source = NodeSource({"a": Given(announced(1), announced(2)), "b": Given(announced(3))}, roster)
    found = source.poll(100)
    assert [record.host for record in found if isinstance(record, Announcement)] == ["host"] * 3
    assert set(roster.gpus) == {1, 2, 3}
    source = NodeSource({"a": Given(Heartbeat("job", 0, 2, state=state), Heartbeat("job", 0, 3))}, roster)
    assert len(source.poll(100)) == 2
    assert set(roster.gpus) == {1, 3}


def test_a_job_of_the_same_name_that_ends_takes_no_group_from_one_that_goes_on() -> None:
    both = [replace(announced(1), start=start) for start in "ab"]
    batch = replace(rows(1, 5), header=replace(rows(1, 5).header, start="b"))
    given = Given(*both, Heartbeat("job", 0, 1, state="ended", start="a"), batch)
    *_, found = NodeSource({"a": given}, Roster("host")).poll(100)
    assert isinstance(found, Batch)
    assert found.header.group == "host/0"


@pytest.mark.parametrize("job", ["j" * 4_090, "é" * 4_000], ids=["its host makes the key too long", "its letters do"])
def test_a_rank_that_no_message_can_announce_is_named_and_left_out_and_the_others_go_on(
    job: str, caplog: pytest.LogCaptureFixture
) -> None:
    batch = replace(rows(1, 5), header=replace(rows(1, 5).header, job=job))
    last = Heartbeat(job, 0, 1, state="ended")
    given = Given(replace(announced(1), job=job), announced(2), batch, last, rows(2, 5))
    roster = Roster("node-17.cluster", gpus=range(8))
    found = NodeSource({"a": given}, roster).poll(100)
    assert [one.header.rank if isinstance(one, Batch) else one.rank for one in found] == [2, 2]
    assert set(roster.gpus) == {2}
    (line,) = caplog.messages
    assert line.startswith(f"event=rank_refused job='{job[:20]}")
    assert len(line) < 400


def test_a_rank_that_sends_nothing_or_lives_elsewhere_has_no_devices_here() -> None:
    roster = Roster("host", gpus=range(8))
    quiet = Announcement("job", 0, 1, 8, 8, (), (), is_logged=False, gpu=1)
    assert NodeSource({"a": Given(quiet)}, roster).poll(100) == [quiet]
    assert roster.gpus == {}
    roster = Roster("node-3", {0: "mlx5_0"}, range(8))
    far = Elsewhere(replace(announced(1), host="10.0.0.9"))
    (found,) = NodeSource({"far": far}, roster).poll(10)
    assert isinstance(found, Announcement)
    assert (found.group, found.nic, found.sources) == ("10.0.0.9/0", None, ("commops",))
    assert not roster.gpus
    assert not roster.nics


@pytest.mark.parametrize("error", [InputError("file must be JSON; got XML"), OSError("gone")])
def test_a_source_that_fails_is_named_and_others_go_on(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    bad, good = Given(announced(1), error), Given(*[rows(2, 10)] * 3)
    source = NodeSource({"bad": bad, "good": good}, Roster("host"))
    assert sum(len(source.poll(10)) for _ in range(6)) == 3
    assert (source.names, source.failed_sources, bad.closes, good.closes) == (("good",), 1, 1, 0)
    assert [text for text in caplog.messages if "source_failed" in text] == [
        f"event=source_failed source=bad reason={str(error)!r}"
    ]
    source.close()
    assert (bad.closes > 0, good.closes) == (True, 1)


def test_devices_that_cannot_be_read_are_named_once_and_read_again(caplog: pytest.LogCaptureFixture) -> None:
    devices = Given(OSError("gone"), OSError("gone"), rows(0, 1))
    source = NodeSource({"good": Given(*[rows(2, 10)] * 4)}, Roster("host"), devices)
    assert [len(source.poll(15)) for _ in range(3)] == [1, 1, 2]
    devices.records.append(InputError("odd"))
    assert len(source.poll(15)) == 1
    assert [text for text in caplog.messages if "devices_unreadable" in text] == [
        "event=devices_unreadable reason='gone'", "event=devices_unreadable reason='odd'"
    ]  # fmt: skip
    assert (source.names, source.failed_sources, devices.closes) == (("good",), 0, 0)


def test_no_source_starves_behind_a_busy_one_and_each_says_where_it_stands() -> None:
    busy, other, devices = Given(*[rows(1, 10)] * 50), Given(rows(2, 10)), Given(rows(3, 10))
    source = NodeSource({"busy": busy, "other": other}, Roster("host"), devices)
    ranks: list[int] = []
    for _ in range(60):
        ranks += [record.header.rank for record in source.poll(10) if isinstance(record, Batch)]
    assert sorted(set(ranks)) == [1, 2, 3]
    assert ranks.index(2) <= 2
    assert len(ranks) == 52
    source = NodeSource({"b": Given(), "a": Given(rows(1, 5))}, Roster("host"))
    assert source.position() == "a[left=1] b[left=0]"
    assert source.is_exhausted is False


class Elsewhere(Given):
    """Its ranks live on other hosts."""

    speaks_for_other_hosts = True
