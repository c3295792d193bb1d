from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import pytest

from irregulars.messages.judgements import Suspect, Verdict
from irregulars.messages.kinds import CAUSES, layer_of
from irregulars.messages.reasons import Reasons, Reported
from irregulars.sinks.advice import advise, name_device, plan_of, stack_command, where_to_look
from irregulars.sinks.investigations import bind, find_investigation
from irregulars.words import name_ranks

GPU = Suspect("gpu", 8, (8,), 0.9, host="node-1", gpu=0, nic="mlx5_1", switch="leaf-1")
VERDICT = Verdict("v", 1, "open", "llama", "slow_rank", (60, 80), 2.4, 690.0, "dp0", (GPU,), "e", world_size=64,
                  layer="hardware")  # fmt: skip
SEVERAL = tuple(range(8, 16))


@pytest.mark.parametrize(("suspect", "name"), [
    (GPU, "GPU 0 on node-1 (rank 8, NIC mlx5_1)"),
    (replace(GPU, gpu=None), "rank 8 on node-1"),
    (replace(GPU, host=None), "GPU 0 of rank 8 (host not announced)"),
    (Suspect("gpu", 8, (8,), 0.9), "rank 8 (host not announced)"),
    (replace(GPU, ranks=(8, 12)), "ranks 8, 12 (the first on node-1)"),
    (replace(GPU, device="host", ranks=SEVERAL), "host node-1 (ranks 8-15)"),
    (Suspect("host", 8, SEVERAL, 0.9), "the host of ranks 8-15 (not announced)"),
    (replace(GPU, device="nic"), "NIC mlx5_1 on node-1 (GPU 0, rank 8)"),
    (Suspect("nic", 8, (8,), 0.9), "the NIC of rank 8 on a host that is not announced"),
    (replace(GPU, device="link", ranks=(8, 9), peer=9), "the path from rank 8 (node-1, GPU 0, NIC mlx5_1) to rank 9"),
    (Suspect("link", 8, (8, 9), 0.9, peer=9), "the path from rank 8 to rank 9"),
    (replace(GPU, device="switch", ranks=SEVERAL), "switch leaf-1 (ranks 8-15)"),
    (Suspect("switch", 8, SEVERAL, 0.9), "a switch that is not announced (ranks 8-15)"),
    (Suspect("stage", 8, SEVERAL, 0.9), "the pipeline stage of ranks 8-15"),
])  # fmt: skip
def test_a_device_is_named_by_what_is_known_of_it(suspect: Suspect, name: str) -> None:
    assert name_device(suspect) == name


def test_many_ranks_are_cut_and_counted() -> None:
    assert name_ranks(range(0, 100, 2)) == "ranks 0, 2, 4, 6 and others, 50 in all"


@pytest.mark.parametrize(
    "kind", ["slow_link", "slow_communicator", "slow_stage", "imbalance", "slow_rank", "slow_nic", "hang"]
)
def test_the_host_at_fault_is_to_be_cordoned_and_no_other(kind: str) -> None:
    verdict = replace(VERDICT, kind=kind)
    text = f"{advise(verdict)} {where_to_look(verdict)}"
    if kind in ("slow_rank", "slow_nic", "hang"):
        assert "cordon node-1" in advise(verdict)
        assert "kubectl cordon node-1" in where_to_look(verdict)
    else:
        assert "drain nothing" in text
        assert "cordon" not in text.lower()


@pytest.mark.parametrize("cause", [one for one, layer in CAUSES.items() if layer != "unknown"] + [None])
@pytest.mark.parametrize("state", ["open", "closed"])
def test_nobody_is_told_to_drain_for_what_a_program_its_data_or_its_host_did(cause: str | None, state: str) -> None:
    layer = "host" if cause is None else layer_of("slow_rank", cause)
    verdict = replace(VERDICT, state=state, cause=cause, cause_share=cause and 0.9, layer=layer)
    assert plan_of(verdict).actions == ()
    assert not {"cordon", "drain it"} & set(re.findall("cordon|drain it", advise(verdict)))
    assert "is not known" not in advise(verdict)
    assert "ordon" not in where_to_look(verdict)


@pytest.mark.parametrize("kind", ["slow_rank", "hang"])
@pytest.mark.parametrize("reason", [None, "recovered", "finished", "restarted", "silent"])
def test_what_is_not_known_is_tested_before_anything_is_drained(kind: str, reason: str | None) -> None:
    state = "open" if reason is None else "closed"
    verdict = replace(VERDICT, kind=kind, layer="unknown", state=state, close_reason=reason)
    assert plan_of(verdict).actions == ("test_device",)
    assert "test" in advise(verdict)
    assert "ordon" not in f"{advise(verdict)} {where_to_look(verdict)}"


def test_cooling_and_power_are_checked_where_the_device_said_that_it_was_throttled() -> None:
    throttled = Reasons(10, 1.0, 1.0, "past", reported=(Reported(1, 6, "throttle", "gpu0"),))
    assert "cooling, power" in advise(replace(VERDICT, kind="slow_rank", explanation=throttled))
    assert "cooling" not in advise(replace(VERDICT, kind="slow_rank"))


