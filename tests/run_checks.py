"""Run checks, all of them even when one fails, and close with one summary: the body of ``make test``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from tests.services import shared_services

ROOT = Path(__file__).resolve().parent.parent
LINT = {
    "ruff check": ("ruff", "check", "--quiet", "."),
    "ruff format": ("ruff", "format", "--check", "--quiet", "."),
    "mypy --strict": ("mypy", "--no-error-summary"),
}
# More files side by side than cores: those with real services mostly wait. They go first (`tests.conftest`), and what
# needs nothing but a core fills what they leave.
SIDE_BY_SIDE = ("--numprocesses=4", "--dist=loadfile", "--no-loadscope-reorder")
PLUGINS = ("-p", "tests.slowest_files", "-p", "tests.failures_at_once", "-p", "tests.time_limit")
PYTEST = ("pytest", "--quiet", *SIDE_BY_SIDE, *PLUGINS)
TESTS = {"pytest": (*PYTEST, "--ignore=tests/faults")}
FAULTS = {"pytest faults": (*PYTEST, "tests/faults")}


def run(name: str, arguments: tuple[str, ...]) -> tuple[bool, str]:
    print(f"--- {name}", flush=True)
    started_s = time.monotonic()
    with shared_services() if "pytest" in arguments else nullcontext({}) as own:
        environment = {**own, **os.environ}  # who names services of their own wants these tested
        status = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, env=environment, check=False).returncode
    verdict = "ok" if status == 0 else f"FAILED (status {status})"
    return status == 0, f"  {name:<14} {time.monotonic() - started_s:7.1f} s  {verdict}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.run_checks", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--lint", action="store_true", help="lint and types alone")
    which.add_argument("--faults", action="store_true", help="the tests of faults alone")
    parser.add_argument("--within-s", type=float, metavar="S", help="begin no test of faults after S seconds")
    chosen = parser.parse_args(arguments)
    if chosen.faults:
        limit = () if chosen.within_s is None else (f"--within-s={chosen.within_s}",)
        checks = {name: (*command, *limit) for name, command in FAULTS.items()}
    else:
        checks = LINT if chosen.lint else LINT | TESTS
    results = [run(name, command) for name, command in checks.items()]
    passed = sum(is_ok for is_ok, _ in results)
    print("\n".join(["", f"{passed} of {len(results)} checks passed", *(line for _, line in results)]), flush=True)
    return 0 if passed == len(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
