"""Kafka as both hops use it: topics, sending with acknowledgement, reading again by offset, dead letters.

Start at `topics.py` and `outbox.py`.
"""
