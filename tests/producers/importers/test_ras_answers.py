"""RAS answers: what is read of them, the one that NCCL 2.28.9 breaks, and what nobody honest sends."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path

import pytest

from irregulars.errors import InputError
from irregulars.infra.runs.analysis import Analysis, analyze
from irregulars.messages.records import OPERATOR_CODES
from irregulars.producers.importers import ras_answers as client
from irregulars.producers.importers.importing import import_trace
from irregulars.producers.importers.ras_answers import (
    MAX_ANSWER_BYTES,
    MOST_MEMBERS,
    RasAway,
    RasClient,
    Worker,
    read_answer,
    read_text,
    split_answers,
)
from irregulars.producers.trace.directory import read_trace
from tests.producers.importers.played_server import PlayedJob, PlayedServer


def test_ranks_counts_and_states_are_read() -> None:
    job = PlayedJob()
    job.launch(job.world, "AllGather", 3)
    job.launch(job.world, "AllReduce", 2, but=[1])
    job.statuses[2] = {"finalize_called": True}
    answer = read_answer(job.answer())
    world = answer.communicators[0]
    assert (answer.version, answer.told, answer.unusable) == ("2.29.1", "2026-06-19 06:56:24", 0)
    assert (world.id, world.size, world.is_settled) == (job.world, 4, False)
    assert {rank: one.total for rank, one in world.answered.items()} == {0: 5, 1: 3, 2: 5, 3: 5}
    assert world.answered[1].launched[OPERATOR_CODES["all_gather"]] == 3
    assert [one.is_running for one in world.answered.values()] == [True, True, False, True]
    assert world.workers[3] == Worker("10.0.0.2", 1003, 1)


@pytest.mark.parametrize("version", ["2.28.9", "2.29.1"])
def test_a_missing_rank_is_read_although_2_28_9_forgets_a_comma(version: str) -> None:
    job = PlayedJob(version=version)
    job.gone = {1: False, 2: True}
    job.absent = {(job.world, 3)}
    value = job.answer()
    if version == "2.28.9":
        with pytest.raises(ValueError, match="delimiter"):
            json.loads(value)
    world = read_answer(value).communicators[0]
    assert sorted(world.answered) == [0]
    assert {rank: one.is_gone for rank, one in world.missing.items()} == {1: True, 2: True, 3: False}
    assert world.missing[1].worker.pid == 1001


def test_sends_are_not_counted_and_communicators_of_one_hash_told_apart() -> None:
    job = PlayedJob()
    job.launch(job.world, "AllReduce", 2)
    job.launch(job.world, "Send", 7)
    job.launch(job.world, "SendRecv", 7)
    job.launch(job.world, "Whatever", 7)
    assert read_answer(job.answer()).communicators[0].answered[0].total == 2
    told = json.loads(PlayedJob().answer())
    told["communicators"][1] |= {"hash": told["communicators"][0]["hash"], "secondary_hash": "0x1:0x2"}
    assert len({one.id for one in read_answer(json.dumps(told).encode()).communicators}) == 3


@pytest.mark.parametrize(("value", "found"), [
    (b"NCCL version 2.26.2 compiled with CUDA 12.6\n", "since 2.28.7"), (b"", "since 2.28.7"),
    (PlayedJob().answer()[:900], "must be complete JSON"), (b"{}", "list of communicators"),
    (b'{"communicators": {}}', "list of communicators"), (b"[" * 100_000, "since 2.28.7"),
    (b'{"a": ' + b"[" * 100_000, "must be complete JSON"),
])  # fmt: skip
def test_what_is_no_answer_is_refused(value: bytes, found: str) -> None:
    with pytest.raises(InputError, match=found):
        read_answer(value)


def test_more_ranks_than_any_job_has_are_refused() -> None:
    many = {"communicators": [{"ranks": [0] * (MOST_MEMBERS + 1)}]}
    with pytest.raises(InputError, match="at most 262144 ranks"):
        read_answer(json.dumps(many).encode())


@pytest.mark.parametrize(("part", "count"), [
    (b"{}", 5 << 18), (b"[]", 5 << 18), (b'{"a":{"b":1}}', 5 << 17), (b"0", 5 << 20),
])  # fmt: skip
def test_an_answer_of_nothing_but_tiny_parts_is_refused_before_it_is_read(part: bytes, count: int) -> None:
    value = b'{"communicators": [], "x": [' + b",".join([part] * count) + b"]}"
    assert len(value) < MAX_ANSWER_BYTES
    with pytest.raises(InputError, match="at most"):
        read_answer(value)


HEAD = """NCCL version 2.26.2 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  {state}

