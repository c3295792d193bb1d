"""What peers of the agent's socket may do to it: nothing."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from irregulars.errors import InputError
from irregulars.messages.announcements import Announcement, Communicator, Heartbeat, encode_announcement
from irregulars.messages.records import UNKNOWN, Batch, Header
from irregulars.producers.node.node_source import NodeSource
from irregulars.producers.node.roster import Roster
from irregulars.producers.publishing.sources import GONE, Record
from irregulars.producers.torch_hook.agent_socket import GONE_S, SocketSource
from irregulars.producers.torch_hook.frames import End, encode_frame
from tests.waiting import DEADLINE_S, gather, wait_for

ANNOUNCED = Announcement("job", 0, 0, 2, 2, (Communicator("world", "world", (0, 1)),))


def batch(rank: int = 0) -> Batch:
    columns = {"communicator": np.zeros(3, np.uint16), "operator": np.zeros(3, np.uint8), "sequence": np.arange(3),
               "peer": np.full(3, UNKNOWN), "start_ns": np.arange(3), "iteration": np.arange(3),
               "elapsed_ns": np.ones(3), "size_bytes": np.ones(3)}  # fmt: skip
    return Batch(Header("commops", "job", 0, rank, 0, 9, ("world",)), columns)


def raw(letter: bytes, value: bytes) -> bytes:
    return struct.pack("<cI", letter, len(value)) + value


def announced(**values: object) -> bytes:
    return raw(b"A", json.dumps({**json.loads(encode_announcement(ANNOUNCED)), **values}).encode())


@contextmanager
def peer(path: Path, *frames: bytes) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        connection.settimeout(DEADLINE_S)
        connection.connect(os.fspath(path))
        sender = threading.Thread(target=send, args=(connection, frames))  # more than a socket holds, in some tests
        sender.start()
        yield connection
        sender.join(DEADLINE_S)


def send(connection: socket.socket, frames: tuple[bytes, ...]) -> None:
    with contextlib.suppress(OSError):  # the other end has closed it, which tests look at
        connection.sendall(b"".join(frames))


def is_closed(source: SocketSource, connection: socket.socket) -> bool:
    """Poll until the other end is closed, and nothing came of it."""
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        assert [one for one in source.poll(100) if isinstance(one, Batch)] == []
        if select.select([connection], [], [], 0.01)[0]:
            try:
                return connection.recv(1) == b""
            except ConnectionResetError:
                return True
    return False


def take(source: SocketSource, count: int) -> list[Record]:
    return gather(lambda: source.poll(100), lambda found: len(found) >= count)


def wait_until(source: SocketSource, connections: int) -> None:
    def is_so() -> bool:
        assert source.poll(100) == []
        return len(source._connections) <= connections

    wait_for(is_so)


@pytest.mark.parametrize(
    "frames",
    [
        [raw(b"E", b"[" * 100_000)],
        [raw(b"E", b'{"lost_rows": 1%s}' % (b"0" * 300))],
        [raw(b"E", b'{"lost_rows": true}')],
        [raw(b"E", b"{}")],
        [raw(b"A", b"[" * 100_000)],
        [announced(job="j" * 70_000)],
        [announced(communicators=[{"id": "x" * 100 + str(n), "kind": "dp", "ranks": [[0, 2, 1]]}
                                  for n in range(10_000)])],
        [announced(communicators=[{"id": str(n), "kind": "dp", "ranks": [[0, 4_000_000, 1]]} for n in range(50)])],
        [announced(communicators=[{"id": "a", "kind": "dp", "ranks": [[0, 2, 0]]}])],
        [encode_frame(batch())],
        [encode_frame(ANNOUNCED), encode_frame(batch(rank=1))],
        [struct.pack("<cI", b"A", 2**32 - 1)],
        [b"GET / HTTP/1.1\r\n\r\n"],
    ],
    ids=["deep end", "huge count", "true as count", "no count", "deep announcement", "long name", "large one",
         "members without end", "step of none", "rows of nobody", "rows of another", "huge frame", "browser"],
)  # fmt: skip
def test_a_peer_that_sends_what_can_t_be_used_is_closed_and_the_others_go_on(
    tmp_path: Path, frames: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with closing(SocketSource(tmp_path / "s")) as source:
        with peer(tmp_path / "s", *frames) as connection:
            assert is_closed(source, connection)
        (line,) = [one.getMessage() for one in caplog.records]
        assert line.startswith("event=torch_connection_closed error=")
        assert len(line) < 400
        with peer(tmp_path / "s", encode_frame(ANNOUNCED), encode_frame(batch()), encode_frame(End(3))):
            *_, rows, end = take(source, 3)
        assert isinstance(rows, Batch)
        assert isinstance(end, Heartbeat)
        assert end.sources["commops"].lost_rows == 3


def test_two_processes_that_are_the_same_rank_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    again = replace(ANNOUNCED, rank=1)
    path, frame = tmp_path / "s", encode_frame(ANNOUNCED)
    with closing(SocketSource(path)) as source, peer(path, frame), peer(path, encode_frame(again)):
        take(source, 2)
        assert caplog.records == []
        with peer(path, frame):
            take(source, 1)
    (line,) = [one.getMessage() for one in caplog.records]
    assert line == "event=torch_rank_twice job='job' attempt=0 rank=0 effect='rows of two processes mix'"


FORKING = """
import os, socket, sys, time
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.sendall(bytes.fromhex(sys.argv[2]))
if os.fork() == 0:
    time.sleep(600)  # with the connection, as a loader of data
