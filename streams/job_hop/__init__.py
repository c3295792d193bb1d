"""The second hop: a job's evidence is judged iteration by iteration.

Start at `job_monitor.py`; `job_roster.py` says how far each rank has come. The judging itself is in
`detectors/judging`.
"""
