"""The web console: the database and the topic of alerts as pages. Start with `database.py`; `serving` joins all."""
