"""The two hops between the bus and their monitors: messages in order, results sent, snapshots before acknowledging.

Start at `stage.py`, of which `rank_stage.py` and `job_stage.py` are the two kinds. Nothing here knows Faust.
How far the topics have been read, by this worker and by all, is the only clock by which a silence may be judged:
`stream_time.py`. `word_log.py` follows the topics of changed thresholds and of opinions on verdicts.
"""
