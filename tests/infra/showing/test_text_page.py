from __future__ import annotations

from dataclasses import replace

import pytest

from irregulars.infra.showing.found import Earlier, Found, GpuState, NicRates, Other, gather
from irregulars.infra.showing.text_page import WIDTH, lines_of
from tests.infra.showing.made_up_verdicts import HOSTILE, found_in, iterations_of, verdict_of

NAMES = ("gloo-slow-nic", "gloo-slow-link", "gloo-slow-rank", "gloo-slow-compute", "torch-slow-rank")


def text_of(found: Found) -> str:
    return " ".join(" ".join(lines_of(gather(found))).split())


@pytest.mark.parametrize("name", NAMES)
def test_a_screen_has_80_columns_and_fits_on_one(name: str) -> None:
    lines = lines_of(gather(found_in(name)))
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) <= 50


@pytest.mark.parametrize("name", NAMES)
def test_the_chain_leads_to_the_accused_device(name: str) -> None:
    reasons = found_in(name).verdict.explanation
    assert reasons is not None
    assert reasons.path[-1].is_accused


HANG = verdict_of(kind="hang", delta=float("nan"))
FOUND: dict[str, Found | str] = {
    "slow NIC": "gloo-slow-nic",
    "slow link": "gloo-slow-link",
    "slow rank": "torch-slow-rank",
    "open": Found(verdict_of(lost_s=2.1), iterations=iterations_of([100.0] * 60 + [200.0] * 21, 60),
                  now_ns=3_660 * 10**9),
    "nothing stored": Found(verdict_of(), now_ns=0),
    "hang": Found(HANG),
    "hang without a loss": Found(replace(HANG, lost_s=0.0)),
    "detector's": Found(verdict_of(kind="custom", detector="quiet_loss", lost_s=0.0, delta=1.03)),
    "nobody": Found(verdict_of(kind="imbalance", suspects=())),
    "others": Found(verdict_of(), others=[Other(f"job:0:{at}:0", "slow_rank") for at in range(5)]),
}  # fmt: skip


@pytest.mark.parametrize(("name", "texts"), [
    # A device is told from what might look the same.
    ("slow NIC", ("own work? no: rank 1 on node-1", "one link? no: 3 of 3 ways of rank 1 on node-1 are slow",
                  "NIC eth0 on node-1 sent at most 10.3 MB/s", "Since iterations 60 to 80, from 2026-11-21")),
    ("slow link", ("a whole NIC? no: 1 of ", "rank 1 to rank 3 on pp1 took")),
    ("slow rank", ("its NIC? no:", "the whole job? no:", "rank 2 on node-0 worked ",
                   "; rank 3 on node-0 waited ")),
    ("open", ("Since iteration 60, 1970-01-01 00:01:00Z (1 h ago), seen up to iteration 80",
              "Cost 2.0 GPU-hours an hour, on 4 GPUs; 0.0023 GPU-hours lost so far",
              "median 200 ms, 100 ms before")),
    ("nothing stored", ("its begin is not stored", "iterations: none of the verdict's range are stored",
                        "who waited: the judge read no operators", "GPU state: nothing is stored",
                        "Evidence seen", "Cost 2.0 GPU-hours an hour")),  # by delta
    ("hang", ("Cost 4.0 GPU-hours an hour, on 4 GPUs",)),
    ("hang without a loss", ("on 4 GPUs; how long it stood is not known",)),
    ("detector's", ("Verdict quiet_loss (detector) in job (open, ticket)",
                    "% sure (as every detector's verdict is)",
                    "Cost none counted: no iteration with it was irregular without another verdict;")),
    ("nobody", ("Device none is accused: seen", "Earlier no device is accused")),
    ("others", ("Others 5 more open in this job: slow rank [job:0:0:0], slow rank [job:0:1:0], ", "and 2 more")),
])  # fmt: skip
def test_a_screen_says_what_is_known(name: str, texts: tuple[str, ...]) -> None:
    found = FOUND[name]
    said = text_of(found_in(found) if isinstance(found, str) else found)
    assert [text for text in texts if text not in said] == []
    assert " 0 GPU-hours lost" not in said


def test_what_a_hang_loses_while_it_lasts_is_the_time_since_it_began() -> None:
    hang = verdict_of(kind="hang", iterations=(60, 61), delta=float("nan"), lost_s=0.0)
    begun = iterations_of([100.0] * 60 + [1.0], 61)
    text = text_of(Found(hang, iterations=begun, now_ns=3_660 * 10**9))
    assert "on 4 GPUs; 4.0 GPU-hours lost so far" in text
    assert f"0 to 100 ms {'█' * 61}" in text  # the one that does not end is not the shortest
    assert ' Stack py-spy dump --pid "$(for ' in text
    assert ("iteration 60 does not end" in text, "had not ended" in text) == (True, False)
    over = replace(hang, state="closed", close_reason="silent")
    text = text_of(Found(over, iterations=begun, now_ns=3_660 * 10**9))
    assert "on 4 GPUs; how long it stood is not known" in text
    assert ("does not end" in text, "iteration 60 had not ended" in text) == (False, True)


def test_a_nic_that_moved_nothing_has_no_line() -> None:
    still = NicRates(1, "mlx5_0", 0.0, 0.0, 0.0, 0.0, 1e6)
    assert "NIC mlx5_0 of rank 1 sent" not in text_of(Found(verdict_of(), rates=[still, still._replace(rank=2)]))
    moving = still._replace(rank=2, sent_before=9e6, sent_during=9e6)
    assert "mlx5_0 of rank 1 sent at most 0 MB/s" in text_of(Found(verdict_of(), rates=[still, moving]))


def test_gpu_state_and_earlier_verdicts_are_told() -> None:
    gpu = GpuState(1, "gpu1", 20, 1200.0, 0.8, "thermal", 91.0, 300.0, 0, (79,))
    earlier = [
        Earlier("old", f"old:0:{at}:0", "slow_nic", (at, at + 5), 1.0, 4, at * 86_400 * 10**9) for at in (9, 8)
    ]
    text = text_of(Found(verdict_of(), gpus=[gpu, gpu._replace(rank=2, sm_clock_mhz=1900.0)], earlier=earlier))
    assert "GPU gpu1 of rank 1, SM clock 1,200 MHz (median of all 1,550), throttled 80% of the time (thermal)" in text
    assert "Xid 79" in text
    assert (
        "2 verdicts on this device within 90 days before: slow NIC on 1970-01-10 in old, iterations 9 to 13" in text
    )


def test_hostile_names_stay_text() -> None:
    found = replace(found_in("gloo-slow-nic"), verdict=replace(found_in("gloo-slow-nic").verdict, job=HOSTILE))
    lines = lines_of(gather(found))
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) <= WIDTH
