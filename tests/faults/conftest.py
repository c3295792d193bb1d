"""Faults meet the pipeline of the integration tests."""

from __future__ import annotations

from tests.integration.conftest import pipeline

__all__ = ["pipeline"]
