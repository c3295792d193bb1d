"""The dashboard of the pipeline itself: workers, agents and notify, as Prometheus sees them."""

from __future__ import annotations

from typing import Final

from tests.infra.grafana.panels import (
    CLICKHOUSE_VARIABLE,
    PROMETHEUS_VARIABLE,
    Json,
    Row,
    colored,
    dashboard,
    expressions,
    label_variable,
    rows_of,
    stat,
    table,
    time_series,
    units,
)
from tests.infra.grafana.queries import investigation

_WORKER: Final = 'job="irregulars-worker",instance=~"$worker"'
_AGENT: Final = 'job="irregulars-agent"'
_NOTIFY: Final = 'job="irregulars-notify"'
_RATE: Final = "$__rate_interval"


def pipeline() -> Json:
    """Tell whether Irregulars itself works."""
    return dashboard(
        "pipeline",
        "pipeline",
        "Does Irregulars itself work: is it behind, is anything lost, is everybody heard and told?",
        variables=[
            PROMETHEUS_VARIABLE,
            CLICKHOUSE_VARIABLE,
            label_variable("worker", "worker", "label_values(irregulars_worker_info, instance)"),
        ],
        rows=[make() for make in _ROWS],
        past="now-3h",
    )


def _now() -> Row:
    good, bad = ((None, "red"), (1, "green")), ((None, "green"), (1, "red"))
    there = expressions(
        (f"sum(up{{{_WORKER}}})", "workers that answer"),
        (f"sum(irregulars_worker_ready{{{_WORKER}}})", "ready"),
        (f"sum(irregulars_worker_healthy{{{_WORKER}}})", "healthy"),
        (f"sum(up{{{_AGENT}}})", "agents heard"),
        (f"sum(irregulars_notify_active{{{_NOTIFY}}})", "notify active"),
    )
    wrong = expressions(
        (f"max(irregulars_worker_behind_seconds{{{_WORKER}}})", "seconds behind"),
        (f"count(up{{{_AGENT}}} == 0) or vector(0)", "agents not heard"),
        (f"sum(irregulars_agent_kafka_behind{{{_AGENT}}})", "agents behind"),
        (f"sum(increase(irregulars_worker_dead_letters_total{{{_WORKER}}}[1h]))", "dead letters in an hour"),
    )
    return 5, [
        stat("Who is there", "Processes that Prometheus reaches.", there, "none", good),
        stat("What should be 0", "Or, for seconds behind, about as many as an iteration takes.", wrong, "none", bad),
    ]


def _alerts() -> Row:
    firing = expressions(('ALERTS{alertname=~"Irregulars.*",alertstate="firing"}', ""), instant=True)
    about = "Those of infra/prometheus/alerts.yaml. What to do about each stands in infra/docs/operating.md."
    left_out = ("Time", "Value", "__name__", "alertstate")
    return 6, [table("Alerts that fire", about, firing, colored("severity"), left_out)]


def _behind() -> Row:
    behind = expressions(
        (f"max by (hop, partition) (irregulars_worker_behind_seconds{{{_WORKER}}})", "{{hop}} {{partition}}")
    )
    lag = expressions((f"sum by (topic) (irregulars_worker_lag_messages{{{_WORKER}}})", "{{topic}}"))
    within = f"sum by (le) (rate(irregulars_worker_judgement_delay_seconds_bucket{{{_WORKER}}}[{_RATE}]))"
    delays = expressions(
        (f"histogram_quantile(0.5, {within})", "half within"), (f"histogram_quantile(0.99, {within})", "99 % within")
    )
    return 8, [
        time_series("Behind", "All sent before so long ago is in the monitors; hop job: of all ranks.", behind, "s"),
        time_series("Messages to be read", "By topic; of evidence: not yet judged.", lag, "short"),
        time_series("From an iteration's end to its judgement", "A replay is as old as it is.", delays, "s"),
    ]


def _work() -> Row:
    rows = expressions((f"sum by (topic) (rate(irregulars_worker_rows_total{{{_WORKER}}}[{_RATE}]))", "{{topic}}"))
    judged = expressions(
        (f"sum(rate(irregulars_worker_judged_iterations_total{{{_WORKER}}}[{_RATE}]))", "judged"),
        (f"sum(rate(irregulars_worker_irregular_iterations_total{{{_WORKER}}}[{_RATE}]))", "irregular"),
    )
    opened = f'irregulars_worker_verdicts_total{{{_WORKER},event="opened"}}'
    verdicts = expressions((f"sum by (kind) (increase({opened}[{_RATE}])) > 0", "{{kind}}"))
    return 8, [
        time_series("Rows read a second", "By topic.", rows, "cps"),
        time_series("Iterations a second", "Judged, and of these irregular.", judged, "cps"),
        time_series("Verdicts opened", "By kind.", verdicts, "none", style="bars", stacked=True),
    ]


