"""Saved answers of NCCL's RAS service."""
