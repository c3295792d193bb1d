"""Parts of pages that code makes are as it makes them; those of the site are one line that names the source."""

from __future__ import annotations

import pytest

from irregulars.infra.docs_site import made_parts as site
from tests.infra.docs.made_parts import ALERTS_SCHEMA, DOCS, EXAMPLES, MAKERS, alerts_schema, example, parts

PARTS = list(parts())


@pytest.mark.parametrize(("page", "name", "text"), PARTS, ids=[f"{page}: {name}" for page, name, _ in PARTS])
def test_the_page_shows_what_the_code_makes(page: str, name: str, text: str) -> None:
    if name in site.MAKERS:
        assert (text.count("\n"), text.count("`") >= 2) == (1, True), "must be one line with a command or file"
    else:
        assert text == MAKERS[name](), "run: python -m tests.infra.docs.made_parts"


@pytest.mark.parametrize("file", EXAMPLES)
def test_a_file_of_examples_is_as_the_code_makes_it(file: str) -> None:
    assert (DOCS / "examples" / file).read_text() == example(file), "run: python -m tests.infra.docs.made_parts"


def test_the_schema_of_alerts_is_that_of_verdicts_with_more() -> None:
    assert ALERTS_SCHEMA.read_text() == alerts_schema(), "run: python -m tests.infra.docs.made_parts"


def test_every_part_is_shown_once() -> None:
    assert sorted(name for _, name, _ in PARTS) == sorted({*MAKERS, *site.MAKERS} - {*EXAMPLES.values()})


@pytest.mark.parametrize("name", site.MAKERS)
def test_parts_of_the_site_are_tables_with_rows(name: str) -> None:
    rows = [line for line in site.MAKERS[name]().splitlines() if line.startswith("| `")]
    assert len(rows) >= 1
    assert site.fill(f"<!-- made: {name} -->\n`x`\n<!-- end -->") == site.MAKERS[name]()


def test_log_events_are_those_of_the_calls() -> None:
    table = site.log_events()
    assert "| `broker_back` | streams | WARNING | away_s |" in table
    assert "| `store_full` | streams | ERROR |" in table
