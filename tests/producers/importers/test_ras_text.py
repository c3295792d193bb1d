"""RAS answers in text, in NCCL's sentences (``client_support.cc``), and wrapped as `nc` and shells leave them."""

from __future__ import annotations

from pathlib import Path

import pytest

from irregulars.errors import InputError
from irregulars.infra.runs.analysis import Analysis, analyze
from irregulars.producers.importers.importing import import_trace
from irregulars.producers.importers.ras_answers import read_text, split_answers
from irregulars.producers.trace.directory import read_trace
from tests.producers.importers.played_server import PlayedJob

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
