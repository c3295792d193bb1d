"""The web console: the database and the topic of alerts as pages. Start at `server.py`, then `database.py`."""
