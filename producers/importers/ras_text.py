"""Answers of NCCL's RAS service in text, all that NCCL 2.24 to 2.28.6 gives, and what `nc` or a shell puts around.

The text names only ranks that stand out: of a communicator with different counts all others have the most frequent
one, and of one that it does not name all ranks are alike. Its sentences are those of NCCL's
``src/ras/client_support.cc``.
"""

from __future__ import annotations

import re
from typing import Final

from irregulars.errors import InputError
from irregulars.producers.importers.groups import operator_of
from irregulars.producers.importers.ras_answers import (
    MOST_MEMBERS,
    Answer,
    Answered,
    Missing,
    RasCommunicator,
    Worker,
    read_answer,
    unknown_worker,
)

_BEGIN: Final = b"NCCL version "
_JOB: Final = re.compile(r"^\s*\d+\s+[\d-]+\s+[\d-]+\s+\d+\s+(\d+)\s*$", re.MULTILINE)
_ROW: Final = re.compile(r"^\s*(\d+)\s+\d+\s+\d+\s+[\d-]+\s+(\d+)\s+\d+\s+[A-Z]+\s+[A-Z,]+\s*$", re.MULTILINE)
_SECTION: Final = re.compile(r"^#(\d+)-\d+ \(([0-9a-fA-F]+)\) (INCOMPLETE|ERROR|MISMATCH)\s*$", re.MULTILINE)
_COUNTS: Final = re.compile(r"Communicator ranks have different (\w+) operation counts")
_SEVERAL: Final = re.compile(r"^\s*(\d+) ranks? ha(?:ve|s) (?:launched up to operation (\d+)|not launched any)")
_ONE: Final = re.compile(r"^\s*Rank (\d+) has (?:launched up to operation (\d+)|not launched any)")
_RANK: Final = re.compile(r"^\s*Rank (\d+)\b.*?(?:-- GPU (\d+)\S* managed by process (\d+) on node (\S+))?\s*$")
_STATUS: Final = re.compile(r"^\s*Rank (\d+) has status (\w+)")
_MISSING: Final = re.compile(r"missing ranks?: ([\d, -]+)")
_PROCESS: Final = re.compile(r"^\s*Process (\d+) on node (\S+) managing GPUs? ([\d,]+)", re.MULTILINE)
_OBJECT: Final = re.compile(rb"^\{.*\}\s*$|^\{[\s\S]*?^\}", re.MULTILINE)


def split_answers(value: bytes) -> list[Answer]:
    """Read the answers of one file, in JSON or in text, that follow each other with anything between them.

    Raises InputError if there is none, or one can't be read.
    """
    at = value.find(b"{")
    if _BEGIN in (value if at < 0 else value[:at]):
        parts = re.split(rb"(?=^NCCL version )", value, flags=re.MULTILINE)
        return [read_text(part.decode(errors="replace")) for part in parts if part.startswith(_BEGIN)]
    found = _OBJECT.findall(value)
    return [read_answer(part) for part in found] if len(found) > 1 else [read_answer(value[max(at, 0) :])]


def read_text(text: str) -> Answer:
    """Read one answer in text; InputError if it names no size of the job."""
    job = _JOB.search(text)
    if job is None or not 0 < int(job[1]) <= MOST_MEMBERS:
        raise InputError("RAS answer must have a job summary with the number of GPUs; got none")
    sizes = {row[1]: int(row[2]) for row in _ROW.finditer(text)}
    sections: dict[str, tuple[int, list[str]]] = {}
    marks = list(_SECTION.finditer(text))
    pasts = [*(one.start() for one in marks[1:]), len(text)]
    for mark, past in zip(marks, pasts, strict=False):  # without marks there is one end too many
        size = sizes.get(mark[1], int(job[1]))
        sections.setdefault(mark[2], (size, []))[1].extend([mark[3], *text[mark.end() : past].splitlines()])
    begin = text.find("\nDEAD\n")
    listed = text[begin : text.find("\n\n", begin + 1)] if begin >= 0 else ""
    dead = tuple(
        Worker(process[2], int(process[1]), int(gpu))
        for process in _PROCESS.finditer(listed)
        for gpu in process[3].split(",")
        if gpu
    )
    usable = ((name, size, lines) for name, (size, lines) in sections.items() if size <= MOST_MEMBERS)
    made = [_communicator(name, size, lines, dead) for name, size, lines in usable]
    version = text[len(_BEGIN) :].split(maxsplit=1)
    return Answer(
        version=version[0][:40] if version else "unknown", told="", communicators=tuple(made), unusable=0,
        world_size=int(job[1]), dead=dead,
    )  # fmt: skip


def _communicator(name: str, size: int, lines: list[str], dead: tuple[Worker, ...]) -> RasCommunicator:
    workers: dict[int, Worker] = {}
    counts: dict[int, dict[int, int]] = {}
    missing: set[int] = set()
    failed: set[int] = set()
    usual: dict[int, int] = {}
    section, operator, value, is_listing_status = "", None, 0, False
    most = 0
    for line in lines:
        if line in ("INCOMPLETE", "ERROR", "MISMATCH"):
            section, operator = line, None
            continue
        if found := _COUNTS.search(line):
            operator, most, is_listing_status = operator_of(found[1]), 0, False
            operator = 0 if operator is None else operator  # "different collective operation counts": of all kinds
        elif "different status" in line:
            is_listing_status = True
        elif (found := _SEVERAL.match(line)) and operator is not None:
            value = int(found[2] or 0)
            if int(found[1]) > most:
                most, usual[operator] = int(found[1]), value
        elif found := _MISSING.search(line):
            for part in re.findall(r"\d+(?:-\d+)?", found[1]):
                first, _, last = part.partition("-")
                missing.update(range(int(first), min(int(last or first), size - 1) + 1))
        elif found := _RANK.match(line):
            rank = int(found[1])
            if rank >= size:
                continue
            if found[3]:
                workers[rank] = Worker(found[4], int(found[3]), int(found[2]))
            own, status = _ONE.match(line), _STATUS.match(line)
            if section == "INCOMPLETE":
                missing.add(rank)
            elif section == "ERROR" or (status and status[2] in ("ABORT", "NOCOMM")):
                failed.add(rank)
            elif operator is not None and not is_listing_status:
                counts.setdefault(rank, {})[operator] = int(own[2] or 0) if own else value
    answered = {
        rank: Answered(
            workers.get(rank, unknown_worker(rank)), {**usual, **counts.get(rank, {})}, is_running=True,
            async_error=1 if rank in failed else 0,
        )
        for rank in range(size)
        if rank not in missing
    }  # fmt: skip
    if len(missing - workers.keys()) == len(dead):  # older texts give numbers here, and processes above
        workers |= dict(zip(sorted(missing - workers.keys()), dead, strict=True))
    gone = {
        rank: Missing(workers.get(rank, unknown_worker(rank)), is_gone=True, is_dead=workers.get(rank) in dead)
        for rank in missing
    }
    return RasCommunicator(name, size, answered, gone)
