"""How far the topics have been read, by this worker and by all: the only clock by which a silence may be told.

Start at `stream_time.py`; its `ReadThrough` is the idea of it, without Kafka. `word_log.py` follows the topics of
people's words: changed thresholds, opinions on verdicts.
"""
