"""Parts of the pages that code makes. `python -m tests.infra.docs.made_parts` writes them into the pages anew.

In a page such a part stands between ``<!-- made: NAME -->`` and ``<!-- end -->``; tests compare it with the code.
Parts of `irregulars.infra.docs_site.made_parts` are made when the site is built, and are one line in the page.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import pyarrow as pa

from irregulars.infra import cli
from irregulars.infra.docs_site.made_parts import PART, ROOT, table
from irregulars.infra.runs.analysis import analyze
from irregulars.kafka.access_roles import ROLES
from irregulars.kafka.topic_admin import partitions_of
from irregulars.kafka.topics import DAY_MS, HOUR_MS, TOPICS, TopicSettings
from irregulars.messages.judgements import decode_verdict
from irregulars.messages.opinions import encode_opinion
from irregulars.messages.threshold_changes import ThresholdChange, encode_change
from irregulars.producers.trace.directory import read_trace
from irregulars.sinks.notices.actions.actions import encode_actions
from irregulars.sinks.notices.alertmanager import AlertmanagerChannel
from irregulars.sinks.notices.ledger import Ledger
from irregulars.sinks.notices.mutes import Mute, encode_mute, opinion_on
from irregulars.sinks.notices.notice import Notice, notice_json
from irregulars.sinks.notices.pagerduty import events_of
from irregulars.sinks.notices.policy import Rules, encode_delivery
from irregulars.sinks.notices.settings import KINDS
from irregulars.sinks.notices.slack import message_of
from irregulars.sinks.notices.webhook import headers_of
from tests.benchmarks.table import sizing
from tests.benchmarks.table.comparing import committed_lines, committed_table, read_committed
from tests.infra.docs.fields import made_files
from tests.infra.docs.sent_messages import SHOWN, Message, sent_messages, simulated

DOCS = ROOT / "infra" / "docs"
ROWS_SHOWN = 2
VERDICT_SHOWN = 11  # its first fields, from its id to the evidence in words


def printed(*arguments: str) -> str:
    """What a command prints."""
    before, sys.argv = sys.argv, ["irregulars", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        cli.main()
    sys.argv = before
    return out.getvalue()


@cache
def topics_of_job() -> dict[str, list[Message]]:
    """All messages of a small job, by topic."""
    return sent_messages(simulated(SHOWN))


def block(kind: str, text: str) -> str:
    return f"```{kind}\n{text}\n```\n"


def pretty(value: Any) -> str:
    """JSON, an entry a line; what fits into a line stays in one."""
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, indent=1)
    return "{\n" + ",\n".join(f'  "{key}": {_entry(one)}' for key, one in value.items()) + "\n}"


def _entry(value: Any) -> str:
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) <= 110 or not isinstance(value, list | dict):
        return flat
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f'    "{key}": {json.dumps(one)}' for key, one in value.items()) + "\n  }"
    return "[\n" + ",\n".join(f"    {json.dumps(one, ensure_ascii=False)}" for one in value) + "\n  ]"


def json_message(topic: str) -> str:
    """The first message of a topic."""
    return block("json", pretty(json.loads(topics_of_job()[topic][0].value)))


def actions_message() -> str:
    """What notify would publish of the first alert."""
    alert = json.loads(topics_of_job()["alerts"][0].value)
    return block("json", pretty(json.loads(encode_actions(Notice("opened", alert, alert["severity"])))))


def opinion_message() -> str:
    """What somebody might say of the first verdict."""
    verdict = decode_verdict(topics_of_job()["verdicts"][0].value)
    opinion = opinion_on(
        verdict, is_right=True, who="ann@login-1", note="clock was capped", time_ns=1_800_000_600 * 10**9
    )
    return block("json", pretty(json.loads(encode_opinion(opinion))))


def membership() -> str:
    value = next(one.value for one in topics_of_job()["evidence"] if one.value[:1] == b"{")
    return block("json", pretty(json.loads(value)))


def arrow_message(topic: str) -> str:
    """The header and the first rows of the newest Arrow message of a topic."""
    value = [one.value for one in topics_of_job()[topic] if one.value[:1] != b"{"][-1]
    with pa.ipc.open_stream(value) as reader:
        header = json.loads(reader.schema.metadata[b"irregulars"])
        rows = reader.read_next_batch().slice(0, ROWS_SHOWN if topic != "evidence" else 1)
    return block("json", pretty({"irregulars": header, "rows": [rounded(row) for row in rows.to_pylist()]}))


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Leave out the last digits of large rates: they differ between processors."""
    return {name: round(one, 3) if isinstance(one, float) and one > 1e6 else one for name, one in row.items()}