Errors
======

{errors}
Warnings
========

{warnings}
"""
COUNTS = """#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 4 -- GPU 4 managed by process 483076 on node 172.16.64.210
  Rank 12 -- GPU 4 managed by process 483086 on node 172.16.64.211
"""
ONE = """#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  31 ranks have launched up to operation 64
  Rank 7 has launched up to operation 60 -- GPU 7 managed by process 1650386 on node node1
"""
DEAD = """DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213

"""
FAILED = """#0-0 (cf264af53edbe986) ERROR
  Asynchronous error on 1 rank
  Rank 3 reported unhandled system error -- GPU 3 managed by process 7 on node node0

"""


def text(errors: str = "", warnings: str = "", state: str = "OK") -> str:
    return HEAD.format(errors=errors, warnings=warnings, state=state)


def judged(folder: Path, value: str) -> Analysis:
    (folder / "ras.txt").write_text(value)
    import_trace("nccl-ras", folder / "ras.txt", folder / "out")
    return analyze(read_trace(folder / "out"))


# A job of unequal nodes
OUTLIER = """  Nodes  Processes         GPUs
(total)    (total)      (total)
      2         31           31

The outlier node:
  Node 172.16.64.213 running processes 7,8

"""
UNEQUAL = HEAD[: HEAD.index("  Nodes")] + OUTLIER + HEAD[HEAD.index("Communicators") :]
BEHIND = text(warnings=ONE, state="MISMATCH") * 2
# As a container writes them, with words before each line
LOGGED = "".join(f"2026-11-27T12:00:00.{at}Z stdout {line}\n" for at, line in enumerate(BEHIND.splitlines()))


@pytest.mark.parametrize(("value", "ranks", "place", "words"), [
    (text(warnings=COUNTS, state="MISMATCH") * 2, (4, 12), ("172.16.64.210", None),
     "all_gather 6650 on 27a079b828ff1a75"),
    (BEHIND, (7,), ("node1", 7), "31 ranks wait"),
    (LOGGED, (7,), ("node1", 7), "31 ranks wait"),
    # A process that is dead or in error, whatever the counts
    (text(errors=DEAD, state="INCOMPLETE"), (21,), ("172.16.64.213", 5), ""),
    (text(errors=FAILED, state="INCOMPLETE"), (3,), ("node0", 3), ""),
    (UNEQUAL.format(errors=DEAD, warnings="", state="INCOMPLETE"), (21,), ("172.16.64.213", 5), ""),
])  # fmt: skip
def test_ranks_that_are_waited_for_are_named_with_their_places(
    tmp_path: Path, value: str, ranks: tuple[int, ...], place: tuple[str, int | None], words: str
) -> None:
    (verdict,) = judged(tmp_path, value).verdicts
    suspect = verdict.suspects[0]
    assert (verdict.kind, suspect.ranks, (suspect.host, suspect.gpu)) == ("hang", ranks, place)
    assert words in verdict.evidence


def test_where_all_are_alike_it_says_so(tmp_path: Path) -> None:
    found = judged(tmp_path, text() * 2)
    assert found.verdicts == []
    assert "all 32 are alike" in (found.unjudged_reason or "")


def test_texts_without_a_size_of_the_job_are_refused_and_communicators_without_ranks_left_out() -> None:
    with pytest.raises(InputError, match="job summary"):
        read_text("NCCL version 2.26.2\n")
    broken = text(warnings=COUNTS).replace("4         8        32 ", "4         8         0 ")
    assert read_text(broken).communicators == ()


def test_answers_are_found_in_what_nc_and_a_shell_leave_around_them() -> None:
    job = PlayedJob()
    job.step(3)
    answer = job.answer()
    wrapped = b"$ date\n10:00\nSERVER PROTOCOL 2\nOK\n" + answer + b"\n$ date\nSERVER PROTOCOL 2\nOK\n" + answer
    assert len(split_answers(wrapped)) == 2
    assert split_answers(wrapped)[0] == split_answers(answer)[0]
    assert len(split_answers(b"SERVER PROTOCOL 2\n" + (text() * 3).encode())) == 3
    value = text(errors=DEAD, state="INCOMPLETE").encode()
    assert split_answers(value.replace(b"\n", b"\r\n")) == split_answers(value)


def ask(server: PlayedServer, asking_s: float = 10.0) -> bytes:
    return RasClient("127.0.0.1", server.port, asking_s).ask()


@pytest.mark.parametrize("protocol", [2, 3])
def test_it_asks_as_nccl_s_own_client_does_whatever_the_service_s_protocol(protocol: int) -> None:
    with PlayedServer(PlayedJob()) as server:
        server.replies["CLIENT PROTOCOL 2"] = b"SERVER PROTOCOL %d\n" % protocol
        assert len(read_answer(ask(server)).communicators) == 3
    assert server.commands == ["CLIENT PROTOCOL 2", "SET FORMAT json", "STATUS"]


def test_an_answer_in_pieces_is_put_together() -> None:
    def slowly(connection: socket.socket, answer: bytes) -> None:
        for at in range(0, len(answer), 997):
            connection.sendall(answer[at : at + 997])
            time.sleep(0.001)

    with PlayedServer(PlayedJob()) as server:
        server.sends = slowly
        assert len(read_answer(ask(server)).communicators) == 3


@pytest.mark.parametrize(("command", "reply", "error"), [
    ("SET FORMAT JSON", b"ERROR: Unknown\n", r": RAS must answer in JSON, .* since 2\.28\.7; got b'ERROR"),
    *(("CLIENT PROTOCOL 2", one, " must") for one in (b"HTTP/1.1 400 Bad Request\r\n", b"\n", b"\0" * 3000)),
])  # fmt: skip
def test_nccl_without_json_and_what_is_no_ras_are_named(command: str, reply: bytes, error: str) -> None:
    with PlayedServer(PlayedJob()) as server:
        server.replies[command] = reply
        with pytest.raises(InputError, match=rf"127\.0\.0\.1:{server.port}{error}"):
            ask(server)


def test_nobody_there_or_one_who_ends_before_the_answer_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RasAway, match="refused"):
        RasClient("127.0.0.1", port).ask()
    with pytest.raises(RasAway):
        RasClient("no-such-host.invalid", port).ask()
    with PlayedServer() as server, pytest.raises(RasAway, match="closed the connection"):
        ask(server)


def test_a_service_that_says_nothing_is_left_after_a_while() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the kernel accepts, and nobody reads
        began_s = time.monotonic()
        with pytest.raises(RasAway, match=r"timed out|too long"):
            RasClient("127.0.0.1", listener.getsockname()[1], 0.3).ask()
        assert time.monotonic() - began_s < 30


def test_drops_of_an_answer_do_not_keep_it_longer() -> None:
    stop = threading.Event()

    def drip(connection: socket.socket, answer: bytes) -> None:
        while not stop.wait(0.02):
            connection.sendall(b" ")

    with PlayedServer(PlayedJob()) as server:
        server.sends = drip
        with pytest.raises(RasAway, match=r"timed out|too long"):
            ask(server, 0.4)
        stop.set()


def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 1 << 20)

    def flood(connection: socket.socket, answer: bytes) -> None:
        while True:
            connection.sendall(b"{" * (1 << 16))

    with PlayedServer(PlayedJob()) as server:
        server.sends = flood
        with pytest.raises(InputError, match="must be at most 1048576 bytes"):
            ask(server)
