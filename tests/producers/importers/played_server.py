"""A RAS service of a job that does not exist: real TCP, NCCL's protocol, answers in NCCL's own layout.

The layout (order of fields, indentation, an empty list that spans three lines, the comma that 2.28.9 forgets) is that
of answers of NCCL 2.28.9 and 2.29.1 that others have published: NVIDIA's user guide, and the tests of Ray's detector.
No NCCL has made the answers here.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

KINDS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
RUNNING = {
    "init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False,
}  # fmt: skip


@dataclass
class PlayedJob:
    """A job of `world_size` ranks, eight a host at most, whose communicators and counts a test sets.

    `hosts`: addresses of the hosts, in order of the ranks.
    `groups`: global ranks of each communicator by its hash; the world comes first.
    """

    world_size: int = 4
    ranks_per_host: int = 2
    hosts: Sequence[str] = ("127.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
    version: str = "2.29.1"
    first_pid: int = 1000
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    launched: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)
    gone: dict[int, bool] = field(default_factory=dict)  # ranks that can't be reached; True: considered dead
    statuses: dict[int, Mapping[str, object]] = field(default_factory=dict)
    absent: set[tuple[str, int]] = field(default_factory=set)  # reachable, and no member
    has_no_counts: bool = False  # as busy jobs answer now and then

    def __post_init__(self) -> None:
        if not self.groups:
            half = self.world_size // 2
            self.groups = {
                "0xd0d47b5885b3b54b": tuple(range(self.world_size)),
                "0x4e0104c2022fa2f9": tuple(range(half)),
                "0xbeebea5449e0a7e7": tuple(range(half, self.world_size)),
            }

    @property
    def world(self) -> str:
        return next(iter(self.groups))

    def launch(self, group: str, kind: str = "AllReduce", times: int = 1, but: Iterable[int] = ()) -> None:
        """Let all members of a communicator but some launch a collective."""
        left_out = set(but)
        for rank in self.groups[group]:
            if rank not in left_out:
                counts = self.launched.setdefault((group, rank), {})
                counts[kind] = counts.get(kind, 0) + times

    def step(self, times: int = 1) -> None:
        """Let the whole job go on."""
        for group in self.groups:
            self.launch(group, times=times)

    def restart(self) -> None:
        """Begin anew, with other processes and other hashes."""
        self.first_pid += 500
        self.groups = {f"{hash_}{self.first_pid:x}": ranks for hash_, ranks in self.groups.items()}
        self.launched, self.gone = {}, {}

    def worker(self, rank: int) -> dict[str, object]:
        local = rank % self.ranks_per_host
        host = self.hosts[rank // self.ranks_per_host]
        return {"host": host, "pid": self.first_pid + rank, "cuda_dev": local, "nvml_dev": local}

    def answer(self) -> bytes:
        communicators = [self._communicator(*one) for one in self.groups.items()]
        whole = {
            "nccl_version": self.version, "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
            "timestamp": "2026-06-19 06:56:24", "communicators_count": len(communicators),
            "communicators": communicators, "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
        }  # fmt: skip
        text = json.dumps(whole, indent=2).replace('"missing_ranks": []', '"missing_ranks": [\n\n      ]')
        if self.version.startswith("2.28.9"):
            text = re.sub(r'("nvml_dev": \d+),(\s+"status": {\s+"unresponsive")', r"\1\2", text)
        return text.encode() + b"\n"

    def _communicator(self, group: str, ranks: Sequence[int]) -> dict[str, object]:
        answered, missing = [], []
        for at, rank in enumerate(ranks):
            if rank in self.gone or (group, rank) in self.absent:
                status = {"unresponsive": rank in self.gone, "considered_dead": self.gone.get(rank, False)}
                missing.append({"rank": at, **self.worker(rank), "status": status})
            else:
                known = {} if self.has_no_counts else self.launched.get((group, rank), {})
                counts = {kind: known.get(kind, 0) for kind in (*KINDS, *(known.keys() - set(KINDS)))}
                status = {**RUNNING, **self.statuses.get(rank, {})}
                answered.append({"rank": at, **self.worker(rank), "status": status, "collective_counts": counts})
        return {
            "hash": group, "secondary_hash": "0x2989420b68927728:0xa3489b479e521019", "size": len(ranks),
            "ranks_count": len(answered), "missing_ranks_count": len(missing), "ranks": answered,
            "missing_ranks": missing,
        }  # fmt: skip


class PlayedServer:
    """Listens on a free port of the loopback interface, and answers as RAS does, until the block ends.

    `job`: what `STATUS` tells of; None: nothing, the connection is closed.
    `replies`: answers to the other commands; NCCL before 2.28.7 refuses ``SET FORMAT``.
    `sends`: how an answer goes out; to be replaced by tests of slow, cut and endless ones.
    `asked`: how many times it was asked.
    """

    def __init__(self, job: PlayedJob | None = None) -> None:
        self.job = job
        self.replies = {"CLIENT PROTOCOL 2": b"SERVER PROTOCOL 2\n", "SET FORMAT JSON": b"OK\n"}
        self.sends: Callable[[socket.socket, bytes], None] = lambda connection, answer: connection.sendall(answer)
        self.asked = 0
        self.commands: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> PlayedServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        connection.settimeout(30)
        with connection.makefile("rb") as lines:
            for line in lines:
                command = line.decode().strip()
                self.commands.append(command)
                if self.job is None:
                    return
                if command == "STATUS":
                    self.asked += 1
                    self.sends(connection, self.job.answer())
                    return
                unknown = f"ERROR: Unknown command {command}\n".encode()
                connection.sendall(self.replies.get(command.upper(), unknown))
