"""The example of infra/docs/trace-directory.md is a trace directory, and its tables are those of the reader."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from irregulars.messages.records import OPERATORS, PATHS, PHASES, SCHEMAS
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.files import COLUMNS
from tests.infra.docs.made_parts import DOCS

PAGE = (DOCS / "trace-directory.md").read_text()
SECTIONS = dict(re.findall(r"^## ([\w.]+)$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
FILES = ("job.json", "commops", "iterations", "audits", "pauses", "bandwidth")


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """What the reader makes of the page's blocks, each in a file of its own."""
    for name in FILES:
        (kind, text), *_ = re.findall(r"^```(json|jsonl|csv)\n(.*?)^```$", SECTIONS[name], re.MULTILINE | re.DOTALL)
        (tmp_path / (name if "." in name else f"{name}.{kind}")).write_text(text)
    return read_trace(tmp_path)


def test_every_row_of_the_example_is_read(trace: Trace) -> None:
    assert (trace.rejected.count, trace.rejected.reasons) == (0, ())
    counts = {schema: sum(map(len, trace.batches(schema).values())) for schema in SCHEMAS}
    assert counts == {
        "commops": 5,
        "iterations": 2 + 2 + 1,
        "bandwidth": 2,
    }  # audits and pauses travel with iterations


def test_the_example_says_what_the_page_says_of_it(trace: Trace) -> None:
    assert [one.rank for one in trace.announcements] == [0, 1, 2, 3]
    assert trace.recorded_until_ns == 1795234590000000000
    waits = trace.commops[0].columns["elapsed_ns"].max() - trace.commops[2].columns["elapsed_ns"].max()
    assert waits == 8_500_000
    assert np.isnan(trace.commops[1].columns["elapsed_ns"]).tolist() == [False, True]


@pytest.mark.parametrize("schema", sorted(COLUMNS))
def test_the_tables_have_the_reader_s_columns(schema: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (yes|no) \|", SECTIONS[schema], re.MULTILINE)
    kinds = {one.name: "int" if one.name.endswith("checksum") else one.kind for one in COLUMNS[schema]}
    assert rows == [(one.name, kinds[one.name], "yes" if one.nullable else "no") for one in COLUMNS[schema]]


def test_the_names_that_texts_may_have_are_all_there() -> None:
    for names, schema in ((OPERATORS, "commops"), (PHASES, "iterations"), (PATHS, "bandwidth")):
        assert [name for name in names if f"`{name}`" not in SECTIONS[schema]] == []
