"""The account is tried on the pipeline of the integration tests."""

from __future__ import annotations

from tests.integration.conftest import database, partitions, pipeline

__all__ = ["database", "partitions", "pipeline"]
