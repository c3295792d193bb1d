"""Alert rules: they ask for metrics that exist, Prometheus's own checker accepts them, and each has its runbook."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from irregulars.infra.docs_site.made_parts import worker_metrics
from irregulars.streams.health.counters import metrics_table
from tests.infra.known_metrics import known_metrics, require_known
from tests.streams.health.observed_worker import observed_metrics

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "infra" / "prometheus" / "alerts.yaml"
CASES = [ROOT / "tests" / "infra" / name for name in ("alerts_test.yaml", "alerts_of_days_test.yaml")]
PAGE = (ROOT / "infra" / "docs" / "operating.md").read_text()

ALERTS = re.findall(r"- alert: (\w+)", RULES.read_text())
PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")


def expressions() -> Iterator[str]:
    """Each rule's ``expr``, folded lines joined."""
    for block in re.split(r"- alert: ", RULES.read_text())[1:]:
        found = re.search(r"expr: (?:>-\n)?(.*?)\n +(?:for|labels):", block, re.DOTALL)
        assert found is not None, block
        yield " ".join(found[1].split())


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, set[str]]:
    """Labels of every metric, by the names that a rule may ask for."""
    return known_metrics(tmp_path_factory.mktemp("spool"))


def test_the_rules_ask_for_metrics_and_labels_that_exist(known: Mapping[str, set[str]]) -> None:
    texts = list(expressions())
    assert len(texts) == len(ALERTS) > 10
    require_known(texts, known)


def test_each_alert_and_no_other_has_its_place_in_the_runbook_and_fires_in_a_case() -> None:
    rules, cases = RULES.read_text(), "\n".join(one.read_text() for one in CASES)
    for alert in ALERTS:
        block = rules.split(f"- alert: {alert}\n")[1].split("- alert: ")[0]
        assert re.search(r"labels: \{severity: (page|ticket)\}", block), alert
        assert f"runbook: infra/docs/operating.md#{alert.lower()}\n" in block
        assert f"\n### {alert}\n" in PAGE
        assert re.search(rf'alertname(?:=|: )"?{alert}"?', cases), alert
    assert re.findall(r"^### (\w+)$", PAGE, re.MULTILINE) == ALERTS


def test_the_page_s_metrics_are_those_of_the_code_with_few_values_of_labels() -> None:
    assert "<!-- made: metrics of a worker -->" in PAGE
    assert worker_metrics() == metrics_table(observed_metrics())
    assert {label for one in observed_metrics() for sample in one.samples for label in sample.labels} == {
        "by", "event", "group", "hop", "kind", "le", "partition", "severity", "topic", "version"
    }  # fmt: skip


@pytest.mark.parametrize("arguments", [["check", "rules", str(RULES)], ["test", "rules", *map(str, CASES)]])
def test_promtool_accepts_the_rules_and_their_cases(arguments: list[str]) -> None:
    if PROMTOOL is None:
        pytest.skip("promtool must be on the PATH or in PROMTOOL; it is not (Debian: apt-get install prometheus)")
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
