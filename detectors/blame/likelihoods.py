"""Numbers of Bayes' rule: the priors of suspects, the chances of observations, and the calibration of verdicts.

Which device slows which lane is listed in `suspects.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from irregulars.detectors.job.thresholds import JOB
from irregulars.detectors.job.topology import Device
from irregulars.thresholds import threshold

_PRIOR = "odds against a NIC"
_WAY = "share of the faults of such a device"
_SLOW = "probability that the lane is seen slow"


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """Priors, chances and calibration; each field names its meaning and its source."""

    # --- priors: how often which kind of device is to blame ---------------------------------------------------------

    prior_link: float = JOB.most  # rarer than a NIC, which all of its links pass
    prior_switch: float = threshold(0.3, _PRIOR,
        "A switch is to blame.", "chosen: there are fewer switches than NICs")  # fmt: skip
    prior_fabric: float = 1 - JOB.sure  # redundant, so slow as a whole more rarely than one switch (commit 6ebf6b1)
    prior_none: float = JOB.least_share  # chance rarely stands so far out of the noise

    # --- ways: which part of a slow device is slow ------------------------------------------------------------------

    nic_out: float = threshold(0.3, _WAY,
        "The NIC is slow in sending, not in receiving; it is slow in receiving alone in the other cases.",
        "chosen: queues build where a NIC sends (commit a2ee74a)")  # fmt: skip

    # --- chances: how likely a lane is seen slow, by its relation to the device that is to blame --------------------
    # None is 0 or 1, since a ring may pass by a slow link: even a lane that crosses the device can look normal.
    # They are steps of one scale, counted where it says so.

    accused: float = 1 - JOB.least_share  # it was looked into since it was slow
    # In 17 drawn jobs and recordings with a slow NIC 80 % of its pairs its way were slow and 6 % less slow, in 12 of
    # them 88 % of its groups. Also that ranks lack processor time, and that who leaves a ring first is far from the
    # slow device.
    crosses: float = JOB.sure
    may_cross: float = JOB.most  # nobody knows which of them it takes
    shares_host: float = JOB.nearly_all  # a ring may enter and leave the host by another NIC
    inside: float = 1 - JOB.nearly_all  # gloo, and NCCL without P2P, send it over the NIC; NVLink does not
    untouched: float = JOB.least_share  # more than noise beyond JOB.sigmas, as one fault makes others wait
    nobody: float = threshold(0.15, _SLOW,
        "No device is to blame.",
        "chosen: three times untouched, since bad moments of a network slow many lanes at once")  # fmt: skip

    # --- an end of a slow transfer has one of the lowest peak rates -------------------------------------------------

    low_by_chance: float = 1 - JOB.sure  # in a ring the neighbour of a capped NIC has the same peak, one of ten ends

    # --- hangs (`verdicts.revision`) --------------------------------------------------------------------------------

    hang_probability: float = threshold(0.96, "probability",
        "The suspect of a hang for which the one below does not hold.",
        "computed: (14 + 1/2) / 15, since 14 of 14 in recordings and drawn jobs were right")  # fmt: skip
    silent_hang_probability: float = threshold(0.7, "probability",
        "The suspect of a hang whose members that log nothing are accused.",
        "chosen: one of the others may have stopped inside, and those may wait themselves")  # fmt: skip

    # --- what devices reported (`reported.py`) ---------------------------------------------------------------------

    reported_error: float = threshold(10.0, "times as likely",
        "The suspect's device reported an error before the cause was first seen.",
        "chosen: far less than the rates say (Meta: 6.5 failures per 1,000 node-days, so 5e-5 in ten minutes on a "
        "healthy node), since errors are also reported by devices that go on as before")  # fmt: skip
    reported_degraded: float = threshold(3.0, "times as likely",
        "It reported that its clocks are held down, or that its link's error counters grow.",
        "chosen: less than an error: clocks are often held down under load, and links correct errors")  # fmt: skip

    # --- other evidence ---------------------------------------------------------------------------------------------

    steady_if_link: float = threshold(3.0, "times as likely as by chance",
        "A NIC's rate is steady because a link of it is slow.",
        "chosen: between chance and a slow NIC; other transfers would burst in between (commit b66c467)")  # fmt: skip
    first_suspect_odds: float = threshold(3.0, "times the odds",
        "The first suspect's odds are multiplied by this.",
        "chosen: on the development split of the localization benchmark 91 of 93 first suspects were right, "
        "promised with 0.90 on average (commit 1ceeb88); a higher factor fits it still better, but recordings of "
        "real jobs are less tidy")  # fmt: skip


LIKELIHOODS: Final = Likelihoods()
SUREST: Final = 0.99
"""No suspect is published as more probable: causes that nobody thought of are in none of the likelihoods."""

Suspects = tuple[tuple[Device, float], ...]  # devices with the probability of each, best first; alternatives


def calibrated(suspects: Sequence[tuple[Device, float]]) -> Suspects:
    """Return suspects with the calibrated probability of the first; the others share the rest as before.

    Odds are multiplied by `first_suspect_odds`: 0.5 is 1 to 1, becomes 3 to 1, and is promised as 0.75.

    >>> calibrated([(Device("nic", (1,)), 0.5), (Device("nic", (2,)), 0.5)])
    ((Device(kind='nic', ranks=(1,)), 0.75), (Device(kind='nic', ranks=(2,)), 0.25))
    """
    if not suspects:
        return ()
    (first, raw), *others = suspects
    factor = LIKELIHOODS.first_suspect_odds
    promised = factor * raw / (1 + (factor - 1) * raw)
    left = (1 - promised) / (1 - raw) if raw < 1 else 0.0
    return ((first, promised), *((device, probability * left) for device, probability in others))
