"""Who waited for whom, and which piece of work or transfer took longer than usual on the critical path.

Start at `operator_graph.py`, then `critical_path.py`. Usual times come from the job's own past
(`usual_by_past.py`) or from ranks that do the same work (`usual_by_peers.py`). `find_hang.py` finds the ranks for
which all others wait in a job that hangs.
"""
