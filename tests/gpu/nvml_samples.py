"""What the agent's source reads of GPU 0 through NVML: idle, under load, copying, and with an Xid.

``nvml_samples.py OUT.jsonl [PROGRAM]``; the program makes a critical error of its own context.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from irregulars.messages.announcements import Announcement
from irregulars.producers.node.gpu import GpuFeed, count_gpus
from irregulars.producers.node.roster import Roster

LOAD = """
import time, torch
square, pinned = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16), torch.randn(64 << 20).pin_memory()
time.sleep(3)
until_s = time.time() + 12
while time.time() < until_s:
    for _ in range(20):
        square @ square
    torch.cuda.synchronize()
until_s = time.time() + 4
while time.time() < until_s:
    pinned.cuda()
    torch.cuda.synchronize()
"""
XID_AT_S, PAST_S = 26.0, 34.0


def main() -> None:
    assert count_gpus(), "a GPU must be there"
    roster = Roster("node-0", gpus=[0], is_sampling_nics=False)
    roster.admit(Announcement("gpu", 0, 0, 1, 1, (), gpu=0))
    feed = GpuFeed(roster, period_s=0.2)
    load = subprocess.Popen([sys.executable, "-c", LOAD])
    began_s, wrong = time.monotonic(), sys.argv[2:]
    with open(sys.argv[1], "w") as lines:
        while time.monotonic() - began_s < PAST_S:
            time.sleep(0.5)
            for one in feed.take():
                row = {"path": one.path, "times_ns": one.times_ns.tolist(), "rates": one.rates.tolist()}
                lines.write(json.dumps(row) + "\n")
            for state in feed.take_health():
                lines.write(json.dumps({"time_ns": state.time_ns, "health": state.values}) + "\n")
            if wrong and time.monotonic() - began_s > XID_AT_S:
                subprocess.run(wrong, check=False)
                wrong = []
    load.kill()
    feed.close()
    print(f"{time.process_time() / PAST_S:.1%} of a core, five looks a second")


if __name__ == "__main__":
    main()
