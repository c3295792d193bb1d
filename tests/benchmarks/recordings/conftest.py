"""Collecting the modules' examples imports them, and `jobs` imports torch, which need not be there."""

collect_ignore = ["jobs.py"]
