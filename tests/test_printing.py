"""Names of jobs and devices come from outside: a terminal shows them and obeys none of them."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.messages.judgements import Suspect, Verdict
from irregulars.printing import broken, json_text, printable, printable_lines

ROOT = Path(__file__).resolve().parent.parent
NAMES = ["a[/red]b a[bold \x1b[31mred\x1b[0m \x9b31m a\rb a\nirregulars: all is well \u202egnp", "half a sign \ud800"]


@given(st.text())
def test_nothing_printable_is_changed_and_nothing_else_is_left(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)
    assert all(line.isprintable() for line in printable_lines(text).split("\n"))


@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_is_the_same_value(value: Any) -> None:
    written = json_text(value)
    assert json.loads(written) == value
    assert not any(ord(sign) < 32 or 0x7F <= ord(sign) < 0xA0 or 0xD800 <= ord(sign) < 0xE000 for sign in written)


def require_harmless(shown: bytes) -> None:
    text = shown.decode().replace("\r\n", "\n")
    for colour in ("0", "1", "2", "1;31", "31"):
        text = text.replace(f"\x1b[{colour}m", "")
    assert all(line.isprintable() for line in text.split("\n")), repr(text)


def on_terminal(program: str, *arguments: str) -> bytes:
    """What a program writes on a terminal, both streams."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "200"}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, stdout=theirs, stderr=theirs, env=environment, timeout=120, check=False, cwd=ROOT)
    os.close(theirs)
    shown = io.BytesIO()
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # the terminal's other end is closed
            break
        if not part:
            break
        shown.write(part)
    os.close(ours)
    assert done.returncode in (0, 2), shown.getvalue()
    assert b"Traceback" not in shown.getvalue(), shown.getvalue()
    return shown.getvalue()


def with_names(name: str, tmp_path: Path) -> Path:
    """A recording of a slow NIC, in which the job, a host and its NIC have this name."""
    source = ROOT / "tests" / "recordings" / "gloo-slow-nic"
    job = json.loads((source / "job.json").read_text())
    job["job"] = f"job {name}"
    for place in job["ranks"].values():
        place |= {"host": f"{name} {place['host']}", "nic": f"{place.get('nic')} {name}"}
    (tmp_path / "job.json").write_text(json.dumps(job))
    for file in source.iterdir():
        if file.name not in ("job.json", "label.json"):
            (tmp_path / file.name).symlink_to(file)
    return tmp_path


@pytest.mark.parametrize("name", NAMES, ids=["controls", "surrogate"])
def test_analyze_shows_any_name(tmp_path: Path, name: str) -> None:
    program = """
import sys
from irregulars.infra.cli import app, main
directory = sys.argv[1]
for call in (["analyze", directory], ["analyze", directory, "--json"]):
    sys.argv = ["irregulars", *call]
    try:
        main()
    except SystemExit as end:
        assert end.code in (0, 2, None), end.code
"""
    shown = on_terminal(program, str(with_names(name, tmp_path)))
    require_harmless(shown)
    if "\ud800" in name:
        assert b"job.json: must be JSON" in shown
    else:
        assert printable(name).encode() in shown


@pytest.mark.parametrize("name", NAMES, ids=["controls", "surrogate"])
def test_errors_tables_and_alerts_show_any_name(name: str) -> None:
    program = f"""
import sys
from irregulars.infra.cli import main
from irregulars.infra.commands.alerts import shown_alert
from irregulars.infra.commands.sql import show_answer, write_csv
from irregulars.sinks.alerts import alert_of
from irregulars.sinks.investigations import Answer
from irregulars.messages.judgements import Suspect, Verdict
name = {name!r}
suspects = (Suspect("nic", 1, (1,), 0.9, host=name, nic=name),)
verdict = Verdict(name, 1, "open", name, "slow_nic", (1, 9), 2.0, 9.0, name, suspects, name, time_ns=1)
alert = alert_of(verdict)
if not "\\ud800" in name:
    print(shown_alert(alert, json=False))
    print(shown_alert(alert, json=True))
    show_answer(Answer(("host", name), ((name, 1),)))
    write_csv(Answer(("host",), ((name,),)))
for call in (["analyze", "/" + name], [name], ["--set", name, "demo"], ["alerts", "--topic-prefix", name, "--nope"]):
    sys.argv = ["irregulars", *call]
    try:
        main()
    except SystemExit as end:
        assert end.code in (0, 2, None), end.code
"""
    require_harmless(on_terminal(program))


def test_a_verdict_of_any_name_is_one_line_of_the_alerts_feed() -> None:
    from irregulars.sinks.alerts import alert_line, alert_of

    suspects = (Suspect("nic", 1, (1,), 0.9, host="a\nb", nic="c\rd"),)
    alert = alert_of(Verdict("v", 1, "open", "j", "slow_nic", (1, 9), 2.0, 9.0, None, suspects, "e", time_ns=1))
    assert alert is not None
    assert len(printable(alert_line(alert)).splitlines()) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_line_is_broken_between_words_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    text = "irregulars: worker-3 must run; it ended by SIGKILL"
    assert broken(text, io.StringIO()) == text
    assert broken(text, Terminal()).split("\n") == ["irregulars: worker-3", "  must run; it ended by", "  SIGKILL"]
    assert broken("x" * 30, Terminal()) == "x" * 30
    assert broken("  took 3.4 ms after both had arrived", Terminal(), "    ").split("\n") == [
        "  took 3.4 ms after both", "    had arrived",
    ]  # fmt: skip
    monkeypatch.setenv("COLUMNS", "1")
    assert "\n" not in broken("a b c", Terminal())
