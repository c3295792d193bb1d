"""Reads clog's lines while they are written, and keeps the state that the next reading needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import asdict
from typing import Any

from irregulars.producers.importers.clog_job import Ranks, add_calls, groups_of_job
from irregulars.producers.importers.clog_lines import Call, LogParser, Membership
from irregulars.producers.importers.clog_times import UNCLEAR, TimeCounts
from irregulars.producers.importers.groups import communicators_of
from irregulars.producers.importers.imported import ImportedJob, RankRows

State = dict[str, Any]


class LiveClog:
    """Lines of the ranks of a node, as rows.

    `job`, `world_size`: the job. A log's rank in the communicator of that size that it names first is its global
    rank. None: the first that it names at all.
    """

    def __init__(self, job: str, world_size: int | None, state: Mapping[str, Any]) -> None:
        self._job, self._world_size = job, world_size
        self._parsers = {
            file: LogParser.of_state(one, skips_foreign=True) for file, one in state.get("parsers", {}).items()
        }
        self._earlier = set(state.get("earlier", ()))  # files of ranks that write another one by now
        self._times_of_earlier = TimeCounts(**state.get("looks", {}))
        self._calls: dict[str, list[Call]] = {}
        self._left_out: Counter[str] = Counter()

    def add(self, file: str, line: bytes) -> None:
        """Take in a line of a file; InputError as `LogParser.parse` does."""
        if file in self._earlier:
            self._left_out["lines of earlier logs of a rank"] += 1
            return
        parser = self._parsers.get(file)
        if parser is None:
            parser = self._parsers[file] = LogParser(skips_foreign=True)
        call = parser.parse(line)
        if call is not None:
            self._calls.setdefault(file, []).append(call)

    def refuse(self, file: str) -> None:
        """Expect no more lines of a file: it keeps its rank and its communicators."""
        if file in self._parsers:
            self._parsers[file].drop_calls()

    def job(self) -> ImportedJob | None:
        """Return the calls that ended as rows of a job; None if there are none."""
        ranks = self._ranks()
        groups = groups_of_job({file: one for file, one in self._parsers.items() if file in ranks.of}, ranks)
        made = {group for own in groups.values() for group in own.values() if group is not None}
        communicators = communicators_of(made, ranks.world_size, is_whole=False)
        rows: dict[int, RankRows] = {}
        # A log without a start or an end (LIFECYCLE is missing) looks as if no call ever blocked.
        looks = [parser.times for parser in self._parsers.values() if parser.events]
        trusted = TimeCounts.of_all([self._times_of_earlier, *looks]).trusted()
        for file, calls in self._calls.items():
            if trusted == UNCLEAR:
                self._left_out["calls of which nobody knows how long they took: a watchdog looks at the GPU"] += len(
                    calls
                )
            elif file in ranks.of:
                own = rows.setdefault(ranks.of[file], RankRows())
                add_calls(own, calls, trusted, groups[file], communicators, self._left_out)
            else:
                self._left_out["calls of ranks that were not told yet, or of their earlier logs"] += len(calls)
        rows = {rank: own for rank, own in rows.items() if len(own) or own.unusable}
        if not rows:
            return None
        ids = {one.id: one for one in communicators.values()}
        return ImportedJob(self._job, ranks.world_size, "per_host", ids, rows)

    def skipped(self) -> Counter[str]:
        """Count unusable lines and calls that are missing, by reason."""
        skipped = sum((parser.skipped for parser in self._parsers.values()), Counter[str]()) + self._left_out
        lost = sum(parser.lost for parser in self._parsers.values())
        skipped.update({"calls whose lines are missing": lost} if lost else {})
        return skipped

    def state(self, files: Container[str]) -> State:
        """Return the state for the next reading, of these files alone, as JSON values.

        Of two logs of one rank the earlier one is not read any more; its counts, which show the backend, stay.
        """
        newest, size = self._ranks().of, self._size()
        earlier = {file for file, one in self._parsers.items() if file not in newest and _told(one, size) is not None}
        looks = [self._parsers[file].times for file in earlier if self._parsers[file].events]
        kept = {file: one for file, one in self._parsers.items() if file in files and file not in earlier}
        return {
            "parsers": {file: parser.state() for file, parser in sorted(kept.items())},
            "earlier": sorted(file for file in self._earlier | earlier if file in files),
            "looks": asdict(TimeCounts.of_all([self._times_of_earlier, *looks])),
        }

    def _ranks(self) -> Ranks:
        """Return the global ranks that are known; of two logs of one rank the one that was begun last counts."""
        size = self._size()
        found: dict[int, str] = {}
        for file, parser in self._in_order():
            told = _told(parser, size)
            if told is not None:
                found[told.comm_rank] = file
        return Ranks({file: rank for rank, file in found.items()}, size or 1, None)

    def _size(self) -> int | None:
        """Return the size of the job; if it was not given, that of the first communicator of the oldest log."""
        named = (one.size for _, parser in self._in_order() for one in parser.members)
        return next(named, None) if self._world_size is None else self._world_size

    def _in_order(self) -> list[tuple[str, LogParser]]:
        """Return the logs in the order in which they were begun."""
        return sorted(self._parsers.items(), key=lambda one: (one[1].begun_ms, one[0]))


def _told(parser: LogParser, size: int | None) -> Membership | None:
    """Return the membership that holds a log's global rank, in the communicator of that size; None: not yet known."""
    return next((one for one in parser.members if one.size == size), None)
