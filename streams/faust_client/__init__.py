"""Faust's Kafka client as a worker needs it: it reads on where the snapshots say, and bears a broker that is away.

Start at `consumer.py`; `connection.py` has the group's connection, `block_fetcher.py` fetches beside the event loop.
"""