def test_a_suspect_is_named_for_the_shell_and_confirmed_first_if_it_is_doubtful() -> None:
    assert advise(replace(VERDICT, suspects=(replace(GPU, probability=0.4),))).startswith("confirm before you drain")
    text = where_to_look(replace(VERDICT, suspects=(replace(GPU, host="n; reboot"),)))
    assert "kubectl cordon 'n; reboot'" in text
    assert "Cordon: kubectl cordon node-1" in where_to_look(replace(VERDICT, cause="gpu_kernels"))
    assert "cordon" in plan_of(replace(VERDICT, kind="slow_nic", layer="unknown")).actions
    assert advise(replace(VERDICT, kind="loss_spike", suspects=())).startswith("drain nothing: skip the batch")


def test_what_spoiled_the_model_leads_back_to_a_trusted_checkpoint() -> None:
    apart = advise(replace(VERDICT, kind="corruption"))
    assert apart.index("go back to a trusted checkpoint") < apart.index("if nothing but these differs")
    for suspects in ((), (GPU,)):
        spike = replace(VERDICT, kind="loss_spike", suspects=suspects)
        assert "trusted" not in advise(replace(spike, severity="ticket"))
        assert "if the loss stays infinite go back to a trusted" in advise(replace(spike, severity="page"))


@pytest.mark.parametrize(("reason", "text"), [
    ("recovered", "let node-1 take work again if it was cordoned"),
    ("finished", "keep node-1 out of the next job"),
    ("restarted", "new attempt does not run on node-1"),
    ("silent", "whether the job still runs"),
    ("merged", "go by the verdict that the evidence names"),
    (None, "test node-1"),
])  # fmt: skip
def test_what_to_do_after_the_end_follows_the_reason(reason: str | None, text: str) -> None:
    closed = replace(VERDICT, state="closed", close_reason=reason)
    assert text in advise(closed)
    assert "Cordon" not in where_to_look(closed)


def test_a_job_hangs_until_its_verdict_closes() -> None:
    hangs = replace(VERDICT, kind="hang")
    assert "dump the stack of rank" in advise(hangs)
    assert plan_of(hangs).actions == ("cordon",)
    assert "Cordon: kubectl cordon node-1" in where_to_look(hangs)
    doubtful = replace(hangs, suspects=(replace(GPU, probability=0.4),))
    assert advise(doubtful).startswith("confirm before you drain")
    for reason in ("recovered", "finished", "restarted", "silent", "stopped"):
        assert "Cordon" not in where_to_look(replace(hangs, state="closed", close_reason=reason))


@pytest.mark.parametrize(
    "kind", ["slow_rank", "slow_nic", "slow_link", "slow_communicator", "slow_stage", "imbalance", "hang"]
)
@pytest.mark.parametrize("suspects", [(GPU,), ()])
def test_the_investigation_named_ships_and_takes_the_parameters(kind: str, suspects: tuple[Suspect, ...]) -> None:
    text = where_to_look(replace(VERDICT, kind=kind, suspects=suspects))
    command = re.search(r"irregulars sql (\w+) (.+)$", text)
    assert command is not None
    values = dict(word.split("=") for word in command[2].split())
    assert bind(find_investigation(command[1]), values)["job"] == "llama"


def test_a_note_asks_nobody_to_drain_anything() -> None:
    note = replace(VERDICT, severity="note")
    assert advise(note).startswith("nothing yet, it costs too little")
    assert "Cordon" not in where_to_look(note)
    closed = replace(note, state="closed", close_reason="recovered")
    assert advise(closed) == "nothing now; the history is in the database"
    assert "Cordon" in where_to_look(replace(VERDICT, severity="ticket"))
    # Of nobody's fault that was always there the cost alone says nothing
    always = replace(note, kind="imbalance", suspects=(), explanation=Reasons(10, 1.0, 1.0, "peers"))
    assert advise(always).startswith("nothing in a hurry, no time without it is known; drain nothing: even out")


def test_the_command_that_dumps_a_stack_finds_the_process_of_the_rank() -> None:
    hang = replace(VERDICT, kind="hang", suspects=(replace(GPU, rank=471_108, ranks=(471_108,)),))
    command = stack_command(hang).replace("py-spy dump --pid", "echo")
    for launched in ({"RANK": "471108"}, {"SLURM_PROCID": "471108"}):
        torchrun = {"SLURM_PROCID": "471108" if "RANK" in launched else "1"}  # it has the number of its node
        with (
            subprocess.Popen(["sleep", "60"], env=torchrun) as earlier,
            subprocess.Popen(["sleep", "60"], env=launched) as process,
        ):
            found = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
            earlier.kill()
            process.kill()
        assert found == f"{process.pid}\n"
    assert stack_command(replace(hang, state="closed")) == stack_command(VERDICT) == ""


@pytest.mark.parametrize(("layer", "start"), [
    ("hardware", "test GPU 0 on node-1"), ("host", "look at node-1 before you drain"),
    ("software", "drain nothing: see which program"), ("unknown", "drain nothing: see in the job's log why"),
])  # fmt: skip
def test_a_report_alone_sends_people_to_its_own_source(layer: str, start: str) -> None:
    assert advise(replace(VERDICT, kind="custom", detector="device_events", layer=layer)).startswith(start)


def test_a_device_that_erred_is_tested_before_it_takes_work_again() -> None:
    erred = replace(VERDICT, kind="custom", detector="device_events", state="closed", close_reason="finished")
    assert advise(erred) == "test GPU 0 on node-1 (rank 8, NIC mlx5_1) before it takes work again"
    assert advise(replace(erred, close_reason="recovered")).startswith("nothing now")
    agreed = replace(VERDICT, kind="corruption", state="closed", close_reason="recovered")
    assert advise(agreed).endswith("; test node-1 before it takes work again")
    assert "cordon" in plan_of(agreed).actions
