"""The measure of the judgement: labelled jobs of four makers, one table.

    python -m tests.benchmarks.makers --seed 7001                        # some 4 minutes of a core, with drawing
    python -m tests.benchmarks.makers --seed 7001 --seeds 10 --wrong      # ten seeds, and what came out wrong
    python -m tests.benchmarks.makers --seed 7001 --without "rule: single spikes"
    python -m tests.benchmarks.makers --seed 7001 --count 12 --ablate     # each mechanism off by itself

The makers are the project's own simulator, `closed_form` and `event_level` (which import nothing of the product), and
real recordings. Each job is judged in memory as `irregulars analyze` judges it. What is right: `scoring.py`. What is
fitted is fitted on three makers and judged on the fourth (`fitting.py`). A seed that nobody has looked at is a first
look; one that was looked at serves to find classes of error, never cases.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

from tests.benchmarks.makers.ablation import MECHANISMS, switched_off, touched
from tests.benchmarks.makers.drawing import MAKERS, RECORDINGS, ROOT, Job, draw, drawn_jobs, recorded_jobs
from tests.benchmarks.makers.fitting import FITS
from tests.benchmarks.makers.judging import judge, reduce
from tests.benchmarks.makers.labels import truth_of
from tests.benchmarks.makers.report import ablation_table, by_maker_table, figures_by_maker, wrong_lines
from tests.benchmarks.makers.scoring import Found, Outcome, said, score

WHOLE: Final = "nothing"  # what a job is judged without, as always
NOTHING: Final = Found([], [], {}, frozenset())


def judged(job: Job, without: Sequence[str], keep: Path | None, *, ablates: bool) -> dict[str, Outcome]:
    """Draw a job and judge it, as always or without some mechanisms; then without each that matters to it."""
    draw(job)
    truth = truth_of(job.maker, job.name, job.label())
    outcomes = {}
    try:
        reduced = reduce(job.directory)
        with touched() if ablates else switched_off(without) as matters:
            found = judge(reduced)
        outcomes[WHOLE] = Outcome(truth, score(truth, found), said(found))
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"truth": asdict(truth), "verdicts": found.verdicts}, indent=1)
            (keep / f"{job.name}.json").write_text(text, encoding="utf-8")
        for name in sorted(matters or ()):
            with switched_off([name]):
                found = judge(reduced)
            outcomes[name] = Outcome(truth, score(truth, found), said(found))
    except Exception as error:  # a crash is a wrong answer, and no reason to lose the others
        print(f"{job.directory}: {error!r}", file=sys.stderr)
        outcomes.setdefault(WHOLE, Outcome(truth, score(truth, NOTHING), f"failed: {error!r}"))
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    jobs = [
        job
        for maker in options.makers
        if maker != RECORDINGS
        for seed in range(options.seed, options.seed + options.seeds)
        for job in drawn_jobs(maker, seed, options.count, options.jobs)
    ]
    jobs += recorded_jobs(options.traces) if RECORDINGS in options.makers else []
    began_s, outcomes = time.monotonic(), list[dict[str, Outcome]]()
    ask = partial(judged, without=options.without, keep=options.keep, ablates=options.ablate)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for one in pool.map(ask, jobs):
            outcomes.append(one)
            print(f"\r{len(outcomes)}/{len(jobs)} {time.monotonic() - began_s:.0f} s", end="", file=sys.stderr)
    print(file=sys.stderr)
    whole = [one[WHOLE] for one in outcomes]
    found = figures_by_maker(whole, MAKERS, FITS[options.fit])
    if options.json is not None:
        rows = [{**asdict(one.truth), **asdict(one.score), "said": one.said} for one in whole]
        options.json.write_text(json.dumps({"figures": found, "jobs": rows}, indent=1) + "\n", encoding="utf-8")
    print(*by_maker_table(found), sep="\n")
    if options.ablate:
        own = [one for one in outcomes if one[WHOLE].truth.maker in MAKERS]
        print("", *ablation_table(own, WHOLE, MECHANISMS), sep="\n")
    if options.wrong:
        print("", *wrong_lines(whole), sep="\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.makers", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seed", type=int, required=True, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds; default 1")
    parser.add_argument("--count", type=int, default=20, help="jobs of each maker and seed; default 20")
    parser.add_argument("--makers", nargs="+", choices=MAKERS, default=MAKERS)
    parser.add_argument("--fit", choices=FITS, default="logistic", help="the held-out curve; default logistic")
    parser.add_argument("--without", nargs="+", choices=MECHANISMS, default=[], metavar="MECHANISM",
                        help=f"switch off: {'; '.join(MECHANISMS)}".replace("%", "%%"))  # fmt: skip
    parser.add_argument("--ablate", action="store_true", help="a table with each mechanism switched off alone")
    parser.add_argument("--wrong", action="store_true", help="what came out wrong, a line for each job")
    parser.add_argument("--json", type=Path, help="a file for figures and jobs, as one JSON object")
    parser.add_argument("--keep", type=Path, help="a folder for the verdicts on each job")
    parser.add_argument("--jobs", type=Path, default=ROOT / "build" / "makers",
                        help="where drawn jobs stay; default build/makers")  # fmt: skip
    parser.add_argument("--traces", type=Path, default=ROOT.parent / "shared" / "traces",
                        help="further labelled traces, used where the folder is there")  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