os._exit(0) if sys.stdin.read() == "" else None
"""


def test_the_process_of_a_rank_is_known_until_it_ends_though_a_fork_keeps_its_connection(tmp_path: Path) -> None:
    source = SocketSource(tmp_path / "agent.sock")
    frame = encode_frame(replace(ANNOUNCED, rank=1)).hex()
    command = [sys.executable, "-c", FORKING, str(tmp_path / "agent.sock"), frame]
    with closing(source), subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        try:
            take(source, 1)
            assert {rank: one.pid for (_, _, rank, *_), one in source.processes.items()} == {1: process.pid}
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)
            take(source, 0)
            assert source.processes == {}
            assert len(source._connections) == 1, "the fork keeps it"
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_rank_that_was_killed_is_gone_after_a_while_and_one_that_comes_back_or_ended_is_not(tmp_path: Path) -> None:
    now_s = [0.0]
    killed, back, twice, ended = (encode_frame(replace(ANNOUNCED, rank=rank)) for rank in range(4))
    path = tmp_path / "s"
    with closing(SocketSource(path, clock_s=lambda: now_s[0])) as source, peer(path, twice):
        with peer(path, killed), peer(path, back), peer(path, twice), peer(path, ended, encode_frame(End(0))):
            assert len(take(source, 6)) == 6
        wait_until(source, connections=1)
        now_s[0] = GONE_S - 1.0
        with peer(path, back):
            assert len(take(source, 1)) == 1
            now_s[0] = GONE_S + 1.0
            (gone,) = take(source, 1)
            assert isinstance(gone, Heartbeat)
            assert (gone.rank, gone.state, gone.sources) == (0, GONE, {})
        wait_until(source, connections=1)
        now_s[0] = 2 * GONE_S - 1.0
        assert source.poll(100) == []
        now_s[0] = 2 * GONE_S + 2.0
        assert [one.rank for one in source.poll(100) if isinstance(one, Heartbeat)] == [1]
        assert source.poll(100) == []


def test_a_process_that_goes_on_as_another_rank_gives_up_the_place_that_it_had(tmp_path: Path) -> None:
    """Its NIC stayed the old rank's, and samples went out for a rank that is not there any more."""
    places = [replace(ANNOUNCED, rank=1, nic="mlx5_0"), replace(ANNOUNCED, rank=0, nic="mlx5_0", since_ns=7)]
    roster = Roster("node-0")
    with closing(SocketSource(tmp_path / "s")) as source:
        node = NodeSource({"torch": source}, roster)
        with peer(tmp_path / "s", *map(encode_frame, [places[0], *places])):  # announced again: the same place
            found = gather(lambda: node.poll(100), lambda found: len(found) >= 4)
    assert [(type(one).__name__, one.rank) for one in found if not isinstance(one, Batch)] == [
        ("Announcement", 1), ("Announcement", 1), ("Heartbeat", 1), ("Announcement", 0),
    ]  # fmt: skip
    assert [(one.rank, one.since_ns) for one in roster.nics.values()] == [(0, 7)]


