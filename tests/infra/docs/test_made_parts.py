"""Parts of pages that code makes are as it makes them; those of the site are one line that names the source."""

from __future__ import annotations

import pytest

from irregulars.infra.docs_site import made_parts as site
from tests.infra.docs.fields import made_files
from tests.infra.docs.made_parts import DOCS, EXAMPLES, MAKERS, example, parts

PARTS = list(parts())


def test_pages_show_what_the_code_makes() -> None:
    for page, name, text in PARTS:
        if name in site.MAKERS:
            is_line = text.count("\n") == 1 and text.count("`") >= 2
            assert is_line, f"{page}: {name} must be one line with a command or file"
        else:
            assert text == MAKERS[name](), f"{page}: {name}; run: python -m tests.infra.docs.made_parts"


@pytest.mark.parametrize("file", EXAMPLES)
def test_a_file_of_examples_is_as_the_code_makes_it(file: str) -> None:
    assert (DOCS / "examples" / file).read_text() == example(file), "run: python -m tests.infra.docs.made_parts"


def test_every_part_is_shown_once_and_files_made_of_fields_are_as_the_code_makes_them() -> None:
    assert sorted(name for _, name, _ in PARTS) == sorted({*MAKERS, *site.MAKERS} - {*EXAMPLES.values()})
    for path, text in made_files().items():
        assert path.exists(), f"{path.name} lacks; run: python -m tests.infra.docs.made_parts"
        assert path.read_text() == text, f"{path.name}; run: python -m tests.infra.docs.made_parts"


def test_parts_of_the_site_are_tables_with_rows_and_log_events_those_of_the_calls() -> None:
    for name, make in site.MAKERS.items():
        made = site.fill(f"<!-- made: {name} -->\n`x`\n<!-- end -->")
        assert made == make(), name
        assert any(line.startswith("| `") for line in made.splitlines()), name
    table = site.log_events()
    assert "| `broker_back` | streams | WARNING | away_s |" in table
    assert "| `store_full` | streams | ERROR |" in table


def test_every_room_is_found_and_has_a_table_of_its_thresholds() -> None:
    assert [line[3:] for line in site.thresholds().splitlines() if line.startswith("## ")] == [
        one.folder for one in site.rooms()
    ]
    assert site.thresholds().count("\n| `") == sum(len(one.thresholds) for one in site.rooms()) > 50
    found = {room.folder for room in site.rooms()}
    assert {"detectors/irregular", "detectors/judging"} <= found


@pytest.mark.parametrize("room", site.rooms(), ids=lambda room: room.folder)
def test_each_threshold_says_what_it_counts_what_it_means_and_where_it_comes_from(room: site.Room) -> None:
    for one in room.thresholds:
        assert one.unit, f"{one.name}: unit must not be empty"
        for name, text in (("meaning", one.meaning), ("source", one.source)):
            assert len(text.split()) >= 2, f"{one.name}: {name} must be told in words; got {text!r}"
