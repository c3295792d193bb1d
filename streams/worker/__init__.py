"""One worker process: Faust reads, two stages work, snapshots make it safe to acknowledge.

Start at `app.py`, then `stage.py`, of which `rank_stage.py` and `job_stage.py` are the two kinds. Only `app.py`,
`agents.py` and `faust_consumer.py` know Faust.
"""
