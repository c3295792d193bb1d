"""`irregulars doctor` where a service lets few in: each cause named, no secret shown, no time lost."""

from __future__ import annotations

import time

from irregulars.infra.doctor.diagnosis import diagnose
from irregulars.infra.doctor.findings import Finding, Question, status_of
from irregulars.infra.settings import LenientSettings, Settings

WRONG = "swordfish"
PATIENT_S = 60.0
"""How long a service that is there may take: a busy machine needs some seconds."""


def diagnosed(settings: Settings, role: str | None = None, *only: str, within_s: float = PATIENT_S) -> list[Finding]:
    begin_s = time.monotonic()
    found = diagnose(LenientSettings(settings), Question("irregulars", role, only, within_s))
    assert time.monotonic() - begin_s < within_s + PATIENT_S
    return found


def problems(found: list[Finding]) -> list[Finding]:
    return [one for one in found if one.level == "problem"]


def require_one_cause(name: str, found: list[Finding], code: str, words: str, *secrets: str) -> None:
    """Require that one line says it, that what to do stands beneath, and that no secret is in the report."""
    assert [one.code for one in problems(found)] == [code], (name, problems(found))
    (one,) = problems(found)
    assert words in one.text, (name, one.text)
    assert one.to_do, name
    assert "\n" not in one.text, name
    assert not [secret for secret in (WRONG, *secrets) if secret in repr(found)], name
    assert status_of(found) == 1, name
