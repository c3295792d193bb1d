"""A finding: its level, its subject, and advice; the question to the doctor; words for numbers; the report."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal

from irregulars.infra.doctor.facts import TopicFacts
from irregulars.kafka.access_roles import Right, rights_of
from irregulars.kafka.topics import TopicSettings
from irregulars.printing import counted, printable

if TYPE_CHECKING:
    from rich.text import Text


Level = Literal["ok", "warning", "problem", "unknown"]

# Names for ``--only``, and the heading of each group
GROUPS: Final = {
    "machine": "This machine",
    "kafka": "Kafka",
    "topics": "Topics",
    "rights": "Rights",
    "clickhouse": "ClickHouse",
    "workers": "Workers",
    "jobs": "Producers and jobs",
    "alerts": "Alerts and notify",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    level: Level
    group: str  # of `GROUPS`
    subject: str
    text: str
    code: str | None = None  # for programs, of `TO_DO`; None where all is well
    to_do: str | None = None


def ok(group: str, subject: str, text: str) -> Finding:
    """Return a finding that asks for nothing."""
    return Finding("ok", group, subject, text)


def finding(level: Level, group: str, subject: str, text: str, code: str, /, **values: object) -> Finding:
    """Return a finding of a case that `TO_DO` knows; `values` fill the places in its advice. ``ok`` needs none."""
    if level == "ok":
        return ok(group, subject, text)
    return Finding(level, group, subject, text, code, TO_DO[code].format(**values))


def unread(group: str, subject: str, reason: str) -> Finding:
    """Return the finding that something could not be read."""
    return finding("unknown", group, subject, f"not known: {reason}", "not_read")


def unseen(group: str, subject: str, topic: TopicFacts) -> Finding:
    """Return the finding that something was not read, since its topic is missing or hidden from us."""
    if topic.error == "missing":
        return finding("unknown", group, subject, f"not looked at: {topic.name} is missing", "topics_first")
    return unread(group, subject, why_not(topic.name, topic.error))


def why_not(what: str, error: str | None) -> str:
    """Return why a topic or consumer group could not be looked at."""
    return f"{what} may not be seen with these credentials" if error == "refused" else f"{what}: {error}"


def status_of(findings: list[Finding]) -> int:
    """Return the exit status: 1 where there is a problem, else 0."""
    return int(any(one.level == "problem" for one in findings))


_STEPS: Final = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))
_MOST_NAMES: Final = 4


def span(seconds: float) -> str:
    """Return a time in the largest unit that it fills twice.

    >>> span(0.25), span(9), span(150), span(9000), span(400_000)
    ('250 ms', '9 s', '2 min', '2 h', '4 d')
    """
    for size, unit in _STEPS:
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    if 0 < seconds < 1:
        return f"{max(round(seconds * 1000), 1)} ms"
    return f"{seconds:.1f} s" if seconds < 5 and seconds != int(seconds) else f"{seconds:.0f} s"


def names(found: Iterable[str]) -> str:
    """Return some names, and how many more there are.

    >>> names("abcdef")
    'a, b, c, d and 2 more'
    """
    listed = list(found)
    more = len(listed) - _MOST_NAMES
    shown = ", ".join(listed[:_MOST_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def numbers(found: Collection[int]) -> str:
    """Return whole numbers as runs.

    >>> numbers([0, 1, 2, 7]), numbers(range(0, 40, 2))
    ('0-2, 7', '0, 2, 4, 6 and 16 more')
    """
    ordered = sorted(found)
    starts = [0, *(place for place, (one, two) in enumerate(pairwise(ordered), 1) if two != one + 1), len(ordered)]
    runs = [ordered[first:past] for first, past in pairwise(starts)]
    return names(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs if run)


_OF_EACH_ROLE: Final = frozenset({"machine", "kafka", "topics", "rights"})
_WITH_DATABASE: Final = frozenset({"worker", "console"})


@dataclass(frozen=True, slots=True)
class Question:
    """The parts of an installation to examine."""

    group: str = "irregulars"  # consumer group of the workers
    role: str | None = None  # judge only what its work needs; None: the whole installation
    only: Collection[str] = ()  # groups of findings; empty: all, or those that the role needs
    within_s: float = 20.0  # bound on all reading

    def wants(self, *groups: str) -> bool:
        """Whether one of the groups is asked for.

        >>> Question().wants("jobs"), Question(role="reader").wants("jobs"), Question(role="reader").wants("topics")
        (True, False, True)
        """
        wanted: Collection[str] = self.only or GROUPS
        if not self.only and self.role is not None:
            wanted = _OF_EACH_ROLE | ({"clickhouse"} if self.role in _WITH_DATABASE else frozenset())
        return any(group in wanted for group in groups)

    def needed(self, topics: TopicSettings) -> tuple[Right, ...]:
        """Return the rights that the role needs; none where no role is asked for."""
        return () if self.role is None else rights_of(self.role, topics, self.group)

    @property
    def only_reads(self) -> bool:
        """Whether the work writes nothing to the database."""
        return self.role == "console"


_OPERATING: Final = "infra/docs/operating.md"
_ACCESS: Final = "infra/docs/access.md"
_WHO: Final = _ACCESS + "#kafka-who-we-are"

# By a finding's code; places in braces are filled by the finding
TO_DO: Final[Mapping[str, str]] = {
    # this machine
    "setting_refused": "Correct it: irregulars settings shows what is in force; infra/docs/settings.md",
    "secret_missing": "Make the file readable for who runs us: infra/docs/access.md#secrets",
    "secret_open": "chmod 600 {path}; then change the secret: others may have read it. infra/docs/access.md#secrets",
    "no_extra": "Install the extra worker where workers run: pip install '.[worker]'; README.md",
    "disk_small": "Make room, or name another place: irregulars --set data_dir=… worker; infra/docs/operating.md",
    # Kafka
    "kafka_away": "Check address, TLS and network, and that a broker runs: " + _WHO,
    "kafka_unreachable": "Check kafka_bootstrap, that a broker runs there, and what lies between (firewall, proxy): "
    + _WHO,
    "tls_expected": "Set kafka_tls = true and kafka_ca_file, or take its port without TLS: " + _WHO,
    "tls_not_spoken": "Take its port with TLS, or set kafka_tls = false where nobody can read along: " + _WHO,
    "certificate_expired": "Put a new certificate in place on the broker; and does our clock go right? " + _WHO,
    "certificate_untrusted": "Set kafka_ca_file to the authority that signed it (PEM), and name the brokers in "
    "kafka_bootstrap as their certificates name them: " + _WHO,
    "own_certificate_asked": "Set kafka_cert_file and kafka_key_file, or take its port for passwords: " + _WHO,
    "own_certificate_refused": "Take one that the brokers' authority signed, and that has not ended: " + _WHO,
    "log_in_asked": "Set kafka_user and kafka_password_file: " + _WHO,
    "log_in_not_asked": "Take its port for log-ins, or set no kafka_user: " + _WHO,
    "mechanism_refused": "Set kafka_mechanism to one of those: " + _WHO,
    "log_in_refused": "Is the user known there by this way, and is the secret right? " + _WHO,
    "log_in_unusable": "Correct the file that the setting names: " + _WHO,
    "kafka_refuses": "Check user, secret, certificates and rights: " + _WHO,
    "kafka_slow": "Look at the brokers' load and the network: " + _OPERATING + "#irregularsbrokersilent",
    "certificate_ends": "Put a new one in place before {whose} ends: " + _WHO,
    "no_tls": "Set kafka_tls = true and kafka_ca_file: " + _WHO,
    "broker_clock": "Compare by hand where it matters: infra/docs/doctor.md#clocks",
    "clock_off": "Let it follow a time server (NTP, chrony): infra/docs/doctor.md#clocks",
    # topics
    "topic_missing": "irregulars topics create",
    "topic_hidden": "Nothing, if our role needs none of them (infra/docs/doctor.md#for-one-role); an administrator "
    "sees whether they are there: irregulars topics check",
    "partitions_differ": "Give the others {most} too while no job runs, or use another prefix: infra/docs/topics.md",
    "partitions_many": "Make it anew with one partition: infra/docs/topics.md",
    "no_leader": "Start the brokers that hold them; until then nobody reads or writes there: " + _OPERATING
    + "#irregularsbrokersilent",
    "under_replicated": "Look which broker is away or slow; a second one that fails loses data: " + _OPERATING
    + "#irregularsbrokersilent",
    "one_copy": "irregulars topics create --replicas 3, and reassign those that exist: infra/docs/topics.md",
    "min_insync": "Set min.insync.replicas=2 with three copies: infra/docs/topics.md",
    "topic_config": "kafka-configs --alter --topic {topic} --add-config {config}; infra/docs/topics.md",
    "snapshot_cleaning": "irregulars topics create sets it: infra/docs/topics.md#rank_snapshots-job_snapshots",
    # rights
    "right_missing": "By an administrator: irregulars topics grant {role} {who}",
    "no_role": "By an administrator: irregulars topics grant ROLE {who}; " + _ACCESS + "#kafka-who-may-do-what",
    # ClickHouse
    "clickhouse_away": "Start it, or correct clickhouse_url; rows of workers wait meanwhile: " + _OPERATING
    + "#irregularssinkretries",
    "database_missing": "irregulars sql --create-tables makes it, as a user who may; or correct clickhouse_database",
    "database_hidden": "Correct clickhouse_database, or give the user its rights: irregulars sql --print-access",
    "clickhouse_refuses": "Is the user known there, and is the password right? infra/docs/access.md#clickhouse",
    "clickhouse_unusable": "Correct the file that the setting names: infra/docs/access.md#clickhouse",
    "clickhouse_untrusted": "Set clickhouse_ca_file to the authority that signed it (PEM), and name the host in "
    "clickhouse_url as it is named there: " + _ACCESS + "#clickhouse",
    "clickhouse_tls": "Set clickhouse_url to https://… and clickhouse_ca_file, or take its port without TLS: "
    + _ACCESS + "#clickhouse",
    "clickhouse_no_tls": "Take its port with TLS, or set clickhouse_url to http://…: " + _ACCESS + "#clickhouse",
    "migrations_missing": "irregulars sql --create-tables, as a user who may make tables",
    "tables_gone": "Restore them from a backup: infra/docs/access.md#clickhouse",
    "migrations_edited": "Use the release that made them, or another clickhouse_database: " + _ACCESS + "#clickhouse",
    "grant_missing": "GRANT {grants} to {user}, as irregulars sql --print-access has it",
    "reader_refused": "Check clickhouse_reader_user {user} and its password: infra/docs/access.md#clickhouse",
    "disk_full": "Make room, or keep less: " + _OPERATING + "#what-the-database-keeps-and-how-large-it-gets",
    "many_parts": "Look at merges (system.merges) and at the disk; fewer workers insert less often: " + _OPERATING
    + "#irregularssinkretries",
    "retention_differs": "irregulars sql --create-tables puts the settings in force; or change them",
    "replica_stands": "Look at system.replicas and at Keeper: " + _OPERATING + "#irregularssinkretries",
    # workers
    "no_worker": "irregulars worker --group {group}; does one run: " + _OPERATING + "#irregularsnoworker",
    "partitions_unread": "Start a worker, or the one that holds them anew: " + _OPERATING
    + "#irregularspartitionsunread",
    "behind": _OPERATING + "#irregularsbehind",
    "judging_behind": "Is ClickHouse away? Then alerts go on, and rows wait. Else: "
    + _OPERATING + "#irregularsbehind",
    "releases_differ": "Finish the upgrade: workers first, then agents. infra/docs/doctor.md#releases",
    "worker_stuck": "Start it anew: " + _OPERATING + "#irregularsworkerstuck",
    "judgement_slow": "Nothing at once: others are judged beside it; " + _OPERATING + "#irregularsjudgementgivenup",
    "not_stored": "irregulars doctor --only clickhouse; " + _OPERATING + "#irregularssinkretries",
    "worker_not_ready": _OPERATING + "#irregularsworkernotready",
    # producers and jobs
    "two_jobs": "Give each of them a name of its own: " + _OPERATING + "#two-jobs-under-one-name",
    "job_contradicts": "Was it started anew under one attempt number? " + _OPERATING + "#two-jobs-under-one-name",
    "not_announced": "Look at agent and hook of the ranks that lack: " + _OPERATING + "#irregularsnojudgements",
    "ranks_silent": "Do these hosts live, do their agents run and reach Kafka? irregulars sql silent_ranks; "
    + _OPERATING + "#irregularsagentbehind",
    "job_silent": "Was it killed? Then nothing. Else look at its agents: " + _OPERATING + "#irregularsagentbehind",
    "rows_lost": _OPERATING + "#irregularsagentdrops",
    "none_closes": _OPERATING + "#irregularsnojudgements",
    "no_marks": "Mark iterations, or let the agent infer them: infra/docs/importing.md#iterations-without-marks",
    "no_samples": "Let the agent sample NICs ([nics] in its file): infra/docs/judgement.md#bandwidth-of-nics",
    "dead_letters": "irregulars deadletter list",
    "all_refused": "irregulars deadletter list; then " + _OPERATING + "#irregularsdeadletters",
    # alerts and notify
    "notify_stopped": "irregulars notify FILE; infra/docs/notifying.md",
    "channel_fails": "irregulars notify FILE --test CHANNEL; infra/docs/notifying.md",
    # anything
    "kafka_first": "First what stands under Kafka: irregulars doctor --only kafka",
    "topics_first": "First what stands under Topics: irregulars topics create",
    "not_read": "infra/docs/doctor.md#what-is-not-known",
}  # fmt: skip


WIDTH: Final = 80
_STYLES: Final[dict[Level, str]] = {"ok": "green", "warning": "yellow", "problem": "bold red", "unknown": "cyan"}
_INDENT: Final = 11


def lines_of(findings: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    r"""Yield the lines of a report, each with its style.

    >>> from irregulars.infra.doctor.findings import finding, ok
    >>> report = [ok("kafka", "broker", "1 broker at kafka:9092"),
    ...           finding("problem", "topics", "topics", "1 topic missing: irregulars.alerts", "topic_missing")]
    >>> print("\n".join(line for line, _ in lines_of(report)))
    Kafka
      ok       broker: 1 broker at kafka:9092
    Topics
      PROBLEM  topics: 1 topic missing: irregulars.alerts
               -> irregulars topics create
    """
    group = ""
    for one in findings:
        if one.group != group:
            group = one.group
            yield GROUPS[group], "bold"
        level = one.level.upper() if one.level == "problem" else one.level
        first, *others = _wrapped(f"{one.subject}: {one.text}", f"  {level:<9}")
        yield first, _STYLES[one.level]
        yield from ((line, "") for line in others)
        if one.to_do:
            yield from ((line, "dim") for line in _wrapped(one.to_do, " " * _INDENT + "-> ", _INDENT + 3))


def _wrapped(text: str, begin: str, indent: int = _INDENT) -> list[str]:
    return textwrap.wrap(printable(text), WIDTH, initial_indent=begin, subsequent_indent=" " * indent,
                         break_on_hyphens=False)  # fmt: skip


def summary(findings: Iterable[Finding], took_s: float) -> str:
    """Return the last line: how many of each level.

    >>> summary([], 1.23)
    '0 problems, 0 warnings, 0 not known, 0 ok, in 1.2 s'
    """
    found = Counter(one.level for one in findings)
    bad = (counted(found["problem"], "problem"), counted(found["warning"], "warning"))
    return f"{', '.join(bad)}, {found['unknown']} not known, {found['ok']} ok, in {span(took_s)}"


def coloured(line: str, style: str) -> Text:
    """Return a line for a terminal: of a finding its level alone bears the colour."""
    from rich.text import Text

    if style in _STYLES.values() and line.startswith("  "):
        return Text.assemble((line[:_INDENT], style), line[_INDENT:])
    return Text(line, style)
