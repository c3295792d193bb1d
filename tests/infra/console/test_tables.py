"""What a question's page lets through to the database."""

from __future__ import annotations

import pytest

from irregulars.infra.console.rendering import make_templates, table_of
from irregulars.infra.console.tables import _bounded
from irregulars.sinks.investigations import Answer, bind, find_investigation
from tests.infra.console.visits import text_of, visit


@pytest.mark.parametrize(
    ("limit", "rows"), [("20", 20), ("500", 500), ("501", 500), (" 90000 ", 500), ("+90000", 500), ("9_00_00", 500)]
)
def test_a_page_asks_for_few_rows_however_a_number_is_written(limit: str, rows: int) -> None:
    question = find_investigation("jobs_now")
    assert bind(question, _bounded(question, {"limit": limit}))["limit"] == rows


def test_a_page_asks_for_few_rows_also_where_the_question_s_own_limit_is_larger() -> None:
    question = find_investigation("rank_operators")
    given = {"job": "a", "iteration": "1", "rank": "0"}
    assert int(bind(question, given)["limit"]) > 500
    assert bind(question, _bounded(question, given))["limit"] == 500
    assert "limit" not in _bounded(find_investigation("jobs_now"), {}), "its own is smaller, and holds"


def test_a_number_that_python_does_not_read_is_refused_and_no_fault_of_ours() -> None:
    with visit() as found:
        found.log_in()
        for limit in ("9" * 5_000, "x", "1e9"):
            answer = found.get(f"/questions/jobs_now?limit={limit}")
            assert answer.status_code == 400, limit[:9]
            assert "limit must be" in text_of(answer), limit[:9]


def test_evidence_is_told_once_for_a_verdict_also_where_another_one_s_is_the_same() -> None:
    rows = tuple((verdict, rank, "it did not come") for verdict, rank in (("v1", 1), ("v1", 2), ("v2", 1)))
    table = table_of(Answer(("verdict_id", "rank", "evidence"), rows))
    page = make_templates().from_string("{% from 'macros.html' import show %}{{ show(table, 'Verdicts') }}")
    assert page.render(table=table).count("it did not come") == 2
