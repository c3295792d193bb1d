"""Where results go: ClickHouse, alerts, memory.

Start at `protocol.py`, then `tables.py` and `clickhouse.py`. `investigations.py` asks the database,
`alerts.py` and `advice.py` are the texts for people.
"""
