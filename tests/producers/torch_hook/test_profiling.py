"""A training process that is asked for a profile answers with a trace, or a word, and trains on whatever comes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.producers.torch_hook.processes import NEEDS_TORCH, run_python

pytestmark = NEEDS_TORCH

# A process that trains alone; its agent is the other end of a socketpair.
SCRIPT = """
import json, socket, sys, threading, time
import torch
from torch.profiler import ProfilerActivity, profile, schedule
from irregulars.messages.records import PHASES
from irregulars.producers.node.stacks import events_of_trace
from irregulars.producers.publishing.sources import Process
from irregulars.producers.torch_hook import profiling
from irregulars.producers.torch_hook.iterations import Iterations

way = sys.argv[1]
profiling._TOGETHER_S = 1e-6
torch.set_num_threads(1)
ours, theirs = socket.socketpair()
ours.settimeout(5)
errors = []
profiler = profiling.Profiler(way != "forbidden", errors.append)
iterations = Iterations()
values = torch.randn(300_000)
phases = []

def iterate(number):
    with iterations.mark(number):
        if profiler.is_due:
            with iterations.in_phase("eval"):
                profiler.step(number)
        torch.sort(values)
        phases.append(PHASES[iterations._current.phase])

def ask():
    reply = Process(1, theirs).ask_profile()
    profiler.serve(ours)
    return reply

reply = ask()
if way == "late":
    profiler._asked_s -= 3600
if way == "long":
    profiling._LONGEST_S = 0.0
if way == "large":
    profiling.MOST_BYTES = 1000
if way == "slow_start":
    profiling._LONGEST_S, begin = 0.3, torch.profiler.profile.start
    torch.profiler.profile.start = lambda self: (time.sleep(0.4), begin(self))
if way == "broken":
    torch.profiler.profile.start = lambda self: 1 / 0
own = []
if way in ("running", "started", "warming"):
    plan = {"running": schedule(wait=0, warmup=0, active=30), "started": schedule(wait=3, warmup=1, active=3),
            "warming": schedule(wait=0, warmup=4, active=3)}[way]
    with profile(activities=[ProfilerActivity.CPU], schedule=plan,
                 on_trace_ready=lambda one: own.extend(event.key for event in one.key_averages())) as theirs_own:
        for number in range(12):
            iterate(number)
            theirs_own.step()
else:
    for number in range(100, 112):
        iterate(2 * number + 1 if way == "odd" else number)
profiler.serve(ours)
said, descriptors, *_ = socket.recv_fds(reply, 200, 1)
found = [[one.kind, one.device, one.code, one.detail] for one in events_of_trace(descriptors[0], 2, "here", 5)] \\
    if descriptors else []
again = ask()
again.settimeout(0.2)
try:
    refused = again.recv(200).decode()
except TimeoutError:
    refused = ""
print(json.dumps({"said": said.decode(), "found": found, "phases": phases, "refused": refused, "own": own,
                  "errors": list(map(str, errors)), "functions": torch.autograd.profiler._prepare_profiler.__name__}))
"""


def answer(way: str, folder: Path) -> dict[str, object]:
    done = run_python("-c", SCRIPT, way, directory=folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    assert found["functions"] == "_prepare_profiler", "torch's own is put back"
    return found


@pytest.mark.parametrize(("way", "unjudged"), [("allowed", 8), ("odd", 6), ("slow_start", 8)])
def test_a_profile_tells_the_operators_by_their_share_of_a_few_iterations_that_are_not_judged(
    tmp_path: Path, way: str, unjudged: int
) -> None:
    found = answer(way, tmp_path)
    assert found["said"] == "trace"
    events = found["found"]
    assert isinstance(events, list)
    kind, device, share, name = events[0]
    assert (kind, device, name) == ("function", "CPU operators", "aten::sort")
    assert 500 < share <= 1000
    # One shows how long it takes; they begin at 102 and record from 104 on. Odd ones pass a multiple of 2 each time.
    assert found["phases"] == [*["eval"] * unjudged, *["train"] * (12 - unjudged)]
    assert (found["refused"], found["errors"]) == ("", []), "it may be asked again"


@pytest.mark.parametrize(("way", "said"), [
    ("forbidden", "torch_comms.start(profiler=False)"),
    ("running", "another profiler runs"),
    ("started", "another profiler was started"),
    ("late", "no iteration began in time"),
    ("long", "an iteration takes 0 s, more than 0 s"),
    ("large", "it failed: 0 MiB"),
    ("broken", "it failed: division by zero"),
])  # fmt: skip
def test_who_gets_no_profile_is_told_why_and_training_goes_on(tmp_path: Path, way: str, said: str) -> None:
    found = answer(way, tmp_path)
    assert str(found["said"]).startswith(said)
    assert isinstance(found["own"], list)
    assert ("aten::sort" in found["own"]) == (way in ("running", "started")), "the script's own profile is whole"
    assert found["refused"] == (found["said"] if way in ("forbidden", "large", "broken") else "")
    assert bool(found["errors"]) == (way in ("large", "broken")), "the log says it, once"


def test_a_profiler_of_the_script_that_warms_up_does_not_fail_by_ours(tmp_path: Path) -> None:
    own = answer("warming", tmp_path)["own"]
    assert isinstance(own, list)
    assert "aten::sort" in own