def topics() -> str:
    rows = []
    for name, topic in TOPICS.items():
        kept = "newest of each key" if topic.is_compacted else _age(topic.retention_ms)
        count = partitions_of(name, TopicSettings())
        rows.append((name, topic.key, "1" if count == 1 else "`partitions`", kept))
    return table(("topic", "key", "partitions", "kept"), rows)


def roles() -> str:
    rows = []
    for name, role in ROLES.items():
        writes = [one.name for one in TOPICS.values() if name in one.writers.split()]
        reads = [one.name for one in TOPICS.values() if name in one.readers.split()]
        groups = _codes(one.format(group="irregulars", prefix="irregulars.") for one in role.groups)
        rows.append((name, role.who, _codes(writes) or "nothing", _codes(reads) or "nothing", groups))
    return table(("role", "who has it", "writes", "reads", "consumer groups"), rows)


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _age(age_ms: int) -> str:
    unit, count = ("day", age_ms // DAY_MS) if age_ms >= DAY_MS else ("hour", age_ms // HOUR_MS)
    return f"1 {unit}" if count == 1 else f"{count} {unit}s"


@cache
def analyzed() -> Mapping[str, Any]:
    return analyze(read_trace(ROOT / "tests" / "recordings" / "gloo-slow-nic")).to_json()


def analysis() -> str:
    """What `analyze --json` prints, with the first fields of verdicts: an example of a verdict has all of them."""
    found = {**analyzed(), "verdicts": [_first(one, VERDICT_SHOWN) for one in analyzed()["verdicts"]]}
    return block("json", json.dumps(found, ensure_ascii=False, indent=2))


def screen(name: str) -> str:
    """What `irregulars show` prints of a recording."""
    with contextlib.chdir(ROOT):
        return block("text", printed("show", f"tests/recordings/{name}").rstrip())


def figures() -> str:
    """The committed figures of all benchmarks."""
    committed = read_committed()
    return committed_table(committed, committed_lines(committed))


def notices_of_job() -> tuple[Notice, Notice]:
    """A notice of the job's incident, told for the third time within a week, and its end."""
    value: dict[str, Any] = json.loads(topics_of_job()["alerts"][0].value)
    ended = {**value, "revision": 9, "state": "closed", "event": "closed", "close_reason": "recovered"}
    earlier = ("llama-7b:2:1180:0", "llama-7b:3:40:1")
    return Notice("opened", value, "ticket", earlier), Notice("resolved", ended, "ticket", earlier)


def notice_message(channel: str) -> str:
    """What a channel sends when the job's incident opens."""
    notice, _ = notices_of_job()
    if channel == "cloudevents":
        return block("text", "\n".join(f"{name}: {one}" for name, one in headers_of(notice, "irregulars").items()))
    if channel == "alertmanager":
        alerts, _ = AlertmanagerChannel("am", "http://am", now=lambda: 1_800_000_010.0).alerts(notice)
        return block("json", json.dumps(alerts, ensure_ascii=False, indent=1))
    if channel == "webhook":
        said = notice_json(notice)
        said["alert"] = _first(said["alert"], 6)
        return block("json", json.dumps(_short(said), ensure_ascii=False, indent=1))
    if channel == "slack":
        sent = {"channel": "C024BE91L", **message_of(notice)}
        return block("json", json.dumps(_short(sent), ensure_ascii=False, indent=1))
    event = {"routing_key": "…", **events_of(notice)[0]}
    return block("json", json.dumps(_short(event), ensure_ascii=False, indent=1))


def _short(value: Any) -> Any:
    """The same with long texts cut: the page shows them whole once."""
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_short(one) for one in value]
    return f"{value[:80]}…" if isinstance(value, str) and len(value) > 80 else value