@pytest.mark.parametrize(("name", "mode", "text"), [
    ("s", 660, r"^mode must be permissions, 0o600 to 0o777; got 0o1224 \(socket /.*\)$"),  # not meant as octal
    ("missing/s", 0o600, r"^agent's socket must be a path where we can make one; got .*"),
    ("file", 0o600, r"path where we can make one; got a file that is no socket.*/file\)"),
])  # fmt: skip
def test_a_socket_that_can_t_be_made_is_told_in_one_line(tmp_path: Path, name: str, mode: int, text: str) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(InputError, match=text):
        SocketSource(tmp_path / name, mode=mode)
    assert (tmp_path / "file").read_text() == "precious"


def test_a_socket_is_left_to_an_agent_that_listens_on_it_and_replaced_if_it_was_killed(tmp_path: Path) -> None:
    with closing(SocketSource(tmp_path / "s")) as first:
        with pytest.raises(InputError, match=r"a socket on which another process listens"):
            SocketSource(tmp_path / "s")
        with peer(tmp_path / "s", encode_frame(ANNOUNCED)):
            assert len(take(first, 1)) == 1
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
        killed.bind(os.fspath(tmp_path / "s"))
    first = SocketSource(tmp_path / "s", mode=0o660)
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o660  # others may be let in
    (tmp_path / "s").unlink()
    with closing(SocketSource(tmp_path / "s")):
        first.close()
        assert (tmp_path / "s").exists()


def test_peers_that_take_all_file_descriptors_are_waited_out(tmp_path: Path) -> None:
    """In a process of its own: the limit is of the process."""
    code = f"""
import resource, socket, time
from pathlib import Path
from irregulars.producers.torch_hook.agent_socket import GONE_S, SocketSource
source = SocketSource(Path({os.fspath(tmp_path / "s")!r}))
peers = [socket.socket(socket.AF_UNIX) for _ in range(20)]
used = max(peer.fileno() for peer in peers)
resource.setrlimit(resource.RLIMIT_NOFILE, (used + 11, used + 11))
for peer in peers:
    peer.connect({os.fspath(tmp_path / "s")!r})
source.poll(1)
source.poll(1)
waiting = 20 - len(source._connections)
for peer in peers[:15]:
    peer.close()
until_s = time.monotonic() + {DEADLINE_S / 2}
while len(source._connections) != 5 and time.monotonic() < until_s:
    source.poll(1)
    time.sleep(0.01)
print(waiting > 0, len(source._connections))
source.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "True 5\n")
    assert done.stderr.count("event=torch_connection_waits") == 1


MIB = 1 << 20
AGENT = """
import re, sys
from pathlib import Path
from irregulars.producers.torch_hook.agent_socket import GONE_S, SocketSource
from irregulars.messages.records import Batch
source, rows = SocketSource(Path(sys.argv[1])), 0
def kib(what):
    return int(re.search(what + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
idle_kib = kib("VmRSS")
print("ready", flush=True)
while not rows:
    rows = sum(len(one) for one in source.poll(1000) if isinstance(one, Batch))
print(rows, kib("VmHWM") - idle_kib >> 10, source.closed_connections)
"""


@pytest.mark.parametrize(
    ("peers", "head", "announces_mib", "sends_mib"),
    [(16, b"", 64, 63), (16, encode_frame(ANNOUNCED), 64, 63), (60, b"", 4, 3.9)],
    ids=["large frames", "of ranks", "many small enough"],
)
def test_peers_that_never_end_their_frames_take_a_bounded_memory_and_no_rank_suffers(
    tmp_path: Path, peers: int, head: bytes, announces_mib: int, sends_mib: float
) -> None:
    frame = encode_frame(batch())
    large = head + struct.pack("<cI", b"O", announces_mib * MIB) + bytes(int(sends_mib * MIB))
    command = [sys.executable, "-c", AGENT, os.fspath(tmp_path / "s")]
    with contextlib.ExitStack() as stack:
        agent = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        )
        stack.callback(agent.kill)
        assert agent.stdout is not None
        assert agent.stdout.readline() == "ready\n"
        rank = stack.enter_context(peer(tmp_path / "s", encode_frame(ANNOUNCED) + frame[:-1]))
        hogs = [stack.enter_context(peer(tmp_path / "s")) for _ in range(peers)]
        with ThreadPoolExecutor(peers) as pool:
            list(pool.map(send, hogs, [(large,)] * peers))
        rank.sendall(frame[-1:])
        rows, grown_mib, closed = map(int, agent.communicate(timeout=DEADLINE_S)[0].split())
    print(f"{peers} peers: the agent grew by {grown_mib} MiB, {closed} connections were closed")
    assert rows == 3
    assert grown_mib <= 64
    assert 0 < closed <= peers
