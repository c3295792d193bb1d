"""What infra/docs/verdict-json.md says of kinds and events is what can come out."""

from __future__ import annotations

import json
import re

import jsonschema

from irregulars.infra.docs_site.made_parts import SCHEMAS, fill
from irregulars.messages.kinds import VERDICT_KINDS
from irregulars.sinks.alerts import ALERTING_EVENTS
from tests.infra.docs.made_parts import DOCS, analyzed

PAGE = fill((DOCS / "verdict-json.md").read_text())


def test_every_kind_has_its_line_in_their_order() -> None:
    kinds = re.findall(
        r"^\| `(\w+)` \| .* \| .* \|$", PAGE.split("| `kind` | meaning |")[1].split("##")[0], re.MULTILINE
    )
    assert tuple(kinds) == tuple(VERDICT_KINDS)


def test_every_event_says_whether_it_gives_an_alert() -> None:
    events = dict(re.findall(r"^\| `(\w+)` \| .* \| (yes|no) \|$", PAGE, re.MULTILINE))
    schema = json.loads((SCHEMAS / "verdicts.json").read_text())
    assert set(events) == set(schema["properties"]["event"]["enum"])
    assert {event for event, answer in events.items() if answer == "yes"} == set(ALERTING_EVENTS)


def test_the_verdict_of_which_the_first_fields_are_shown_follows_the_schema() -> None:
    assert "(examples/analysis.json)" in PAGE
    schema = json.loads((SCHEMAS / "verdicts.json").read_text())
    (verdict,) = analyzed()["verdicts"]
    jsonschema.validate({"schema": "verdicts", "version": 1, **verdict}, schema)
    assert set(verdict) <= set(schema["properties"])
