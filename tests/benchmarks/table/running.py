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
_SAID: Final = 160  # characters of a failed benchmark's last line that are repeated


@dataclass(frozen=True)
class Outcome:
    program: Program
    told: Any = None  # what it wrote as JSON; `None` if it did not
    problem: str | None = None  # why it has no figures, or not to be trusted ones; `None`: all is well


def run_all(programs: Sequence[Program], folder: Path) -> Iterator[Outcome]:
    """Run all, and give each outcome when it is there; logs and JSON go to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, program in enumerate(programs, start=1):
        print(f"{number} of {len(programs)}: {program.name}", file=sys.stderr, flush=True)
        began_s = time.monotonic()
        outcome = run(program, folder)
        print(f"  {outcome.problem or 'done'}, {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
        yield outcome


def kept(programs: Sequence[Program], folder: Path) -> Iterator[Outcome]:
    """Give outcomes of earlier runs whose JSON stands in `folder`, and of no others."""
    for program in programs:
        told, problem = _read(folder / f"{program.name}.json"), folder / f"{program.name}.problem"
        if told is not None:
            yield Outcome(program, told, (problem.read_text() or None) if problem.exists() else None)


def run(program: Program, folder: Path) -> Outcome:
    if find_spec(program.module) is None:
        return Outcome(program, problem=f"not there ({program.module})")
    out, log = folder / f"{program.name}.json", folder / f"{program.name}.log"
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", program.module, *program.options, "--json", str(out)]
    problem = None
    with log.open("wb") as stream:
        # A session of its own: all that it starts can be ended with it, and Ctrl-C reaches us alone.
        process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(program.limit_s)
        except subprocess.TimeoutExpired:
            problem = f"ended after {program.limit_s:g} s"
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
    if problem is None and process.returncode:
        lines = log.read_text(errors="replace").strip().splitlines()
        said = lines[-1][:_SAID] if lines else "it said nothing"
        problem = f"failed, status {process.returncode}: {said}"
    out.with_suffix(".problem").write_text(problem or "")
    return Outcome(program, _read(out), problem)


def _read(out: Path) -> Any:
    try:
        return json.loads(out.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
