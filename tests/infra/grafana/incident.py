"""The dashboard of one job and one of its verdicts."""

from __future__ import annotations

from tests.infra.grafana.panels import (
    CLICKHOUSE_VARIABLE,
    Json,
    Row,
    annotation,
    colored,
    column,
    dashboard,
    heat_map,
    rows_of,
    series_of,
    sql_variable,
    table,
    time_series,
    units,
)
from tests.infra.grafana.queries import investigation, query


def incident() -> Json:
    """Which iterations took too long, which rank stood out, whom a verdict accuses and on what grounds."""
    return dashboard(
        "incident",
        "incident",
        "One job: which iterations took too long, which rank stood out, whom a verdict accuses and on what grounds.",
        variables=[
            CLICKHOUSE_VARIABLE,
            sql_variable("job", "job", query("job_names")),
            sql_variable("attempt", "attempt", query("attempts")),
            sql_variable("verdict", "verdict", query("verdict_names")),
        ],
        annotations=[
            annotation("Verdicts", "red", query("verdict_spans")),
            annotation("Irregular iterations", "orange", query("irregular_moments"), enable=False),
        ],
        rows=[_verdict(), _iterations(), _who(), _extremes(), _ranks(), _hardware(), _history()],
    )


def _verdict() -> Row:
    about = (
        "As it stands now. GPU-hours per hour: while its cause was seen. recovers_ratio: the share of the loss that "
        "would come back with the first suspect as usual."
    )
    looks = [
        *colored("severity", "state"),
        *units(probability="percentunit", recovers_ratio="percentunit"),
        column("gpu_hours_per_hour", displayName="GPU-hours per hour"),
        column("evidence", custom__width=600),
    ]
    return 5, [table("The verdict", about, [rows_of(query("verdict"))], looks)]


def _iterations() -> Row:
    about = (
        "The longest iteration of each stretch; orange where it was irregular. Usual: the mean of the window before "
        "it. Red spans: from the first to the last iteration in which a verdict's cause was seen."
    )
    looks = [
        column(
            "irregular",
            custom__drawStyle="points",
            custom__pointSize=7,
            color={"mode": "fixed", "fixedColor": "orange"},
        ),
        column(
            "usual", custom__lineStyle={"fill": "dash", "dash": [8, 8]}, color={"mode": "fixed", "fixedColor": "text"}
        ),
    ]
    return 9, [time_series("Iteration times", about, [series_of(query("iteration_times"))], "s", overrides=looks)]


def _who() -> Row:
    return 9, [
        time_series(
            "Longest work minus the median, and whose",
            "Own work of the rank that worked longest, minus the median over all ranks, in the iteration of each "
            "stretch where that was most. In a pipeline one stage may always be ahead: what is new shows below.",
            [series_of(query("spread_by_rank"))],
            "s",
            style="points",
        ),
        time_series(
            "Suspects of the verdict",
            "Their probability by the verdict's revisions: did the suspicion waver, or did evidence add up?",
            [series_of(query("suspects"))],
            "percentunit",
            most=1,
        ),
    ]


def _extremes() -> Row:
    about = (
        "The 48 ranks that ever stood out most. A cell: the most by which a rank's own work in one iteration of that "
        "stretch exceeded the median of all ranks, and what is usual for this rank in the time range. A line that "
        "stays hot: a slow rank. Cells here and there: uneven data."
    )
    return 14, [heat_map("Extremes: work beyond the usual, by rank", about, [series_of(query("extremes"))], "s")]


def _ranks() -> Row:
    newest_slow = f"({query('newest_irregular')})"
    waits = investigation(
        "waits_of_iteration", job="job:String", attempt="attempt:Int64", iteration=newest_slow, limit="20"
    )
    return 9, [
        table(
            "Ranks that stood out",
            "By the measure of the heat map. usually_beyond_others_s: what was so all the time, as of an old fault.",
            [rows_of(query("worst_ranks"))],
            units(most_s="s", usually_beyond_others_s="s"),
        ),
        table(
            "Who waited for whom",
            "In the newest irregular iteration of the time range: operators for which others waited longest. A rank "
            "that many lines name was late itself, or waited for somebody before.",
            [rows_of(waits)],
            units(longest_wait_ms="ms", waited_rank_ms="ms", transfer_ms="ms"),
        ),
    ]


def _hardware() -> Row:
    return 9, [
        time_series(
            "Rates of the suspect's NIC",
            "Peaks, beside the highest and the lowest peak of the job's other NICs. A sick NIC is capped; its "
            "victims are not.",
            [series_of(query("nic_rates"))],
            "Bps",
        ),
        time_series(
            "SM clock of the suspect's GPUs",
            "The lowest, beside the lowest and the median of the other GPUs. Empty where agents sample no GPUs.",
            [series_of(query("gpu_clocks"))],
            "rotmhz",
        ),
    ]


def _history() -> Row:
    revisions = investigation("suspicion_history", verdict_id="verdict:String", limit="200")
    gpus = investigation("gpu_health_of_verdict", job="job:String", verdict_id="verdict:String", limit="30")
    shares = dict.fromkeys(("suspect_probability", "throttled_ratio", "sm_active_ratio"), "percentunit")
    return 9, [
        table(
            "Revisions of the verdict",
            "How the suspicion moved, with what had been lost until then.",
            [rows_of(revisions)],
            [*colored("severity"), *units(probability="percentunit")],
        ),
        table(
            "GPUs while its cause was seen",
            "Clocks, throttling and errors, suspects first. Empty where agents sample no GPUs.",
            [rows_of(gpus)],
            units(**shares, hottest_c="celsius", power_w="watt"),
        ),
    ]
