"""The pages that the console serves: for people who have no checkout at hand."""

from __future__ import annotations

import re

import pytest

from irregulars.infra.console.rendering import RUNBOOK
from irregulars.messages.kinds import VERDICT_KINDS
from tests.infra.console.visits import Visit, text_of, visit


@pytest.fixture(scope="module")
def served() -> dict[str, str]:
    """All pages that links lead to, from the index on, by their addresses; no database is needed."""
    with visit() as reader:
        assert reader.get("/docs").status_code in (303, 307)  # not before the login
        assert reader.log_in().status_code == 303
        found, wanted = {}, ["/docs"]
        while wanted:
            path = wanted.pop()
            answer = reader.get(path)
            assert answer.status_code == 200, path
            found[path] = answer.text
            linked = {one.partition("#")[0] for one in re.findall(r'href="(/docs[^"]*)"', answer.text)}
            wanted += sorted(linked - found.keys() - set(wanted))
        assert reader.get("/docs/no-such-page").status_code == 404
        assert reader.get("/docs/..%2f..%2fREADME").status_code == 404
    return found


def test_the_runbook_has_an_anchor_for_each_kind_of_verdict(served: dict[str, str]) -> None:
    anchors = re.findall(r'<h2 id="([^"]*)">', served[RUNBOOK])
    assert set(VERDICT_KINDS) - set(anchors) <= {"mismatch"}
    assert {"slow_nic", "hang", "custom"} <= set(anchors)


def test_all_pages_are_reached_and_their_links_lead_somewhere(served: dict[str, str]) -> None:
    assert len(served) > 25
    for path, page in served.items():
        for name, anchor in re.findall(r'href="(/docs/[\w-]+)?#([^"]+)"', page):
            there = served[name or path]
            assert anchor == "main" or f'id="{anchor}"' in there, (path, name, anchor)


def test_nothing_of_the_pages_is_left_as_markdown(served: dict[str, str], recorded: object, somebody: Visit) -> None:
    for path, page in served.items():
        plain = re.sub(r"<(pre|code).*?</\1>", "", page, flags=re.DOTALL)
        assert "<!-- made" not in plain, path
        assert "](" not in plain, path
    incident = somebody.get("/incidents/gloo-slow-nic:0:60:0")
    assert f'href="{RUNBOOK}#slow_nic"' in incident.text
    assert "Runbook" in text_of(incident)
