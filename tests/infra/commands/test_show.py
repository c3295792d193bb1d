from __future__ import annotations

import json
from pathlib import Path

import pytest

from irregulars.errors import InputError
from irregulars.infra.commands.show import named_by
from irregulars.words import percent
from tests.conftest import RECORDINGS
from tests.infra.conftest import Run, refused

SLOW_RANK = str(RECORDINGS / "gloo-slow-rank")
NOWHERE = ("--clickhouse-url", "http://127.0.0.1:1", "--wait", "0.1")


@pytest.mark.parametrize(("name", "told"), [
    ("gloo-slow-nic", "Verdict   slow NIC in gloo-slow-nic (closed: recovered, ticket)"),
    ("gloo-clean", "Nobody to blame: no cause was clear at once"),  # as analyze says
])  # fmt: skip
def test_a_recording_is_shown_without_any_service(run: Run, name: str, told: str) -> None:
    status, out, err = run("show", str(RECORDINGS / name))
    assert (status, err) == (0, "")
    assert told in out
    assert out.startswith("Verdict") or name == "gloo-clean"


def test_the_screen_is_there_for_scripts_and_as_a_page(run: Run, tmp_path: Path) -> None:
    status, out, err = run("show", SLOW_RANK, "--json", "--html", "page.html")
    assert (status, err) == (0, "irregulars: page.html written\n")
    assert "</html>" in (tmp_path / "page.html").read_text()
    found = json.loads(out)
    assert found["verdict"]["kind"] == "slow_rank"
    assert found["range"] == {"first": 60, "past_last": 80, "last": 79}


def test_scripts_get_json_and_nobody_a_page_where_nobody_is_to_blame(run: Run, tmp_path: Path) -> None:
    status, out, err = run("show", str(RECORDINGS / "gloo-clean"), "--json", "--html", "page.html")
    assert (status, err) == (0, "irregulars: page.html not written: there is no verdict\n")
    found = json.loads(out)
    assert (found["verdict"], found["analysis"]["job"], found["analysis"]["verdicts"]) == (None, "gloo-clean", [])
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(("arguments", "message"), [
    ((SLOW_RANK, "--html", "/nowhere/page.html"), "html must be a file that can be written"),
    ((SLOW_RANK, "--verdict", "no"), "verdict must be one of gloo-slow-rank:0:60:0; got 'no'"),
    # A misspelt directory is not looked for in the database, and without a slash told as one.
    (("./no-such-directory",), "no-such-directory: must be a file or a directory of files; got nothing"),
    (("no-such-dir", *NOWHERE), "'no-such-dir' is no directory here, so a verdict or job of that name was looked"),
    (("[llama-7b:1:60:0", "revision", "1]", *NOWHERE), "ClickHouse"),  # an id as it was pasted is looked for there
])  # fmt: skip
def test_what_can_not_be_shown_is_one_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(run, "show", *arguments)


def test_an_id_may_be_pasted_as_screens_and_logs_show_it() -> None:
    assert named_by(["[llama:1:60:0", "revision", "1]"]) == named_by(["[llama:1:60:0]"]) == "llama:1:60:0"
    assert named_by(["[my job:1:60:quiet.0 revision 12]"]) == "my job:1:60:quiet.0"
    assert named_by(["llama"]) == "llama"
    assert named_by([]) is None
    with pytest.raises(InputError, match="must be one id, job or directory; got 2: 'a b'"):
        named_by(["a", "b"])


@pytest.mark.parametrize("name", ["gloo-slow-rank", "bench/pp4dp2-link-from-start", "bench/ddp8-hang-before",
                                  "bench/pp4dp2-stage-from-start"])  # fmt: skip
def test_analyze_show_and_explain_tell_one_story(run: Run, name: str) -> None:
    recording = str(RECORDINGS / name)
    verdict = json.loads(run("analyze", recording, "--json")[1])["verdicts"][0]
    (first, past), suspect = verdict["iterations"], verdict["suspects"][0]
    screen = json.loads(run("show", recording, "--json")[1])
    assert screen["verdict"] == verdict
    texts = [
        " ".join(run(*words)[1].split())
        for words in (("analyze", recording), ("show", recording),
                      ("explain", recording, "--iteration", str(verdict["explanation"]["iteration"])))
    ]  # fmt: skip
    when = f"iterations {first} to {past - 1}" if past - first > 1 else f"iteration {first}"
    assert all(
        told in text for text in texts for told in (when, verdict["evidence"], percent(suspect["probability"]))
    )
    assert all(screen["device"] in text for text in (*texts[:2], screen["summary"]))
    assert all(verdict["severity"] in text for text in (*texts[:2], screen["summary"]))
    assert all(one["is_accused"] for one in verdict["explanation"]["path"][-1:])
    is_hang = verdict["kind"] == "hang"
    assert ("times the" in texts[0]) is not is_hang  # an iteration that never ends is no multiple of the others
    marked = [one["iteration"] for one in screen["iterations"] if one["has_cause"]]
    assert is_hang or (marked[0], marked[-1]) == (first, past - 1)
