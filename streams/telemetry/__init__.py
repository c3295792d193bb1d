"""What a worker tells of itself: counters, signs of life, metrics for Prometheus, lines of the log.

Start at `counters.py`, which stages and writers are given; `observer.py` looks at the stages each second, `health.py`
decides whether they work, `worker_metrics.py` lists every metric, `worker_pages.py` serves them. Log: `log_lines.py`.
"""
