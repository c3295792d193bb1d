from __future__ import annotations

import re

import pytest

from irregulars.errors import InputError
from irregulars.sinks.investigations import bind, find_investigation, read_investigation, shipped_investigations
from irregulars.sinks.tables import TABLES

SHIPPED = shipped_investigations()
RANK_OPERATORS = SHIPPED["rank_operators"]
HEADER = "-- title: T\n-- description: D\n"


def test_the_promised_ones_ship() -> None:
    promised = {"jobs_now", "irregular_iterations", "blamed", "time_lost_by_device", "rank_operators"}
    assert promised <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_each_reads_merged_rows_and_is_bounded(name: str) -> None:
    """FINAL everywhere, but for the largest attempt and sets: copies of a row do not change them."""
    sql = SHIPPED[name].sql
    reads = [line for line in sql.splitlines() if re.search(rf"FROM ({'|'.join((*TABLES, 'transfers'))})\b", line)]
    assert reads
    assert all(
        re.search(r" FINAL|\(SELECT attempt FROM|SELECT DISTINCT [^()]*\([^()]*\)[^()]* FROM", line) for line in reads
    )
    assert "LIMIT {limit:UInt32}" in sql


@pytest.mark.parametrize("name", SHIPPED)
def test_none_reads_all_rows_of_a_job_to_find_its_newest_attempt(name: str) -> None:
    newest = re.compile(r"SELECT attempt FROM \w+ WHERE job = \{job:String\} ORDER BY attempt DESC LIMIT 1")
    sql = SHIPPED[name].sql
    assert "{attempt:" not in sql or (newest.search(sql) and "max(attempt)" not in sql)


@pytest.mark.parametrize("name", SHIPPED)
def test_each_says_what_it_answers(name: str) -> None:
    investigation = SHIPPED[name]
    assert investigation.title
    assert investigation.description.endswith((".", "?"))
    assert all(parameter.description for parameter in investigation.parameters)


def test_defaults_are_added_to_what_is_given_as_text() -> None:
    assert bind(RANK_OPERATORS, {"job": "llama", "rank": "3", "iteration": 60}) == {
        "job": "llama",
        "rank": 3,
        "iteration": 60,
        "attempt": None,
        "limit": 1000,
    }


def test_quotes_around_a_default_text_are_not_part_of_it() -> None:
    assert bind(SHIPPED["blamed"], {})["job"] == ""


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, r"must be given job \(String: training job\); rank"),
        ({"job": "j", "rank": 1, "iteration": 1, "rnak": 1}, r"must be among .*'rank'.*got \['rnak'\]"),
        (
            {"job": "j", "rank": "one", "iteration": 1},
            "parameter rank must be an integer from 0 to 4294967295; got 'one'",
        ),
        ({"job": "j", "rank": -1, "iteration": 1}, "got -1"),
        ({"job": "j", "rank": 1, "iteration": 2**63}, "parameter iteration must be"),
        ({"job": "j", "rank": None, "iteration": 1}, "got None"),
    ],
)
def test_values_that_do_not_fit_are_named(values: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        bind(RANK_OPERATORS, values)


def test_an_unknown_name_lists_what_ships() -> None:
    with pytest.raises(InputError, match=r"must be one of bandwidth_of_rank, blamed, .*; got 'nosuch'"):
        find_investigation("nosuch")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("SELECT 1", "one title and one description"),
        ("-- title: T\nSELECT 1", "one title and one description"),
        (HEADER + "-- parameter: job Text | j\nSELECT {job:Text}", "its type one of"),
        (HEADER + "-- parameter: job String\nSELECT {job:String}", "its type one of"),
        (HEADER + "SELECT {job:String}", "as in the SQL"),
        (HEADER + "-- parameter: job String | j\nSELECT 1", "as in the SQL"),
    ],
)
def test_a_file_without_a_sound_header_is_an_error(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        read_investigation("mine", text)


def test_a_description_goes_on_in_indented_lines() -> None:
    text = "-- title: T\n-- description: one\n--     two\n-- parameter: n UInt32 = 5 | rows\nSELECT {n:UInt32}"
    investigation = read_investigation("mine", text)
    assert investigation.description == "one two"
    assert investigation.parameters[0].default == "5"
