"""Logs what a training process communicates.

Start at `session.py`. Rooms in the order of the data: `hooks` (see operators), `records` (make rows of them),
`leaving` (trace directory, agent's socket or Kafka).
"""
