"""Run every check, all of them even when one fails, and close with one summary: the body of ``make test``."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINT = {
    "ruff check": ("ruff", "check", "--quiet", "."),
    "ruff format": ("ruff", "format", "--check", "--quiet", "."),
    "mypy --strict": ("mypy", "--no-error-summary"),
}
# More files side by side than cores: those with real services mostly wait.
TESTS = {"pytest": ("pytest", "--quiet", "--numprocesses=3", "--dist=loadfile", "--durations=15")}


def run(name: str, arguments: tuple[str, ...]) -> tuple[bool, str]:
    print(f"--- {name}", flush=True)
    started_s = time.monotonic()
    status = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, check=False).returncode
    verdict = "ok" if status == 0 else f"FAILED (status {status})"
    return status == 0, f"  {name:<14} {time.monotonic() - started_s:7.1f} s  {verdict}"


def main(arguments: list[str]) -> int:
    checks = LINT if "--lint" in arguments else LINT | TESTS
    results = [run(name, command) for name, command in checks.items()]
    passed = sum(is_ok for is_ok, _ in results)
    print("\n".join(["", f"{passed} of {len(results)} checks passed", *(line for _, line in results)]), flush=True)
    return 0 if passed == len(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
