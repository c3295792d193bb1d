"""Reads broker, database, pages and files within a deadline, and changes nothing. Start at `kafka.py`."""