def _first(values: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {name: values[name] for name in list(values)[:count]} | {"…": "…"}


def told_message() -> str:
    """The record of that notice on the topic ``notices``."""
    notice, _ = notices_of_job()
    ledger = Ledger({"pager": Rules()})
    ledger.apply_alert(notice.alert, 1_800_000_010 * 10**9)
    due = ledger.next_due("pager", 1_800_000_010 * 10**9)
    assert due is not None
    (told,) = ledger.delivered("pager", due, None, 1_800_000_011 * 10**9)
    return block("json", pretty(json.loads(encode_delivery(told))))


def mute_message() -> str:
    begin_ns = 1_800_000_000 * 10**9
    end_ns = begin_ns + 7200 * 10**9
    mute = Mute("m-20270115-0800-4f1c", begin_ns, end_ns, "new firmware", "ann@login-1", host="node-3")
    return block("json", pretty(json.loads(encode_mute(mute))))


def change_message() -> str:
    change = ThresholdChange(
        "t-20270115-080000-4f1c2a", {"delta": 1.3, "alert_page_share": None}, "ann@login-1",
        "its iterations are short", 1_800_000_000 * 10**9, job="walk",
    )  # fmt: skip
    return block("json", pretty(json.loads(encode_change(change))))


MAKERS: Mapping[str, Callable[[], str]] = {
    "topics": topics,
    "roles": roles,
    **{f"message {name}": partial(json_message, name) for name in ("jobs", "heartbeats", "verdicts", "alerts")},
    **{
        f"message {name}": partial(arrow_message, name) for name in ("commops", "bandwidth", "iterations", "evidence")
    },
    "message membership": membership,
    "message actions": actions_message,
    "message notices": told_message,
    "message mutes": mute_message,
    "message feedback": opinion_message,
    "message thresholds": change_message,
    **{f"notice {name}": partial(notice_message, name) for name in KINDS if name not in ("command", "actions")},
    "analysis": analysis,
    "screen of a link": partial(screen, "gloo-slow-link"),
    "figures": figures,
    "sizes": sizing.page_part,
}


EXAMPLES: Mapping[str, str] = {
    **{
        f"{name.removeprefix('message ')}.json": name
        for name in MAKERS
        if name.startswith("message ") and name != "message commops"  # the page on topics shows that one itself
    },
    "analysis.json": "analysis",
    **{f"notice-{name}.json": f"notice {name}" for name in ("alertmanager", "pagerduty", "slack", "webhook")},
}
"""Files of infra/docs/examples, too long for a page, and the parts that they hold."""


def example(file: str) -> str:
    """The text of a file of examples, as code makes it."""
    return MAKERS[EXAMPLES[file]]().removeprefix("```json\n").removesuffix("```\n")


def parts() -> Iterator[tuple[str, str, str]]:
    """Page, name and text of each part as it stands in a page."""
    for page in sorted(DOCS.glob("*.md")):
        for name, text in PART.findall(page.read_text()):
            yield page.name, name, text


def renew(names: Collection[str] = ()) -> None:
    """Write parts anew: those that are named, or all."""

    def part(found: re.Match[str]) -> str:
        if found[1] not in MAKERS or (names and found[1] not in names):
            return found[0]
        return f"<!-- made: {found[1]} -->\n{MAKERS[found[1]]()}<!-- end -->"

    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text()
        page.write_text(PART.sub(part, text))
    for file in EXAMPLES:
        (DOCS / "examples" / file).write_text(example(file))
    for path, text in made_files().items():
        path.write_text(text)


if __name__ == "__main__":
    renew(sys.argv[1:])
