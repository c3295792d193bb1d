"""From a source to Kafka: batches, the agent that polls, the publisher, the spool.

Start at `sources.py` (the protocol of a source), then `agent.py` and `publisher.py`; `spool.py` keeps messages on
disk while Kafka is away.
"""
