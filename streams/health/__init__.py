"""How a worker outlasts faults around it, and shows its state: metrics, pages and log; it ends when it can't go on.

Start at `broker_watch.py` and `watchdog.py`. `counters.py` are handed to stages and writers; `observer.py` observes
the stages each second and serves the pages, `liveness.py` decides whether they work. Log: `log_lines.py`.
"""
