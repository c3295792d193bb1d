"""Run benchmarks as processes, one after the other; one that fails, hangs or is not there holds up no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.table.figures import Program

_ROOT: Final = Path(__file__).resolve().parents[3]
_END_S: Final = 20.0
_LOOK_S: Final = 0.5
_TELL_S: Final = 30.0
_SAID: Final = 160  # characters of a failed benchmark's last line that are repeated


@dataclass(frozen=True)
class Outcome:
    """What became of one benchmark."""

    program: Program
    told: Any = None  # what it wrote as JSON; `None` if it did not
    problem: str | None = None  # why it has no figures, or not to be trusted ones; `None`: all is well
    seconds: float = 0.0


def run_all(programs: Sequence[Program], folder: Path) -> Iterator[Outcome]:
    """Run all, and give each outcome when it is there; logs and JSON go to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, program in enumerate(programs, start=1):
        _say(f"{number} of {len(programs)}: {program.name}")
        outcome = run(program, folder)
        _say(f"  {outcome.problem or 'done'}, {outcome.seconds:.0f} s")
        yield outcome


def kept(programs: Sequence[Program], folder: Path) -> Iterator[Outcome]:
    """Give outcomes of earlier runs whose JSON stands in `folder`, and of no others."""
    for program in programs:
        told = _read(folder / f"{program.name}.json")
        if told is not None:
            yield Outcome(program, told, _text(folder / f"{program.name}.problem"))


def run(program: Program, folder: Path) -> Outcome:
    """Run one benchmark."""
    if find_spec(program.module) is None:
        return Outcome(program, problem=f"not there ({program.module})")
    out, log = folder / f"{program.name}.json", folder / f"{program.name}.log"
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", program.module, *program.options, "--json", str(out)]
    began_s = time.monotonic()
    with log.open("wb") as stream:
        # A session of its own: all that it starts can be ended with it, and Ctrl-C reaches us alone.
        process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            is_over_time = not _wait(process, program.limit_s)
        finally:
            # End a benchmark and all that it started: as with Ctrl-C first, so that it removes what it made.
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            with suppress(ProcessLookupError):  # nothing is left of its session
                os.killpg(process.pid, signal.SIGKILL)
    problem = f"ended after {program.limit_s:g} s" if is_over_time else _problem(process.returncode, log)
    out.with_suffix(".problem").write_text(problem or "")
    return Outcome(program, _read(out), problem, time.monotonic() - began_s)


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Wait for its end, and say now and then that it goes on; return whether it came in time."""
    began_s, told_s = time.monotonic(), time.monotonic()
    while process.poll() is None:
        now_s = time.monotonic()
        if now_s - began_s > limit_s:
            return False
        if now_s - told_s > _TELL_S:
            told_s = now_s
            _say(f"  {now_s - began_s:.0f} s of at most {limit_s:.0f}")
        time.sleep(_LOOK_S)
    return True


def _problem(status: int, log: Path) -> str | None:
    if status == 0:
        return None
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"failed, status {status}: {lines[-1][:_SAID] if lines else 'it said nothing'}"


def _read(out: Path) -> Any:
    try:
        return json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _text(path: Path) -> str | None:
    return (path.read_text() or None) if path.exists() else None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
