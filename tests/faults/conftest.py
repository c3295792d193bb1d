"""Faults meet the pipeline of the integration tests."""

from __future__ import annotations

from tests.integration.conftest import bus, database, partitions, pipeline, start_notify, start_worker, usual_settings

__all__ = ["bus", "database", "partitions", "pipeline", "start_notify", "start_worker", "usual_settings"]
