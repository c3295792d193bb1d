"""Where results go: ClickHouse, alerts, memory.

Start at `protocol.py` (what a sink is), then `tables.py` and `clickhouse.py`. `investigations.py` asks the database,
`alerts.py` and `advice.py` word what people are told.
"""
