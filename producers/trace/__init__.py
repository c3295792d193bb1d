"""Trace directories: the recorded input of one training job, read and written.

Start at `directory.py`; `files.py`, `job_file.py` and `rows.py` check its content.
"""
