from __future__ import annotations

import re

import pytest

from irregulars.errors import InputError
from irregulars.sinks.investigations import (
    NEWEST,
    NEWEST_OF,
    THEMES,
    Investigation,
    bind,
    find_investigation,
    read_investigation,
    shipped_investigations,
)
from irregulars.sinks.tables import TABLES

SHIPPED = shipped_investigations()
RANK_OPERATORS = SHIPPED["rank_operators"]


def test_the_promised_ones_ship() -> None:
    promised = {
        "before_and_after", "blamed", "cost_by_job", "cost_by_switch", "cost_by_week", "device_history",
        "hang_positions", "host_history", "irregular_iterations", "jobs_compared", "jobs_now", "open_now",
        "pipeline_health", "rank_operators", "repeat_offenders", "silent_ranks", "slowest_iterations",
        "suspicion_history",
        "time_lost_by_device", "waits_of_iteration",
    }  # fmt: skip
    assert promised <= set(SHIPPED)


_EXTREME = r"(max|min|maxOrNull|minOrNull)\([^()]*(\([^()]*\))?\)"
_UNMOVED = re.compile(
    rf" FINAL|FROM (accused|incidents)|\(SELECT attempt FROM|SELECT DISTINCT [^()]*(\([^()]*\)[^()]*)?FROM|"
    rf"SELECT ((job|attempt|{_EXTREME})( AS \w+)?(, )?)+ FROM"
)


def test_each_reads_merged_rows_and_is_bounded() -> None:
    """FINAL everywhere, but for the largest, the smallest and sets: copies of a row do not change them."""
    tables = "|".join((*TABLES, "transfers", "verdict_revisions", "accused", "incidents"))
    for name in SHIPPED:
        sql = SHIPPED[name].sql
        reads = [line for line in sql.splitlines() if re.search(rf"FROM ({tables})\b", line)]
        assert reads, name
        assert all(_UNMOVED.search(line) for line in reads), name
        assert "LIMIT {limit:UInt32}" in sql, name


def test_doubt_begins_with_the_attempt_where_nothing_was_checked_before_a_verdict() -> None:
    """A left join fills in 0 where nothing was checked, as if iteration 0 was, unless its column may be NULL."""
    sql = SHIPPED["trusted_checkpoints"].sql
    assert sql.count("SELECT attempt, toNullable(max(iteration)) AS passed") == 2
    assert "ifNull(min(checked.passed) + 1, any(starts.first))" in sql


def test_none_reads_all_rows_of_a_job_to_find_its_newest_attempt() -> None:
    newest = re.compile(r"SELECT attempt FROM \w+ WHERE job = \{job:String\} ORDER BY attempt DESC LIMIT 1")
    for name in SHIPPED:
        sql = SHIPPED[name].sql
        is_of_all = "{attempt:" not in sql or "{attempt:Nullable(Int64)} IS NULL OR" in sql
        assert is_of_all or (newest.search(sql) and "max(attempt)" not in sql), name


def test_each_says_what_it_answers_and_every_theme_has_one() -> None:
    assert {one.theme for one in SHIPPED.values()} == set(THEMES)
    for name, investigation in SHIPPED.items():
        assert investigation.title, name
        assert investigation.description.endswith((".", "?")), name
        assert investigation.empty.endswith((".", ")")), name
        assert all(parameter.description for parameter in investigation.parameters), name


def test_defaults_and_the_newest_job_are_added_to_what_is_given_as_text() -> None:
    wanted = {"job": "llama", "rank": 3, "iteration": 60, "attempt": None, "limit": 1000}
    assert bind(RANK_OPERATORS, {"job": "llama", "rank": "3", "iteration": 60}) == wanted
    assert bind(SHIPPED["blamed"], {})["job"] == ""  # quotes around a default text are not part of it
    assert bind(RANK_OPERATORS, {"rank": 3})["job"] == NEWEST
    assert bind(RANK_OPERATORS, {"rank": 3, "iteration": "7"})["iteration"] == 7


@pytest.mark.parametrize(("values", "text"), [
    ({}, r"must be given rank \(UInt32: global rank\); got \[\]"),
    ({"job": "j", "rnak": 1}, r"must be among .*'rank'.*got \['rnak'\]\. Did you mean rank\?"),
    ({"rank": 1, "zzzz": 1}, r"got \['zzzz'\]$"),
    ({"job": "j", "rank": "one", "iteration": 1},
     "parameter rank must be an integer from 0 to 4294967295; got 'one'"),
    ({"job": "j", "rank": -1, "iteration": 1}, "got -1"),
    ({"job": "j", "rank": 1, "iteration": 2**63}, "parameter iteration must be"),
    ({"job": "j", "rank": None, "iteration": 1}, "got None"),
])  # fmt: skip
def test_values_that_do_not_fit_are_named(values: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        bind(RANK_OPERATORS, values)


@pytest.mark.parametrize(("name", "text"), [
    ("zzzz", r"must be one of audits_apart, bandwidth_of_rank, before_.*; got 'zzzz'\. See: irregulars"),
    ("job_now", r"must be one that ships; got 'job_now'\. Did you mean jobs_now\?"),
])  # fmt: skip
def test_an_unknown_name_lists_what_ships_or_names_the_nearest(name: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        find_investigation(name)


def test_no_question_sets_a_setting_which_users_with_readonly_1_may_not() -> None:
    assert [name for name in SHIPPED if "SETTINGS" in SHIPPED[name].sql] == []


def test_ranges_that_are_half_open_say_so() -> None:
    for name in SHIPPED:
        shown = SHIPPED[name].sql.rpartition("\nSELECT\n")[2]
        if "past_last_iteration" in shown:
            assert "half-open" in SHIPPED[name].description, name


@pytest.mark.parametrize("one", SHIPPED.values(), ids=lambda one: one.name)
def test_each_header_is_sound_and_declares_the_parameters_of_its_sql(one: Investigation) -> None:
    keys = re.findall(r"^-- (\w+): ", one.sql, re.MULTILINE)
    assert keys == ["title", "theme", "description", "empty", *len(one.parameters) * ["parameter"]]
    assert one.theme in THEMES
    declared = {(parameter.name, parameter.type) for parameter in one.parameters}
    assert declared == set(re.findall(r"\{(\w+):([\w()]+)\}", one.sql))
    assert {kind for _, kind in declared} <= {"String", "UInt32", "Int64", "Nullable(Int64)"}
    assert {p.name for p in one.parameters if p.default == NEWEST} <= set(NEWEST_OF)


def test_a_description_goes_on_in_indented_lines() -> None:
    text = "-- title: T\n-- theme: now\n-- description: one\n--     two\n-- empty: E\n"
    text += "-- parameter: n UInt32 = 5 | rows\nSELECT {n:UInt32}"
    investigation = read_investigation("mine", text)
    assert investigation.description == "one two"
    assert investigation.parameters[0].default == "5"
