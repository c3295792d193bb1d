"""What the console reads and says on Kafka: start with `recent_alerts.py`."""
