"""Metrics of a worker, its signs of life, and lines of its log.

Start at `counters.py`, which stages and writers are given; `observer.py` observes the stages each second and serves
the pages, `health.py` decides whether they work. Log: `log_lines.py`.
"""
