from __future__ import annotations

import xml.etree.ElementTree as ET

from irregulars.infra.runs.backtest import Result, draw, text_table
from irregulars.infra.runs.scoring import Counts
from tests.benchmarks.backtest_table import markdown_table

RESULTS = [
    Result("peers", Counts(100, 50, 40, 3, 2, (3, 9), 4, 1000), 0.5, 100_000),
    Result("river:anomaly.HalfSpaceTrees(n_trees=10, height=8, window_size=250)", Counts(iterations=1000), 0.1, 0),
]


def test_a_table_fits_a_terminal_of_80_columns_and_the_page_has_the_same_numbers() -> None:
    lines = text_table(RESULTS).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["peers", "0.80", "0.40", "2", "of", "3", "6", "4.0", "5.0"]
    assert lines[3].split() == ["-", "-", "0", "of", "0", "-", "0.0", "-"]
    assert "| `peers` | 0.80 | 0.40 | 2 of 3 | 6 | 4.0 | 5.0 |" in markdown_table(RESULTS)


def test_the_picture_is_xml_with_a_bar_for_each_number() -> None:
    picture = ET.fromstring(draw([*RESULTS, Result("<b>&", Counts())], "a & b"))
    widths = [one.get("width") for one in picture.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths[3:5] == ["240", "120"], "precision 0.80 and recall 0.40 of 300"
    assert "<b>&" in [one.text for one in picture.iter("{http://www.w3.org/2000/svg}text")]


def test_jobs_of_which_a_fault_was_not_found_are_named() -> None:
    by_job = {"slow": Counts(faults=2, found=1), "well": Counts(faults=1, found=1), "clean": Counts(false_alarms=3)}
    result = Result("peers", by_job=by_job)
    assert result.missed() == ["slow"]
    assert result.to_json()["jobs"][2] == {"job": "clean", "faults": 0, "found": 0, "false_alarms": 3}
