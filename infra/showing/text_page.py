"""The screen as lines of at most 80 columns."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from irregulars.infra.showing.found import GpuState, Iteration, Screen
from irregulars.messages.kinds import STANDSTILLS
from irregulars.printing import printable
from irregulars.sinks.advice import (
    OF_NUMBERS,
    NameRank,
    alternatives_of,
    command_to_run,
    head_text,
    name_cause,
    path_texts,
    stack_command,
    unended_text,
    what_to_check,
)
from irregulars.words import age, amount, blocks, duration, moment, name_kind, name_ranks, percent, span

WIDTH: Final = 80
_INDENT: Final = 10
_BLOCKS: Final = WIDTH - _INDENT
_GPUS_SHOWN: Final = 3
_EARLIER_SHOWN: Final = 3
_PLACES_SHOWN: Final = 8


def lines_of(screen: Screen) -> list[str]:
    """Return the lines, ready for a terminal: nothing in them moves a cursor."""
    others = (f"{what}? {text}" for what, text in alternatives_of(screen.verdict, names_of(screen)))
    commands = [line for label, text in checks_of(screen) for line in _told(label, text)]
    commands += _told("Runbook", screen.runbook)
    parts = (
        _head(screen), _times(screen), _chain(screen), _listed("Or is it", others), _state(screen), commands,
        _listed("Missing", screen.missing),
    )  # fmt: skip
    lines: list[str] = []
    for part in parts:
        own = [printable(line) for line in part]
        lines += ["", *own] if own and lines else own
    return lines


def _told(label: str, text: str) -> Iterator[str]:
    """Wrap a text behind a label; further lines are indented below its begin."""
    first, others = f"{label:<{_INDENT}}", " " * _INDENT
    told = " ".join(printable(text).split())
    yield from textwrap.wrap(told, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)


def _listed(label: str, texts: Iterable[str]) -> Iterator[str]:
    """Wrap texts, the first of them behind the label."""
    for number, text in enumerate(texts):
        yield from _told("" if number else label, text)


def title_text(screen: Screen) -> str:
    """Name the verdict: kind, job, state and urgency."""
    verdict = screen.verdict
    state = verdict.state if verdict.close_reason is None else f"{verdict.state}: {verdict.close_reason}"
    remarks = ", ".join(one for one in (state, verdict.severity) if one)
    return f"{name_cause(verdict)} in {verdict.job} ({remarks})"


def headline(screen: Screen) -> str:
    """Return the title of a page: cause, job and device; urgency and state are shown beside it."""
    about = f": {screen.device}" if screen.device is not None else ""
    return f"{name_cause(screen.verdict)} in {screen.verdict.job}{about}"


def _head(screen: Screen) -> Iterator[str]:
    yield from _told("Verdict", f"{title_text(screen)}  [{screen.verdict.verdict_id}]")
    for label, text in facts_of(screen).items():
        yield from _told(label, text)


def facts_of(screen: Screen) -> dict[str, str]:
    """Return the answer to a person who was woken, by labels: device, begin, cost and the next step."""
    facts = {
        "Device": device_text(screen), "Since": since_text(screen), "Cost": cost_text(screen),
        "Without": without_text(screen), "Do": f"{screen.next_step}.",
    }  # fmt: skip
    return {label: text for label, text in facts.items() if text}


def device_text(screen: Screen) -> str:
    """Name the accused device, and how sure it is; or that none is accused."""
    verdict = screen.verdict
    if screen.device is None:
        where = f"; communicator {verdict.communicator}" if verdict.communicator else ""
        return f"none is accused{where}: {verdict.evidence}"
    # A detector says who is strange, and not how likely they are to blame: the judge gives each the same probability.
    fixed = " (as every detector's verdict is)" if verdict.kind == "custom" else ""
    return f"{screen.device}, {percent(verdict.suspects[0].probability)} sure{fixed}"


def since_text(screen: Screen) -> str:
    """Return since when, and until when if it is over."""
    verdict = screen.verdict
    first, past = verdict.iterations
    is_open = verdict.state == "open"
    text = f"iteration {first}" if is_open else span(verdict.iterations)
    newest = f", seen up to iteration {past - 1}" if is_open and verdict.kind not in STANDSTILLS else ""
    if screen.since_ns is None:
        return f"{text}{newest}; its begin is not stored"
    text += f", {'' if is_open else 'from '}{moment(screen.since_ns)}"
    if screen.now_ns is not None and screen.now_ns > screen.since_ns:
        text += f" ({age((screen.now_ns - screen.since_ns) / 1e9)} ago)"
    return text + newest


def cost_text(screen: Screen) -> str:
    """Return the cost an hour, and the cost so far."""
    cost, verdict = screen.cost, screen.verdict
    if verdict.kind == "custom" and not cost.lost_s:
        least = "" if verdict.severity == "note" else "; a detector's verdict is a ticket at least"
        return f"none counted: no iteration with it was irregular without another verdict{least}"
    if verdict.kind in OF_NUMBERS and not cost.lost_s:
        return "no time; the model may be spoiled"
    parts = []
    lasted = "" if verdict.state == "open" else " while it lasted"
    if cost.gpu_hours_per_hour is not None:
        hourly = f"{amount(cost.gpu_hours_per_hour)} GPU-hours an hour{lasted}"
        parts.append(f"{hourly}, on {verdict.world_size:,} GPUs")
    elif cost.share is not None:
        parts.append(f"{cost.share:.0%} of the job's time")
    so_far = " so far" if verdict.state == "open" else ""
    if verdict.kind in STANDSTILLS and not cost.lost_s:
        return "; ".join([*parts, "how long it stood is not known"])
    if cost.gpu_hours is not None:
        parts.append(f"{amount(cost.gpu_hours)} GPU-hours lost{so_far} ({amount(cost.lost_s)} s of the job)")
    elif math.isfinite(cost.lost_s):
        parts.append(f"{amount(cost.lost_s)} s of the job lost{so_far}")
    return "; ".join(parts) or "not known"


def without_text(screen: Screen) -> str:
    """Return the share of the loss that would come back without the cause; empty where no replay was made.

    How long an iteration would take then, and how many times the usual it takes, is the judge's to tell: the medians
    of the iterations that are shown give other numbers than those that it judged by.
    """
    ratio = screen.verdict.recovers_ratio
    if ratio is None or screen.device is None:
        return ""
    return f"{ratio:.0%} of the loss would come back with that device as usual"


# --- iteration times ------------------------------------------------------------------------------------------------


def in_bars(iterations: Sequence[Iteration], most: int) -> list[Sequence[Iteration]]:
    """Gather iterations that follow one another into at most `most` bars, each to be drawn as its longest."""
    each = max(1, -(-len(iterations) // most))
    return [iterations[at : at + each] for at in range(0, len(iterations), each)]


def _times(screen: Screen) -> Iterator[str]:
    if not screen.iterations:
        return
    bars = in_bars(screen.iterations, _BLOCKS)
    # Of an iteration that does not end its time is not known: no block is longer.
    unended = screen.verdict.iterations[1] - 1 if screen.verdict.kind in STANDSTILLS else None
    most = float(max((one.elapsed_ns for one in screen.iterations if one.iteration != unended), default=1))
    longest = [max(most if one.iteration == unended else float(one.elapsed_ns) for one in bar) for bar in bars]
    shown = span((screen.iterations[0].iteration, screen.iterations[-1].iteration + 1))
    share = "one" if len(bars[0]) == 1 else f"the longest of {len(bars[0])}"
    yield from _told("Times", f"{shown}, {share} a block, 0 to {duration(most)}")
    yield " " * _INDENT + blocks(longest, most)
    marks = "".join(
        "^" if any(one.has_cause for one in bar) else "'" if any(one.is_irregular for one in bar) else " "
        for bar in bars
    )
    if marks.strip():
        yield " " * _INDENT + marks.rstrip()
    yield from _told("", times_text(screen))


def times_text(screen: Screen) -> str:
    """Return the median iteration times before and with the cause."""
    if screen.verdict.kind in STANDSTILLS:
        before = f"; median before {duration(screen.before_ns)}" if math.isfinite(screen.before_ns) else ""
        return f"{unended_text(screen.verdict)}{before}"
    marked = "^ with this cause"
    if any(one.is_irregular and not one.has_cause for one in screen.iterations):
        marked += "; ' irregular otherwise"
    if not math.isfinite(screen.before_ns):
        return f"{marked}; median {duration(screen.during_ns)}, none before to compare with"
    return f"{marked}; median {duration(screen.during_ns)}, {duration(screen.before_ns)} before"


# --- who waited for whom --------------------------------------------------------------------------------------------


def _chain(screen: Screen) -> Iterator[str]:
    reasons = screen.verdict.explanation
    if reasons is not None and reasons.path:
        yield from _told("Waiting", head_text(reasons))
        for number, text in enumerate(path_texts(reasons, names_of(screen))):
            yield from textwrap.wrap(text, WIDTH, initial_indent=" " * (_INDENT + 2 * number),
                                     subsequent_indent=" " * (_INDENT + 2 * number + 2))  # fmt: skip
    yield from _told("Evidence", screen.verdict.evidence)


def names_of(screen: Screen) -> NameRank:
    """Return how this screen names a rank: with its host, where that is known."""

    def name(rank: int) -> str:
        place = screen.places.get(rank)
        return f"rank {rank} on {place.host}" if place is not None and place.host else f"rank {rank}"

    return name


# --- the rest -------------------------------------------------------------------------------------------------------


def _state(screen: Screen) -> Iterator[str]:
    stands = [
        f"{one.where}: {name_ranks(one.ranks)}{f' ({percent(one.probability)} suspect)' if one.probability else ''}"
        for one in screen.standing[:_PLACES_SHOWN]
    ]
    more = len(screen.standing) - len(stands)
    yield from _listed("Standing", [*stands, f"and in {more} more places"] if more else stands)
    if screen.nic:
        yield from _told("NIC", screen.nic)
    yield from _listed("GPU", (gpu_text(one, screen.gpu_median_mhz) for one in screen.gpus[:_GPUS_SHOWN]))
    if text := others_text(screen):
        yield from _told("Others", text)
    yield from _told("Earlier", earlier_text(screen))


def others_text(screen: Screen) -> str:
    """Name the other verdicts of the job; empty if there are none."""
    if not screen.others:
        return ""
    told = "in this recording" if screen.recording is not None else "open in this job"
    shown = ", ".join(f"{name_kind(one.kind)} [{one.verdict_id}]" for one in screen.others[:_EARLIER_SHOWN])
    more = f" and {len(screen.others) - _EARLIER_SHOWN} more" if len(screen.others) > _EARLIER_SHOWN else ""
    return f"{len(screen.others)} more {told}: {shown}{more}"


def gpu_text(one: GpuState, median_mhz: float) -> str:
    """Return the state of a GPU while the cause was seen."""
    parts = [f"{one.device} of rank {one.rank}"]
    if math.isfinite(one.sm_clock_mhz):
        parts.append(f"SM clock {one.sm_clock_mhz:,.0f} MHz (median of all {median_mhz:,.0f})")
    if math.isfinite(one.throttled_ratio):
        parts.append(f"throttled {one.throttled_ratio:.0%} of the time{f' ({one.reasons})' if one.reasons else ''}")
    if math.isfinite(one.hottest_c):
        parts.append(f"up to {one.hottest_c:.0f} °C")
    if math.isfinite(one.power_w):
        parts.append(f"{one.power_w:.0f} W")
    parts.append(f"Xid {', '.join(map(str, one.xids))}" if one.xids else "no Xid")
    if one.ecc_uncorrected is not None:
        parts.append(f"{one.ecc_uncorrected} uncorrected ECC errors")
    return ", ".join(parts)


def earlier_text(screen: Screen) -> str:
    """Return the earlier verdicts on the device."""
    earlier = screen.earlier
    if not screen.verdict.suspects:
        return "no device is accused"
    where = "in this recording" if screen.recording is not None else "within 90 days before"
    if not earlier:
        return f"no other verdict on this device {where}"
    shown = "; ".join(
        f"{name_kind(one.kind)}{'' if one.last_seen_ns is None else f' on {moment(one.last_seen_ns)[:10]}'} in "
        f"{one.job}, {span(one.iterations)}"
        for one in earlier[:_EARLIER_SHOWN]
    )
    more = f"; and {len(earlier) - _EARLIER_SHOWN} more" if len(earlier) > _EARLIER_SHOWN else ""
    count = "1 verdict" if len(earlier) == 1 else f"{len(earlier)} verdicts"
    return f"{count} on this device {where}: {shown}{more}"


def checks_of(screen: Screen) -> list[tuple[str, str]]:
    """Return the check and the commands to run, each with its label."""
    command, reasons = command_to_run(screen.verdict), screen.verdict.explanation
    if screen.recording is not None:  # nothing of it is in a database
        shown = screen.verdict.iterations[0] if reasons is None else reasons.iteration
        command = f"irregulars explain {shlex.quote(screen.recording)} --iteration {shown}"
    stack = "" if screen.recording is not None else stack_command(screen.verdict)
    told = (("Check", what_to_check(screen.verdict)), ("Stack", stack), ("Look", command))
    return [(label, one) for label, one in told if one]