def _lost() -> Row:
    late = expressions((f"sum(rate(irregulars_worker_late_rows_total{{{_WORKER}}}[{_RATE}]))", "rows late"))
    rejected = f"irregulars_worker_rejected_rows_total{{{_WORKER}}}"
    refused = expressions(
        (f"sum(increase(irregulars_worker_dead_letters_total{{{_WORKER}}}[{_RATE}]))", "dead letters"),
        (f"sum by (by) (increase({rejected}[{_RATE}])) > 0", "rows refused by {{by}}"),
        (f"sum(increase(irregulars_agent_dropped_rows_total{{{_AGENT}}}[{_RATE}]))", "rows dropped by agents"),
    )
    services = expressions(
        (f"max(irregulars_worker_broker_silent_seconds{{{_WORKER}}})", "Kafka silent, s"),
        (f"sum(irregulars_worker_sink_busy{{{_WORKER}}})", "workers whose rows wait for ClickHouse"),
        (f"sum(increase(irregulars_worker_sink_retries_total{{{_WORKER}}}[{_RATE}]))", "calls made again"),
        (
            f"max(100 * irregulars_worker_unstored_bytes{{{_WORKER}}} / irregulars_worker_unstored_limit_bytes)",
            "memory for rows that wait, %",
        ),
    )
    return 8, [
        time_series("Rows late", "They came after their iteration was closed.", late, "cps"),
        time_series("Lost or refused", "All of these should be 0.", refused, "none", style="bars"),
        time_series("Kafka and ClickHouse", "All of these are about 0 while both answer.", services, "none"),
    ]


def _resources() -> Row:
    ours = 'job=~"irregulars-(worker|notify)"'
    cpu = expressions((f"rate(process_cpu_seconds_total{{{ours}}}[{_RATE}])", "{{job}} {{instance}}"))
    memory = expressions((f"process_resident_memory_bytes{{{ours}}}", "{{job}} {{instance}}"))
    agents = expressions(
        (f"max(rate(process_cpu_seconds_total{{{_AGENT}}}[{_RATE}]))", "most CPU, cores"),
        (f"max(process_resident_memory_bytes{{{_AGENT}}}) / 1073741824", "most memory, GiB"),
    )
    return 8, [
        time_series("CPU", "Cores in use, of each worker and notify.", cpu, "none"),
        time_series("Memory", "Resident, of each worker and notify.", memory, "bytes"),
        time_series("The heaviest agent", "Of all nodes, the one that uses most.", agents, "none"),
    ]


def _state() -> Row:
    monitors = expressions(
        (f"sum(irregulars_worker_ranks{{{_WORKER}}})", "ranks"),
        (f'sum(irregulars_worker_monitors{{{_WORKER},hop="job"}})', "jobs"),
    )
    held = f"sum by (instance, hop) (irregulars_worker_partitions{{{_WORKER}}})"
    state = expressions((f"sum by (hop) (irregulars_worker_state_bytes{{{_WORKER}}})", "hop {{hop}}"))
    return 8, [
        time_series("Ranks and jobs that are followed", "By all workers together.", monitors, "none"),
        time_series(
            "Partitions by worker",
            "Moves are restarts and rebalances.",
            expressions((held, "{{instance}} {{hop}}")),
            "none",
        ),
        time_series("State", "Of the monitors, as it is stored.", state, "bytes"),
    ]


def _agents() -> Row:
    heard = expressions((f"sum(up{{{_AGENT}}})", "heard"), (f"count(up{{{_AGENT}}})", "known"))
    spool = expressions((f"topk(5, irregulars_agent_spool_bytes{{{_AGENT}}})", "{{instance}}"))
    newest = f"irregulars_agent_newest_event_seconds{{{_AGENT}}}"
    age = expressions((f"topk(5, time() - ({newest} > 0))", "{{instance}}"))
    return 8, [
        time_series("Agents heard", "Of those that Prometheus knows.", heard, "none"),
        time_series("Fullest spools", "Bytes that wait on a node's disk for Kafka.", spool, "bytes"),
        time_series("Quiet agents", "Those that published nothing new for longest.", age, "s"),
    ]


def _notify() -> Row:
    delivered = f"increase(irregulars_notify_delivered_total{{{_NOTIFY}}}[{_RATE}])"
    failed = f"increase(irregulars_notify_failed_total{{{_NOTIFY}}}[{_RATE}])"
    given_up = f"increase(irregulars_notify_given_up_total{{{_NOTIFY}}}[{_RATE}])"
    told = expressions((f"sum by (channel, event) ({delivered}) > 0", "{{channel}} {{event}}"))
    waiting = f"max by (channel, reason) (irregulars_notify_waiting{{{_NOTIFY}}})"
    later = expressions(
        (waiting, "{{channel}} {{reason}}"),
        (f"max(irregulars_notify_mutes{{{_NOTIFY}}})", "mutes that hold"),
        (f"max(irregulars_notify_lag_messages{{{_NOTIFY}}})", "alerts to be read"),
    )
    failures = expressions(
        (f"sum by (channel) ({failed})", "{{channel}} failed"),
        (f"sum by (channel) ({given_up})", "{{channel}} given up"),
    )
    return 8, [
        time_series("Notices that channels took", "By what they said.", told, "none", style="bars", stacked=True),
        time_series("Told later", "Incidents by channel and why; mutes; alerts to be read.", later, "none"),
        time_series("Tries that failed", "Given up: that channel was not told.", failures, "none", style="bars"),
    ]


def _database() -> Row:
    health = investigation("pipeline_health", iterations="100", limit="50")
    about = (
        "Of the newest 100 iterations of each job: how many lack ranks, rows late, ranks silent. All but the first "
        "columns are 0 in a healthy pipeline."
    )
    return 9, [table("What the database says of each job", about, [rows_of(health)], units(behind_s="s"))]


_ROWS: Final = (_now, _alerts, _behind, _work, _lost, _resources, _state, _agents, _notify, _database)
