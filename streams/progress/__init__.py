"""How far the topics have been read, by this worker and by all: the only clock by which a silence may be told.

Start at `stream_time.py`; `read_through.py` is the idea of it, without Kafka. `live_words.py` says by which
words of people (changed thresholds, opinions on verdicts) what was read is judged.
"""
