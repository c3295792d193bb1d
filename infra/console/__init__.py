"""The web console: what the database and the topic of alerts hold, as pages. Start with `database.py`; `serving` joins all."""
