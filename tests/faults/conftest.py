"""Faults meet the pipeline of the integration tests."""

from __future__ import annotations

from tests.integration.conftest import bus, pipeline, start_worker

__all__ = ["bus", "pipeline", "start_worker"]
