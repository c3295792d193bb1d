from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from irregulars.errors import InputError
from irregulars.producers.publishing.spool import Message, Spool

MESSAGES = st.builds(
    Message, st.sampled_from(["jobs", "commops"]), st.binary(max_size=20), st.binary(max_size=200),
    st.integers(0, 2**32 - 1), st.integers(0, 2**62), st.binary(max_size=20),
)  # fmt: skip


def message(ordinal: int, size: int = 1000) -> Message:
    return Message("commops", b"job/1", ordinal.to_bytes(4, "big") * (size // 4), 10, 1)


class Dropped:
    """Takes what a spool drops."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def __call__(self, messages: Sequence[Message]) -> None:
        self.messages += messages


@pytest.fixture
def dropped() -> Dropped:
    return Dropped()


def drain(spool: Spool) -> list[Message]:
    found = []
    while (taken := spool.take()) is not None:
        found += taken[1]
        spool.remove(taken[0])
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=30)
@given(st.lists(st.lists(MESSAGES, min_size=1, max_size=5), max_size=5), st.integers(0, 5))
def test_what_goes_in_comes_out_in_order_also_after_a_restart(
    tmp_path: Path, segments: list[list[Message]], restart: int
) -> None:
    spool = Spool(tmp_path, 1 << 20, Dropped())
    for place, messages in enumerate(segments):
        if place == restart:
            spool = Spool(tmp_path, 1 << 20, Dropped())
        assert spool.append(spool.next_number, messages)
    assert drain(Spool(tmp_path, 1 << 20, Dropped())) == [one for messages in segments for one in messages]
    assert list(tmp_path.iterdir()) == []


def test_above_the_bound_the_oldest_go(tmp_path: Path, dropped: Dropped) -> None:
    spool = Spool(tmp_path, 5_000, dropped)
    for ordinal in range(10):
        spool.append(spool.next_number, [message(ordinal)])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == spool.size_bytes <= 5_000
    assert dropped.messages + drain(spool) == [message(ordinal) for ordinal in range(10)]
    assert dropped.messages


def test_what_is_put_back_comes_first_and_replaces_where_it_came_from(tmp_path: Path, dropped: Dropped) -> None:
    spool = Spool(tmp_path, 1 << 20, dropped)
    for ordinal in range(3):
        spool.append(10 * ordinal, [message(ordinal), message(ordinal)])
    taken = spool.take()
    assert taken is not None
    segment, messages = taken
    assert spool.put_back(segment.number, messages[1:], [segment])
    assert len(list(tmp_path.iterdir())) == 3
    assert drain(spool) == [message(0), message(1), message(1), message(2), message(2)]


def segment_of(body: bytes) -> bytes:
    return b"IRSPOOL1" + struct.pack("<I", zlib.crc32(body)) + body


BROKEN_BODIES = (
    b"\1\2", struct.pack("<BHIIqH", 4, 3, 500, 1, 0, 0) + b"jobsabcxx",
    struct.pack("<BHIIqH", 4, 3, 2, 1, 0, 9) + b"jobsabcxx", struct.pack("<BHIIqH", 1, 0, 0, 1, 0, 0) + b"\xff",
)  # fmt: skip


@pytest.mark.parametrize("spoil", [
    lambda b: b[:-1], lambda b: b"", lambda b: b"x" + b[1:], lambda b: b[:40] + b"?" + b[41:],
    *(lambda _, body=body: segment_of(body) for body in BROKEN_BODIES),
])  # fmt: skip
def test_a_segment_that_is_not_whole_is_named_and_left_out(
    spoil: object, tmp_path: Path, dropped: Dropped, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(tmp_path, 1 << 20, dropped)
    for ordinal in range(2):
        spool.append(ordinal, [message(ordinal)])
    first = min(tmp_path.iterdir())
    first.write_bytes(spoil(first.read_bytes()))  # type: ignore[operator]
    again = Spool(tmp_path, 1 << 20, dropped)
    assert drain(again) == [message(1)]
    assert again.unreadable_segments == 1
    assert [text for text in caplog.messages if f"event=spool_segment_unreadable file={first} " in text]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("damaged", "kept"), [([0], [1, 2]), ([0, 1], [2])])
def test_above_the_bound_a_damaged_segment_goes_and_none_behind_it(
    tmp_path: Path, dropped: Dropped, damaged: list[int], kept: list[int]
) -> None:
    spool = Spool(tmp_path, 2 * (message(0).size_bytes + 12), dropped)
    for ordinal in (0, 1):
        spool.append(ordinal, [message(ordinal)])
    for ordinal in damaged:
        (tmp_path / f"{ordinal:020d}.spool").write_bytes(b"a bad block")
    spool.append(2, [message(2)])
    assert (dropped.messages, spool.unreadable_segments) == ([], 1)
    assert drain(spool) == [message(one) for one in kept]
    assert (spool.size_bytes, spool.unreadable_segments) == (0, len(damaged))


def test_half_a_segment_goes_and_what_is_not_of_the_spool_is_left_alone(tmp_path: Path, dropped: Dropped) -> None:
    for folder in (f"{1:020d}.spool", "1.part"):
        (tmp_path / folder).mkdir()
    for name in ("²³.spool", "notes.spool"):
        (tmp_path / name).write_bytes(b"mine")
    (tmp_path / f"{2:020d}.spool").symlink_to("/nowhere")
    before = sorted(tmp_path.iterdir())
    (tmp_path / "00000000000000000001.part").write_bytes(b"half")
    spool = Spool(tmp_path, 1 << 20, dropped)
    assert (len(spool), drain(spool)) == (0, [])
    assert sorted(tmp_path.iterdir()) == before


def test_a_disk_that_takes_nothing_is_named_once_and_one_without_a_place_refused(
    tmp_path: Path, dropped: Dropped, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(tmp_path / "spool", 1 << 20, dropped)
    (tmp_path / "spool").rmdir()
    assert not spool.append(1, [message(1)])
    assert not spool.append(2, [message(2)])
    assert dropped.messages == [message(1), message(2)]
    assert len([text for text in caplog.messages if "event=spool_unwritable" in text]) == 1
    (tmp_path / "spool").mkdir()
    assert spool.append(3, [message(3)])
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"spool directory must be one that we can write; got .*file/spool"):
        Spool(tmp_path / "file" / "spool", 1 << 20, dropped)


def test_a_full_disk_keeps_no_halves_of_files(tmp_path: Path) -> None:
    """In a process of its own: the limit of a file's size is of the process."""
    code = f"""
import resource
from pathlib import Path
from irregulars.producers.publishing.spool import Message, Spool
spool = Spool(Path({str(tmp_path)!r}), 1 << 30, lambda dropped: print(len(dropped)))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
for place in range(3):
    spool.append(1000 * place, [Message("commops", b"k", b"v" * 300_000)])
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(spool.append(9000, [Message("commops", b"k", b"v" * 300_000)]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n1\n1\nTrue\n")
    assert done.stderr.count("event=spool_unwritable") == 1
    assert [path.name for path in tmp_path.iterdir()] == [f"{9000:020d}.spool"]
