"""Our Kafka driver for Faust, on librdkafka, in the entry point group ``faust.transports``.

Start at `transport.py`; `group_member.py` keeps the worker's place in its consumer group, `block_fetcher.py` reads.
"""
