"""The second hop: a job's evidence is judged iteration by iteration.

Start at `job_monitor.py`; `job_roster.py` says how far each rank has come, `job_clock.py` when to wait no longer. The
judging itself is in `detectors/judging`.
"""
