"""Attributions as JSON values, for snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from detectors.critical_path import Attribution, Lane, LaneExcess, Piece
