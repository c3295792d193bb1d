"""The two hops between the bus and their monitors: messages in order, results sent, snapshots before acknowledging.

Start at `stage.py`, of which `rank_stage.py` and `job_stage.py` are the two kinds. Nothing here knows Faust.
"""
