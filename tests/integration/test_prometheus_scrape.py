"""A real Prometheus loads our rules, scrapes a worker process, and evaluates rules and dashboards' expressions."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from irregulars.infra.runs.child_process import free_port
from tests.infra.grafana.test_dashboards import expressions
from tests.integration.worker_runs import ROOT, StartWorker, wait_until

pytestmark = pytest.mark.integration

PROMETHEUS = os.environ.get("PROMETHEUS") or shutil.which("prometheus")
RULES = ROOT / "infra" / "prometheus" / "alerts.yaml"

Ask = Callable[..., Any]


@pytest.fixture
def ask(start_worker: StartWorker, tmp_path: Path) -> Iterator[Ask]:
    """Ask Prometheus's API, once it has scraped a worker and evaluated the rules."""
    if PROMETHEUS is None:
        pytest.skip("prometheus must be on the PATH or in PROMETHEUS; it is not (Debian: apt-get install prometheus)")
    port, own = free_port(), free_port()
    start_worker(metrics_listen=f"127.0.0.1:{port}")
    scrape = [{"job_name": "irregulars-worker", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": scrape,
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    arguments = [
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{own}",
    ]
    log = (tmp_path / "prometheus.log").open("wb")

    def ask(path: str, **values: str) -> Any:
        url = f"http://127.0.0.1:{own}/api/v1/{path}?{urllib.parse.urlencode(values)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)["data"]

    process = subprocess.Popen([PROMETHEUS, *arguments], stdout=log, stderr=log)
    try:
        wait_until(lambda: _is_scraped(ask), "a scrape")
        yield ask
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def _is_scraped(ask: Ask) -> bool:
    try:
        found = ask("query", query="irregulars_worker_ready == 1")["result"]
    except OSError:  # it is not up yet
        return False
    return bool(found)


def test_rules_load_and_every_expression_is_evaluated(ask: Ask) -> None:
    def rules() -> list[dict[str, Any]]:
        return [rule for group in ask("rules")["groups"] for rule in group["rules"]]

    wait_until(lambda: all(rule["health"] != "unknown" for rule in rules()), "an evaluation")
    assert [rule["name"] for rule in rules() if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules() if rule["state"] == "firing"] == []
    told = {}
    for text in expressions():
        plain = text.replace("$__rate_interval", "10s").replace("$worker", ".*")
        told[text] = ask("query", query=plain)["result"]
    known = [
        text for text in told if re.search(r"_(ready|healthy|broker_silent_seconds|monitors|partitions)\{", text)
    ]
    assert len(known) == 5
    assert [text for text in known if not told[text]] == []
